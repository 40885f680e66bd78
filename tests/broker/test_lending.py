"""Credit is lent in quanta, by turns, and given back."""

from __future__ import annotations

from collections import deque
from typing import Any

from fragment_kit import Box

from duobus.broker.delivery.credit_scheduler import QUANTUM, CreditScheduler, Receiver
from duobus.broker.fragment_handle import FragmentHandle
from duobus.model.batches import DeliveryBatch


class Shelf:
    """Stands for a fragment engine: some messages."""

    def __init__(self, messages: int) -> None:
        self.messages = messages

    def available(self, source_no: int, sub_queue: int) -> int:
        """See Fragment.available."""
        return self.messages


class Broker:
    """Stands for a message broker: answers takes when it is told to."""

    def __init__(self) -> None:
        self.is_late = False
        self.takes: deque[tuple[FragmentHandle, int, Receiver]] = deque()
        self.unlocked: list[tuple[list[tuple[int, int]], bool]] = []

    def take(self, handle: FragmentHandle, source_no: int, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """See MessageBroker.take."""
        shelf = handle.fragment
        assert isinstance(shelf, Shelf)
        shelf.messages -= credit
        self.takes.append((handle, credit, receiver))

    def answer(self, missing: int = 0) -> None:
        """Deliver what was taken longest ago, with so many messages fewer than lent."""
        handle, credit, receiver = self.takes.popleft()
        receiver.deliver(DeliveryBatch(handle, b"prefix..", 7, [object()] * (credit - missing), 1), credit)

    def unlock(
        self,
        handle: FragmentHandle,
        source_no: int,
        prefix: bytes,
        ranges: list[tuple[int, int]],
        *,
        counted: bool,
    ) -> None:
        """See MessageBroker.unlock."""
        self.unlocked.append((ranges, counted))


def stage(*messages: int) -> tuple[CreditScheduler, Broker, list[FragmentHandle]]:
    """A lender and fragments with so many messages, not offered yet."""
    broker = Broker()
    handles = [FragmentHandle(broker, 1, index) for index in range(len(messages))]  # type: ignore[arg-type]
    for handle, number in zip(handles, messages, strict=True):
        handle.fragment = Shelf(number)  # type: ignore[assignment]
    return CreditScheduler(0, 0), broker, handles


def lent(broker: Broker) -> list[tuple[int, int]]:
    """(fragment number, credit) of every take that was not answered."""
    return [(handle.number, credit) for handle, credit, _ in broker.takes]


def test_nothing_is_taken_for_a_receiver_that_did_not_ask() -> None:
    lender, broker, (handle,) = stage(5)
    lender.open(Box(), removing=False)
    lender.offer(handle)
    assert lent(broker) == []


def test_no_more_is_lent_than_there_is_or_than_is_wanted() -> None:
    lender, broker, handles = stage(3, 9)
    receiver = lender.open(Box(), removing=False)
    receiver.request(10)
    for handle in handles:
        lender.offer(handle)
    assert lent(broker) == [(0, 3), (1, 7)]
    assert (receiver.wanted, receiver.lent) == (0, 10)


def test_receivers_and_fragments_take_turns_in_quanta() -> None:
    """PE5."""
    lender, broker, handles = stage(10 * QUANTUM, 10 * QUANTUM)
    receivers = [lender.open(Box(), removing=False) for _ in range(2)]
    for receiver in receivers:
        receiver.request(3 * QUANTUM)
    for handle in handles:
        lender.offer(handle)
    assert {credit for _, credit in lent(broker)} == {QUANTUM}
    assert [receiver.lent for receiver in receivers] == [3 * QUANTUM, 3 * QUANTUM]
    assert [receivers.index(receiver) for _, _, receiver in broker.takes] == [0, 1, 0, 1, 0, 1]


def test_a_greedy_receiver_does_not_starve_a_modest_one() -> None:
    lender, _, (handle,) = stage(2 * QUANTUM)
    greedy, modest = (lender.open(Box(), removing=False) for _ in range(2))
    greedy.request(1_000_000)
    modest.request(1)
    lender.offer(handle)
    assert modest.lent == 1


def test_a_request_sets_the_credit_and_does_not_add_to_it() -> None:
    lender, broker, (handle,) = stage(100)
    receiver = lender.open(Box(), removing=False)
    receiver.request(10)
    receiver.request(10)
    lender.offer(handle)
    receiver.request(10)
    assert lent(broker) == [(0, 10)]
    receiver.request(12)
    assert lent(broker) == [(0, 10), (0, 2)]
    receiver.request(0)
    assert receiver.wanted == 0


def test_credit_that_a_fragment_did_not_use_is_wanted_again() -> None:
    lender, broker, (first, second) = stage(4, 0)
    box = Box()
    receiver = lender.open(box, removing=False)
    receiver.request(4)
    lender.offer(first)
    broker.answer(missing=3)
    assert (receiver.wanted, receiver.lent, box.wakes) == (3, 0, 1)
    assert isinstance(second.fragment, Shelf)
    second.fragment.messages = 9
    lender.offer(second)
    assert lent(broker) == [(1, 3)]


def test_a_drained_receiver_takes_nothing_more() -> None:
    lender, broker, (handle,) = stage(0)
    receiver = lender.open(Box(), removing=False)
    receiver.request(5)
    lender.offer(handle)
    receiver.request(0)
    assert isinstance(handle.fragment, Shelf)
    handle.fragment.messages = 5
    lender.offer(handle)
    assert lent(broker) == []


def test_a_closed_receiver_gives_back_what_still_comes() -> None:
    lender, broker, (handle,) = stage(5)
    box = Box()
    receiver = lender.open(box, removing=False)
    receiver.request(5)
    lender.offer(handle)
    receiver.close()
    broker.answer()
    assert broker.unlocked == [([(7, 5)], False)]
    assert (box.ready, box.wakes, lender.receivers) == ([], 0, set())


def test_a_closed_receiver_is_never_asked_for_again() -> None:
    lender, broker, (handle,) = stage(5)
    receiver = lender.open(Box(), removing=False)
    receiver.request(5)
    receiver.close()
    lender.offer(handle)
    assert lent(broker) == []


def test_who_asks_after_it_was_closed_keeps_no_offer_from_others() -> None:
    lender, broker, (handle,) = stage(3)
    gone, other = lender.open(Box(), removing=False), lender.open(Box(), removing=False)
    gone.close()
    lender.offer(handle)
    gone.request(5)
    assert not broker.takes
    other.request(5)
    assert [(credit, who) for _, credit, who in broker.takes] == [(3, other)]


def test_a_fragment_that_is_away_holds_nobody_up() -> None:
    lender, broker, (ill, healthy) = stage(5, 5)
    receiver = lender.open(Box(), removing=False)
    receiver.request(5)
    ill.fragment = None
    lender.offer(ill)
    lender.offer(healthy)
    assert lent(broker) == [(1, 5)]


def stage_in_two_stores(first: int, second: int) -> tuple[CreditScheduler, Broker, Broker, list[FragmentHandle]]:
    """A lender and two fragments with so many messages, each in a store of its own."""
    lender, one, handles = stage(first, second)
    other = Broker()
    handles[1].broker = other  # type: ignore[assignment]
    return lender, one, other, handles


def test_who_takes_for_good_is_served_by_stores_that_are_not_late() -> None:
    lender, late, well, handles = stage_in_two_stores(5, 5)
    late.is_late = True
    receiver = lender.open(Box(), removing=True)
    for handle in handles:
        lender.offer(handle)
    receiver.request(8)
    assert (lent(late), lent(well)) == ([], [(1, 5)])
    assert (receiver.wanted, lender.passes_over) == (3, True)


def test_who_takes_with_a_lock_is_served_by_a_store_that_is_late() -> None:
    lender, late, well, handles = stage_in_two_stores(5, 5)
    late.is_late = True
    removing, locking = lender.open(Box(), removing=True), lender.open(Box(), removing=False)
    removing.request(5)
    locking.request(5)
    for handle in handles:
        lender.offer(handle)
    assert [receiver for _, _, receiver in late.takes] == [locking]
    assert [receiver for _, _, receiver in well.takes] == [removing]


def test_who_passed_a_late_store_over_is_lent_to_it_before_later_ones_when_it_answers() -> None:
    lender, late, _, (handle, _) = stage_in_two_stores(5, 0)
    late.is_late = True
    receivers = [lender.open(Box(), removing=True) for _ in range(3)]
    for receiver in receivers[:2]:
        receiver.request(2)
    lender.offer(handle)
    # To ask again is not to be served later.
    receivers[0].request(2)
    receivers[2].request(2)
    late.is_late = False
    lender.offer(handle)
    assert [(receivers.index(receiver), credit) for _, credit, receiver in late.takes] == [(0, 2), (1, 2), (2, 1)]
    assert not lender.passes_over


def test_a_receiver_that_closes_while_it_passes_a_store_over_is_forgotten() -> None:
    lender, late, _, (handle, _) = stage_in_two_stores(5, 0)
    late.is_late = True
    receiver = lender.open(Box(), removing=True)
    receiver.request(2)
    lender.offer(handle)
    receiver.close()
    late.is_late = False
    lender.offer(handle)
    assert (lent(late), lender.passes_over) == ([], False)


def test_a_fragment_that_gets_a_message_back_while_one_is_taken_stays_on_offer() -> None:
    lender, broker, (handle,) = stage(1)
    take = broker.take

    def take_and_get_back(handle: FragmentHandle, *rest: Any) -> None:
        # What message brokers do: locks that have ended by now are ended first.
        broker.take = take  # type: ignore[method-assign]
        handle.fragment.messages += 1  # type: ignore[union-attr]
        lender.offer(handle)
        take(handle, *rest)

    broker.take = take_and_get_back  # type: ignore[assignment, method-assign]
    first, second = lender.open(Box(), removing=False), lender.open(Box(), removing=False)
    first.request(1)
    lender.offer(handle)
    assert lent(broker) == [(0, 1)]
    second.request(1)
    assert lent(broker) == [(0, 1), (0, 1)]
