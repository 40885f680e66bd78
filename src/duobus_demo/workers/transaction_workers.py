"""Tasks that transactions turn into results: each is completed and its result is sent together, or neither.

Whether a transaction whose connection broke was committed, its client cannot know: the task comes again if it was not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from enum import Enum, auto
from itertools import count
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.amqp import Link
from duobus.clock import Clock
from duobus.codec import Symbol, scan
from duobus_demo.expectations.transaction_account import Outcome, TransactionAccount
from duobus_demo.workers.cluster_workers import DETECTING, PROPERTIES, SEND_EVERY_S, MakeClient, serve_in_turn
from duobus_demo.workers.transaction_client import ConnectionLost, TransactionClient, result_message

TASKS: Final = "tasks"
RESULTS: Final = "results"
_WORKERS: Final = 2
_SESSIONS: Final = tuple(f"t{number}" for number in range(6))
#: Messages that are taken before a session is given back.
_STAY: Final = 12
#: How long a message is waited for in a session, and a session, in seconds.
_NEXT_S: Final = 0.2
_SESSION_S: Final = 0.5
#: One in so many transactions is rolled back on purpose; at one in so many the connection is cut after the commit was
#: asked for and before it is answered.
_ROLLED_BACK: Final = 7
_CUT: Final = 25
_SEED: Final = 27
#: Pause after a transaction that the broker has refused, in seconds.
_AGAIN_S: Final = 0.1
#: Tasks that are looked at in the end; there must be none.
_LOOKED_AT: Final = 100
_SEQUENCE_NUMBER: Final = Symbol("x-opt-sequence-number")

#: Makes a client with transactions of the server of this number, or one after it.
MakeTransactionClient = Callable[[int, str], TransactionClient]


class Intention(Enum):
    """How a worker means to end a transaction."""

    COMMIT = auto()
    ROLL_BACK = auto()
    #: Ask for the commit, and cut the connection.
    CUT = auto()


def intention_of(seed: int, attempt: str) -> Intention:
    """Return how an attempt is meant to end; always the same for a seed."""
    dice = random.Random(f"{seed} {attempt}")
    if not dice.randrange(_CUT):
        return Intention.CUT
    return Intention.COMMIT if dice.randrange(_ROLLED_BACK) else Intention.ROLL_BACK


def transaction_queues() -> list[dict[str, Any]]:
    """The queues, as a configuration file has them."""
    # Results that are doubled must be seen; so their queue detects none.
    undetecting = {name: value for name, value in PROPERTIES.items() if name not in DETECTING}
    return [
        {"Name": TASKS, "Properties": {**PROPERTIES, "RequiresSession": True}},
        {"Name": RESULTS, "Properties": {**undetecting, "RequiresSession": True}},
    ]


class TransactionTraffic:
    """The threads; as a context manager it runs them, and does what is left at its end.

    Args:
        client: Makes a client of the SDK.
        transaction_client: Makes a client with transactions.
        account: Where all is entered.
        clock: Time.
        drain_s: How long what is left may take in the end, in seconds.
        seed: Of what is rolled back and cut.
    """

    def __init__(
        self,
        client: MakeClient,
        transaction_client: MakeTransactionClient,
        account: TransactionAccount,
        clock: Clock,
        drain_s: float = 60.0,
        seed: int = _SEED,
    ) -> None:
        self._client = client
        self._transaction_client = transaction_client
        self._account = account
        self._clock = clock
        self._seed = seed
        self._drain_ms = int(drain_s * 1000)
        self._deadline_ms = 0
        self._is_over = threading.Event()
        self._is_sent = threading.Event()
        self._is_worked = threading.Event()
        self._is_read = threading.Event()
        self._names = count(1)
        self._sender = threading.Thread(target=self._send_tasks)
        self._workers = [threading.Thread(target=self._work, args=(index,)) for index in range(_WORKERS)]
        self._reader = threading.Thread(target=self._read_results)

    def __enter__(self) -> TransactionTraffic:
        for thread in (self._sender, *self._workers, self._reader):
            thread.start()
        return self

    def __exit__(self, *about: object) -> None:
        self.finish()

    def stop(self) -> None:
        """Send no more tasks; what is left is done meanwhile."""
        self._is_over.set()

    def finish(self) -> None:
        """Send no more tasks, do what is left, and look at what lies in the queue of tasks then."""
        self.stop()
        self._deadline_ms = self._clock.monotonic_ms() + self._drain_ms
        self._sender.join()
        self._is_sent.set()
        for thread in self._workers:
            thread.join()
        self._is_worked.set()
        self._reader.join()
        self._look_at_tasks()

    def _is_late(self) -> bool:
        return self._is_sent.is_set() and self._clock.monotonic_ms() > self._deadline_ms

    def _is_done(self) -> bool:
        return self._is_sent.is_set() and (self._account.is_whole() or self._is_late())

    def _send_tasks(self) -> None:
        names = (f"{session}:{number}" for number in count() for session in _SESSIONS)
        pending: list[str] = []

        def work(client: ServiceBusClient) -> None:
            with client.get_queue_sender(TASKS) as sender:
                while not self._is_over.is_set():
                    if not pending:
                        pending.append(next(names))
                    task = pending[0]
                    # One that was not answered is sent again: the queue detects duplicates.
                    sender.send_messages(ServiceBusMessage(task, message_id=task, session_id=task.split(":")[0]))
                    self._account.acknowledged(pending.pop())
                    self._is_over.wait(SEND_EVERY_S)

        serve_in_turn(self._client, 0, self._is_over.is_set, work)

    def _opened(self, number: int) -> TransactionClient:
        return self._transaction_client(number, f"transactions-{next(self._names)}")

    # -- what comes of it ---------------------------------------------------------------------------------------

    def _read_results(self) -> None:
        def is_over() -> bool:
            return self._is_read.is_set() or self._is_late()

        def work(client: TransactionClient) -> None:
            while not is_over():
                # Whether the workers were done before there was nothing more.
                is_worked = self._is_worked.is_set()
                session = client.session_receiver(RESULTS, _SESSION_S)
                if session is not None:
                    self._read_session(client, session)
                    client.detach(session)
                elif is_worked:
                    self._is_read.set()

        serve_in_turn(self._opened, 1, is_over, work)

    def _read_session(self, client: TransactionClient, session: Link) -> None:
        for _ in range(_STAY):
            found = client.next_message(session, _NEXT_S)
            if found is None:
                return
            delivery_id, payload = found
            about = scan(payload)
            assert about.annotations is not None  # the broker has numbered it
            self._account.received(str(about.message_id), int(about.annotations[_SEQUENCE_NUMBER]))
            client.complete(delivery_id)

    def _look_at_tasks(self) -> None:
        looked = threading.Event()

        def work(client: TransactionClient) -> None:
            self._account.left(str(scan(message).message_id) for message in client.peek(TASKS, _LOOKED_AT))
            looked.set()

        serve_in_turn(self._opened, 2, lambda: looked.is_set() or self._is_late(), work)
        if looked.is_set():
            self._account.looked()

    # -- transactions -------------------------------------------------------------------------------------------

    def _work(self, index: int) -> None:
        serve_in_turn(self._opened, index, self._is_done, self._work_with)

    def _work_with(self, client: TransactionClient) -> None:
        results = client.sender_via(TASKS, RESULTS)
        while not self._is_done():
            session = client.session_receiver(TASKS, _SESSION_S)
            if session is not None:
                self._work_in_session(client, session, results)
                client.detach(session)

    def _work_in_session(self, client: TransactionClient, session: Link, results: Link) -> None:
        for _ in range(_STAY):
            found = client.next_message(session, _NEXT_S)
            if found is None:
                return
            delivery_id, payload = found
            task = str(scan(payload).message_id)
            while (outcome := self._try(client, delivery_id, task, results)) is Outcome.ROLLED_BACK:
                # Its lock is there still; so the same message is settled again.
                pass
            if outcome is not Outcome.COMMITTED:
                # The broker asks for a pause when a part of the queue changes its server.
                self._is_worked.wait(_AGAIN_S)
                return

    def _try(self, client: TransactionClient, delivery_id: int, task: str, results: Link) -> Outcome:
        """Do one transaction; what is not answered leaves the worker by the error of its connection."""
        attempt = self._account.begin(task)
        intention = intention_of(self._seed, attempt)
        txn_id = client.declare()
        client.complete_in(txn_id, delivery_id)
        client.send_in(txn_id, results, result_message(attempt, task.split(":")[0], task.encode()))
        does_fail = intention is Intention.ROLL_BACK
        if not does_fail:
            self._account.note(attempt, Outcome.UNKNOWN)
        number = client.discharge(txn_id, fail=does_fail)
        if intention is Intention.CUT:
            client.hang_up()
            raise ConnectionLost("The worker has cut it on purpose.")
        is_done = client.discharged(number)
        asked_for = Outcome.ROLLED_BACK if does_fail else Outcome.COMMITTED
        outcome = asked_for if is_done else Outcome.REFUSED
        self._account.note(attempt, outcome)
        return outcome
