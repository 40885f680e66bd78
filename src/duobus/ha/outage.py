"""Which errors of the SDK are an outage of the primary, and which are the sender's own (requirement PN3).

The documents of the retired API and the library that implemented it disagree. This module has both rules, and a third
rule, which we recommend (docs/explanation/paired-namespaces.md compares them).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from azure.servicebus import exceptions as sdk

from duobus.ha.outage_scope import store_away


class Verdict(Enum):
    """The conclusion about the primary from a failed send."""

    #: The failover interval starts, or continues.
    OUTAGE = "outage"
    #: The primary is there and asks the client to wait. It is an outage when no send of the entity has succeeded
    #: between one such answer and another that comes more than the failover interval later.
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
    }
)
#: Errors inside of errors that are looked at.
_DEPTH_MAX: Final = 8
_OUTAGES: Final = (sdk.ServiceBusConnectionError, sdk.ServiceBusCommunicationError, sdk.OperationTimeoutError)


def outage(error: BaseException) -> Verdict:
    """Judge by what the error says about the primary: out of reach, timed out or broken is an outage. The default."""
    if token_refusal(error) is not None:
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusServerBusyError):
        return _busy(error)
    if isinstance(error, _REFUSALS):
        return Verdict.REFUSED
    if isinstance(error, (*_OUTAGES, OSError, TimeoutError)):
        return Verdict.OUTAGE
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.OUTAGE if condition(error) in _OUTAGE_CONDITIONS else Verdict.REFUSED
    return Verdict.REFUSED


def documented(error: BaseException) -> Verdict:
    """Judge by the letter of the documents: an outage is a time-out, or a messaging error that no retry would mend."""
    if isinstance(error, (sdk.OperationTimeoutError, TimeoutError)):
        return Verdict.OUTAGE
    if token_refusal(error) is not None:
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusServerBusyError):
        return _busy(error)
    if isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)):
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.REFUSED if _is_transient(error) else Verdict.OUTAGE
    return Verdict.REFUSED


def legacy(error: BaseException) -> Verdict:
    """Judge as the old .NET library did: a time-out is an outage, and so is a transient error such as server-busy."""
    if isinstance(error, (sdk.OperationTimeoutError, TimeoutError, OSError)):
        return Verdict.OUTAGE
    if token_refusal(error) is not None:
        return Verdict.REFUSED
    if isinstance(error, (sdk.ServiceBusAuthenticationError, sdk.ServiceBusAuthorizationError)):
        return Verdict.REFUSED
    if isinstance(error, sdk.ServiceBusError):
        return Verdict.OUTAGE if _is_transient(error) else Verdict.REFUSED
    return Verdict.REFUSED


#: Names for options and the command line.
CLASSIFIERS: Final[dict[str, Classifier]] = {"outage": outage, "documented": documented, "legacy": legacy}


def condition(error: BaseException) -> str:
    """The AMQP condition of an SDK error; empty when there is none, or when the SDK has a type for the condition."""
    found = getattr(error, "_condition", None)
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    return "" if found is None else str(getattr(found, "value", found))


class TokenRefusal(NamedTuple):
    """A namespace's answer that refuses a token.

    Attributes:
        status: 401, or 404 for an entity that does not exist; None when the SDK does not keep the status. That is the
            rule: the SDK drops status and text of an answer that names a condition, as answers of Azure and duobus do.
        text: Text of the answer; empty when the SDK does not keep it.
    """

    status: int | None
    text: str


def token_refusal(error: BaseException) -> TokenRefusal | None:
    """Return the namespace's answer to a token that it refused; None for any other error.

    Such an answer means that the namespace is there, whatever class the SDK chooses for the error: for a client with a
    custom endpoint address the SDK chooses the class of a lost connection.
    """
    at: object = error
    for _ in range(_DEPTH_MAX):
        if not isinstance(at, BaseException):
            return None
        if type(at).__name__ == "TokenAuthFailure":
            status, text = getattr(at, "status_code", None), getattr(at, "status_description", None)
            if status is not None and (not isinstance(status, int) or not 400 <= status < 500):
                # There was no answer, or one of a namespace that is not well.
                return None
            said = text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text or "")
            return TokenRefusal(status, said)
        at = getattr(at, "inner_exception", None)
    return None


def _busy(error: sdk.ServiceBusServerBusyError) -> Verdict:
    """Judge "busy": an outage if the error says that a messaging store is away, the documents' first example of one."""
    return Verdict.BUSY if store_away(error) is None else Verdict.OUTAGE


def _is_transient(error: sdk.ServiceBusError) -> bool:
    """Whether the old library took this class of error for transient."""
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
