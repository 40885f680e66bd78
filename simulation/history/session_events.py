"""What happened to sessions: the events of ``events.py`` that only queues with sessions have."""

from __future__ import annotations

from simulation.history.events import Event


class SessionAccepted(Event):
    """A client was given a session.

    Attributes:
        connection: Its name, as in LinkLost.
        entity: The queue.
        session: Session id.
        fragment: Where the session lies.
        until_ms: End of the lock, broker time.
        broker_ms: Broker time when the lock was granted.
    """

    __slots__ = ("broker_ms", "connection", "entity", "fragment", "session", "until_ms")

    def __init__(
        self, connection: str, entity: str, session: str, fragment: int, until_ms: int, broker_ms: int
    ) -> None:
        self.connection = connection
        self.entity = entity
        self.session = session
        self.fragment = fragment
        self.until_ms = until_ms
        self.broker_ms = broker_ms


class SessionReleased(Event):
    """The broker ended the lock of a session that it had granted at ``accepted_ms``."""

    __slots__ = ("accepted_ms", "broker_ms", "entity", "session")

    def __init__(self, entity: str, session: str, accepted_ms: int, broker_ms: int) -> None:
        self.entity = entity
        self.session = session
        self.accepted_ms = accepted_ms
        self.broker_ms = broker_ms


class SessionRenewBegin(Event):
    """A client is about to renew the lock of a session."""

    __slots__ = ("connection", "entity", "op", "session")

    def __init__(self, op: int, connection: str, entity: str, session: str) -> None:
        self.op = op
        self.connection = connection
        self.entity = entity
        self.session = session


class StateBegin(Event):
    """A client is about to set the state of a session; ``value`` None clears it."""

    __slots__ = ("broker_ms", "connection", "entity", "op", "session", "value")

    def __init__(
        self, op: int, connection: str, entity: str, session: str, value: bytes | None, broker_ms: int
    ) -> None:
        self.op = op
        self.connection = connection
        self.entity = entity
        self.session = session
        self.value = value
        self.broker_ms = broker_ms


class StateRead(Event):
    """A client asked for the state of a session at ``begin_index`` of the history, and got ``value``."""

    __slots__ = ("begin_index", "connection", "entity", "session", "value")

    def __init__(self, connection: str, entity: str, session: str, value: bytes | None, begin_index: int) -> None:
        self.connection = connection
        self.entity = entity
        self.session = session
        self.value = value
        self.begin_index = begin_index
