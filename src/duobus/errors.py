"""Every error the product can raise: one class per condition.

Each class carries its renderings (AMQP condition, HTTP status) and its advice (``transient``: whether
sending the same request again can help), so that a server never decides. The conditions and what the
official SDKs make of them are listed in Azure: AMQP error codes. An unknown symbol is retried by
every SDK for long, so no class here invents one.
"""

from __future__ import annotations


class ServiceBusError(Exception):
    """Parent of every error that a client may see. The text says what was wrong and what to do."""

    condition = "amqp:internal-error"
    http_status = 500
    transient = True

    def mark(self, path: str) -> str:
        """What servers put behind the text of an answer about ``path``, for programs to read; empty for most errors."""
        del path
        return ""


class InternalError(ServiceBusError):
    """A fault of the broker itself. Retrying may help; the log holds the tracking id."""


class EntityNotFound(ServiceBusError):
    """No entity at this path. Create it first, or correct the address."""

    condition = "amqp:not-found"
    http_status = 404
    transient = False


class EntityAlreadyExists(ServiceBusError):
    """The name is taken. Choose another, or use what exists."""

    condition = "com.microsoft:entity-already-exists"
    http_status = 409
    transient = False


class EntityDisabled(ServiceBusError):
    """The entity's status forbids the operation. Enable it first."""

    condition = "com.microsoft:entity-disabled"
    http_status = 403
    transient = False


class Unauthorized(ServiceBusError):
    """The claim is missing, wrong, or expired. Put a token with the named right."""

    condition = "amqp:unauthorized-access"
    http_status = 401
    transient = False

    def __init__(self, text: str, sub_code: int = 40100) -> None:
        """``sub_code``: what HTTP clients are told beside the text (Azure: Service Bus REST API)."""
        super().__init__(text)
        self.sub_code = sub_code


class MessageLockLost(ServiceBusError):
    """The lock ran out, was released, or belongs to another receiver. Receive the message again."""

    condition = "com.microsoft:message-lock-lost"
    http_status = 410
    transient = False


class SessionLockLost(ServiceBusError):
    """The session's lock ran out or moved on. Accept the session again."""

    condition = "com.microsoft:session-lock-lost"
    http_status = 410
    transient = False


class SessionCannotBeLocked(ServiceBusError):
    """Another receiver holds the session. Wait until it is free, or accept another."""

    condition = "com.microsoft:session-cannot-be-locked"
    http_status = 410
    transient = False


class MessageNotFound(ServiceBusError):
    """No deferred or scheduled message has this sequence number."""

    condition = "com.microsoft:message-not-found"
    http_status = 404
    transient = False


class MessageTooLarge(ServiceBusError):
    """The message passes the entity's size limit. Send a smaller one."""

    condition = "amqp:link:message-size-exceeded"
    http_status = 413
    transient = False


class NoMatchingSubscription(ServiceBusError):
    """No subscription takes the message, and the topic refuses such. Add a rule, or change the topic."""

    condition = "com.microsoft:no-matching-subscription"
    http_status = 400
    transient = False


class QuotaExceeded(ServiceBusError):
    """A quota is used up. Receive messages, close links, or raise the quota."""

    condition = "amqp:resource-limit-exceeded"
    http_status = 403
    transient = False


class ServerBusy(ServiceBusError):
    """The broker cannot serve this now. Try again in a moment; nothing was done."""

    condition = "com.microsoft:server-busy"
    http_status = 503


class RowsExist(ServiceBusError):
    """A store has messages under the number of an entity that is being created; these stay. Check the catalog."""

    transient = False


