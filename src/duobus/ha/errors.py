"""Errors of pairs, beside those of the SDK, which reach the caller as they are."""

from __future__ import annotations

from azure.servicebus.exceptions import MessageSizeExceededError


class PairingRefused(ValueError):
    """The two clients cannot be paired. Correct the call; repeating it does not help."""


class BacklogUnavailable(Exception):
    """No backlog queue is there, and none could be made; at a send: none took the message.

    A retry helps when the secondary is back. At a send ``__cause__`` is what the last queue answered; the message was
    not accepted anywhere, unless that was a time-out.
    """


class NotDiverted(Exception):
    """The entity has failed over, and the operation has no form that a backlog queue could keep."""


class TooLargeToDivert(MessageSizeExceededError):
    """The message would fit the primary, which is away, but no backlog queue. An outbox takes it (PN11, I48).

    Attributes:
        left: Messages at the end of the list that were not accepted anywhere, this one first.
    """

    def __init__(self, text: str, left: int) -> None:
        super().__init__(message=text)
        self.left = left


class PairFaulted(Exception):
    """The pair is broken: one of its clients was closed and the other not. Make new clients and pair them."""


class OutboxFull(Exception):
    """The outbox holds as many messages or bytes as it may; nothing was stored. Try again when some were sent."""


class OutboxFailed(Exception):
    """The file of the outbox cannot be used; ``__cause__`` says why.

    After a full disk the next message may be stored. After any other error of the disk make a new outbox of the same
    file: whether the message is in it is known then, and so it may be sent twice when it is sent again.
    """


class SendsFailed(Exception):
    """Sends that ran side by side failed, and nobody has looked at their outcomes.

    Attributes:
        failures: Each message, or list of them, with its error. Whether one that timed out was accepted is not known.
    """

    def __init__(self, failures: list[tuple[object, BaseException]]) -> None:
        super().__init__(f"{len(failures)} sends failed; the first one with {failures[0][1]!r}")
        self.failures = failures
