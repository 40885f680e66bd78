"""Sending through an outbox: what is accepted is sent, in order, whatever the namespace does meanwhile (I53)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    OperationTimeoutError,
    ServiceBusAuthenticationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
)
from kit_outbox import FakeSender

from duobus.ha.aio import OutboxSender, outbox_sender
from duobus.ha.aio.outbox_sender import is_refused
from duobus.ha.errors import OutboxFull, TooLargeToDivert
from duobus.ha.events import OutboxBroken, OutboxOverflowed, OutboxSent, OutboxSetAside, OutboxWaits
from duobus.ha.outbox.message import Packed, pack
from duobus.ha.outbox.queue import Outbox
from kits.pair import Events, bounded


@asynccontextmanager
async def sending(
    path: Path, make_sender: Callable[[], Any], bounds: dict[str, int] | None = None, **options: Any
) -> AsyncIterator[tuple[OutboxSender, Outbox, Events]]:
    events = Events()
    with Outbox(path / "outbox.db", **{"retry_first_ms": 10, "retry_last_ms": 20, **(bounds or {})}) as outbox:
        async with OutboxSender(make_sender, outbox, on_event=events, **options) as sender:
            yield sender, outbox, events


@bounded
async def test_a_send_returns_before_the_namespace_has_the_message_and_it_arrives(tmp_path: Path) -> None:
    """IN7."""
    gate = [ServiceBusConnectionError()]
    fake = FakeSender(lambda _: gate[0] if gate else None)
    async with sending(tmp_path, fake) as (sender, outbox, events):
        await sender.send_messages(ServiceBusMessage("one"))
        assert fake.taken == []
        assert outbox.depth.messages == 1
        await events.wait(OutboxWaits, 2)
        gate.clear()
        assert await sender.flush(10)
        assert fake.taken == ["one"]
        sent = await events.wait(OutboxSent)
        assert (sent.entity, sent.messages, sent.left, sent.left_bytes) == ("orders", 1, 0, 0)


class Unending(FakeSender):
    """Loses a cancellation, as the SDK does when an answer comes in the same moment."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sending = asyncio.Event()

    async def send_messages(self, message: Any, **_: Any) -> None:
        self.is_sending.set()
        with suppress(asyncio.CancelledError):
            await super().send_messages(message)


@bounded
async def test_an_outbox_is_closed_although_a_send_goes_on_after_it_was_cancelled(tmp_path: Path) -> None:
    fake = Unending()
    with Outbox(tmp_path / "outbox.db") as outbox:
        sender = OutboxSender(fake, outbox)
        await sender.open()
        await sender.send_messages(ServiceBusMessage("under way"))
        await fake.is_sending.wait()
        async with asyncio.timeout(60):
            await sender.close()
    assert fake.closed == 1


@bounded
async def test_messages_of_one_key_arrive_in_order_although_sends_fail(tmp_path: Path) -> None:
    turns = iter(range(1_000))
    fake = FakeSender(lambda _: OperationTimeoutError() if next(turns) % 3 == 0 else None)
    async with sending(tmp_path, fake) as (sender, _, _):
        for number in range(60):
            await sender.send_messages(ServiceBusMessage(f"{number % 3}:{number}", session_id=str(number % 3)))
        assert await sender.flush(20)
    for key in "012":
        numbers = [int(text.split(":")[1]) for text in fake.taken if text.startswith(key)]
        assert numbers == sorted(numbers)
    assert len(fake.taken) == 60


@bounded
async def test_different_keys_are_sent_side_by_side_and_one_key_is_not(tmp_path: Path) -> None:
    fake = FakeSender()
    async with sending(tmp_path, fake, {"in_flight": 3}) as (sender, _, _):
        await sender.send_messages([ServiceBusMessage(str(n), session_id=str(n)) for n in range(12)])
        assert await sender.flush(10)
        assert fake.most == 3
    alone = FakeSender()
    async with sending(tmp_path, alone, {"in_flight": 3}) as (sender, _, _):
        for number in range(6):
            await sender.send_messages(ServiceBusMessage(str(number)))
        assert await sender.flush(10)
    assert alone.most == 1
    assert alone.taken == list("012345")