class StoreUnavailable(ServerBusy):
    """The messaging store of this fragment is away. Try again; the store is reopened by itself."""

    def __init__(self, text: str, fragments: tuple[int, int, int] | None = None) -> None:
        """``fragments``: the first and the last slot that is away, and how many the entity has; None for all of it."""
        super().__init__(text)
        self.fragments = fragments

    def mark(self, path: str) -> str:
        """Tell programs that this is a store that is away, not a busy server, and what of the entity is away with it.

        The form is public (docs/reference/errors.md), and ``duobus.ha.outage_scope`` reads it.
        """
        # Of an attach it is the whole address.
        path = path.partition("://")[2].partition("/")[2] or path.lstrip("/")
        if self.fragments is None:
            return f" StoreUnavailable:{path}"
        first, last, slots = self.fragments
        return f" StoreUnavailable:{path}, Fragment:{first if first == last else f'{first}-{last}'}/{slots}"


class OutcomeUnknown(StoreUnavailable):
    """The server of this fragment went away with the operation under way, which may be done. Look, or try again."""

    condition = "com.microsoft:timeout"
    http_status = 408


class OperationTimeout(ServiceBusError):
    """The time given by the client ran out before there was a result, or the result is not known yet. Try again."""

    condition = "com.microsoft:timeout"
    http_status = 408


class ArgumentInvalid(ServiceBusError):
    """A value is malformed or contradicts another. Correct the request."""

    condition = "com.microsoft:argument-error"
    http_status = 400
    transient = False


class ArgumentOutOfRange(ServiceBusError):
    """A value is outside its range. Correct the request."""

    condition = "com.microsoft:argument-out-of-range"
    http_status = 400
    transient = False


class NotAllowed(ServiceBusError):
    """The operation is illegal on this entity or in this state."""

    condition = "amqp:not-allowed"
    http_status = 400
    transient = False


class OperationCancelled(ServiceBusError):
    """The operation does not go together with what this client does already. Use another session or connection."""

    condition = "com.microsoft:operation-cancelled"
    http_status = 409


class TransactionUnknown(ServiceBusError):
    """This connection has no open transaction of this id. Declare one, on the same connection."""

    condition = "amqp:transaction:unknown-id"
    http_status = 400
    transient = False


class TransactionRolledBack(ServiceBusError):
    """The transaction was rolled back, or can only be: nothing of it was done. Do all of it again in a new one."""

    condition = "amqp:transaction:rollback"
    http_status = 400
    transient = False


class TransactionTimedOut(ServiceBusError):
    """The transaction took too long and was rolled back: nothing of it was done. Do it again, in less time."""

    condition = "amqp:transaction:timeout"
    http_status = 408
    transient = False


class NotImplementedYet(ServiceBusError):
    """The operation is unknown, or the broker does not support it."""

    condition = "amqp:not-implemented"
    http_status = 501
    transient = False


class InvalidField(ServiceBusError):
    """A field of a frame or message cannot be decoded or has the wrong type."""

    condition = "amqp:invalid-field"
    http_status = 400
    transient = False


class Undecodable(ServiceBusError):
    """The bytes of a message are not AMQP. Correct the sender; trying again cannot help."""

    condition = "amqp:decode-error"
    http_status = 400
    transient = False


class DetachForced(ServiceBusError):
    """The broker ended the link for its own reasons. Attach again."""

    condition = "amqp:link:detach-forced"
    http_status = 503


class ConnectionForced(ServiceBusError):
    """The broker closed the connection for its own reasons. Connect again."""

    condition = "amqp:connection:forced"
    http_status = 503


class ConfigurationError(ServiceBusError):
    """A setting or a configuration file is wrong; the text names the member and the remedy."""

    condition = "amqp:invalid-field"
    http_status = 400
    transient = False


class StoreFailed(Exception):
    """A messaging store refused or lost an operation; it must be closed and reopened before it is used again.

    Never reaches a client: message brokers turn it into StoreUnavailable or send the run elsewhere.
    Whether a failed commit reached the disk is not known (it is *ambiguous*).
    """


class StoreStale(StoreFailed):
    """The commit carried an epoch that is no longer the fragment's. Another owner has it; nothing was written."""


class StoreForeign(StoreFailed):
    """The store and the catalog do not belong together; nothing was changed. The text says what to do."""


class StoreTooNew(Exception):
    """The store or catalog was written by a newer version of duobus, which alone may open it."""
