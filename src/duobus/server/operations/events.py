"""What happens in the server, told to those who listen at that moment: nothing is done for it while nobody does.

Changes come from the audit trail and states of stores from the log, which are told anyway. Connections, errors and
moves are looked at once a second, so that a thousand of them in a second are one event.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from duobus.errors import ServerBusy
from duobus.telemetry.audit_log import AuditTrail, Change

if TYPE_CHECKING:
    from pathlib import Path

    from duobus.broker import ScaleUnit
    from duobus.clock import Clock
    from duobus.gateway.amqp.server import AmqpServer

#: Who may listen at a time.
LISTENERS_MAX: Final = 128
#: Events that wait for a slow listener; of more, the oldest go.
WAITING_MAX: Final = 500
#: How often connections, errors and moves are looked at.
PERIOD_S: Final = 1.0
#: Characters of a text that an event tells.
TEXT_LENGTH_MAX: Final = 512

#: Name of the event, and what it tells.
Event = tuple[str, dict[str, Any]]


class EventQueue:
    """What waits for one who listens, and how much was dropped."""

    __slots__ = ("_is_over", "_ready", "_waiting", "dropped", "namespace")

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.dropped = 0
        self._waiting: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._is_over = False

    def put(self, event: Event) -> None:
        """Keep an event until it is taken."""
        if len(self._waiting) >= WAITING_MAX:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(event)
        self._ready.set()

    def end(self) -> None:
        """Nothing more comes."""
        self._is_over = True
        self._ready.set()

    async def take(self, timeout_s: float) -> list[Event] | None:
        """Wait for events, but not for longer; None when nothing more comes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ready.wait()
        except TimeoutError:
            return []
        self._ready.clear()
        found = list(self._waiting)
        self._waiting.clear()
        if self.dropped:
            found.insert(0, ("dropped", {"number": self.dropped}))
            self.dropped = 0
        return found if found or not self._is_over else None


class EventFeed:
    """Tells every listener what concerns the listener's namespace, or the server."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listeners: dict[EventQueue, None] = {}
        self._unit: ScaleUnit | None = None
        self._amqp: AmqpServer | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = False

    def watch(self, unit: ScaleUnit, amqp: AmqpServer) -> None:
        """Look at these, while somebody listens."""
        self._unit = unit
        self._amqp = amqp

    def tell(self, name: str, namespace: str | None = None, **about: Any) -> None:
        """Something has happened in a namespace, or in the server as a whole."""
        if not self._listeners:
            return
        about = {key: value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value for key, value in about.items()}
        event = name, {"atMs": self._clock.now_ms(), **about}
        for listener in self._listeners:
            if namespace is None or namespace.lower() == listener.namespace.lower():
                listener.put(event)

    def listen(self, namespace: str) -> EventQueue:
        """Begin to listen; ``leave`` ends that.

        Raises:
            ServerBusy: There are too many who do, or the server is about to stop.
        """
        if len(self._listeners) >= LISTENERS_MAX or self._is_over:
            raise ServerBusy(f"There are {len(self._listeners)} listeners of at most {LISTENERS_MAX}. Try again later.")
        listener = EventQueue(namespace)
        listener.put(("ready", {"atMs": self._clock.now_ms()}))
        self._listeners[listener] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._look(), name="events")
        return listener

    def leave(self, listener: EventQueue) -> None:
        """Listen no more."""
        self._listeners.pop(listener, None)
        if not self._listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    def close(self) -> None:
        """The server is about to stop."""
        self._is_over = True
        for listener in self._listeners:
            listener.end()

    async def _look(self) -> None:
        unit, amqp = self._unit, self._amqp
        if unit is None or amqp is None:
            return
        errors, opened, connections = dict(amqp.errors), amqp.connections_opened, len(amqp.peers)
        moves = _moves_of(unit)
        while True:
            await asyncio.sleep(PERIOD_S)
            if amqp.connections_opened != opened or len(amqp.peers) != connections:
                new = amqp.connections_opened - opened
                closed = new - (len(amqp.peers) - connections)
                opened, connections = amqp.connections_opened, len(amqp.peers)
                self.tell("connections", opened=new, closed=closed, now=connections)
            sent = {name: number - errors.get(name, 0) for name, number in amqp.errors.items()}
            sent = {name: number for name, number in sent.items() if number}
            if sent:
                errors = dict(amqp.errors)
                self.tell("errors", sent=sent)
            now = _moves_of(unit)
            for key, state in now.items():
                if moves.get(key) != state:
                    self.tell("move", **dict(zip(("entity", "fragment", "from", "to"), key, strict=False)), state=state)
            moves = now


class ReportingTrail(AuditTrail):
    """An audit trail of which every change is told to those who listen, too."""

    def __init__(self, trail: AuditTrail, feed: EventFeed) -> None:
        self._trail = trail
        self._feed = feed

    @property
    def folder(self) -> Path | None:  # type: ignore[override]
        """See AuditTrail."""
        return self._trail.folder

    def begin(self, change: Change, now_ms: int) -> None:
        """See AuditTrail."""
        self._trail.begin(change, now_ms)

    def end(self, change: Change, now_ms: int, outcome: str, changes: Mapping[str, Any] | None = None) -> None:
        """See AuditTrail."""
        self._trail.end(change, now_ms, outcome, changes)
        self._feed.tell(
            "change",
            change.namespace,
            operation=change.operation,
            kind=change.kind,
            path=change.path,
            who=change.who,
            outcome=outcome,
        )

    def close(self) -> None:
        """See AuditTrail."""
        self._trail.close()


def _moves_of(unit: ScaleUnit) -> dict[tuple[Any, ...], str]:
    """The moves of late with their states."""
    return {
        (move["entity"], move["fragment"], move["from"], move["to"], move["begunMs"]): move["state"]
        for move in unit.moves.status()
    }
