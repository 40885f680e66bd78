"""Errors as HTTP answers: the status, the SubCode and the body that clients decide by (Azure: Service Bus REST API)."""

from __future__ import annotations

import re
from typing import Final

from aiohttp import web

from duobus.clock import Clock, Entropy
from duobus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityAlreadyExists,
    EntityDisabled,
    EntityNotFound,
    InternalError,
    MessageLockLost,
    MessageNotFound,
    MessageTooLarge,
    NoMatchingSubscription,
    NotAllowed,
    NotImplementedYet,
    OperationTimeout,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    Unauthorized,
    Undecodable,
)
from duobus.gateway.rest.atom.xml.documents import ERROR_TYPE, error_body
from duobus.gateway.rest.authorization import RightLacking
from duobus.gateway.rest.request_target import MethodUnknown
from duobus.telemetry.bounded_log import BoundedLog, places
from duobus.telemetry.logs import Log, new_tracking_id, tracking_suffix

#: Seconds after which a client that was told to come again should.
RETRY_AFTER_S: Final = 2

_BUSY: Final = (503, 50004)
_BAD: Final = (400, 40000)
#: Class to (status, SubCode). What is served in no version yet is a bad request: clients repeat or misread 501.
_STATUS: Final[dict[type[ServiceBusError], tuple[int, int]]] = {
    ArgumentInvalid: _BAD,
    ArgumentOutOfRange: _BAD,
    NotAllowed: _BAD,
    NoMatchingSubscription: _BAD,
    NotImplementedYet: _BAD,
    Undecodable: _BAD,
    EntityAlreadyExists: (409, 40900),
    EntityDisabled: (403, 40301),
    EntityNotFound: (404, 40400),
    MessageLockLost: (404, 40400),
    MessageNotFound: (404, 40400),
    MessageTooLarge: (403, 40300),
    QuotaExceeded: (403, 40300),
    OperationTimeout: (500, 50000),
    ServerBusy: _BUSY,
    InternalError: (500, 50002),
}
#: What stands behind the SubCode, as the cloud has it.
_WORDS: Final = {400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict"}
_WORDS_MORE: Final = {405: "Method Not Allowed", 410: "Gone", 500: "Internal Error", 503: "Server Busy"}
#: Where the entity ends in the path of a request for messages; an entity may itself be called so.
_MESSAGES: Final = re.compile(r"/messages(?=(?:/(?!messages(?:/|$))[^/]*)*$)", re.IGNORECASE)


def status_of(error: ServiceBusError) -> tuple[int, int]:
    """Return the status and SubCode of an error."""
    if isinstance(error, Unauthorized):
        return 401, error.sub_code
    if isinstance(error, MethodUnknown):
        return 405, 40000
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return error.http_status, 50000


class Answers:
    """Makes the answers to what was refused, and logs each under its tracking id."""

    def __init__(self, clock: Clock, entropy: Entropy, log: Log, counts: dict[str, int]) -> None:
        """``counts``: refusals by condition, for the metrics page."""
        self._counts = counts
        self._clock = clock
        self._entropy = entropy
        self._log = BoundedLog(log, clock.monotonic_ms)

    def refusal(
        self, error: ServiceBusError, namespace: str, path: str, status: int = 0, sub_code: int = 0
    ) -> web.Response:
        """Return the answer to a request that failed; ``status`` and ``sub_code``, if given, instead of its own."""
        own_status, own_code = status_of(error)
        status, sub_code = status or own_status, sub_code or own_code
        tracking_id = new_tracking_id(self._entropy)
        self._counts[error.condition] = self._counts.get(error.condition, 0) + 1
        write = self._log.error if status == 500 else self._log.info
        write("refused", tracking_id=tracking_id, status=status, sub_code=sub_code, path=path, reason=str(error))
        word = _WORDS.get(status) or _WORDS_MORE.get(status, "Failed")
        suffix = tracking_suffix(tracking_id, "G0", namespace, path, self._clock.now_ms())
        # Of a request about messages the path goes on behind the entity.
        mark = error.mark(_MESSAGES.split(path)[0])
        lacking = error.lacking if isinstance(error, RightLacking) else None
        before = "" if lacking and lacking.is_alone else f"SubCode={sub_code}. {word}. "
        body = error_body(status, f"{before}{error}{mark}{suffix}")
        response = web.Response(status=status, reason=lacking and lacking.reason, text=body)
        response.headers["Content-Type"] = ERROR_TYPE
        if status == 503:
            response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    def missing(self, error: EntityNotFound, namespace: str, entity: str) -> web.Response:
        """Return the answer to a request for messages of an entity that is not there.

        410 on sending and receiving: 404 is for a lock that is lost.
        """
        return self.refusal(error, namespace, entity, 410, 41000)

    def fault(self, error: BaseException, namespace: str, path: str) -> web.Response:
        """Return the answer to a request that met a fault of ours: what it was is in the log alone."""
        # Its text may quote what the request has brought.
        self._log.error("fault", kind=type(error).__name__, places=places(error), path=path)
        return self.refusal(
            InternalError("The request met an internal error. The server's log has it under this id."), namespace, path
        )
