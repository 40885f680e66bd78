"""Senders and receivers on the asyncio SDK: what ``sync_workers.py`` does, as tasks of one event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from azure.servicebus import ServiceBusReceivedMessage, ServiceBusSubQueue
from azure.servicebus.aio import ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import MessageSizeExceededError

from duobus_demo.clients import (
    UNKNOWN_OUTCOME,
    Endpoint,
    close_quietly_async,
    locked_until_ms,
    message_id_of,
    message_of,
    number_of,
    record_received,
)
from duobus_demo.corpus import Outgoing, digest_of
from duobus_demo.dispositions import DEAD_LETTER_REASON, Action
from duobus_demo.run_state import POLL_S, RETRY_S, RunState
from duobus_demo.workers.sync_workers import RECEIVE_COUNT, RECEIVE_WAIT_S, SEND_TIMEOUT_S


async def run_async_sender(run: RunState, endpoint: Endpoint) -> None:
    """Send what the feed hands out, each message until its outcome is known."""
    async with endpoint.async_client() as client:
        sender = client.get_queue_sender(run.queue)
        try:
            while (outgoing := await _next_message(run)) is not None:
                body = outgoing.read()
                while not await _is_sent(run, endpoint, sender, outgoing, body):
                    await close_quietly_async(sender)
                    sender = client.get_queue_sender(run.queue)
                    if run.stopping.is_set():
                        return
                    await asyncio.sleep(RETRY_S)
        finally:
            await close_quietly_async(sender)


async def _next_message(run: RunState) -> Outgoing | None:
    while not run.stopping.is_set():
        message = run.feed.take()
        if message is not None or run.feed.is_finished:
            return message
        await asyncio.sleep(POLL_S)
    return None


async def _is_sent(
    run: RunState, endpoint: Endpoint, sender: ServiceBusSender, outgoing: Outgoing, body: bytes
) -> bool:
    run.account.sending(outgoing.message_id, body, outgoing.partition_key)
    try:
        await sender.send_messages(message_of(outgoing, body, digest_of(body)), timeout=SEND_TIMEOUT_S)
    except MessageSizeExceededError:
        run.account.refused_as_too_large(outgoing.message_id)
        return True
    except UNKNOWN_OUTCOME as error:
        run.account.send_unknown(outgoing.message_id, type(error).__name__)
        return False
    run.account.acknowledged(outgoing.message_id, endpoint.name)
    return True


async def run_async_receiver(
    run: RunState, endpoint: Endpoint, prefetch: int, sub_queue: ServiceBusSubQueue | None = None
) -> None:
    """Receive and settle until the run ends; the arguments are those of ``workers.run_receiver``."""
    async with endpoint.async_client() as client:
        while not run.stopping.is_set():
            if not run.may_receive.is_set():
                await asyncio.sleep(POLL_S)
                continue
            receiver = client.get_queue_receiver(run.queue, sub_queue=sub_queue, prefetch_count=prefetch)
            # Entered, which opens the link: within the limit of a receive call it may never open on a busy machine.
            with suppress(*UNKNOWN_OUTCOME):
                async with receiver:
                    await _receive_until_it_breaks(run, endpoint, receiver, sub_queue is not None)
            await asyncio.sleep(RETRY_S)


async def _receive_until_it_breaks(
    run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, is_dead_letters: bool
) -> None:
    while not run.stopping.is_set():
        if not run.may_receive.is_set():
            await asyncio.sleep(POLL_S)
        elif not await _has_received(run, endpoint, receiver, is_dead_letters):
            return


async def _has_received(run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, is_dead_letters: bool) -> bool:
    """Receive once and settle; False when the connection has to be made anew."""
    try:
        messages = await receiver.receive_messages(max_message_count=RECEIVE_COUNT, max_wait_time=RECEIVE_WAIT_S)
    except UNKNOWN_OUTCOME:
        return False
    for message in messages:
        record_received(run.account, message)
        action = Action.COMPLETE if is_dead_letters else run.dispositions.choose(message_id_of(message))
        if not await _is_settled(run, endpoint, receiver, message, action):
            # The connection is gone, and with it the locks on the rest of these messages: they come again.
            return False
    return True


async def _is_settled(
    run: RunState, endpoint: Endpoint, receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage, action: Action
) -> bool:
    """Settle a message and enter it into the message account; False when the outcome is unknown."""
    try:
        if action is Action.COMPLETE:
            # The SDK tells the end of a lock only until the message is settled.
            until_ms = locked_until_ms(message)
            await receiver.complete_message(message)
            run.account.completed(message_id_of(message), number_of(message), endpoint.name, locked_until_ms=until_ms)
        elif action is Action.ABANDON:
            await receiver.abandon_message(message)
            run.account.count("abandoned")
        elif action is Action.DEFER:
            await receiver.defer_message(message)
            run.deferred.add(number_of(message))
            run.account.count("deferred")
        else:
            await receiver.dead_letter_message(message, reason=DEAD_LETTER_REASON, error_description="a share of all")
            run.account.count("dead_lettered")
    except UNKNOWN_OUTCOME:
        if action is Action.COMPLETE:
            run.account.completion_unknown(message_id_of(message))
        elif action is Action.DEFER:
            # It may be deferred all the same, and nobody but us knows the number.
            run.deferred.add(number_of(message))
        return False
    return True
