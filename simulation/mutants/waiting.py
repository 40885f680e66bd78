"""Bugs planted where credit is counted: the simulation has to catch clients that wait in vain (see ``queues``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from unittest import mock

from duobus.broker.delivery.credit_scheduler import CreditScheduler
from duobus.broker.fragment_handle import FragmentHandle
from duobus.gateway.amqp.links.outgoing_link import OutgoingLink


@contextmanager
def credit_counted_twice() -> Iterator[None]:
    """A link that asks for more does not count what was handed out to it in the same turn."""

    def blind(original: Callable[[OutgoingLink], None]) -> Callable[[OutgoingLink], None]:
        def without_mailbox(self: OutgoingLink) -> None:
            ready, self.ready = self.ready, []
            original(self)
            self.ready = ready + self.ready

        return without_mailbox

    link = OutgoingLink
    with mock.patch.object(link, "_ask", blind(link._ask)), mock.patch.object(link, "flow", blind(link.flow)):
        yield


@contextmanager
def offer_forgotten() -> Iterator[None]:
    """A fragment that offers messages while nobody waits is not asked when somebody comes."""
    original, offer_original = CreditScheduler.match, CreditScheduler.offer

    def match(self: CreditScheduler) -> None:
        original(self)
        self._offers.clear()

    def offer(self: CreditScheduler, handle: FragmentHandle) -> None:
        offer_original(self, handle)
        self._offers.clear()

    with mock.patch.object(CreditScheduler, "match", match), mock.patch.object(CreditScheduler, "offer", offer):
        yield


WAIT_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "credit-counted-twice": credit_counted_twice,
    "offer-forgotten": offer_forgotten,
}
