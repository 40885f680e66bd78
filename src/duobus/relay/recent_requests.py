"""Requests that a service has answered of late, by the sender's id, so that no request is executed twice (IN6). Pure.

A request that a sender repeats over the other endpoint may have been executed already, with only its answer lost. A
service that keeps its recent answers gives the same answer again.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from duobus.relay.http import RelayResponse

REQUESTS_DEFAULT: Final = 10_000
BYTES_DEFAULT: Final = 64 << 20
#: A longer id is no id of ours, and is not remembered.
ID_LENGTH_MAX: Final = 128


class RecentRequests:
    """The newest answers, bounded in number and bytes.

    Args:
        requests: Answers that are kept.
        size: Bytes of bodies that are kept. An answer that is larger than a quarter of this is not kept.
    """

    __slots__ = ("_answers", "_bytes", "_requests", "_size")

    def __init__(self, requests: int = REQUESTS_DEFAULT, size: int = BYTES_DEFAULT) -> None:
        if requests < 1 or size < 1:
            raise ValueError("requests and size have to be at least 1")
        self._requests = requests
        self._size = size
        self._bytes = 0
        self._answers: OrderedDict[str, RelayResponse] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, request_id: str) -> RelayResponse | None:
        """The answer that a request got; None when the request is not known."""
        return self._answers.get(request_id)

    def record(self, request_id: str, answer: RelayResponse) -> None:
        """Keep an answer; older ones give way."""
        if len(answer.body) > self._size // 4 or len(request_id) > ID_LENGTH_MAX or request_id in self._answers:
            return
        self._answers[request_id] = answer
        self._bytes += len(answer.body)
        while len(self._answers) > self._requests or self._bytes > self._size:
            _, oldest = self._answers.popitem(last=False)
            self._bytes -= len(oldest.body)
