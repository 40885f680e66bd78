"""Large messages come back from the store a few at a time, however many a page of small ones would have."""

from __future__ import annotations

import pytest

from duobus.broker import Queue
from duobus.fragment import fragment as fragment_module
from duobus.fragment.message import MAIN
from duobus.storage import interface, memory
from duobus.storage.interface import StoredMessage
from kits.broker import Hall, batch, sets_constants, simulated, turns
from kits.fragment import Box

SIZE = 400
#: Three messages reach it.
READ_BYTES = 1000


@pytest.fixture(autouse=True)
def short_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (interface, memory):
        monkeypatch.setattr(module, "READ_BYTES_MAX", READ_BYTES)
    monkeypatch.setattr(fragment_module, "WINDOW_BYTES", 2 * READ_BYTES)


class Reads:
    """Counts the messages of each read of a queue's store."""

    def __init__(self, hall: Hall, queue: Queue) -> None:
        self.numbers: list[int] = []
        disk = hall.disks[queue.fragments[0].store.store_id]
        self._load = disk.load
        disk.load = self._counted  # type: ignore[method-assign]

    def _counted(self, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        found = self._load(source_key, first_count, limit)
        self.numbers.append(len(found))
        return found


async def _filled(hall: Hall, number: int) -> Queue:
    """A queue most of whose messages lie in the store only."""
    await hall.start()
    queue = await hall.create()
    queue.send(batch(*(b"%d" % index + bytes(SIZE) for index in range(number))))
    await turns()
    await hall.again()
    return hall.queue()


@simulated
async def test_a_receiver_gets_all_of_them_through_short_pages(hall: Hall) -> None:
    queue = await _filled(hall, 10)
    box = Box()
    receiver = queue.open_receiver(MAIN, box, removing=False)
    receiver.request(20)
    await turns()
    await turns()
    counts = [message.count for found in box.ready for message in found.messages]
    assert counts == list(range(1, 11))
    source = queue.fragments[0].fragment.sources[0]  # type: ignore[union-attr]
    assert (source.tail_count, source.tail_bytes) == (0, 0)


@sets_constants
@simulated
async def test_a_peek_reads_one_message_more_than_it_can_answer_at_most(hall: Hall) -> None:
    queue = await _filled(hall, 30)
    source = queue.fragments[0].fragment.sources[0]  # type: ignore[union-attr]
    assert source.tail_count > 20
    reads = Reads(hall, queue)
    found = await queue.peek(MAIN, source.tail_first, 20, SIZE + 100)
    assert reads.numbers == [2]
    assert [message.count for _, message in found] == list(range(source.tail_first, source.tail_first + 1))
    assert len(await queue.peek(MAIN, 1, 20)) == 20


@simulated
async def test_a_recovery_reads_no_more_than_it_keeps_and_a_page(hall: Hall) -> None:
    queue = await _filled(hall, 30)
    receiver = queue.open_receiver(MAIN, Box(), removing=False)
    receiver.request(1)
    await turns()
    queue.send(batch(b"so that there is a commit"))
    await turns()
    reads = Reads(hall, queue)
    await hall.again()
    assert max(reads.numbers) <= 3
    await turns()
    source = hall.queue().fragments[0].fragment.sources[0]  # type: ignore[union-attr]
    assert source.numbers[MAIN] == 31
    assert source.by_count[1].deliveries == 1
