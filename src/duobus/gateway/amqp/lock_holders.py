"""Who holds which lock: the connections on which messages were delivered, and those that hold sessions.

A lock knows nothing of a connection, so that it costs nothing to take one. Who asks looks through the deliveries of all
connections, a slice at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from duobus.gateway.amqp.links.session_link import SessionLink
from duobus.gateway.waits import StepBudget

if TYPE_CHECKING:
    from duobus.broker import FragmentHandle, Queue
    from duobus.gateway.amqp.peer import Peer
    from duobus.gateway.amqp.server import AmqpServer

#: Stretches of deliveries, and links, that are looked at in one slice.
STEPS_AT_ONCE: Final = 1_000

#: A fragment's handle and the counter of a lock there.
Lock = tuple["FragmentHandle", int]


async def holders_of_messages(server: AmqpServer, locks: Mapping[FragmentHandle, Sequence[int]]) -> dict[Lock, Peer]:
    """Return the connections that have messages under these locks, which ascend; others have none."""
    found: dict[Lock, Peer] = {}
    budget = StepBudget(STEPS_AT_ONCE)
    for peer in list(server.peers):
        for run in peer.unsettled_runs():
            wanted, fragment = locks.get(run.handle), run.handle.fragment
            # Locks of before the store was away have other prefixes.
            if wanted is not None and fragment is not None and fragment.prefix == run.prefix:
                index = bisect_left(wanted, run.first_lock)
                while index < len(wanted) and wanted[index] - run.first_lock < len(run.marks):
                    found[run.handle, wanted[index]] = peer
                    index += 1
            await budget.spend()
        await budget.spend()
    return found


async def holders_of_sessions(server: AmqpServer, queue: Queue) -> dict[str, Peer]:
    """Return the connections that hold sessions of a queue, by the ids of these."""
    found: dict[str, Peer] = {}
    budget = StepBudget(STEPS_AT_ONCE)
    for peer in list(server.peers):
        endpoints = peer.endpoints()
        for _, endpoint in endpoints:
            if endpoint.queue is queue and isinstance(endpoint, SessionLink):
                found[endpoint.session_id] = peer
        await budget.spend(1 + len(endpoints))
    return found
