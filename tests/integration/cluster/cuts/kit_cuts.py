"""Servers in networks of their own over one PostgreSQL, traffic of the SDK, and a record that tells what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import LOCK_S, PAUSE_S, Cluster
from kit_network import Network, NetworkedPostgres, running_network

from kits.client_record import ClientRecord, Grant
from kits.sdk_frames import is_mispaired, token_of

#: Names of the ends of the network.
POSTGRES: Final = "postgres"
#: Queues, one of which forwards, so that messages go from server to server as well; and one with sessions.
PLAIN: Final = ("q0", "q1", "q2")
FORWARDING: Final = "forwards"
SESSIONS: Final = "sessions"
SESSION_IDS: Final = ("a", "b", "c")
#: Messages of one send.
TOGETHER: Final = 5
#: The SDK neither sends nor settles again by itself, so that what comes twice is the broker's doing.
_ONCE: Final = {"retry_total": 0, "retry_backoff_factor": 0.05}
#: What clients meet while servers come and go; the SDK lets some errors of sockets through as they are.
TROUBLE: Final = (ServiceBusError, OSError, ValueError, AttributeError)


def end_of(number: int) -> str:
    """The end of the network at which a server is."""
    return f"server{number}"


class NetworkedCluster(Cluster):
    """Servers at ends of a network; clients are at its hub."""

    def __init__(self, folder: Path, postgres: NetworkedPostgres, network: Network, *, servers: int = 3) -> None:
        super().__init__(folder, postgres, servers=servers, more=self._addresses)
        self.network = network

    def words(self, number: int) -> list[str]:
        """See Cluster."""
        return self.network.words(end_of(number))

    def host(self, number: int) -> str:
        """See Cluster."""
        return self.network.address(end_of(number))

    def _addresses(self, number: int) -> list[str]:
        return ["--host", "0.0.0.0", "--advertise", self.host(number)]


@contextmanager
def running_networked_cluster(folder: Path, *, servers: int = 3) -> Iterator[NetworkedCluster]:
    """A cluster that is gone afterwards; meanwhile this thread, and those that it starts, are at the hub."""
    ends = [POSTGRES, *(end_of(number) for number in range(servers))]
    with running_network(ends) as network, network.inside("hub"):
        postgres = NetworkedPostgres(network, POSTGRES, folder / POSTGRES, durable=True)
        cluster = NetworkedCluster(folder, postgres, network, servers=servers)
        try:
            postgres.create()
            postgres.start()
            cluster.start_all()
            yield cluster
        finally:
            cluster.close()
            postgres.remove()


class CutTraffic:
    """A sender and a receiver for each queue, at servers next to each other, and a record of what they see.

    Args:
        cluster: Where.
        record: Where all is entered; a new one unless it is given.
        pause_s: Between two sends of a sender.
        drain_s: How long what is left may take in the end. A link that ended in good order keeps its locks: its
            messages come again when these end.
        linger_s: For how long receivers stay in the end though nothing is missing: what comes then should not.
    """

    def __init__(
        self,
        cluster: Cluster,
        record: ClientRecord | None = None,
        *,
        pause_s: float = PAUSE_S,
        drain_s: float = 4 * LOCK_S,
        linger_s: float = 0.0,
    ) -> None:
        self.record = record or ClientRecord()
        #: Errors that no client should meet, by which a thread has ended.
        self.surprises: list[str] = []
        self._cluster = cluster
        self._pause_s = pause_s
        self._drain_s = drain_s
        self._linger_s = linger_s
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._sent_s = 0.0
        self._numbers: dict[tuple[str, str], int] = {}
        self._senders = [self._thread(i, self._send, name) for i, name in enumerate((*PLAIN, FORWARDING))]
        self._senders.append(self._thread(1, self._send_to_sessions, SESSIONS))
        self._receivers = [self._thread(i + 1, self._receive, name) for i, name in enumerate(PLAIN)]
        self._receivers += [self._thread(i, self._receive_sessions, SESSIONS) for i in (0, 2)]

    def start(self) -> None:
        """Begin."""
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def stop(self) -> None:
        """Send no more, and receive what is left."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        self._sent_s = time.monotonic()
        self._is_sent.set()
        for thread in self._receivers:
            thread.join()

    def _thread(
        self, number: int, work: Callable[[ServiceBusClient, str], bool], name: str, step: int = 0
    ) -> threading.Thread:
        return threading.Thread(target=self._keep, args=(number, work, name, step))

    def _keep(self, number: int, work: Callable[[ServiceBusClient, str], bool], name: str, step: int) -> None:
        """Do some work at a server until it is done; after each trouble at the server that is ``step`` further."""
        while True:
            try:
                with self._cluster.client(number % len(self._cluster.servers), **_ONCE) as bus:
                    if work(bus, name):
                        return
            except TROUBLE:
                if self._is_late:
                    return
                number += step
                time.sleep(0.1)
            except Exception as error:
                self.surprises.append(f"{name}: {type(error).__name__}: {error}")
                raise

    @property
    def _is_late(self) -> bool:
        return self._is_sent.is_set() and time.monotonic() > self._sent_s + self._drain_s

    def _send(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_sender(name) as sender:
            while not self._is_over.is_set():
                begun = time.monotonic_ns()
                # Never the same again: an unanswered one may come or not, and must not be taken for another.
                texts = [f"{name}:{begun}:{index}" for index in range(TOGETHER)]
                sender.send_messages([ServiceBusMessage(text) for text in texts])
                self.record.note_sent(texts)
                time.sleep(self._pause_s)
        return True

    def _send_to_sessions(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_sender(name) as sender:
            while not self._is_over.is_set():
                for session in SESSION_IDS:
                    number = self._numbers.get((name, session), 0)
                    self._numbers[name, session] = number + 1
                    text = f"{name}:{session}:{number}"
                    sender.send_messages(ServiceBusMessage(text, session_id=session))
                    self.record.note_sent([text])
                time.sleep(self._pause_s)
        return True

    def _is_done(self, found: list[ServiceBusReceivedMessage]) -> bool:
        if found or not self._is_sent.is_set():
            return False
        is_calm = time.monotonic() >= self._sent_s + self._linger_s
        return self._is_late or (is_calm and not self.record.lost)

    def _receive(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_receiver(name) as receiver:
            return self._receive_all(receiver, name)

    def _receive_all(self, receiver: Any, name: str) -> bool:
        while True:
            found = receiver.receive_messages(50, max_wait_time=1)
            self._complete(receiver, name, found)
            if self._is_done(found):
                return True

    def _receive_sessions(self, bus: ServiceBusClient, name: str) -> bool:
        while True:
            found: list[ServiceBusReceivedMessage] = []
            try:
                with bus.get_queue_receiver(name, session_id=NEXT_AVAILABLE_SESSION, max_wait_time=1) as receiver:
                    # A few of each, so that sessions change hands.
                    found = receiver.receive_messages(5, max_wait_time=0.5)
                    self._complete(receiver, name, found)
            except ServiceBusError:
                if not self._is_done(found):
                    raise
            if self._is_done(found):
                return True

    def _complete(self, receiver: Any, name: str, found: list[ServiceBusReceivedMessage]) -> None:
        grants = [self.record.note(self._grant(name, message)) for message in found]
        for grant, message in zip(grants, found, strict=True):
            if is_mispaired(message):
                # To settle it would settle the other one. Its lock ends, and it comes again.
                continue
            # The SDK waits for the outcome.
            receiver.complete_message(message)
            grant.settled_s = time.monotonic()

    def _grant(self, name: str, message: ServiceBusReceivedMessage) -> Grant:
        """What is noted of a message that came out of an entity."""
        until, text = message.locked_until_utc, str(message)
        session = None
        if message.session_id is not None:
            session = message.session_id, int(text.split(":")[2])
        return Grant(
            text,
            (name, message.sequence_number or 0),
            None if until is None else (until.timestamp() - LOCK_S, message.delivery_count or 0),
            token_of(message),
            session=session,
            at_s=time.monotonic(),
        )


def make_queues(cluster: Cluster) -> None:
    """Make what the traffic uses."""
    lock = timedelta(seconds=LOCK_S)
    with cluster.admin(0) as admin:
        for name in PLAIN:
            admin.create_queue(name, lock_duration=lock, max_delivery_count=1000)
        admin.create_queue(FORWARDING, forward_to=PLAIN[0], max_delivery_count=1000)
        admin.create_queue(SESSIONS, lock_duration=lock, requires_session=True, max_delivery_count=1000)


def await_passable(cluster: Cluster, limit_s: float) -> float:
    """Wait until the owner of every queue can be asked through every server; return the seconds that it took."""
    begun = time.monotonic()
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda number: _ask_everything(cluster, number, begun + limit_s), cluster.servers))
    return time.monotonic() - begun


def _ask_everything(cluster: Cluster, number: int, end: float) -> None:
    for name in PLAIN:
        while True:
            try:
                with cluster.client(number, **_ONCE) as bus, bus.get_queue_receiver(name) as receiver:
                    receiver.peek_messages(1)
                break
            except TROUBLE:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
