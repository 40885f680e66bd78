"""Transactions on entities of another server: its coordinator does them, under the names that the client knows.

A transaction is declared where the client is, before anybody knows what it will work on. Its first work on an entity
of another server declares it there, too, under the same name, and all of it is done there: sends and settlements pass
as they are, and the discharge is the owner's to answer. Nothing waits for the owner's answer to the declare, for what
one connection carries is done in order; a discharge waits for work that the connection has still to write.

    client --declare, discharge--> this server --declare, discharge--> owner
    client --work in the transaction's name-------------------------->
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Coordinator, Link, Source
from duobus.codec import Described, ULong, build_message
from duobus.errors import ServerBusy
from duobus.gateway.amqp.transactions.participant import Answered, lost_in_transit, lost_with_its_owner

if TYPE_CHECKING:
    from duobus.amqp import Connection, DeliveryState
    from duobus.cluster.proxy.link import ProxiedSession

_CAPABILITY: Final = "amqp:local-transactions"
_DECLARE: Final = 0x31
_DISCHARGE: Final = 0x32


class RemoteTransaction:
    """What this server knows of a transaction that an owner does.

    Attributes:
        coordinator: The owner's.
        dropped: What its connection had dropped unwritten when it began.
        settled: Deliveries that it settles: the session, and their ids there.
    """

    __slots__ = ("coordinator", "dropped", "settled")

    def __init__(self, coordinator: RemoteCoordinator, dropped: int) -> None:
        self.coordinator = coordinator
        self.dropped = dropped
        self.settled: list[tuple[ProxiedSession, list[int]]] = []

    def names(self, session: ProxiedSession, ids: list[int]) -> None:
        """It settles these; they stay what they were until it is committed."""
        session.in_doubt.update(ids)
        self.settled.append((session, ids))

    def ended(self, *, is_committed: bool) -> None:
        """Its deliveries are settled now, or can be settled again."""
        if is_committed:
            for session, ids in self.settled:
                session.committed(ids)
        self.settled.clear()


class RemoteCoordinator:
    """A link to the coordinator of an owner.

    Attributes:
        is_gone: It has ended: what was declared on it is rolled back.

    Args:
        engine: The connection to the owner, which is open.
        changed: Called when it can be used, or is gone.
    """

    __slots__ = ("_answers", "_changed", "_counter", "_engine", "_later", "_link", "is_gone")

    def __init__(self, engine: Connection, changed: Callable[[], None]) -> None:
        self.is_gone = False
        self._changed = changed
        self._counter = 0
        self._engine = engine
        self._answers: dict[int, Answered | None] = {}
        # Discharges of transactions with work that is not written yet, each with what it is called with later.
        self._later: deque[tuple[bytes, RemoteTransaction, Answered]] = deque()
        self._link: Link = attach_coordinator_of(engine.begin(), "coordinator")

    @property
    def session(self) -> Any:
        """The session with the owner that is its own."""
        return self._link.session

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests."""
        return not self.is_gone and self._link.credit > 0

    def is_at(self, link: Link) -> bool:
        """Whether this is its link."""
        return link is self._link

    def flow(self) -> None:
        """The owner has given credit."""
        self.go_on()
        self._changed()

    def declare(self, name: bytes) -> RemoteTransaction:
        """Begin a transaction there.

        Raises:
            ServerBusy: The owner takes no more for now.
        """
        if not self.is_ready:
            raise ServerBusy("The server of the entity takes no transaction for now. Try again.")
        self._request(Described(ULong(_DECLARE), [name]), None)
        return RemoteTransaction(self, self._engine.dropped)

    def roll_back(self, name: bytes) -> None:
        """End a transaction; an owner that cannot be told has done so, or will when its time is over."""
        if self.is_ready:
            self._request(Described(ULong(_DISCHARGE), [name, True]), None)

    def commit(self, name: bytes, transaction: RemoteTransaction, answered: Answered) -> None:
        """End a transaction when all of its work is written; ``answered`` hears what became of it."""
        self._later.append((name, transaction, answered))
        self.go_on()

    def go_on(self) -> None:
        """Commit what has waited for work to be written, which other sessions carry (I8, I34)."""
        while self._later and self.is_ready and not any(one.has_waiting for one in self._engine.sessions.values()):
            name, transaction, answered = self._later.popleft()
            if transaction.dropped == self._engine.dropped:
                self._request(Described(ULong(_DISCHARGE), [name, False]), answered)
            else:
                # It may be this one's work that was dropped.
                self.roll_back(name)
                answered(lost_in_transit())

    def _request(self, request: Described, answered: Answered | None) -> None:
        self._counter += 1
        payload = build_message(None, None, body_value=request)
        self._answers[self._link.send_one(self._counter.to_bytes(8, "big"), payload, False)] = answered

    def settled(self, first: int, last: int, state: DeliveryState | None) -> None:
        """The owner has answered."""
        for number in [one for one in self._answers if first <= one <= last]:
            answered = self._answers.pop(number)
            if answered is not None:
                answered(state)

    def lost(self) -> None:
        """The link, or all of the connection, has ended."""
        if self.is_gone:
            return
        self.is_gone = True
        answers, self._answers = self._answers, {}
        for answered in answers.values():
            if answered is not None:
                answered(None)
        while self._later:
            self._later.popleft()[-1](lost_with_its_owner())
        self._changed()


def attach_coordinator_of(session: Any, name: str) -> Link:
    """Attach to the coordinator of an owner."""
    link: Link = session.attach_sender(name, Source(), Coordinator(capabilities=[_CAPABILITY]))
    return link