@bounded
async def test_what_was_not_sent_is_sent_by_the_next_program_with_the_same_message_id(tmp_path: Path) -> None:
    away = FakeSender(lambda _: ServiceBusConnectionError())
    async with sending(tmp_path, away) as (sender, _, _):
        await sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b", message_id="mine")])
    fake = FakeSender()
    async with sending(tmp_path, fake) as (sender, _, _):
        assert await sender.flush(10)
    assert fake.taken == ["a", "b"]
    assert len(fake.ids[0]) == 36, "without an id it gets one, so that repeats can be told"
    assert fake.ids[1] == "mine"


@bounded
async def test_a_message_at_fault_is_set_aside_and_those_behind_it_go_on(tmp_path: Path) -> None:
    fake = FakeSender(lambda texts: MessageSizeExceededError(message="too large") if "bad" in texts else None)
    async with sending(tmp_path, fake) as (sender, outbox, events):
        await sender.send_messages([ServiceBusMessage(text) for text in ("good", "bad", "better")])
        assert await sender.flush(10)
        assert (await events.wait(OutboxSetAside)).number == 2
        assert "too large" in outbox.set_aside()[0].reason
        assert outbox.depth.set_aside == 1
        fake.answer = lambda _: None
        assert outbox.try_again() == 1
        assert await sender.flush(10)
    assert fake.taken == ["good", "better", "bad"]


@bounded
async def test_a_full_outbox_raises_and_nothing_of_the_list_is_stored(tmp_path: Path) -> None:
    away = FakeSender(lambda _: ServiceBusConnectionError())
    async with sending(tmp_path, away, {"messages_max": 2}) as (sender, outbox, _):
        with pytest.raises(OutboxFull):
            await sender.send_messages([ServiceBusMessage("x")] * 3)
        assert outbox.depth.messages == 0


@bounded
async def test_tasks_that_send_at_the_same_time_share_commits_and_none_is_forgotten(tmp_path: Path) -> None:
    fake = FakeSender()
    async with sending(tmp_path, fake) as (sender, _, _):
        await asyncio.gather(*(sender.send_messages(ServiceBusMessage(str(number))) for number in range(200)))
        assert await sender.flush(10)
    assert sorted(fake.taken, key=int) == [str(number) for number in range(200)]


@bounded
async def test_a_send_that_is_cancelled_may_arrive_and_never_blocks_what_follows(tmp_path: Path) -> None:
    fake = FakeSender()
    async with sending(tmp_path, fake) as (sender, _, _):
        task = asyncio.create_task(sender.send_messages(ServiceBusMessage("perhaps")))
        await asyncio.sleep(0)
        task.cancel()
        await sender.send_messages(ServiceBusMessage("surely"))
        assert await sender.flush(10)
    assert fake.taken[-1] == "surely"


@bounded
async def test_what_is_too_large_for_a_backlog_queue_waits_for_the_primary(tmp_path: Path) -> None:
    gate = [TooLargeToDivert("x", 1)]
    fake = FakeSender(lambda _: gate[0] if gate else None)
    async with sending(tmp_path, fake) as (sender, outbox, events):
        await sender.send_messages(ServiceBusMessage("large"))
        await events.wait(OutboxWaits)
        assert outbox.depth.set_aside == 0
        gate.clear()
        assert await sender.flush(10)


@bounded
async def test_as_an_overflow_it_stores_only_what_could_not_be_diverted(tmp_path: Path) -> None:
    fake = FakeSender(lambda texts: TooLargeToDivert("x", 2) if len(texts) == 3 else None)
    async with sending(tmp_path, fake, overflow_only=True) as (sender, _, events):
        await sender.send_messages(ServiceBusMessage("small"))
        assert fake.taken == ["small"], "it was sent at once"
        await sender.send_messages([ServiceBusMessage(text) for text in ("diverted", "large", "last")])
        assert (await events.wait(OutboxOverflowed)).messages == 2
        assert await sender.flush(10)
        assert fake.taken == ["small", "large", "last"]
        fake.answer = lambda _: ServiceBusConnectionError()
        with pytest.raises(ServiceBusConnectionError):
            await sender.send_messages(ServiceBusMessage("its caller hears of all else"))


