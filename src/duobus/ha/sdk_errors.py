"""The meaning of each error of the SDK for the message that was being sent or settled: one table for all modules.

A program that sends on behalf of others (the outbox, the syphon, the jobs on Spark, the dead-letter commands) has to
know whether to try again, to wait, or to set the message aside for good. No waiting undoes the last of these, so only a
row of this table leads to it: after an error without a row the program waits and reports the error (I49, I53).

The table names classes by text, so that a version of the SDK that lacks a class does no harm. ``duobus.ha.outage``
decides which errors are an outage of the primary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import TracebackType
from typing import Final, NamedTuple

from duobus.ha.outage import condition, token_refusal


class Meaning(Enum):
    """The reaction to an error."""

    #: It passes by itself: try again.
    RETRY = "retry"
    #: The entity takes nothing for now, as it is busy or full: try again later.
    WAIT = "wait"
    #: The message is at fault, and would be refused again.
    MESSAGE = "message"
    #: The owner of the client or of the entity has to mend something; until then the message waits.
    OWNER = "owner"
    #: There is no such entity.
    MISSING = "missing"
    #: The lock or the stored message that was meant is no longer there; the message comes again, or it is done.
    GONE = "gone"
    #: Nothing is known of it: wait, and tell.
    UNKNOWN = "unknown"


class Row(NamedTuple):
    """The meaning of an error.

    Attributes:
        meaning: The meaning of the error as the answer to a message or request.
        of_link: The meaning of the error when it ended or refused a link or connection, if that differs.
        advice: What the owner of the program can do.
    """

    meaning: Meaning
    of_link: Meaning | None = None
    advice: str = ""


_RETRY: Final = Row(Meaning.RETRY)
_WAIT: Final = Row(Meaning.WAIT)
_MESSAGE: Final = Row(Meaning.MESSAGE)
_OWNER: Final = Row(Meaning.OWNER)
_MISSING: Final = Row(Meaning.MISSING, advice="Create the entity, or correct its name.")
_GONE: Final = Row(Meaning.GONE)
_UNKNOWN: Final = Row(Meaning.UNKNOWN)
_RIGHTS: Final = Row(Meaning.OWNER, advice="Correct the key or the token, or grant the right.")
#: The SDK does not tell why a token was not taken, and for an entity that does not exist none is.
_TOKEN: Final = Row(
    Meaning.OWNER,
    advice="Its token was not taken: there is no such entity, or the key or token is wrong. Create the entity, correct "
    "its name, or correct the key.",
)
_DISABLED: Final = Row(Meaning.OWNER, advice="Enable the entity.")
_CLOSED: Final = Row(Meaning.OWNER, advice="The client or the sender was closed by its owner; make a new one.")
_SETUP: Final = Row(Meaning.OWNER, advice="Correct how the client was made.")
_CALL: Final = Row(Meaning.OWNER, advice="Correct the call.")
_INSTALL: Final = Row(Meaning.OWNER, advice="Install what is missing.")
#: A link that is refused or ended says nothing about a message; a message that is refused, everything.
_OPERATION: Final = Row(Meaning.MESSAGE, Meaning.OWNER, "Correct the address: nothing can be sent there in this way.")
_MALFORMED: Final = Row(Meaning.MESSAGE, Meaning.UNKNOWN)

#: Errors that carry a condition are known by that; these are the conditions of AMQP, of the service, and of the SDK.
CONDITIONS: Final[Mapping[str, Row]] = {
    "amqp:internal-error": _RETRY,
    "amqp:not-found": _MISSING,
    "amqp:unauthorized-access": _RIGHTS,
    "amqp:decode-error": _MALFORMED,
    "amqp:invalid-field": _MALFORMED,
    "amqp:not-allowed": _OPERATION,
    "amqp:not-implemented": _OPERATION,
    "amqp:resource-limit-exceeded": _WAIT,
    "amqp:resource-deleted": _MISSING,
    "amqp:resource-locked": _WAIT,
    "amqp:precondition-failed": _WAIT,
    "amqp:illegal-state": _RETRY,
    "amqp:frame-size-too-small": _RETRY,
    "amqp:connection:forced": _RETRY,
    "amqp:connection:framing-error": _RETRY,
    "amqp:connection:redirect": _RETRY,
    "amqp:session:window-violation": _RETRY,
    "amqp:session:errant-link": _RETRY,
    "amqp:session:handle-in-use": _RETRY,
    "amqp:session:unattached-handle": _RETRY,
    "amqp:link:detach-forced": _RETRY,
    "amqp:link:transfer-limit-exceeded": _RETRY,
    # A link is ended for it too, by brokers that measure a message before they have all of it.
    "amqp:link:message-size-exceeded": _MESSAGE,
    "amqp:link:redirect": _RETRY,
    "amqp:link:stolen": _RETRY,
    "amqp:transaction:unknown-id": _RETRY,
    "amqp:transaction:rollback": _RETRY,
    "amqp:transaction:timeout": _RETRY,
    "com.microsoft:server-busy": _WAIT,
    "com.microsoft:store-unavailable": _RETRY,
    "com.microsoft:container-close": _RETRY,
    "com.microsoft:timeout": _RETRY,
    "com.microsoft:operation-cancelled": _RETRY,
    "com.microsoft:precondition-failed": _WAIT,
    "com.microsoft:message-lock-lost": _GONE,
    "com.microsoft:session-lock-lost": _GONE,
    "com.microsoft:session-cannot-be-locked": _WAIT,
    "com.microsoft:message-not-found": _GONE,
    "com.microsoft:session-not-found": _GONE,
    "com.microsoft:store-lock-lost": _RETRY,
    "com.microsoft:partition-not-owned": _RETRY,
    "com.microsoft:address-already-in-use": _RETRY,
    "com.microsoft:entity-disabled": _DISABLED,
    "com.microsoft:entity-already-exists": _CALL,
    "com.microsoft:argument-error": _OPERATION,
    "com.microsoft:argument-out-of-range": _OPERATION,
    "com.microsoft:auth-failed": _RIGHTS,
    "com.microsoft:publisher-revoked": _RIGHTS,
    "com.microsoft:no-matching-subscription": _MESSAGE,
    # The SDK makes these up itself.
    "amqp:client-error": _RETRY,
    "amqp:socket-error": _RETRY,
    "amqp:unknown-error": _RETRY,
    "amqp:vendor-error": _UNKNOWN,
}

#: Classes of ``azure.servicebus``, by name. Of one that is unknown as such, what it carries is looked at.
CLASSES: Final[Mapping[str, Row]] = {
    "ServiceBusError": _UNKNOWN,
    "ServiceBusConnectionError": _RETRY,
    "ServiceBusCommunicationError": _RETRY,
    "OperationTimeoutError": _RETRY,
    "ServiceBusServerBusyError": _WAIT,
    "ServiceBusQuotaExceededError": _WAIT,
    "SessionCannotBeLockedError": _WAIT,
    "ServiceBusAuthenticationError": _RIGHTS,
    "ServiceBusAuthorizationError": _RIGHTS,
    "MessagingEntityDisabledError": _DISABLED,
    "MessagingEntityNotFoundError": _MISSING,
    "MessagingEntityAlreadyExistsError": _CALL,
    "MessageSizeExceededError": _MESSAGE,
    "MessageAlreadySettled": _GONE,
    "MessageLockLostError": _GONE,
    "MessageNotFoundError": _GONE,
    "SessionLockLostError": _GONE,
    "AutoLockRenewFailed": _GONE,
    "AutoLockRenewTimeout": _GONE,
    # Of its AMQP implementation; most come inside of one of the above.
    "AMQPException": _UNKNOWN,
    "AMQPDecodeError": _RETRY,
    "AMQPConnectionError": _RETRY,
    "AMQPConnectionRedirect": _RETRY,
    "AMQPSessionError": _RETRY,
    "AMQPLinkError": _UNKNOWN,
    "AMQPLinkRedirect": _RETRY,
    "AuthenticationException": _RIGHTS,
    "TokenAuthFailure": _RIGHTS,
    "TokenExpired": _RIGHTS,
    "MessageException": _UNKNOWN,
    "MessageSendFailed": _UNKNOWN,
    "MessageSettlementUnconfirmed": _RETRY,
    "UnexpectedFrame": _RETRY,
    # Of azure.core: from the management API, and from credentials that fetch tokens.
    "AzureError": _UNKNOWN,
    "ServiceRequestError": _RETRY,
    "ServiceRequestTimeoutError": _RETRY,
    "ServiceResponseError": _RETRY,
    "ServiceResponseTimeoutError": _RETRY,
    "HttpResponseError": _UNKNOWN,
    "DecodeError": _RETRY,
    "IncompleteReadError": _RETRY,
    "ResourceExistsError": _CALL,
    "ResourceNotFoundError": _MISSING,
    "ResourceModifiedError": _RETRY,
    "ResourceNotModifiedError": _RETRY,
    "ClientAuthenticationError": _RIGHTS,
    "TooManyRedirectsError": _SETUP,
    "ODataV4Error": _UNKNOWN,
    "StreamConsumedError": _RETRY,
    "StreamClosedError": _RETRY,
    "ResponseNotReadError": _RETRY,
    "SerializationError": _UNKNOWN,
    "DeserializationError": _UNKNOWN,
}

#: Errors of our own, which senders raise that divert: by name, as those of ``duobus.ha.errors``.
OWN: Final[Mapping[str, Row]] = {
    # The primary takes it, when it is back.
    "TooLargeToDivert": _WAIT,
    "NotDiverted": _WAIT,
    "BacklogUnavailable": _RETRY,
    "OutboxFull": _WAIT,
    "OutboxFailed": _OWNER,
    "PairFaulted": Row(Meaning.OWNER, advice="Make new clients and pair them."),
    "PairingRefused": _CALL,
    "SendsFailed": _UNKNOWN,
}

#: How the texts of Python's own errors begin that the SDK raises, or the loop under it.
TEXTS: Final[Mapping[str, Row]] = {
    "The handler has already been shutdown": _CLOSED,
    "Failed to ": _CLOSED,
    "Event loop is closed": _CLOSED,
    "Session is closed": _CLOSED,
    "cannot schedule new futures after": _CLOSED,
    # How the client was made.
    "At least one of the SharedAccessKey": _SETUP,
    "Only one of the SharedAccessKey": _SETUP,
    "Connection string ": _SETUP,
    "Connection has been configured to not allow": _SETUP,
    "Connection not configured to allow": _SETUP,
    "Entity name is missing": _SETUP,
    "Http proxy settings": _SETUP,
    "Invalid Endpoint": _SETUP,
    "Invalid endpoint": _SETUP,
    "Must specify either 'expires_on'": _SETUP,
    "No Service Bus entity": _SETUP,
    "No token scope": _SETUP,
    "SSL configuration": _SETUP,
    "Starting Python 3.10, asyncio": _SETUP,
    "The queue name provided": _SETUP,
    "The queue or topic name provided": _SETUP,
    "The topic name provided": _SETUP,
    "The try_timeout": _SETUP,
    "Token has already expired": _RIGHTS,
    "Token must be": _SETUP,
    "Token type must be": _SETUP,
    "Unsupported SASL": _SETUP,
    "SASL negotiation failed": _RIGHTS,
    "`queue_name` and `topic_name`": _SETUP,
    "get_token must be": _SETUP,
    "name can not be None": _SETUP,
    "name must be a string": _SETUP,
    "prefetch_count must be": _SETUP,
    "session_id and sub_queue": _SETUP,
    "Queue/Topic name": _SETUP,
    "Queue entity does not": _SETUP,
    "Subscription name is missing": _SETUP,
    "Please install": _INSTALL,
    "To use the uAMQP transport": _INSTALL,
    "close-on-exec flag": _SETUP,
    # How it was called.
    "A settlement outcome cannot be awaited": _CALL,
    "AutoLockRenewer only supports": _CALL,
    "Max message size: ": _CALL,
    "Messages received in RECEIVE_AND_DELETE": _CALL,
    "Must be overriden": _CALL,
    "Only azure.servicebus.ServiceBusReceivedMessage": _CALL,
    "Only received messages can be settled": _CALL,
    "Parameter 'message' must be": _CALL,
    "Pending": _CALL,
    "Registered object is not renewable": _CALL,
    "Renewing message lock is an invalid": _CALL,
    "ServiceBusReceivedMessage requires a receiver": _CALL,
    "Session messages do not expire": _CALL,
    "Subclass should override": _CALL,
    "The max_message_count": _CALL,
    "The max_wait_time": _CALL,
    "The operation ": _CALL,
    "The timeout must be": _CALL,
    "Unable to renew lock": _CALL,
    "Unsupported settle operation": _CALL,
    "Update input must be": _CALL,
    "last_delivery_id cannot": _CALL,
    "max_message_count must be": _CALL,
    "queue_name must not be": _CALL,
    "topic name": _CALL,
    "value ": _CALL,
    # The message.
    "All elements in an array": _MESSAGE,
    "Array is too large": _MESSAGE,
    "Binary data to long": _MESSAGE,
    "Byte value must be": _MESSAGE,
    "Invalid UUID type": _MESSAGE,
    "Invalid exponent type": _MESSAGE,
    "List is too large": _MESSAGE,
    "Map is too large": _MESSAGE,
    "Message data already consumed": _MESSAGE,
    "Only AmqpAnnotatedMessage": _MESSAGE,
    "Only new messages can be gathered": _MESSAGE,
    "Scheduling batch messages only": _MESSAGE,
    "ServiceBusMessage body must be": _MESSAGE,
    "Short value must be": _MESSAGE,
    "String value too long": _MESSAGE,
    "Symbol value too long": _MESSAGE,
    "There should be one and only one of": _MESSAGE,
    "Unable to encode unknown value": _MESSAGE,
    "Unsigned byte value": _MESSAGE,
    "Unsupported Message ID type": _MESSAGE,
    "Value supplied for": _MESSAGE,
    "message cannot be empty": _MESSAGE,
    "message is not a valid AMQP": _MESSAGE,
    "message must be bytes": _MESSAGE,
    "message_id cannot be longer": _MESSAGE,
    "partition_key cannot be longer": _MESSAGE,
    "partition_key:": _MESSAGE,
    "reply_to_session_id cannot": _MESSAGE,
    "session_id cannot be longer": _MESSAGE,
    # The link or the connection.
    "AMQP ": _RETRY,
    "Connection lost during settle": _RETRY,
    "Did not receive reciprocal": _RETRY,
    "Found no matching pending": _RETRY,
    "Invalid AMQP decimal128": _RETRY,
    "Invalid link": _RETRY,
    "Link already closed": _RETRY,
    "Link error occurred": _RETRY,
    "Management links are already": _RETRY,
    "Maximum number of": _WAIT,
    "Mismatching AMQP header": _RETRY,
    "Mismatching TLS header": _RETRY,
    "Received invalid frame type": _RETRY,
    "Received unrecognized empty frame": _RETRY,
    "The service did not confirm": _RETRY,
    "Unrecognized message output": _RETRY,
    "handler is not initialized": _RETRY,
}

#: Functions of the SDK that look at nothing but the message: whatever they raise is its fault, as a ``struct.error``
#: for a number that is too large, or a ``UnicodeEncodeError``.
PLACES: Final = frozenset(
    {
        ("azure.servicebus._pyamqp._encode", "encode_payload"),
        ("azure.servicebus._transport._pyamqp_transport", "to_outgoing_amqp_message"),
        ("azure.servicebus._common.utils", "transform_outbound_messages"),
    }
)
#: There a token is encoded, which is a message, too.
_TOKENS: Final = frozenset({"azure.servicebus._pyamqp.cbs", "azure.servicebus._pyamqp.aio._cbs_async"})

#: Answers of the management API, and to tokens, by status, and by the first figure of others.
STATUSES: Final[Mapping[int, Row]] = {
    400: _CALL,
    401: _RIGHTS,
    403: _RIGHTS,
    404: _MISSING,
    408: _RETRY,
    409: _CALL,
    410: _GONE,
    429: _WAIT,
    5: _RETRY,
}

#: Errors inside of errors that are looked at.
_DEPTH_MAX: Final = 8
#: Frames of a traceback that are looked at.
_FRAMES_MAX: Final = 200
_LINK_ERRORS: Final = frozenset({"AMQPLinkError", "AMQPConnectionError", "AMQPSessionError"})


def meaning(error: BaseException) -> Meaning:
    """The meaning of an error of the SDK, or of a sender over it; ``UNKNOWN`` without a row, and never the message."""
    return _judged(error)[0]


def is_message_fault(error: BaseException) -> bool:
    """Whether the message is at fault and would be refused again, whoever sends it and whenever."""
    return meaning(error) is Meaning.MESSAGE


def explained(error: BaseException) -> str:
    """Explain an error, and what can be done about it."""
    text = str(error) or type(error).__name__
    found, row = _judged(error)
    is_for_owner = found in (Meaning.OWNER, Meaning.MISSING)
    return f"{text} {row.advice}" if is_for_owner and row.advice and row.advice not in text else text


def _judged(error: BaseException) -> tuple[Meaning, Row]:
    row = row_of(error)
    if row is None:
        return Meaning.UNKNOWN, _UNKNOWN
    if row.of_link is not None and _is_of_link(error):
        return row.of_link, row
    return row.meaning, row


def row_of(error: BaseException) -> Row | None:
    """The row of an error; None if there is none."""
    refusal = token_refusal(error)
    if refusal is not None:
        # Before the classes: those of a missing entity are the same, and with a custom endpoint address another's.
        return _TOKEN if refusal.status is None else STATUSES.get(refusal.status, _TOKEN)
    for one in _chain(error):
        row = _row_of_one(one)
        if row is _RIGHTS:
            return _row_of_token(error)
        if row is not None and row is not _UNKNOWN:
            return row
    return _named(error)


def _row_of_token(error: BaseException) -> Row:
    for one in _chain(error):
        if type(one).__name__ == "TokenAuthFailure":
            return _row_of_status(one, _RIGHTS)
    return _RIGHTS


def _row_of_one(error: BaseException) -> Row | None:
    """The row of an error, without those that it carries."""
    row = _named(error)
    if row is None:
        return _row_of_python(error)
    if row is not _UNKNOWN:
        return row
    by_condition = CONDITIONS.get(_condition(error))
    return by_condition if by_condition is not None else _row_of_status(error, row)


def _row_of_status(error: BaseException, otherwise: Row) -> Row:
    status = getattr(error, "status_code", None)
    return STATUSES.get(status, STATUSES.get(status // 100, otherwise)) if isinstance(status, int) else otherwise


def _named(error: BaseException) -> Row | None:
    """The row of the nearest class that has one."""
    for kind in type(error).__mro__:
        if kind.__module__.startswith("azure."):
            row = CLASSES.get(kind.__name__)
        elif kind.__module__ == "duobus.ha.errors":
            row = OWN.get(kind.__name__)
        else:
            continue
        if row is not None:
            return row
    return None


def _row_of_python(error: BaseException) -> Row | None:
    """The row of one of Python's own errors."""
    if isinstance(error, OSError):
        return _RETRY  # TimeoutError is one as well.
    text = str(error)
    for start, row in TEXTS.items():
        if text.startswith(start):
            return row
    return _MESSAGE if _is_raised_over_message(error) else None


def _is_raised_over_message(error: BaseException) -> bool:
    found = False
    for module, function in _frames(error.__traceback__):
        if module in _TOKENS:
            return False
        found = found or (module, function) in PLACES
    return found


def _frames(traceback: TracebackType | None) -> Iterator[tuple[str, str]]:
    for _ in range(_FRAMES_MAX):
        if traceback is None:
            return
        yield traceback.tb_frame.f_globals.get("__name__", ""), traceback.tb_frame.f_code.co_name
        traceback = traceback.tb_next


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that the SDK put into it."""
    at: object = error
    for _ in range(_DEPTH_MAX):
        if not isinstance(at, BaseException):
            return
        yield at
        at = getattr(at, "inner_exception", None)


def _is_of_link(error: BaseException) -> bool:
    return any(kind.__name__ in _LINK_ERRORS for one in _chain(error) for kind in type(one).__mro__)


def _condition(error: BaseException) -> str:
    raw = getattr(error, "condition", None)  # of the AMQP implementation
    if isinstance(raw, bytes):
        return raw.decode("utf-8", "replace")
    return condition(error)
