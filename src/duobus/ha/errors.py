"""Errors of pairs, outboxes and overlapped sends. Errors of the SDK reach the caller as they are."""

from __future__ import annotations

from azure.servicebus.exceptions import MessageSizeExceededError


class PairingRefused(ValueError):
    """The two clients cannot be paired. Correct the call; repeating it does not help."""


class BacklogUnavailable(Exception):
    """There is no backlog queue and none could be made; or, at a send, no backlog queue took the message.

    A retry helps when the secondary is back. At a send ``__cause__`` is the error of the last queue; the message was
    not accepted anywhere, unless that error is a time-out.
    """


class NotDiverted(Exception):
    """The entity has failed over, and the operation has no form that a backlog queue could keep."""


class TooLargeToDivert(MessageSizeExceededError):
    """The message would fit the primary, which is away, but no backlog queue. An outbox takes it (PN11, I48).

    Attributes:
        left: Number of messages at the end of the list that were not accepted anywhere; this message is the first.
    """

    def __init__(self, text: str, left: int) -> None:
        super().__init__(message=text)
        self.left = left


class PairFaulted(Exception):
    """The pair is broken: one of its clients was closed and the other was not. Make new clients and pair them."""


class OutboxFull(Exception):
    """The outbox is full, in messages or bytes; nothing was stored. Try again when some messages were sent."""


class OutboxFailed(Exception):
    """The file of the outbox cannot be used; ``__cause__`` says why.

    After a full disk the next message may be stored. After any other error of the disk make a new ``Outbox`` of the
    same file. Only the file says whether the message is in it, so a message that is stored again may be sent twice.
    """


class SendsFailed(Exception):
    """Sends that ran side by side failed, and no caller has read their outcomes.

    Attributes:
        failures: Each message, or list of messages, with its error. A message that timed out may have been accepted.
    """

    def __init__(self, failures: list[tuple[object, BaseException]]) -> None:
        super().__init__(f"{len(failures)} sends failed; the first one with {failures[0][1]!r}")
        self.failures = failures
