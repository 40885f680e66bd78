"""The traffic of a pair: senders that go through the pair, and receivers at the primary that survive its death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusClient, ServiceBusReceiver

from duobus.ha.aio import PairedNamespace, PairedSender, pair_namespace
from duobus.ha.errors import BacklogUnavailable
from duobus.ha.events import (
    Diverted,
    Event,
    FailoverEngaged,
    PingSent,
    PrimaryHealthy,
    SendFailed,
    Syphoned,
)
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sdk import prompt_client
from duobus_demo.clients import (
    UNKNOWN_OUTCOME,
    Endpoint,
    body_of,
    close_quietly_async,
    message_id_of,
    number_of,
)
from duobus_demo.corpus import Outgoing
from duobus_demo.expectations.pairs import QUEUES, VISITS, PairExpectations, digest_in, message_of, queue_of
from duobus_demo.run_state import POLL_S, RETRY_S, RunState

PRIMARY_NAME: Final = "primary"
BACKLOG_QUEUES: Final = 3
#: Short, so that the part takes seconds: an application leaves them at a minute.
FAILOVER_INTERVAL: Final = timedelta(seconds=1)
PING_INTERVAL: Final = timedelta(seconds=1)
SENDERS: Final = 3
#: One for each queue, and another one where each waits for a session. While the primary is dead each makes connections,
#: of which each costs the SDK some 10 ms of processor time.
RECEIVERS: Final = (*QUEUES, VISITS)
AGAIN_S: Final = 0.5
SEND_TIMEOUT_S: Final = 5.0
_WAIT_S: Final = 1.0
_BATCH: Final = 50
#: Beyond the 64 bits of a sequence number.
_QUEUE_SHIFT: Final = 64


def place_of(event: SendFailed | FailoverEngaged | PrimaryHealthy) -> str:
    """What an event is about: an entity, or a fragment of it."""
    return f"{event.entity} {event.fragment}".rstrip()


class PairedTraffic:
    """Everything that runs in the event loop of the part.

    Args:
        run: What the workers share; its feed says what to send.
        expectations: Where it is entered.
        primary: Endpoint of the primary.
        secondary: Endpoint of the secondary.
    """

    def __init__(self, run: RunState, expectations: PairExpectations, primary: Endpoint, secondary: Endpoint) -> None:
        self._run = run
        self._expectations = expectations
        self._primary = primary
        self._secondary = secondary
        #: What each task is sending: events come in the task that caused them.
        self._sending: dict[asyncio.Task[object] | None, str] = {}

    def __call__(self) -> None:
        """Run until told to stop; the body of a thread."""
        asyncio.run(self._play())

    async def _play(self) -> None:
        options = SendAvailabilityPairedNamespaceOptions(
            self._client(self._secondary),
            backlog_queue_count=BACKLOG_QUEUES,
            failover_interval=FAILOVER_INTERVAL,
            ping_primary_interval=PING_INTERVAL,
            enable_syphon=True,
            primary_name=PRIMARY_NAME,
            on_event=self._hear,
        )
        async with await pair_namespace(self._client(self._primary), options) as pair:
            self._expectations.note("paired")
            jobs = [self._send(pair) for _ in range(SENDERS)]
            jobs += [self._receive(queue) for queue in RECEIVERS]
            # Closing takes the SDK a moment, so that everybody does it at the same time.
            jobs.append(self._close(pair))
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(job)

    async def _close(self, pair: PairedNamespace) -> None:
        await asyncio.to_thread(self._run.stopping.wait)
        await pair.close()

    def _client(self, endpoint: Endpoint) -> ServiceBusClient:
        # Without retries of the SDK's own, so that the pair sees a failure at once.
        made = ServiceBusClient.from_connection_string(endpoint.connection_string, retry_total=0, **endpoint.options)
        return prompt_client(made)

    def _hear(self, event: Event) -> None:
        expectations = self._expectations
        if isinstance(event, Diverted):
            expectations.count("diverted", event.messages)
            expectations.note_once("first message diverted")
            expectations.diverting(self._sending.get(asyncio.current_task(), ""))
        elif isinstance(event, SendFailed):
            expectations.note(f"send to {place_of(event)} failed")
        elif isinstance(event, FailoverEngaged):
            expectations.engaged(place_of(event))
            expectations.note(f"{place_of(event)} failed over, {event.after_ms / 1000:.2f} s later")
        elif isinstance(event, PrimaryHealthy) and event.was_diverted:
            expectations.healed(place_of(event))
            expectations.note(f"{place_of(event)} healthy by {event.reason}")
        elif isinstance(event, PingSent):
            expectations.count("pings")
        elif isinstance(event, Syphoned):
            expectations.count("syphoned", event.messages)
            expectations.note_once("first message syphoned")

    # -- senders ------------------------------------------------------------------------------------------------

    async def _send(self, pair: PairedNamespace) -> None:
        run = self._run
        senders = {queue: pair.get_queue_sender(queue) for queue in QUEUES}
        while not run.stopping.is_set():
            outgoing = run.feed.take()
            if outgoing is None:
                await asyncio.sleep(POLL_S)
                continue
            while not await self._is_sent(senders[queue_of(outgoing)], outgoing):
                await asyncio.sleep(RETRY_S)
                if run.stopping.is_set():
                    return

    async def _is_sent(self, sender: PairedSender, outgoing: Outgoing) -> bool:
        account = self._run.account
        self._sending[asyncio.current_task()] = outgoing.message_id
        account.sending(outgoing.message_id, outgoing.read(), None)
        try:
            await sender.send_messages(message_of(outgoing), timeout=SEND_TIMEOUT_S)
        except (*UNKNOWN_OUTCOME, BacklogUnavailable):
            account.send_unknown(outgoing.message_id)
            return False
        account.acknowledged(outgoing.message_id, self._primary.name)
        return True

    # -- receivers ----------------------------------------------------------------------------------------------

    async def _receive(self, queue: str) -> None:
        """Receive from a queue of the primary, whatever happens to it."""
        run = self._run
        async with self._client(self._primary) as client:
            while not run.stopping.is_set():
                receiver = (
                    client.get_queue_receiver(queue, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=_WAIT_S)
                    if queue == VISITS
                    else client.get_queue_receiver(queue)
                )
                # Without a session in time there is an error, too; either way the next try is a new link.
                pause_s = AGAIN_S
                with contextlib.suppress(*UNKNOWN_OUTCOME):
                    await self._work(receiver, queue, run.stopping.is_set)
                    pause_s = RETRY_S
                await close_quietly_async(receiver)
                await asyncio.sleep(pause_s)

    async def _work(self, receiver: ServiceBusReceiver, queue: str, is_over: Callable[[], bool]) -> None:
        while not is_over():
            messages = await receiver.receive_messages(_BATCH, max_wait_time=_WAIT_S)
            await asyncio.gather(*(self._complete(receiver, queue, message) for message in messages))
            if not messages and queue == VISITS:
                return  # On to another session.

    async def _complete(self, receiver: ServiceBusReceiver, queue: str, message: ServiceBusReceivedMessage) -> None:
        account, message_id = self._run.account, message_id_of(message)
        # Each queue counts for itself.
        number = number_of(message) | QUEUES.index(queue) << _QUEUE_SHIFT
        account.received(message_id, body_of(message), digest=digest_in(message), partition_key=None, number=number)
        self._expectations.received(message, queue)
        try:
            await receiver.complete_message(message)
        except UNKNOWN_OUTCOME:
            account.completion_unknown(message_id)
        else:
            account.completed(message_id, number, self._primary.name)
