"""Receivers that wait for what is there: I29, watched in the broker whenever nothing more happens at an instant.

A history of what clients saw cannot tell which messages a fragment had while a receiver waited. So this looks into the
AMQP server of the simulated broker before time moves on. At such a moment everything that an event sets off has been
done, and a link that could be given a message and is not will stay so until something else happens.

A lock needs no commit, so who takes messages with a lock gets them from a store that is slow, too. Who takes them for
good needs one (I13): for that one only the messages of stores that are well are there, and credit is in use for which
a slow store has been told to remove messages. What has only been asked of a slow store is not: it can be asked for
elsewhere (I29: regardless of dead or slow fragments).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duobus.fragment.receive import TakeAndRemove
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
from simulation.history import events as h

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from simulation.world.store_health import StoreHealth
    from simulation.world.world import World

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

    def __init__(self, world: World, health: StoreHealth) -> None:
        self._world = world
        self._health = health
        self._waits: dict[OutgoingLink, _Wait] = {}

    def rest(self, now: float, until: float) -> None:
        """Nothing happens from ``now`` to ``until``; called by the loop."""
        amqp = self._world.amqp_server
        waits: dict[OutgoingLink, _Wait] = {}
        if amqp is not None and self._world.node.alive:
            for peer in amqp.peers:
                for link, endpoint in peer.endpoints():
                    if not isinstance(endpoint, OutgoingLink) or not link.is_attached or not peer.has_room:
                        continue
                    what = self._in_vain(endpoint)
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

    def _in_vain(self, endpoint: OutgoingLink) -> str | None:
        """Why a link that is left as it is waits in vain, or None."""
        unsent, credit = endpoint.unsent, endpoint.link.credit
        if unsent > credit and not endpoint.is_removing:
            return "keeps a message that it has no credit for"
        if not endpoint.link.sendable():
            return None
        if unsent:
            return "has credit for a message that lies at it"
        if endpoint.is_removing:
            return self._removal_in_vain(endpoint)
        if _is_something_there(endpoint):
            return "has credit for a message that lies in a fragment"
        return None

    def _removal_in_vain(self, endpoint: OutgoingLink) -> str | None:
        source_no, sub_queue, receiver = endpoint.queue.source_no, endpoint._sub_queue, endpoint._receiver
        well = {
            broker: self._health.sick_since(broker.store_id) is None
            for broker in {handle.broker for handle in endpoint.queue.fragments}
        }
        if not any(
            well[handle.broker] and _has_messages(handle.fragment, source_no, sub_queue)
            for handle in endpoint.queue.fragments
        ):
            return None
        in_use = sum(
            command.credit
            for broker, is_well in well.items()
            if not is_well
            for command in broker.commit_loop.work or ()
            if isinstance(command, TakeAndRemove) and command.receiver is receiver
        )
        if endpoint.link.credit > in_use:
            return "has credit for a message that lies in a fragment of a store that is well"
        return None


def _is_something_there(endpoint: OutgoingLink) -> bool:
    """Whether a fragment could give a message to this link now; one is enough, so that no count is needed."""
    source_no, sub_queue = endpoint.queue.source_no, endpoint._sub_queue
    return any(_has_messages(handle.fragment, source_no, sub_queue) for handle in endpoint.queue.fragments)


def _has_messages(fragment: Fragment | None, source_no: int, sub_queue: int) -> bool:
    return fragment is not None and fragment.available(source_no, sub_queue) > 0
