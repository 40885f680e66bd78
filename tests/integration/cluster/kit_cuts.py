"""Servers in networks of their own over one PostgreSQL, traffic of the SDK, and a record that tells what went wrong.

What the record holds is judged when all is over:

- lost: acknowledged, and never received;
- repeated: settled twice, each time with the broker's word for it, though it was sent once;
- revived: settled, and given to somebody by a later grant: whose lock was it? Of all grants of a message only the
  last may be settled, else two held it at a time, or one got what was done;
- shared: one lock token in two hands;
- unordered: of a session, something came before what was sent before it.
"""

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
_TROUBLE: Final = (ServiceBusError, OSError, ValueError, AttributeError)


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


class Grant:
    """A message in the hands of a receiver.

    Attributes:
        text: What was sent.
        key: Queue and sequence number: the message itself.
        order: When it was granted, in the broker's time; None where only the session is locked.
        token: Of its lock.
        is_settled: The broker has said that it was completed.
    """

    __slots__ = ("is_settled", "key", "order", "text", "token")

    def __init__(self, text: str, key: tuple[str, int], order: tuple[float, int] | None, token: str) -> None:
        self.text = text
        self.key = key
        self.order = order
        self.token = token
        self.is_settled = False


class ClientRecord:
    """What was acknowledged, granted and settled."""

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.grants: list[Grant] = []
        self._received: set[str] = set()
        self._lock = threading.Lock()

    def note_sent(self, texts: list[str]) -> None:
        """These are acknowledged."""
        with self._lock:
            self.sent.update(texts)

    def note_grant(self, queue: str, message: ServiceBusReceivedMessage) -> Grant:
        """A receiver has got a message; noted before it is completed, which may be done though its answer is lost."""
        until = message.locked_until_utc
        order = None if until is None else (until.timestamp() - LOCK_S, message.delivery_count or 0)
        return self.note(Grant(str(message), (queue, message.sequence_number or 0), order, str(message.lock_token)))

    def note(self, grant: Grant) -> Grant:
        """The same, of a grant that was made out."""
        with self._lock:
            self.grants.append(grant)
            self._received.add(grant.text)
        return grant

    @property
    def lost(self) -> set[str]:
        """Acknowledged, and not received yet."""
        with self._lock:
            return self.sent - self._received

    @property
    def counts(self) -> tuple[int, int]:
        """How many were acknowledged, and how many grants there were."""
        with self._lock:
            return len(self.sent), len(self.grants)

    def faults(self) -> dict[str, list[str]]:
        """What went wrong, by kind; empty when nothing did."""
        found = {
            "lost": sorted(self.lost),
            "repeated": self._repeated(),
            "revived": self._revived(),
            "shared": self._shared(),
            "unordered": self._unordered(),
        }
        return {kind: texts for kind, texts in found.items() if texts}

    def _repeated(self) -> list[str]:
        seen: set[str] = set()
        return [
            grant.text for grant in self.grants if grant.is_settled and (grant.text in seen or seen.add(grant.text))
        ]

    def _revived(self) -> list[str]:
        by_key: dict[tuple[str, int], list[Grant]] = {}
        for grant in self.grants:
            by_key.setdefault(grant.key, []).append(grant)
        found = []
        for grants in by_key.values():
            # Of a session's messages they were noted in order: who holds it alone can have noted anything.
            ordered = grants if grants[0].order is None else sorted(grants, key=lambda grant: grant.order or (0.0, 0))
            found += [grant.text for grant in ordered[:-1] if grant.is_settled]
        return found

    def _shared(self) -> list[str]:
        tokens: set[str] = set()
        found = []
        for grant in self.grants:
            if grant.token in tokens:
                found.append(grant.text)
            tokens.add(grant.token)
        return found

    def _unordered(self) -> list[str]:
        """First deliveries of a session that are behind another of it."""
        last: dict[str, int] = {}
        known: set[str] = set()
        found = []
        for grant in self.grants:
            if grant.key[0] != SESSIONS or grant.text in known:
                continue
            known.add(grant.text)
            _, session, number = grant.text.split(":")
            if int(number) < last.get(session, -1):
                found.append(grant.text)
            last[session] = max(last.get(session, -1), int(number))
        return found


class CutTraffic:
    """A sender and a receiver for each queue, at servers next to each other, and a record of what they see."""

    def __init__(self, cluster: Cluster) -> None:
        self.record = ClientRecord()
        self._cluster = cluster
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._deadline = 0.0
        self._senders = [
            threading.Thread(target=self._keep, args=(i, self._send, name))
            for i, name in enumerate((*PLAIN, FORWARDING))
        ]
        self._senders.append(threading.Thread(target=self._keep, args=(1, self._send_to_sessions, SESSIONS)))
        self._receivers = [
            threading.Thread(target=self._keep, args=(i + 1, self._receive, name)) for i, name in enumerate(PLAIN)
        ]
        self._receivers += [
            threading.Thread(target=self._keep, args=(i, self._receive_sessions, SESSIONS)) for i in (0, 2)
        ]
        self._numbers = dict.fromkeys(SESSION_IDS, 0)

    def start(self) -> None:
        """Begin."""
        for thread in (*self._senders, *self._receivers):
            thread.start()

    def stop(self) -> None:
        """Send no more, and receive what is left."""
        self._is_over.set()
        for thread in self._senders:
            thread.join()
        # A link that ended in good order keeps its locks: its messages come again when these end.
        self._deadline = time.monotonic() + 4 * LOCK_S
        self._is_sent.set()
        for thread in self._receivers:
            thread.join()

    def _keep(self, number: int, work: Callable[[ServiceBusClient, str], bool], name: str) -> None:
        """Do some work at a server until it is done, whatever happens to the server."""
        while True:
            try:
                with self._cluster.client(number % len(self._cluster.servers), **_ONCE) as bus:
                    if work(bus, name):
                        return
            except _TROUBLE:
                if self._is_sent.is_set() and time.monotonic() > self._deadline:
                    return
                time.sleep(0.1)

    def _send(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_sender(name) as sender:
            while not self._is_over.is_set():
                begun = time.monotonic_ns()
                # Never the same again: an unanswered one may come or not, and must not be taken for another.
                texts = [f"{name}:{begun}:{index}" for index in range(TOGETHER)]
                sender.send_messages([ServiceBusMessage(text) for text in texts])
                self.record.note_sent(texts)
                time.sleep(PAUSE_S)
        return True

    def _send_to_sessions(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_sender(name) as sender:
            while not self._is_over.is_set():
                for session in SESSION_IDS:
                    number = self._numbers[session]
                    self._numbers[session] += 1
                    text = f"{name}:{session}:{number}"
                    sender.send_messages(ServiceBusMessage(text, session_id=session))
                    self.record.note_sent([text])
                time.sleep(PAUSE_S)
        return True

    def _is_done(self, found: list[ServiceBusReceivedMessage]) -> bool:
        is_late = time.monotonic() > self._deadline
        return not found and self._is_sent.is_set() and (is_late or not self.record.lost)

    def _receive(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_receiver(name) as receiver:
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
        grants = [self.record.note_grant(name, message) for message in found]
        for grant, message in zip(grants, found, strict=True):
            # The SDK waits for the outcome.
            receiver.complete_message(message)
            grant.is_settled = True


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
            except _TROUBLE:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
