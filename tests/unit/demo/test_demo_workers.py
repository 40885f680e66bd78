"""What the receivers of the demonstration enter into the account, seen without a broker."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload

from duobus.clock import Clock
from duobus.codec import Symbol, Timestamp, build_message
from duobus_demo.corpus import digest_of
from duobus_demo.dispositions import Action, Dispositions
from duobus_demo.feed import Feed
from duobus_demo.message_account import MessageAccount
from duobus_demo.run_state import RunState
from duobus_demo.workers.asyncio_workers import _is_settled
from duobus_demo.workers.sync_workers import is_settled

NUMBER = 7
LOCKED_UNTIL_MS = 2_000


class Receiver:
    """Stands in for the SDK's receiver: settling tells the message that it is settled, as the SDK does."""

    session = None

    def complete_message(self, message: Any) -> None:
        message._settled = True


class AsyncReceiver(Receiver):
    """The same for asyncio."""

    async def complete_message(self, message: Any) -> None:  # type: ignore[override]
        message._settled = True


def received(receiver: Receiver) -> ServiceBusReceivedMessage:
    """A message of the SDK, under a lock that ends at LOCKED_UNTIL_MS."""
    annotations = {
        Symbol("x-opt-locked-until"): Timestamp(LOCKED_UNTIL_MS),
        Symbol("x-opt-sequence-number"): NUMBER,
    }
    payload = build_message(["a"], annotations=annotations, data=b"body")
    return ServiceBusReceivedMessage(decode_payload(memoryview(payload)), receiver=receiver)


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "asyncio"])
def test_a_delivery_before_the_completion_is_overtaken_and_not_revived_though_the_sdk_forgets_the_lock(
    is_async: bool,
) -> None:
    account = MessageAccount(Clock())
    run = RunState("queue", Feed(iter(()), limit=1), account, Dispositions(), Clock(), 10)
    endpoint: Any = SimpleNamespace(name="tcp")
    receiver: Any = AsyncReceiver() if is_async else Receiver()
    message = received(receiver)

    if is_async:
        assert asyncio.run(_is_settled(run, endpoint, receiver, message, Action.COMPLETE))
    else:
        assert is_settled(run, endpoint, receiver, message, Action.COMPLETE)
    assert message.locked_until_utc is None
    digest = digest_of(b"body")
    account.received(
        "a", b"body", digest=digest, partition_key=None, number=NUMBER, locked_until_ms=LOCKED_UNTIL_MS - 1
    )

    report = account.report()
    assert (report["overtaken"], report["revived"]) == (1, 0)