@bounded
async def test_a_sender_that_cannot_be_made_is_tried_again(tmp_path: Path) -> None:
    fake, times = FakeSender(), iter([1, 2])

    def make() -> FakeSender:
        if next(times, None):
            raise RuntimeError("no credentials yet")
        return fake

    async with sending(tmp_path, make) as (sender, _, events):
        await sender.send_messages(ServiceBusMessage("x"))
        assert await sender.flush(10)
        assert len(events.of(OutboxWaits)) == 2


@bounded
async def test_a_file_that_fails_while_sending_is_told(tmp_path: Path) -> None:
    fake = FakeSender()
    async with sending(tmp_path, fake) as (sender, outbox, events):

        def fail(_: object) -> None:
            raise OSError("gone")

        with pytest.raises(Exception, match="gone"):
            outbox._file.submit(fail).result()
        outbox._plan.add(1, "", 1)
        sender._wake()
        assert "closed" in (await events.wait(OutboxBroken)).error


@bounded
async def test_what_is_whole_on_disk_and_no_message_is_set_aside_and_the_others_are_sent(tmp_path: Path) -> None:
    fake = FakeSender()
    async with sending(tmp_path, fake, {"in_flight": 1}) as (sender, outbox, events):
        good = pack(ServiceBusMessage("good"))
        outbox.store([good, Packed(good.key, b"no head", b""), good]).result()
        assert await sender.flush(10)
        aside = await events.wait(OutboxSetAside)
        assert (aside.number, aside.error) == (2, "damaged on disk")
        assert outbox.depth.set_aside == 1
    assert fake.taken == ["good", "good"]


@bounded
async def test_what_is_damaged_on_disk_is_set_aside_and_the_others_are_sent(tmp_path: Path) -> None:
    with Outbox(tmp_path / "outbox.db") as outbox:
        outbox.store([pack(ServiceBusMessage(text)) for text in ("one", "two", "three")]).result()
        damage = "UPDATE messages SET data = x'00' WHERE number = 2"
        outbox._file.submit(lambda database: database.execute(damage)).result()
    fake = FakeSender()
    async with sending(tmp_path, fake) as (sender, outbox, events):
        assert await sender.flush(10)
        aside = await events.wait(OutboxSetAside)
        assert (aside.number, aside.error, outbox.depth.set_aside) == (2, "damaged on disk", 1)
    assert fake.taken == ["one", "three"]


@bounded
async def test_who_waits_for_the_end_hears_of_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_sender, "LOOK_S", 60.0)
    async with sending(tmp_path, FakeSender()) as (sender, _, _):
        await sender.send_messages(ServiceBusMessage("x"))
        async with asyncio.timeout(60):
            assert await sender.flush()


@bounded
async def test_arguments_that_the_later_send_would_not_have_are_refused(tmp_path: Path) -> None:
    async with sending(tmp_path, FakeSender()) as (sender, _, _):
        with pytest.raises(TypeError, match="timeout"):
            await sender.send_messages(ServiceBusMessage("x"), timeout=3)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MessageSizeExceededError(), True),
        (TypeError("Unable to encode unknown value: <object>"), True),
        (TypeError("a bug"), False),
        (ValueError("a bug"), False),
        (ValueError("The handler has already been shutdown. Please use ServiceBusClient to create a new one."), False),
        (ServiceBusError("x", condition=b"com.microsoft:argument-error"), True),
        (ServiceBusError("x", condition=b"amqp:not-allowed"), True),
        (TooLargeToDivert("x", 1), False),
        (ServiceBusConnectionError(), False),
        (OperationTimeoutError(), False),
        (ServiceBusQuotaExceededError(), False),
        (MessagingEntityNotFoundError(), False),
        (ServiceBusAuthenticationError(), False),
        (ServiceBusError("x"), False),
        (OSError(), False),
        (RuntimeError("a bug"), False),
    ],
)
def test_only_the_fault_of_a_message_sets_it_aside(error: Exception, expected: bool) -> None:
    assert is_refused(error) is expected
