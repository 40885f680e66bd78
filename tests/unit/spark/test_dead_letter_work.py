"""Dead letters that are sent again, removed or left, without a broker."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType

from duobus.spark.jobs.work.dead_letters import DELETE, HOLD, RESUBMIT, new_id, worked
from duobus.spark.sink.sender import Post, SendFailed


class Letter:
    """A received message, as far as the work looks at it."""

    def __init__(self, number: int, **raw: Any) -> None:
        self.sequence_number = number
        self.message_id = f"m{number}"
        self.dead_letter_reason, self.dead_letter_error_description = b"Timeout", "took 5 ms"
        self.enqueued_time_utc = datetime(2026, 1, 1, tzinfo=UTC)
        raw = {"data_body": b"x", "properties": {"message_id": f"m{number}".encode()}} | raw
        self.raw_amqp_message = AmqpAnnotatedMessage(**raw)


class Queue:
    """A dead-letter queue under peek-lock, and the queue that its messages are sent to."""

    _max_message_size_on_link = 262_144

    def __init__(self, *letters: Letter) -> None:
        self.letters = {letter.sequence_number: letter for letter in letters}
        self.locked: set[int] = set()
        self.sent: list[Any] = []
        self.lost_locks = 0
        self.error: Exception | None = None
        self.order: list[str] = []

    def receive_messages(self, count: int, max_wait_time: float) -> list[Letter]:
        free = [letter for number, letter in sorted(self.letters.items()) if number not in self.locked][:count]
        self.locked.update(letter.sequence_number for letter in free)
        return free

    def complete_message(self, letter: Letter) -> None:
        if self.lost_locks:
            self.lost_locks -= 1
            self.locked.discard(letter.sequence_number)
            raise sdk.MessageLockLostError(message="lost")
        self.order.append(f"complete {letter.sequence_number}")
        del self.letters[letter.sequence_number]

    def abandon_message(self, letter: Letter) -> None:
        self.locked.discard(letter.sequence_number)

    def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
        return ServiceBusMessageBatch(size or 262_144)

    def send_messages(self, what: Any) -> None:
        if self.error is not None:
            raise self.error
        messages = (
            [one.raw_amqp_message for one in what._messages] if isinstance(what, ServiceBusMessageBatch) else [what]
        )
        if any(one.properties.subject == "bad" for one in messages):
            raise sdk.ServiceBusError("refused", condition=b"amqp:not-allowed")
        self.sent += messages
        self.order += [f"send {one.properties.message_id}" for one in messages]


def work(queue: Queue, actions: dict[int, str]) -> Any:
    post = Post(lambda _: queue, lambda _: None)  # type: ignore[arg-type, return-value]
    return worked(queue, post, "q", actions, lambda letter: f"new{letter.sequence_number}")  # type: ignore[arg-type]


def test_each_message_gets_what_was_decided_and_the_rest_is_given_back() -> None:
    queue = Queue(*map(Letter, range(500)))
    done = work(queue, {1: RESUBMIT, 2: DELETE, 3: HOLD, 450: RESUBMIT, 999: RESUBMIT})
    assert tuple(done) == (2, 1, 0, 1, None)
    assert sorted(set(range(500)) - set(queue.letters)) == [1, 2, 450]
    assert queue.locked & set(queue.letters) == set()
    assert [one.properties.message_id for one in queue.sent] == ["new1", "new450"]


def test_a_message_is_sent_before_it_is_removed() -> None:
    queue = Queue(Letter(1))
    work(queue, {1: RESUBMIT})
    assert queue.order == ["send new1", "complete 1"]


def test_nothing_is_removed_when_the_destination_takes_nothing() -> None:
    queue = Queue(Letter(1), Letter(2))
    queue.error = sdk.ServiceBusConnectionError(message="away")
    with pytest.raises(SendFailed):
        work(queue, {1: RESUBMIT, 2: DELETE})
    assert sorted(queue.letters) == [1, 2]


def test_one_that_is_refused_stays_and_its_neighbours_go() -> None:
    queue = Queue(Letter(1), Letter(2, properties={"subject": b"bad"}), Letter(3))
    done = work(queue, {1: RESUBMIT, 2: RESUBMIT, 3: RESUBMIT})
    assert (done.resubmitted, done.refused) == (2, 1)
    assert "refuses" in done.said
    assert sorted(queue.letters) == [2]


def test_one_whose_lock_ran_out_is_tried_again_but_not_for_ever() -> None:
    queue = Queue(Letter(1))
    queue.lost_locks = 2
    assert work(queue, {1: RESUBMIT}).resubmitted == 1
    assert {one.properties.message_id for one in queue.sent} == {"new1"}
    queue = Queue(Letter(1))
    queue.lost_locks = 100
    assert work(queue, {1: RESUBMIT}).refused == 1


def test_what_the_sender_gave_is_sent_again_and_what_a_broker_wrote_is_not() -> None:
    queue = Queue(
        Letter(
            7,
            application_properties={b"DeadLetterReason": b"Timeout", b"n": 5, b"t": b"x", b"b": b"\xff"},
            annotations={b"x-opt-partition-key": b"k", b"x-opt-sequence-number": 7},
            header={"time_to_live": 1_500, "delivery_count": 3},
        )
    )
    work(queue, {7: RESUBMIT})
    (sent,) = queue.sent
    assert sent.body_type is AmqpMessageBodyType.DATA
    assert sent.annotations == {"x-opt-partition-key": "k"}
    assert (sent.header.time_to_live, sent.header.delivery_count) == (1_500, None)
    assert sent.application_properties == {
        "x-duobus-original-sequence-number": {"TYPE": "LONG", "VALUE": 7},
        "x-duobus-original-message-id": "m7",
        "x-duobus-original-dead-letter-reason": "Timeout",
        "x-duobus-original-dead-letter-error-description": "took 5 ms",
        "n": {"TYPE": "LONG", "VALUE": 5},
        "t": "x",
        "b": {"TYPE": "BINARY", "VALUE": b"\xff"},
    }


def test_ids_are_the_same_each_time_and_others_after_the_queue_was_made_anew() -> None:
    assert new_id("bus", "q", 1, 5) == new_id("bus", "q", 1, 5)
    assert (
        len({new_id("bus", "q", 1, 5), new_id("bus", "q", 1, 6), new_id("bus", "r", 1, 5), new_id("bus", "q", 2, 5)})
        == 4
    )
    assert len(new_id("b" * 200, "q" * 260, 2**63, 2**45)) <= 128
