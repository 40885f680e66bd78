"""Sends side by side: bounded, and no outcome dropped (TL3 to TL5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusConnectionError
from kit_outbox import FakeSender

from duobus.ha.aio import OverlappedSender
from duobus.ha.aio import overlapped_sender as overlap
from duobus.ha.errors import SendsFailed
from kits.pair import bounded


def messages(number: int) -> list[ServiceBusMessage]:
    return [ServiceBusMessage(str(index)) for index in range(number)]


async def send_all(make_sender: Callable[[], FakeSender], there: list[ServiceBusMessage], in_flight: int = 10) -> None:
    async with OverlappedSender(make_sender, in_flight) as sender:
        for message in there:
            await sender.send(message)


def failing(*texts: str) -> FakeSender:
    return FakeSender(lambda there: ServiceBusConnectionError() if set(there) & set(texts) else None)


@bounded
async def test_ten_are_on_their_way_and_the_eleventh_waits() -> None:
    fake = FakeSender()
    async with OverlappedSender(fake) as sender:
        for message in messages(40):
            await sender.send(message)
    assert len(fake.taken) == 40
    assert fake.most == 10


@bounded
async def test_an_outcome_that_nobody_looked_at_is_raised_at_the_end() -> None:
    there = messages(5)
    with pytest.raises(SendsFailed, match="2 sends failed") as caught:
        await send_all(failing("1", "3"), there)
    assert {id(message) for message, _ in caught.value.failures} == {id(there[1]), id(there[3])}
    assert all(isinstance(error, ServiceBusConnectionError) for _, error in caught.value.failures)


@bounded
async def test_an_outcome_that_was_looked_at_is_told_once() -> None:
    async with OverlappedSender(failing("0")) as sender:
        bad, good = [await sender.send(message) for message in messages(2)]
        await good.accepted()
        with pytest.raises(ServiceBusConnectionError):
            await bad.accepted()


@bounded
async def test_failures_that_nobody_looks_at_stop_the_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "FAILURES_MAX", 3)
    fake = FakeSender(lambda _: ServiceBusConnectionError())
    sender = OverlappedSender(fake, in_flight=1)
    sendings = [await sender.send(message) for message in messages(3)]
    await sendings[-1].done.wait()
    with pytest.raises(SendsFailed) as caught:
        await sender.send(messages(1)[0])
    assert len(caught.value.failures) == 3
    await sender.flush()
    assert len(fake.calls) == 3


@bounded
async def test_an_error_of_the_application_is_not_hidden_by_failed_sends(caplog: pytest.LogCaptureFixture) -> None:
    async def program() -> None:
        async with OverlappedSender(failing("0")) as sender:
            await sender.send(messages(1)[0])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await program()
    assert "1 sends failed" in caplog.text


@bounded
async def test_each_send_side_by_side_has_a_link_of_its_own_and_one_that_failed_is_closed() -> None:
    made: list[FakeSender] = []

    def make() -> FakeSender:
        made.append(failing("2"))
        return made[-1]

    with pytest.raises(SendsFailed):
        await send_all(make, messages(12), 3)
    assert len(made) == 4
    assert [fake.closed for fake in made] == [1] * 4
    assert all(fake.most == 1 for fake in made), "the SDK's senders are for one task"


@bounded
async def test_a_sender_that_cannot_be_made_is_an_outcome_too() -> None:
    def make() -> FakeSender:
        raise RuntimeError("closed")

    async with OverlappedSender(make) as sender:
        sending = await sender.send(messages(1)[0])
        with pytest.raises(RuntimeError, match="closed"):
            await sending.accepted()


@pytest.mark.parametrize("number", [0, 1_001])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match="1 to 1,000"):
        OverlappedSender(FakeSender(), number)


@pytest.mark.parametrize("number", [1, 1_000])
def test_the_edges_of_the_numbers_are_inside(number: int) -> None:
    OverlappedSender(FakeSender(), number)
