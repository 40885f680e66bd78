"""What the replicated receiver does beside completing, and what becomes of the copy in the other namespace (IN8, IN10).

Both forms of it, over receivers that stand for those of the SDK: which call reaches which namespace is what matters.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.exceptions import MessageLockLostError

from duobus.ha.aio import replication as aio
from duobus.ha.deduplication import SeenMessages
from duobus.ha.sync import replication as sync

_UNTIL = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


class _Message:
    """What a receiver brings."""

    application_properties: dict[bytes, bytes] | None = None

    def __init__(self, message_id: str | None, sequence_number: int) -> None:
        self.message_id = message_id
        self.sequence_number = sequence_number


class _Receiver:
    """One namespace: gives what it was told to, and notes what it is asked."""

    entity_path = "orders"
    fully_qualified_namespace = "localhost"

    def __init__(self) -> None:
        self.waiting: list[list[_Message]] = []
        self.deferred: dict[int, _Message] = {}
        self.calls: list[tuple[str, int]] = []
        self.failures: dict[str, Exception] = {}

    def receive_messages(self, count: int, max_wait_time: float) -> list[_Message]:
        return self.waiting.pop(0) if self.waiting else []

    def receive_deferred_messages(self, numbers: int | list[int]) -> list[_Message]:
        return [self.deferred[number] for number in ([numbers] if isinstance(numbers, int) else numbers)]

    def renew_message_lock(self, message: _Message, timeout: float | None = None) -> datetime.datetime:
        self._note("renew", message)
        return _UNTIL

    def complete_message(self, message: _Message) -> None:
        self._note("complete", message)

    def abandon_message(self, message: _Message) -> None:
        self._note("abandon", message)

    def dead_letter_message(self, message: _Message, reason: str | None, error_description: str | None) -> None:
        assert (reason, error_description) == ("poison", "no such article")
        self._note("dead-letter", message)

    def defer_message(self, message: _Message) -> None:
        self._note("defer", message)
        self.deferred[message.sequence_number] = message

    def close(self) -> None:
        pass

    def _note(self, what: str, message: _Message) -> None:
        if what in self.failures:
            raise self.failures[what]
        self.calls.append((what, message.sequence_number))


class _Awaited:
    """The same, for the asynchronous form."""

    def __init__(self, receiver: _Receiver) -> None:
        self._receiver = receiver

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._receiver, name)
        if not callable(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return found(*args, **kwargs)

        return call


class _Bench:
    """A replicated receiver of either form over two namespaces, driven one call after the other."""

    def __init__(self, form: str, seen: SeenMessages, **options: Any) -> None:
        self.seen = seen
        self.one, self.other = self.both = (_Receiver(), _Receiver())
        self._runner = asyncio.Runner() if form == "aio" else None
        self._receiver: Any
        if self._runner is None:
            self._receiver = sync.ReplicatedReceiver(self.both, seen, **options)  # type: ignore[arg-type]
        else:
            both: list[Any] = [_Awaited(one) for one in self.both]
            self._receiver = aio.ReplicatedReceiver(both, seen, **options)

    def do(self, name: str, *args: Any, **kwargs: Any) -> Any:
        call = getattr(self._receiver, name)
        if self._runner is None or name == "position_of":
            return call(*args, **kwargs)

        async def run() -> Any:
            return await call(*args, **kwargs)

        return self._runner.run(run())

    def receive(self) -> list[_Message]:
        found: list[_Message] = self.do("receive_messages", 10, max_wait_time=0.05)
        return found

    def first_with_copy(self) -> _Message:
        """A message of the first namespace that is at work, while its copy of the other one waits for it."""
        self.one.waiting.append([_Message("m", 1)])
        (found,) = self.receive()
        self.other.waiting.append([_Message("m", 2)])
        assert self.receive() == []
        return found

    def settle_waiting(self) -> None:
        """What waits for a free receiver is done before it receives again."""
        assert self.receive() == []

    def close(self) -> None:
        self.do("close")
        if self._runner is not None:
            self._runner.close()


@pytest.fixture(params=["aio", "sync"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[_Bench]:
    with SeenMessages(tmp_path / "seen.db") as seen:
        bench = _Bench(request.param, seen)
        yield bench
        bench.close()


def _dead_letter(bench: _Bench, message: _Message) -> None:
    bench.do("dead_letter_message", message, reason="poison", error_description="no such article")


def test_a_message_is_dead_lettered_where_it_came_from_and_its_copy_is_completed(bench: _Bench) -> None:
    _dead_letter(bench, bench.first_with_copy())
    bench.settle_waiting()
    assert (bench.one.calls, bench.other.calls) == ([("dead-letter", 1)], [("complete", 2)])


def test_the_copy_of_a_dead_letter_that_comes_later_is_completed_and_not_handed_out(bench: _Bench) -> None:
    bench.one.waiting.append([_Message("m", 1)])
    (message,) = bench.receive()
    _dead_letter(bench, message)
    bench.other.waiting.append([_Message("m", 2)])
    assert bench.receive() == []
    assert bench.other.calls == [("complete", 2)]


def test_a_message_that_could_not_be_dead_lettered_is_not_done_and_its_copy_is_given_back(bench: _Bench) -> None:
    message = bench.first_with_copy()
    bench.one.failures["dead-letter"] = MessageLockLostError(message="gone")
    with pytest.raises(MessageLockLostError):
        _dead_letter(bench, message)
    bench.settle_waiting()
    assert (bench.other.calls, len(bench.seen)) == ([("abandon", 2)], 0)
    bench.other.waiting.append([_Message("m", 2)])
    assert [one.sequence_number for one in bench.receive()] == [2]


def test_the_copy_of_a_deferred_message_is_handed_out_and_the_one_that_is_left_is_completed(bench: _Bench) -> None:
    message = bench.first_with_copy()
    position = bench.do("position_of", message)
    bench.do("defer_message", message)
    bench.settle_waiting()
    assert (position, bench.one.calls, bench.other.calls) == (0, [("defer", 1)], [("abandon", 2)])
    bench.other.waiting.append([_Message("m", 2)])
    (copy,) = bench.receive()
    # Its copy is at work: the deferred one is given back, which leaves it deferred.
    assert bench.do("receive_deferred_messages", 1, position) == []
    assert bench.one.calls[1:] == [("abandon", 1)]
    bench.do("complete_message", copy)
    assert bench.do("receive_deferred_messages", [1], position) == []
    assert bench.one.calls[2:] == [("complete", 1)]


def test_a_deferred_message_that_is_not_done_is_handed_out_by_its_number_and_settled(bench: _Bench) -> None:
    bench.other.waiting.append([_Message("m", 7)])
    (message,) = bench.receive()
    bench.do("defer_message", message)
    (again,) = bench.do("receive_deferred_messages", 7, 1)
    bench.do("complete_message", again)
    assert bench.other.calls == [("defer", 7), ("complete", 7)]
    assert "m" in bench.seen


@pytest.mark.parametrize("form", ["aio", "sync"])
def test_copies_are_told_by_a_property_of_the_application_where_that_was_asked_for(form: str, tmp_path: Path) -> None:
    with SeenMessages(tmp_path / "seen.db") as seen:
        bench = _Bench(form, seen, identifier="order")
        first, copy = _Message("one id", 1), _Message("another id", 2)
        first.application_properties = copy.application_properties = {b"order": b"7"}
        bench.one.waiting.append([first])
        assert bench.receive() == [first]
        bench.other.waiting.append([copy])
        assert bench.receive() == []
        bench.do("abandon_message", first)
        bench.settle_waiting()
        assert (bench.one.calls, bench.other.calls) == ([("abandon", 1)], [("abandon", 2)])
        bench.close()


def test_a_lock_is_renewed_together_with_that_of_the_copy_that_waits(bench: _Bench) -> None:
    message = bench.first_with_copy()
    assert bench.do("renew_message_lock", message) == _UNTIL
    assert (bench.one.calls, bench.other.calls) == ([("renew", 1)], [("renew", 2)])


def test_a_lock_is_renewed_while_the_namespace_of_the_copy_is_away(bench: _Bench) -> None:
    message = bench.first_with_copy()
    bench.other.failures["renew"] = ConnectionError("away")
    assert bench.do("renew_message_lock", message) == _UNTIL
    # The lock of the copy has ended, and it comes again: it waits once, not twice.
    bench.other.waiting.append([_Message("m", 2)])
    assert bench.receive() == []
    bench.do("complete_message", message)
    bench.settle_waiting()
    assert bench.other.calls == [("complete", 2)]


def test_a_message_that_came_twice_is_renewed_after_it_was_given_back_once(bench: _Bench) -> None:
    bench.one.waiting += [[_Message("m", 1)], [_Message("m", 1)]]
    (first,), (again,) = bench.receive(), bench.receive()
    bench.do("abandon_message", first)
    assert bench.do("renew_message_lock", again) == _UNTIL
    assert bench.one.calls == [("abandon", 1), ("renew", 1)]


def test_a_lock_that_is_lost_is_told(bench: _Bench) -> None:
    message = bench.first_with_copy()
    bench.one.failures["renew"] = MessageLockLostError(message="gone")
    with pytest.raises(MessageLockLostError):
        bench.do("renew_message_lock", message)


@pytest.mark.parametrize("name", ["dead_letter_message", "defer_message", "renew_message_lock", "position_of"])
def test_a_message_from_elsewhere_is_refused(bench: _Bench, name: str) -> None:
    with pytest.raises(ValueError, match="was not received here"):
        bench.do(name, _Message("m", 1))


def test_it_closes_at_once_while_both_namespaces_are_waited_for(tmp_path: Path) -> None:
    class Idle(_Awaited):
        async def receive_messages(self, count: int, max_wait_time: float) -> list[_Message]:
            await asyncio.sleep(max_wait_time)
            return []

    async def run() -> None:
        with SeenMessages(tmp_path / "seen.db") as seen:
            receiver = aio.ReplicatedReceiver([Idle(_Receiver()), Idle(_Receiver())], seen)  # type: ignore[list-item]
            asked = asyncio.create_task(receiver.receive_messages(1, max_wait_time=3_600))
            await asyncio.sleep(0)
            asked.cancel()
            async with asyncio.timeout(60):
                await receiver.close()

    asyncio.run(run())


def test_a_position_that_there_is_not_is_refused(bench: _Bench) -> None:
    with pytest.raises(ValueError, match="has to be 0 or 1"):
        bench.do("receive_deferred_messages", 1, 2)


def test_messages_without_an_identifier_are_settled_one_by_one(bench: _Bench) -> None:
    bench.one.waiting.append([_Message(None, number) for number in (1, 2, 3)])
    first, second, third = bench.receive()
    assert bench.do("renew_message_lock", first) == _UNTIL
    _dead_letter(bench, first)
    bench.do("defer_message", second)
    bench.do("abandon_message", third)
    assert bench.one.calls == [("renew", 1), ("dead-letter", 1), ("defer", 2), ("abandon", 3)]
    assert len(bench.seen) == 0
