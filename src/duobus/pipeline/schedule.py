"""Which stage of a pipeline is due: a pure engine that is told of starts and ends, and of the time.

A stage waits for the stages before it. What runs once has one run behind those that it waits for. What has a period
runs again when the period is over. What runs after another stage runs again whenever that one has brought something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

#: A stage without a period that has failed, in a pipeline that goes on, is tried again after this time.
RETRY_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Planned:
    """A stage, as far as the schedule has to know it.

    Attributes:
        name: Its name.
        every_ms: Its period; None for a stage without one.
        after: Stages behind which it runs each time.
        before: Stages that have to be done before its first run: those of ``after``, and writers of its tables.
        is_streaming: Whether one run of it goes on until it is stopped, if it has a period.
    """

    name: str
    every_ms: int | None = None
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    is_streaming: bool = False


@dataclass(slots=True)
class _State:
    is_wanted: bool = True
    is_running: bool = False
    has_failed: bool = False
    next_ms: int | None = None
    runs: int = field(default=0)


class Schedule:
    """The schedule of one run of a pipeline.

    Args:
        stages: All stages, each behind those that it waits for.
        once: Whether each stage has one run, whatever its period.
        unfinished: Stages with a run that was begun and not finished; they finish it before anything else begins, the
            last of the pipeline first, because nothing that they read may change before.
    """

    def __init__(self, stages: Iterable[Planned], *, once: bool, unfinished: Iterable[str] = ()) -> None:
        self._stages: Mapping[str, Planned] = {stage.name: stage for stage in stages}
        self._once = once
        self._states = {name: _State() for name in self._stages}
        open_ = set(unfinished)
        self._first = [name for name in reversed(self._stages) if name in open_]

    def due(self, now_ms: int) -> list[str]:
        """Names of the stages that may begin now."""
        if self._first:
            name = self._first[0]
            return [] if self._states[name].is_running else [name]
        for state in self._states.values():
            if state.next_ms is not None and now_ms >= state.next_ms and not state.is_running:
                state.next_ms, state.is_wanted, state.has_failed = None, True, False
        return [
            name
            for name, state in self._states.items()
            if state.is_wanted and not state.is_running and not self._waits(self._stages[name])
        ]

    def _waits(self, stage: Planned) -> bool:
        for name in stage.before:
            other, state = self._stages[name], self._states[name]
            if other.is_streaming and other.every_ms is not None and not self._once:
                continue
            if state.has_failed or state.is_running or (state.is_wanted and state.runs == 0):
                return True
            if state.is_wanted and self._once:
                return True
        return False

    def held_back(self) -> list[str]:
        """Stages that do not run, because one before them has failed."""
        return [
            name
            for name, state in self._states.items()
            if state.is_wanted and not state.is_running and self._is_behind_a_failure(name)
        ]

    def _is_behind_a_failure(self, name: str) -> bool:
        return any(
            self._states[other].has_failed or self._is_behind_a_failure(other) for other in self._stages[name].before
        )

    def started(self, name: str) -> None:
        """A stage has begun."""
        self._states[name].is_running = True

    def advanced(self, name: str) -> None:
        """A stage has brought something new, and may still run."""
        if not self._once:
            for stage in self._stages.values():
                if name in stage.after:
                    self._states[stage.name].is_wanted = True
                    self._states[stage.name].has_failed = False

    def ended(self, name: str, now_ms: int, *, is_good: bool, is_new: bool) -> None:
        """A run of a stage is over.

        Args:
            name: The stage.
            now_ms: Time.
            is_good: Whether it has done what it had to.
            is_new: Whether it has brought something new.
        """
        state, stage = self._states[name], self._stages[name]
        state.is_running = False
        state.runs += 1
        if self._first and self._first[0] == name:
            self._first.pop(0)
            # What it had left is done; its ordinary run is still to come.
            state.runs = 0
            if is_good:
                return
            self._first.clear()
        state.is_wanted, state.has_failed = False, not is_good
        if not self._once and stage.every_ms is not None:
            state.next_ms = now_ms + stage.every_ms
        elif not self._once and not is_good and self._goes_on:
            state.next_ms = now_ms + RETRY_MS
        if is_good and is_new:
            self.advanced(name)

    @property
    def _goes_on(self) -> bool:
        return any(stage.every_ms is not None for stage in self._stages.values())

    @property
    def is_over(self) -> bool:
        """Whether nothing runs and nothing will."""
        if any(state.is_running for state in self._states.values()) or self._first:
            return False
        held = set(self.held_back())
        return not any(
            state.next_ms is not None or (state.is_wanted and name not in held) for name, state in self._states.items()
        )
