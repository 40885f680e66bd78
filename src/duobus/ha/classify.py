"""Which errors of the SDK are an outage of the primary, and which are the sender's own (requirement PN3).

The founding documents and the library that was shipped disagree; both are here as tables, beside the one that we
recommend (docs/explanation/paired-namespaces.md has them side by side).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final

from azure.servicebus import exceptions as sdk


class Verdict(Enum):
    """What a failed send tells about the primary."""

    #: The failover interval starts, or goes on.
    OUTAGE = "outage"
    #: The primary is there and asks for patience: no failover, whatever the interval.
    BUSY = "busy"
    #: The primary answered, and would answer the same again: the caller has to mend something.
    REFUSED = "refused"


Classifier = Callable[[BaseException], Verdict]

#: Answers of a primary that is alive, whatever the SDK's own flag says about retries.
_REFUSALS: Final = (
    sdk.ServiceBusAuthenticationError,
    sdk.ServiceBusAuthorizationError,
    sdk.MessagingEntityNotFoundError,
    sdk.MessagingEntityDisabledError,
    sdk.MessagingEntityAlreadyExistsError,
    sdk.MessageSizeExceededError,
    sdk.ServiceBusQuotaExceededError,
    sdk.MessageLockLostError,
    sdk.SessionLockLostError,
    sdk.SessionCannotBeLockedError,
    sdk.MessageNotFoundError,
    sdk.MessageAlreadySettled,
)
#: Errors that have no type of their own in the SDK, by AMQP condition.
_OUTAGE_CONDITIONS: Final = frozenset(
    {
        "amqp:internal-error",
        "amqp:connection:forced",
        "amqp:connection:framing-error",
        "amqp:link:detach-forced",
        "com.microsoft:timeout",
        "com.microsoft:operation-cancelled",
        "com.microsoft:store-unavailable",
    }
)
_OUTAGES: Final = (sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError, sdk.OperationTimeoutError)


def outage(error: BaseException) -> Verdict:
    """By what the error says about the primary: out of reach, out of time, or broken is an outage. The default."""
    if isinstance(error, sdk.ServiceBusServerBusyError):
        return Verdict.BUSY
    if isinstance(error, _REFUSALS):
        return Verdict.REFUSED
    if isinstance(error, (*_OUTAGES, OSError, TimeoutError)):
        return Verdict.OUTAGE
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.OUTAGE if condition(error) in _OUTAGE_CONDITIONS else Verdict.REFUSED
    return Verdict.REFUSED


def documented(error: BaseException) -> Verdict:
    """By the letter of the documents: time-outs, and every messaging error that a retry would not help against."""
    if isinstance(error, (sdk.OperationTimeoutError, TimeoutError)):
        return Verdict.OUTAGE
    if isinstance(error, sdk.ServiceBusServerBusyError):
        return Verdict.BUSY
    if isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)):
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.REFUSED if _is_transient(error) else Verdict.OUTAGE
    return Verdict.REFUSED


def legacy(error: BaseException) -> Verdict:
    """As the old .NET library did: time-outs, and every messaging error that is transient, server-busy among them."""
    if isinstance(error, (sdk.OperationTimeoutError, TimeoutError, OSError)):
        return Verdict.OUTAGE
    if isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)):
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.OUTAGE if _is_transient(error) else Verdict.REFUSED
    return Verdict.REFUSED


#: Names for options and the command line.
CLASSIFIERS: Final[dict[str, Classifier]] = {"outage": outage, "documented": documented, "legacy": legacy}


def condition(error: BaseException) -> str:
    """The AMQP condition of an SDK error; empty when it has none, or when the SDK knows it by a type."""
    found = getattr(error, "_condition", None)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return "" if found is None else str(getattr(found, "value", found))


def _is_transient(error: sdk.ServiceBusError) -> bool:
    """Transient by class, as the old library had it (reference of the lost API, 3.4)."""
    return not isinstance(
        error,
        (
            sdk.MessagingEntityNotFoundError,
            sdk.MessagingEntityAlreadyExistsError,
            sdk.MessagingEntityDisabledError,
            sdk.MessageLockLostError,
            sdk.SessionLockLostError,
            sdk.MessageSizeExceededError,
            sdk.ServiceBusQuotaExceededError,
        ),
    )
