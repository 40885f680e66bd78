"""Receivers that wait for what is there: I29, watched in the broker whenever nothing more happens at an instant.

A history of what clients saw cannot tell which messages a fragment had while a receiver waited. So this looks into the
AMQP door of the simulated broker before time moves on. At such a moment everything that an event sets off has been
done, and a link that could be given a message and is not will stay so until something else happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.gateway.amqp.outgoing_link import OutgoingLink
from duobus.testing import history as h

if TYPE_CHECKING:
    from duobus.testing.sim_world import World

#: Virtual time in which a receiver with credit gets what there is (I29).
LIMIT_S: Final = 1.0


class _Wait:
    """How a link has stood since nothing more was sent on it."""

    __slots__ = ("is_told", "sent", "since", "what")

    def __init__(self, what: str, sent: int, since: float) -> None:
        self.what = what
        self.sent = sent
        self.since = since
        self.is_told = False


class WaitWatch:
    """Tells the history of receivers that wait in vain."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._waits: dict[OutgoingLink, _Wait] = {}

    def rest(self, now: float, until: float) -> None:
        """Nothing happens from ``now`` to ``until``; called by the loop."""
        door = self._world.amqp_door
        waits: dict[OutgoingLink, _Wait] = {}
        if door is not None and self._world.node.alive:
            for peer in door.peers:
                for link, endpoint in peer.endpoints():
                    if not isinstance(endpoint, OutgoingLink) or not link.is_attached or not peer.has_room:
                        continue
                    what = _in_vain(endpoint)
                    if what is None:
                        continue
                    wait = self._waits.get(endpoint)
                    if wait is None or (wait.what, wait.sent) != (what, link.delivery_count):
                        wait = _Wait(what, link.delivery_count, now)
                    waits[endpoint] = wait
                    if until - wait.since >= LIMIT_S and not wait.is_told:
                        wait.is_told = True
                        name = link.name.decode() if isinstance(link.name, bytes) else link.name
                        event = h.WaitedInVain(endpoint.queue.path, name, what, round((until - wait.since) * 1000))
                        self._world.history.append(event)
        self._waits = waits


def _in_vain(endpoint: OutgoingLink) -> str | None:
    """Why a link that is left as it is waits in vain, or None."""
    unsent, credit = endpoint.unsent, endpoint.link.credit
    if unsent > credit and not endpoint.is_removing:
        return "keeps a message that it has no credit for"
    if not endpoint.link.sendable():
        return None
    if unsent:
        return "has credit for a message that lies at it"
    if endpoint.available():
        return "has credit for a message that lies in a fragment"
    return None
