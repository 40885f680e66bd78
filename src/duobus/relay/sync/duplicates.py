# Generated from duobus/relay/aio/duplicates.py by `make twins`; change that one.
"""DuplicateFilter: a request that comes a second time, over the other endpoint of a pair, is executed once (IN6)."""

from __future__ import annotations

from collections.abc import Callable

from duobus.concurrency import sync as tasks
from duobus.relay.events import DuplicateAnswered, Event, Reporter
from duobus.relay.http import RelayRequest, RelayResponse
from duobus.relay.metrics import metrics_of
from duobus.relay.recent_requests import BYTES_DEFAULT, REQUESTS_DEFAULT, RecentRequests


class DuplicateFilter:
    """Wraps the function that answers requests; give it to a listener in place of that function.

    A request is known by its header ``x-duobus-request-id``; a request without the header always reaches the function.
    A request that comes while the first one is being executed waits for the answer of the first one. An answer with a
    status of 500 or above is not kept, and no answer when the function raises: the next request is executed.

    The answers are in memory, so that a service which restarts may execute a request again.

    Args:
        on_request: Answers requests.
        requests: Answers that are kept.
        size: Bytes of bodies that are kept.
        on_event: Called with ``DuplicateAnswered``.
    """

    def __init__(
        self,
        on_request: Callable[[RelayRequest], RelayResponse],
        *,
        requests: int = REQUESTS_DEFAULT,
        size: int = BYTES_DEFAULT,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        self._on_request = on_request
        self._recent = RecentRequests(requests, size)
        self._running: dict[str, tasks.Signal] = {}
        self._lock = tasks.lock()
        self.reporter = Reporter(on_event, metrics_of())

    def __call__(self, request: RelayRequest) -> RelayResponse:
        """Answer a request, or give the answer that it got before."""
        request_id = request.request_id
        if request_id is None:
            return self._on_request(request)
        while True:
            with self._lock:
                answer = self._recent.answer(request_id)
                running = None if answer is not None else self._running.get(request_id)
                if answer is None and running is None:
                    self._running[request_id] = tasks.Signal()
            if answer is not None:
                self.reporter.tell(DuplicateAnswered(request.endpoint, request_id))
                return answer
            if running is None:
                return self._execute(request, request_id)
            running.wait()

    def _execute(self, request: RelayRequest, request_id: str) -> RelayResponse:
        try:
            answer = self._on_request(request)
            if answer.status < 500:
                with self._lock:
                    self._recent.record(request_id, answer)
            return answer
        finally:
            with self._lock:
                ended = self._running.pop(request_id)
            ended.set()
