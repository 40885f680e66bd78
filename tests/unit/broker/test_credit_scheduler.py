"""Credit is granted in quanta, by turns, and given back."""

from __future__ import annotations

from collections import deque
from typing import Any

from duobus.broker.delivery.credit_scheduler import QUANTUM, CreditScheduler, Receiver
from duobus.broker.fragment_handle import FragmentHandle
from duobus.model.batches import DeliveryBatch
from kits.fragment import Box


class Stock:
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
        self.submit = None
        self.takes: deque[tuple[FragmentHandle, int, Receiver]] = deque()
        self.unlocked: list[tuple[list[tuple[int, int]], bool]] = []

    def take(self, handle: FragmentHandle, source_no: int, sub_queue: int, credit: int, receiver: Receiver) -> None:
        """See FragmentHandle.take."""
        stock = handle.fragment
        assert isinstance(stock, Stock)
        stock.messages -= credit
        self.takes.append((handle, credit, receiver))

    def answer(self, missing: int = 0) -> None:
        """Deliver what was taken longest ago, with so many messages fewer than granted."""
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
        """See FragmentHandle.unlock."""
        self.unlocked.append((ranges, counted))


class Handle(FragmentHandle):
    """A handle whose verbs are those of its broker."""

    def take(self, *arguments: Any) -> None:
        """See FragmentHandle.take."""
        self.broker.take(self, *arguments)  # type: ignore[attr-defined]

    def unlock(self, *arguments: Any, **options: Any) -> Any:
        """See FragmentHandle.unlock."""
        return self.broker.unlock(self, *arguments, **options)  # type: ignore[attr-defined]


def stage(*messages: int) -> tuple[CreditScheduler, Broker, list[FragmentHandle]]:
    """A credit scheduler and fragments with so many messages, not offered yet."""
    broker = Broker()
    handles = [Handle(broker, 1, index) for index in range(len(messages))]  # type: ignore[arg-type]
    for handle, number in zip(handles, messages, strict=True):
        handle.fragment = Stock(number)  # type: ignore[assignment]
    return CreditScheduler(0, 0), broker, handles


def granted(broker: Broker) -> list[tuple[int, int]]:
    """(fragment number, credit) of every take that was not answered."""
    return [(handle.number, credit) for handle, credit, _ in broker.takes]


def test_nothing_is_taken_for_a_receiver_that_did_not_ask() -> None:
    scheduler, broker, (handle,) = stage(5)
    scheduler.open(Box(), removing=False)
    scheduler.offer(handle)
    assert granted(broker) == []


def test_no_more_is_lent_than_there_is_or_than_is_wanted() -> None:
    scheduler, broker, handles = stage(3, 9)
    receiver = scheduler.open(Box(), removing=False)
    receiver.request(10)
    for handle in handles:
        scheduler.offer(handle)
    assert granted(broker) == [(0, 3), (1, 7)]
    assert (receiver.wanted, receiver.granted) == (0, 10)


def test_receivers_and_fragments_take_turns_in_quanta() -> None:
    """PE5."""
    scheduler, broker, handles = stage(10 * QUANTUM, 10 * QUANTUM)
    receivers = [scheduler.open(Box(), removing=False) for _ in range(2)]
    for receiver in receivers:
        receiver.request(3 * QUANTUM)
    for handle in handles:
        scheduler.offer(handle)
    assert {credit for _, credit in granted(broker)} == {QUANTUM}
    assert [receiver.granted for receiver in receivers] == [3 * QUANTUM, 3 * QUANTUM]
    assert [receivers.index(receiver) for _, _, receiver in broker.takes] == [0, 1, 0, 1, 0, 1]


def test_a_greedy_receiver_does_not_starve_a_modest_one() -> None:
    scheduler, _, (handle,) = stage(2 * QUANTUM)
    greedy, modest = (scheduler.open(Box(), removing=False) for _ in range(2))
    greedy.request(1_000_000)
    modest.request(1)
    scheduler.offer(handle)
    assert modest.granted == 1


def test_a_request_sets_the_credit_and_does_not_add_to_it() -> None:
    scheduler, broker, (handle,) = stage(100)
    receiver = scheduler.open(Box(), removing=False)
    receiver.request(10)
    receiver.request(10)
    scheduler.offer(handle)
    receiver.request(10)
    assert granted(broker) == [(0, 10)]
    receiver.request(12)
    assert granted(broker) == [(0, 10), (0, 2)]
    receiver.request(0)
    assert receiver.wanted == 0


def test_credit_that_a_fragment_did_not_use_is_wanted_again() -> None:
    scheduler, broker, (first, second) = stage(4, 0)
    box = Box()
    receiver = scheduler.open(box, removing=False)
    receiver.request(4)
    scheduler.offer(first)
    broker.answer(missing=3)
    assert (receiver.wanted, receiver.granted, box.wakes) == (3, 0, 1)
    assert isinstance(second.fragment, Stock)
    second.fragment.messages = 9
    scheduler.offer(second)
    assert granted(broker) == [(1, 3)]


