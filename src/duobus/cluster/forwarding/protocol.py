"""What servers that share a catalog say to each other about forwarded messages; pure, in MessagePack.

The server that has an origin *registers* it at the owner of a destination and gets the number of that *registration*;
each request that brings messages names it. A registration is good for one life of the destination's store at one
server, and the next one of the same origin ends it: so a request that a connection brings late does not count, and the
destination may forget messages that their origin has removed (I14). How the two sides use this is in ``sender.py`` and
``receiver.py``.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from duobus.broker.entities.destination import Unfit
from duobus.cluster.moves.protocol import BeginCopy, ReadCopy, WriteCopy
from duobus.errors import (
    EntityDisabled,
    EntityNotFound,
    NotAllowed,
    QuotaExceeded,
    ServiceBusError,
    StoreUnavailable,
    Undecodable,
)
from duobus.model.metadata import MessageMetadata

#: Messages that are asked about at a time: a request of 90 KB at most.
ASKED_MAX: Final = 10_000
#: Messages of one request: more than a forwarder takes at a time.
REQUEST_MESSAGES_MAX: Final = 1_000

_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
_Origin = tuple[
    Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)],
    Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)],
    Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)],
]

#: Outcomes. DONE: durable. LATER: nothing was taken. IN_DOUBT: it is not known yet. The others: it cannot be taken.
DONE, LATER, IN_DOUBT = "done", "later", "doubt"
_MISSING, _DISABLED, _FULL, _UNFIT, _REFUSED = "missing", "disabled", "full", "unfit", "refused"


class InDoubt(StoreUnavailable):
    """Messages that may have been taken before: their origin has to keep them until that is known."""


class RegisterOrigin(msgspec.Struct, array_like=True, tag="landing", frozen=True):
    """An origin wants to send to an entity; ``epoch`` is that of its fragment."""

    number: _Number
    origin: _Origin
    epoch: _Number
    path: str


class ForwardRequest(msgspec.Struct, array_like=True, tag="freight", frozen=True):
    """Messages, in order: their counts at the origin, and what they are at the destination."""

    number: _Number
    registration_no: _Number
    counts: Annotated[list[_Count], msgspec.Meta(min_length=1, max_length=REQUEST_MESSAGES_MAX)]
    payloads: list[bytes]
    all_metadata: list[MessageMetadata]


class OriginQuery(msgspec.Struct, array_like=True, tag="inquiry", frozen=True):
    """Which of these messages does their origin, which the asked server has, not have any more?"""

    number: _Number
    origin: _Origin
    counts: Annotated[list[_Count], msgspec.Meta(max_length=ASKED_MAX)]


class ReceivedQuery(msgspec.Struct, array_like=True, tag="query", frozen=True):
    """Which messages of the origin that is registered are at the destination? From ``first`` on, ASKED_MAX at most."""

    number: _Number
    registration_no: _Number
    first: _Count


class ForwardReply(msgspec.Struct, array_like=True):
    """What became of the request of this number.

    Attributes:
        outcome: DONE, or why not.
        text, reason: Of an error, and its DeadLetterReason.
        registration_no: Of a registration, its number.
        gone: What the origin does not have.
        taken: What the destination has, ascending.
        data: What is answered to a request about the copy of a fragment.
    """

    number: int
    outcome: str = DONE
    text: str = ""
    reason: str = ""
    registration_no: int = 0
    gone: list[int] = []
    taken: list[int] = []
    data: bytes = b""

    def error(self) -> ServiceBusError | None:
        """The error that it tells of; None when it was done."""
        if self.outcome == DONE:
            return None
        if self.outcome == _UNFIT:
            return Unfit(self.reason, self.text)
        # What a newer server may say that this one does not know is waited out.
        return _KINDS.get(self.outcome, StoreUnavailable)(self.text)


Request = RegisterOrigin | ForwardRequest | OriginQuery | ReceivedQuery | BeginCopy | WriteCopy | ReadCopy

_KINDS: Final[dict[str, type[ServiceBusError]]] = {
    LATER: StoreUnavailable,
    IN_DOUBT: InDoubt,
    _MISSING: EntityNotFound,
    _DISABLED: EntityDisabled,
    _FULL: QuotaExceeded,
    _REFUSED: NotAllowed,
}

_ENCODER: Final = msgspec.msgpack.Encoder()
_REQUESTS: Final = msgspec.msgpack.Decoder(Request)
_REPLIES: Final = msgspec.msgpack.Decoder(ForwardReply)


def refusal(number: int, error: ServiceBusError) -> ForwardReply:
    """The reply that tells of an error."""
    if isinstance(error, Unfit):
        return ForwardReply(number, _UNFIT, str(error), error.reason)
    if isinstance(error, InDoubt):
        return ForwardReply(number, IN_DOUBT, str(error))
    if isinstance(error, StoreUnavailable) or type(error).transient:
        return ForwardReply(number, LATER, str(error))
    outcome = next((name for name, kind in _KINDS.items() if isinstance(error, kind)), _REFUSED)
    return ForwardReply(number, outcome, str(error))


def encode(what: Request | ForwardReply) -> bytes:
    """As bytes."""
    return _ENCODER.encode(what)


def decode_request(data: bytes) -> Request:
    """A request of another server, of which everything is checked that can be checked without looking at an entity.

    Raises:
        Undecodable: It is none.
    """
    try:
        found: Request = _REQUESTS.decode(data)
        if isinstance(found, ForwardRequest) and not (
            len(found.counts) == len(found.payloads) == len(found.all_metadata) == len(set(found.counts))
        ):
            raise Undecodable(
                "A forward request has one count, one payload and one entry of metadata for each message."
            )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Undecodable(f"The request of another server cannot be decoded: {error}") from None
    return found


def decode_reply(data: bytes) -> ForwardReply:
    """A reply of another server.

    Raises:
        Undecodable: It is none.
    """
    try:
        return _REPLIES.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Undecodable(f"The reply of another server cannot be decoded: {error}") from None
