"""The traffic of several servers: every feature of a partitioned queue and a topic, at all servers at a time.

Whatever is not answered is sent again under the same id: the entities detect duplicates, so each message is there once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, Final, Protocol, TypeVar

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import MessageNotFoundError, ServiceBusError

from duobus.clock import Clock
from duobus.ha.errors import BacklogUnavailable
from duobus_demo.clients import UNKNOWN_OUTCOME
from duobus_demo.expectations.cluster_account import ClusterAccount
from duobus_demo.workers.session_workers import RECEIVE_COUNT
from duobus_demo.workers.transaction_client import LinkEnded

JOBS: Final = "jobs"
VISITS: Final = "visits"
NEWS: Final = "news"
SINK: Final = "sink"
#: The subscription that gets all, and the one that forwards; what goes through them is called so, too.
ALL, RED = "all", "red"
#: For how long messages are locked, in seconds: the shortest that there is, since the end waits for it.
LOCK_S: Final = 5
DETECTING: Final = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "PT10M"}
PROPERTIES: Final = {
    **DETECTING,
    "EnablePartitioning": True,
    "LockDuration": f"PT{LOCK_S}S",
    "MaxDeliveryCount": 1000,
}
_SUBSCRIPTION: Final = {"LockDuration": f"PT{LOCK_S}S", "MaxDeliveryCount": 1000}
_SESSIONS: Final = tuple(f"s{number}" for number in range(6))
SEND_EVERY_S: Final = 0.1
_AGAIN_S: Final = 0.1
_AT_ONCE: Final = 4
_DELAY_S: Final = 2
_SCHEDULE_EVERY_S: Final = 0.6
#: One in so many is sent twice, or deferred.
_TWICE: Final = 5
_DEFERRED: Final = 7
#: Looks at a session before it is given back, and how long each waits for a message, in seconds.
_STAY: Final = 10
_NEXT_S: Final = 0.2
#: Deferred messages that are asked for between two looks at the queue.
_LOOKED_AT: Final = 3
#: What says that a server is away, or no longer has what was asked of it.
BROKEN: Final = (ServiceBusError, *UNKNOWN_OUTCOME, BacklogUnavailable, LinkEnded)

_ClientT = TypeVar("_ClientT")


def cluster_config(more: Iterable[Mapping[str, Any]] = (), namespace: str = "sbemulatorns") -> dict[str, Any]:
    """The contents of a configuration file with what the traffic uses, and more queues."""
    red = {"Name": "red", "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": "colour = 'red'"}}}
    news = {
        "Name": NEWS,
        "Properties": {**DETECTING, "EnablePartitioning": True},
        "Subscriptions": [
            {"Name": ALL, "Properties": _SUBSCRIPTION},
            {"Name": RED, "Properties": {**_SUBSCRIPTION, "ForwardTo": SINK}, "Rules": [red]},
        ],
    }
    queues = [
        {"Name": SINK, "Properties": PROPERTIES},
        {"Name": JOBS, "Properties": PROPERTIES},
        {"Name": VISITS, "Properties": {**PROPERTIES, "RequiresSession": True}},
        *more,
    ]
    space = {"Name": namespace, "Queues": queues, "Topics": [news]}
    return {"UserConfig": {"Namespaces": [space], "Logging": {"Type": "File"}}}


class JobSender(Protocol):
    """What sends jobs: a sender of the SDK, or of a pair of namespaces."""

    def send_messages(self, message: Any) -> None:
        """Send a message or a list."""


#: Makes a client of the server of this number, or the one after it.
MakeClient = Callable[[int], ServiceBusClient]


def serve_in_turn(
    client: Callable[[int], contextlib.AbstractContextManager[_ClientT]],
    index: int,
    is_over: Callable[[], bool],
    work: Callable[[_ClientT], None],
) -> None:
    """Work with one server after the other, from one on: one that fails is left for the next."""
    pause = threading.Event()
    for number in count(index):
        if is_over():
            return
        with contextlib.suppress(*BROKEN), client(number) as one:
            work(one)
        pause.wait(_AGAIN_S)


class FeatureTraffic:
    """The threads; as a context manager it runs them, and receives what is left at its end.

    Args:
        client: Makes a client of a server.
        account: Where all is entered.
        clock: Time.
        jobs: Gives what sends jobs, while it is entered, in place of a sender at a server; scheduled jobs are sent at a
            server in any case.
        drain_s: How long what is left may take in the end, in seconds.
    """

    #: The kinds of traffic in the account.
    FLOWS: Final = (JOBS, VISITS, ALL, RED)

    def __init__(
        self,
        client: MakeClient,
        account: ClusterAccount,
        clock: Clock,
        jobs: Callable[[], contextlib.AbstractContextManager[JobSender]] | None = None,
        drain_s: float = 60.0,
    ) -> None:
        self._client = client
        self._account = account
        self._clock = clock
        self._jobs = jobs
        self._drain_ms = int(drain_s * 1000)
        self._deadline_ms = 0
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        senders = (self._send_jobs, self._schedule_jobs, self._send_visits, self._send_news)
        receivers = (self._receive_jobs, self._receive_visits, self._receive_news, self._receive_sink)
        self._senders = [threading.Thread(target=work, args=(i,)) for i, work in enumerate(senders)]
        self._receivers = [threading.Thread(target=work, args=(i + 1,)) for i, work in enumerate(receivers)]

    def __enter__(self) -> FeatureTraffic:
        for thread in (*self._senders, *self._receivers):
            thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Send no more, and receive what is left."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        self._deadline_ms = self._clock.monotonic_ms() + self._drain_ms
        self._is_sent.set()
        for thread in self._receivers:
            thread.join()

    def _is_done(self) -> bool:
        if not self._is_sent.is_set():
            return False
        # A link that ended in good order keeps its locks: its messages come again when these end.
        return not self._account.missing() or self._clock.monotonic_ms() > self._deadline_ms

    def _serve(self, index: int, is_over: Callable[[], bool], work: Callable[[ServiceBusClient], None]) -> None:
        serve_in_turn(self._client, index, is_over, work)

    # -- senders ------------------------------------------------------------------------------------------------

    def _send(
        self,
        index: int,
        open_sender: Callable[[ServiceBusClient], Any],
        rounds: Iterator[_Round],
        every_s: float = SEND_EVERY_S,
    ) -> None:
        """Send one round after the other, each until it is acknowledged."""
        pending: list[_Round] = []

        def work(client: ServiceBusClient) -> None:
            with open_sender(client) as sender:
                while not self._is_over.is_set():
                    if not pending:
                        pending.append(next(rounds))
                    pending[0].send(sender)
                    sent = pending.pop()
                    for flow, ids in sent.ids.items():
                        self._account.acknowledged(flow, *ids)
                    self._is_over.wait(every_s)

        self._serve(index, self._is_over.is_set, work)

    def _send_jobs(self, index: int) -> None:
        def opened(client: ServiceBusClient) -> Any:
            return client.get_queue_sender(JOBS) if self._jobs is None else self._jobs()

        self._send(index, opened, _jobs())

    def _schedule_jobs(self, index: int) -> None:
        self._send(index, lambda client: client.get_queue_sender(JOBS), _scheduled_jobs(), _SCHEDULE_EVERY_S)

    def _send_visits(self, index: int) -> None:
        self._send(index, lambda client: client.get_queue_sender(VISITS), _visits())

    def _send_news(self, index: int) -> None:
        self._send(index, lambda client: client.get_topic_sender(NEWS), _news())

    # -- receivers ----------------------------------------------------------------------------------------------

    def _receive_jobs(self, index: int) -> None:
        put_off: dict[int, str] = {}

        def work(client: ServiceBusClient) -> None:
            with client.get_queue_receiver(JOBS) as receiver:
                while not self._is_done():
                    self._take_put_off(receiver, put_off)
                    for message in receiver.receive_messages(50, max_wait_time=1):
                        self._take_job(receiver, message, put_off)

        self._serve(index, self._is_done, work)

    def _take_job(self, receiver: ServiceBusReceiver, message: Any, put_off: dict[int, str]) -> None:
        number = message.sequence_number
        due = (message.application_properties or {}).get(b"due")
        now_ms = self._clock.now_ms()
        if due is not None and int(due) > now_ms:
            self._account.early(f"{message.message_id}: {int(due) - now_ms} ms")
        if number % _DEFERRED == 0 and number not in put_off and not self._is_over.is_set():
            # Before it is deferred: whether one that breaks was done, nobody can tell.
            put_off[number] = message.message_id
            receiver.defer_message(message)
            return
        self._account.received(JOBS, message.message_id, number)
        receiver.complete_message(message)
        put_off.pop(number, None)

    def _take_put_off(self, receiver: ServiceBusReceiver, put_off: dict[int, str]) -> None:
        # All of them, once no other job waits behind them.
        for number in list(put_off)[: None if self._is_sent.is_set() else _LOOKED_AT]:
            # Behind the others: one that is locked by a link that broke has to be waited for.
            put_off[number] = put_off.pop(number)
            try:
                (message,) = receiver.receive_deferred_messages([number])
            except MessageNotFoundError:
                # Not deferred after all, or completed though that was not answered.
                continue
            self._account.received(JOBS, str(message.message_id), number)
            receiver.complete_message(message)
            del put_off[number]

    def _receive_visits(self, index: int) -> None:
        def work(client: ServiceBusClient) -> None:
            while not self._is_done():
                with client.get_queue_receiver(VISITS, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as receiver:
                    # Each session has its turn, or the others would be left for the end.
                    for _ in range(_STAY):
                        messages = receiver.receive_messages(RECEIVE_COUNT, max_wait_time=_NEXT_S)
                        if not messages:
                            break
                        for message in messages:
                            session, number = str(message.message_id).split(":")
                            self._account.received(VISITS, str(message.message_id), message.sequence_number or 0)
                            self._account.in_session(session, int(number))
                            receiver.complete_message(message)

        self._serve(index, self._is_done, work)

    def _receive_news(self, index: int) -> None:
        self._receive(index, ALL, lambda client: client.get_subscription_receiver(NEWS, ALL))

    def _receive_sink(self, index: int) -> None:
        self._receive(index, RED, lambda client: client.get_queue_receiver(SINK))

    def _receive(self, index: int, flow: str, open_receiver: Callable[[ServiceBusClient], Any]) -> None:
        def work(client: ServiceBusClient) -> None:
            with open_receiver(client) as receiver:
                while not self._is_done():
                    for message in receiver.receive_messages(50, max_wait_time=1):
                        self._account.received(flow, message.message_id, message.sequence_number)
                        receiver.complete_message(message)

        self._serve(index, self._is_done, work)


class _Round:
    """What is sent together, and acknowledged together.

    Attributes:
        ids: By flow, what is entered.
    """

    def __init__(self, ids: Mapping[str, Sequence[str]], send: Callable[[Any], None]) -> None:
        self.ids = ids
        self.send = send


def _jobs() -> Iterator[_Round]:
    """Jobs that are due at once, some of them sent twice."""
    for number in count():
        ids = [f"{number}.{part}" for part in range(_AT_ONCE)]
        yield _Round({JOBS: ids}, partial(_send_all, ids, 2 if number % _TWICE == 0 else 1))


def _scheduled_jobs() -> Iterator[_Round]:
    """Jobs that are due later."""
    for number in count():
        ids = [f"later-{number}.{part}" for part in range(_AT_ONCE)]
        yield _Round({JOBS: ids}, partial(_schedule, ids))


def _send_one(message: ServiceBusMessage, sender: Any) -> None:
    sender.send_messages(message)


def _send_all(ids: Sequence[str], times: int, sender: Any) -> None:
    for _ in range(times):
        # All of a batch in one fragment; duplicates meet in it.
        sender.send_messages([ServiceBusMessage(one, message_id=one, partition_key=one.split(".")[0]) for one in ids])


def _schedule(ids: Sequence[str], sender: Any) -> None:
    due = datetime.now(UTC) + timedelta(seconds=_DELAY_S)
    stamp: Any = {"due": str(int(due.timestamp() * 1000))}
    key = ids[0].split(".")[0]
    messages = [ServiceBusMessage(o, message_id=o, partition_key=key, application_properties=stamp) for o in ids]
    sender.schedule_messages(messages, due)


def _visits() -> Iterator[_Round]:
    """One message after the other, in turn over the sessions."""
    for number in count():
        for session in _SESSIONS:
            one = f"{session}:{number}"
            message = ServiceBusMessage(one, message_id=one, session_id=session)
            yield _Round({VISITS: [one]}, partial(_send_one, message))


def _news() -> Iterator[_Round]:
    """Every other one red; each is entered for the subscription that gets all, and for the one that forwards."""
    for number in count():
        one = f"n{number}"
        colour = "red" if number % 2 else "blue"
        message = ServiceBusMessage(one, message_id=one, application_properties={"colour": colour})
        flows = {ALL: [one], **({RED: [one]} if number % 2 else {})}
        yield _Round(flows, partial(_send_one, message))
