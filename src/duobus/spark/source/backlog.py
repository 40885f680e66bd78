"""How much waits, asked of the broker beside the stream: an answer that is slow to come holds no batch up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

from duobus.clock import Clock
from duobus.spark.connection import Kept, Place, new_administration
from duobus.spark.entities import said, waiting_in
from duobus.spark.source.extents import extents
from duobus.spark.source.ranges import looker

#: Between two questions. A batch that comes sooner is told with the figure that is known.
EVERY_MS: Final = 1_000
#: Between two questions after one that was refused or failed.
AFTER_FAILURE_MS: Final = 60_000
#: How long a batch waits for an answer.
WAIT_S: Final = 0.2

_log = logging.getLogger("duobus.spark")


class Backlog:
    """The newest figure that is known.

    Args:
        ask: Asks the broker; called in a thread of its own, one call at a time.
        clock: Time.
        wait_s: How long ``newest`` waits for an answer.
    """

    def __init__(self, ask: Callable[..., int], clock: Clock | None = None, wait_s: float = WAIT_S) -> None:
        self._ask = ask
        self._clock = clock or Clock()
        self._wait_s = wait_s
        self._known: int | None = None
        self._next_ms: int | None = None
        self._thread: threading.Thread | None = None
        self._has_told = False

    def newest(self, *what: Any) -> int | None:
        """The figure; None while none is known, and after a question that failed.

        Args:
            what: Passed to the question.
        """
        if self._thread is None or not self._thread.is_alive():
            now_ms = self._clock.monotonic_ms()
            if self._next_ms is None or now_ms >= self._next_ms:
                self._next_ms = now_ms + EVERY_MS
                # A daemon: the process of a source ends without waiting for a broker that does not answer.
                self._thread = threading.Thread(target=self._asked, args=what, name="backlog", daemon=True)
                self._thread.start()
        if self._thread is not None:
            self._thread.join(self._wait_s)
        return self._known

    def _asked(self, *what: Any) -> None:
        try:
            self._known = self._ask(*what)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the stream goes on without this figure
            if not self._has_told:
                _log.info("how many messages wait is not known: %s", said(error))
            self._known, self._has_told = None, True
            self._next_ms = self._clock.monotonic_ms() + AFTER_FAILURE_MS


def waiting_at(place: Place) -> Callable[[tuple[str, ...], int], int]:
    """Return a question: how many messages some entities count as active. The right to manage is needed.

    A number that is given with the question is added to the answer.
    """

    def ask(entities: tuple[str, ...], added: int) -> int:
        with new_administration(place) as administration:
            return added + sum(waiting_in(administration, entity) for entity in entities)

    return ask


def behind_at(place: Place, timeout_s: float) -> Callable[[tuple[str, ...], dict[str, dict[int, int]]], int]:
    """Return a question: how many numbers lie between the ends of a batch and the newest messages.

    Args:
        place: The namespace.
        timeout_s: How long to try for an entity.
    """
    # Connections of its own: those of the stream are used by one thread only.
    kept = Kept(Clock())

    def ask(entities: tuple[str, ...], nexts: dict[str, dict[int, int]]) -> int:
        found = 0
        for entity in entities:
            page = looker(place, entity, timeout_s, kept=kept)
            ends = nexts.get(entity, {})

            def at(number: int, page: Any = page) -> Any:
                return next(iter(page(number, 1)), None)

            for extent in extents(at):
                found += max(0, extent.last + 1 - max(extent.first, ends.get(extent.fragment, 0)))
        return found

    return ask
