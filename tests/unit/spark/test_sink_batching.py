"""Which messages go out together."""

from __future__ import annotations

from duobus.spark.sink.batches import Batches, BatchKey


class SmallBatch:
    """Takes so many characters."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.messages: list[str] = []

    def __len__(self) -> int:
        return len(self.messages)

    def add(self, message: str) -> bool:
        if sum(map(len, self.messages)) + len(message) > self.room:
            return False
        self.messages.append(message)
        return True


class Sends:
    """Batches of a room of ten, and what was sent."""

    def __init__(self, open_max: int = 16, messages_max: int = 100) -> None:
        self.sent: list[tuple[BatchKey, list[str]]] = []
        self.most_open = 0
        self.batches: Batches[SmallBatch] = Batches(
            lambda _: SmallBatch(10),
            lambda forwarder, batch: self.sent.append((forwarder, batch.messages)),
            open_max,
            messages_max,
        )

    def add(self, entity: str, key: str | None, message: str) -> bool:
        is_taken = self.batches.add((entity, key), message)
        self.most_open = max(self.most_open, len(self.batches))
        return is_taken


def test_a_batch_is_sent_when_the_next_message_does_not_fit() -> None:
    sends = Sends()
    for message in ("aaaa", "bbbb", "cccc"):
        assert sends.add("q", None, message)
    assert sends.sent == [(("q", None), ["aaaa", "bbbb"])]
    sends.batches.flush()
    assert sends.sent[1:] == [(("q", None), ["cccc"])]


def test_a_batch_holds_one_key_of_one_entity() -> None:
    sends = Sends()
    for entity, key in (("q", "1"), ("q", "2"), ("r", "1"), ("q", None), ("q", "1")):
        sends.add(entity, key, "x")
    sends.batches.flush()
    assert dict(sends.sent) == {("q", "1"): ["x", "x"], ("q", "2"): ["x"], ("r", "1"): ["x"], ("q", None): ["x"]}


def test_no_more_than_the_allowed_batches_are_open() -> None:
    sends = Sends(open_max=3)
    for number in range(50):
        sends.add("q", str(number % 7), f"{number}")
    assert sends.most_open == 3
    sends.batches.flush()
    assert sorted(int(m) for _, messages in sends.sent for m in messages) == list(range(50))


def test_messages_of_a_key_keep_their_order_however_batches_are_closed() -> None:
    sends = Sends(open_max=2)
    for number in range(60):
        sends.add("q", str(number % 5), f"{number}")
    sends.batches.flush()
    for key in "01234":
        numbers = [int(m) for forwarder, messages in sends.sent for m in messages if forwarder == ("q", key)]
        assert numbers == sorted(numbers)


def test_a_message_that_no_batch_holds_is_given_back_after_its_predecessors_are_sent() -> None:
    sends = Sends()
    sends.add("q", None, "aaaa")
    assert not sends.add("q", None, "x" * 11)
    assert sends.sent == [(("q", None), ["aaaa"])]
    assert sends.add("q", None, "bbbb")


def test_a_batch_is_sent_when_it_has_as_many_messages_as_one_may() -> None:
    sends = Sends(messages_max=3)
    for _ in range(3):
        sends.add("q", None, "")
    assert sends.sent == [(("q", None), ["", "", ""])]


def test_the_same_rows_make_the_same_batches() -> None:
    def run() -> list[tuple[BatchKey, list[str]]]:
        sends = Sends(open_max=4)
        for number in range(200):
            sends.add("q", str(number * 7 % 11), f"{number}")
        sends.batches.flush()
        return sends.sent

    assert run() == run()