def test_a_drained_receiver_takes_nothing_more() -> None:
    scheduler, broker, (handle,) = stage(0)
    receiver = scheduler.open(Box(), removing=False)
    receiver.request(5)
    scheduler.offer(handle)
    receiver.request(0)
    assert isinstance(handle.fragment, Stock)
    handle.fragment.messages = 5
    scheduler.offer(handle)
    assert granted(broker) == []


def test_a_closed_receiver_gives_back_what_still_comes() -> None:
    scheduler, broker, (handle,) = stage(5)
    box = Box()
    receiver = scheduler.open(box, removing=False)
    receiver.request(5)
    scheduler.offer(handle)
    receiver.close()
    broker.answer()
    assert broker.unlocked == [([(7, 5)], False)]
    assert (box.ready, box.wakes, scheduler.receivers) == ([], 0, set())


def test_a_closed_receiver_is_never_asked_for_again() -> None:
    scheduler, broker, (handle,) = stage(5)
    receiver = scheduler.open(Box(), removing=False)
    receiver.request(5)
    receiver.close()
    scheduler.offer(handle)
    assert granted(broker) == []


def test_who_asks_after_it_was_closed_keeps_no_offer_from_others() -> None:
    scheduler, broker, (handle,) = stage(3)
    gone, other = scheduler.open(Box(), removing=False), scheduler.open(Box(), removing=False)
    gone.close()
    scheduler.offer(handle)
    gone.request(5)
    assert not broker.takes
    other.request(5)
    assert [(credit, who) for _, credit, who in broker.takes] == [(3, other)]


def test_a_fragment_that_is_away_holds_nobody_up() -> None:
    scheduler, broker, (ill, healthy) = stage(5, 5)
    receiver = scheduler.open(Box(), removing=False)
    receiver.request(5)
    ill.fragment = None
    scheduler.offer(ill)
    scheduler.offer(healthy)
    assert granted(broker) == [(1, 5)]


def stage_in_two_stores(first: int, second: int) -> tuple[CreditScheduler, Broker, Broker, list[FragmentHandle]]:
    """A credit scheduler and two fragments with so many messages, each in a store of its own."""
    scheduler, one, handles = stage(first, second)
    other = Broker()
    handles[1].move_to(other)  # type: ignore[arg-type]
    return scheduler, one, other, handles


def test_who_takes_for_good_is_served_by_stores_that_are_not_late() -> None:
    scheduler, late, well, handles = stage_in_two_stores(5, 5)
    late.is_late = True
    receiver = scheduler.open(Box(), removing=True)
    for handle in handles:
        scheduler.offer(handle)
    receiver.request(8)
    assert (granted(late), granted(well)) == ([], [(1, 5)])
    assert (receiver.wanted, scheduler.passes_over) == (3, True)


def test_who_takes_with_a_lock_is_served_by_a_store_that_is_late() -> None:
    scheduler, late, well, handles = stage_in_two_stores(5, 5)
    late.is_late = True
    removing, locking = scheduler.open(Box(), removing=True), scheduler.open(Box(), removing=False)
    removing.request(5)
    locking.request(5)
    for handle in handles:
        scheduler.offer(handle)
    assert [receiver for _, _, receiver in late.takes] == [locking]
    assert [receiver for _, _, receiver in well.takes] == [removing]


def test_who_passed_a_late_store_over_is_lent_to_it_before_later_ones_when_it_answers() -> None:
    scheduler, late, _, (handle, _) = stage_in_two_stores(5, 0)
    late.is_late = True
    receivers = [scheduler.open(Box(), removing=True) for _ in range(3)]
    for receiver in receivers[:2]:
        receiver.request(2)
    scheduler.offer(handle)
    # To ask again is not to be served later.
    receivers[0].request(2)
    receivers[2].request(2)
    late.is_late = False
    scheduler.offer(handle)
    assert [(receivers.index(receiver), credit) for _, credit, receiver in late.takes] == [(0, 2), (1, 2), (2, 1)]
    assert not scheduler.passes_over


def test_a_receiver_that_closes_while_it_passes_a_store_over_is_forgotten() -> None:
    scheduler, late, _, (handle, _) = stage_in_two_stores(5, 0)
    late.is_late = True
    receiver = scheduler.open(Box(), removing=True)
    receiver.request(2)
    scheduler.offer(handle)
    receiver.close()
    late.is_late = False
    scheduler.offer(handle)
    assert (granted(late), scheduler.passes_over) == ([], False)


def test_a_fragment_that_gets_a_message_back_while_one_is_taken_stays_on_offer() -> None:
    scheduler, broker, (handle,) = stage(1)
    take = broker.take

    def take_and_get_back(handle: FragmentHandle, *rest: Any) -> None:
        # What message brokers do: locks that have ended by now are ended first.
        broker.take = take  # type: ignore[method-assign]
        handle.fragment.messages += 1  # type: ignore[union-attr]
        scheduler.offer(handle)
        take(handle, *rest)

    broker.take = take_and_get_back  # type: ignore[assignment, method-assign]
    first, second = scheduler.open(Box(), removing=False), scheduler.open(Box(), removing=False)
    first.request(1)
    scheduler.offer(handle)
    assert granted(broker) == [(0, 1)]
    second.request(1)
    assert granted(broker) == [(0, 1), (0, 1)]
