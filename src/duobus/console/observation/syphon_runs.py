"""One run of a syphon that a person has asked for: its progress, and when it is over."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.ha.events import Event, SyphonDeadLettered, Syphoned, SyphonFailed, SyphonPolled, SyphonSkipped

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Without a message that arrives for so long the run ends: its destinations do not take what is left.
IDLE_S: Final = 30.0
#: Entities of the primary whose numbers and errors are told.
NAMED_MAX: Final = 100
_TEXT_MAX: Final = 500
_SECOND_MS: Final = 1_000


class SyphonRun:
    """What a syphon has done since it was started.

    Args:
        primary, secondary: Names of the namespaces, for people.
        queues: Paths of the backlog queues.
        waiting: How many messages were there at the beginning.
        clock: Time.
    """

    def __init__(self, primary: str, secondary: str, queues: Iterable[str], waiting: int, clock: Clock) -> None:
        self.primary = primary
        self.secondary = secondary
        self.queues = tuple(queues)
        self.waiting = waiting
        self.carried: Counter[str] = Counter()
        self.skipped: dict[str, str] = {}
        self.dead = 0
        self.failures: dict[str, str] = {}
        self.begun_ms = clock.now_ms()
        self.ended_ms: int | None = None
        self.reason = ""
        self._clock = clock
        self._left = set(self.queues)
        self._moved_ms = clock.monotonic_ms()
        self._is_over = asyncio.Event()

    def tell(self, event: Event) -> None:
        """Take an event of the syphon."""
        match event:
            case Syphoned(entity=entity, messages=messages):
                name = entity if entity in self.carried or len(self.carried) < NAMED_MAX else "…"
                self.carried[name] += messages
                self.skipped.pop(entity, None)
                self._moved_ms = self._clock.monotonic_ms()
            case SyphonSkipped(entity=entity, error=error):
                if len(self.skipped) < NAMED_MAX:
                    self.skipped[entity] = error[:_TEXT_MAX]
            case SyphonDeadLettered():
                self.dead += 1
                self._moved_ms = self._clock.monotonic_ms()
            case SyphonFailed(entity=queue, error=error):
                self.failures[queue] = error[:_TEXT_MAX]
            case SyphonPolled(entity=queue, messages=messages):
                self.failures.pop(queue, None)
                if messages:
                    self._left.add(queue)
                else:
                    self._left.discard(queue)
                if not self._left and not self.skipped:
                    self.end("Nothing is left in the backlog queues.")

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._is_over.is_set()

    def end(self, reason: str) -> None:
        """End the run; a second reason does not count."""
        if not self.is_over:
            self.reason, self.ended_ms = reason, self._clock.now_ms()
            self._is_over.set()

    async def wait(self, check_s: float = 0.5) -> None:
        """Wait for the end, which comes by itself when nothing moves any more."""
        while not self.is_over:
            try:
                async with asyncio.timeout(check_s):
                    await self._is_over.wait()
            except TimeoutError:
                if self._clock.monotonic_ms() - self._moved_ms > IDLE_S * _SECOND_MS:
                    self.end(
                        f"No message has arrived for {IDLE_S:g} seconds. What is left stays in the backlog queues."
                    )

    def told(self) -> dict[str, Any]:
        """What a person reads of the run."""
        return {
            "primary": self.primary,
            "secondary": self.secondary,
            "waiting": self.waiting,
            "carried": self.carried.total(),
            "by_entity": dict(self.carried.most_common()),
            "dead": self.dead,
            "skipped": dict(self.skipped),
            "failures": dict(self.failures),
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "is_over": self.is_over,
            "reason": self.reason,
        }
