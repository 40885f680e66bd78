"""Pages of messages for rows: the SDK requests them, ``peek_decoder`` decodes them while the next page is on its way.

Connection, rights, retries and the request are those of the SDK; only its decoding of the answer is left out. For that
a method of its receiver is used that is not public, because the public method decodes. An SDK without this method is
asked by the public one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from duobus.spark.entities import PEEK, peek
from duobus.spark.errors import EntityError
from duobus.spark.peek_decoder import ALL, MessageDecoder

_OPERATION: Final = b"com.microsoft:peek-message"
#: What is used of the SDK's receiver beside its public methods.
HIDDEN: Final = ("_mgmt_request_response_with_retry", "_populate_message_properties", "_check_live", "_amqp_transport")


class Wish(NamedTuple):
    """What is wanted of messages; duobus sends no more, Azure does.

    Attributes:
        body: Whether the body is.
        sections: Sections that columns are told by, as ``peek_decoder`` calls them; these are not asked for singly, but
            only they are decoded.
        session: Only messages of this session, where duobus is asked; None: of any and of none.
        key: Only messages with this partition key, likewise.
    """

    body: bool = True
    sections: frozenset[int] = ALL
    session: str | None = None
    key: str | None = None


#: Everything of all messages.
WHOLE: Final = Wish()


class Page:
    """The messages of one peek's answer, in order of number, decoded when they are needed.

    Args:
        found: The messages, encoded or as objects of the SDK.
        receiver: The receiver that peeked.
        wish: What is wanted of them.
    """

    __slots__ = ("_decoder", "_found", "_last", "_receiver")

    def __init__(self, found: list[Any], receiver: Any, wish: Wish = WHOLE) -> None:
        self._found = found
        self._receiver = receiver
        self._decoder = MessageDecoder(has_body=wish.body, sections=wish.sections)
        self._last = self._decoded(found[-1]) if found else None

    @property
    def last(self) -> int | None:
        """The highest number, behind which the next page begins; None: there are no messages."""
        return None if self._last is None else int(self._last.sequence_number)

    def __iter__(self) -> Iterator[Any]:
        """Each message, as ``peek_decoder.Peeked`` or as the SDK's; once."""
        decoded, receiver = self._decoder.decoded, self._receiver
        for message in self._found[:-1]:
            if type(message) is bytes:
                yield decoded(message) or by_sdk(message, receiver)
            else:
                yield message
        if self._last is not None:
            yield self._last

    def _decoded(self, message: Any) -> Any:
        if type(message) is not bytes:
            return message
        return self._decoder.decoded(message) or by_sdk(message, self._receiver)


def page_of(receiver: Any, first: int, count: int, wish: Wish = WHOLE) -> Page:
    """Peek at messages from a number on, as ``entities.peek`` does."""
    return Page(answer_of(receiver, first, count, wish), receiver, wish)


def answer_of(receiver: Any, first: int, count: int, wish: Wish = WHOLE) -> list[Any]:
    """The messages of one peek's answer, each as its bytes; with an SDK that hides those, as objects of the SDK."""
    if not all(hasattr(receiver, name) for name in HIDDEN):
        return peek(receiver, first, count)
    request: dict[str, Any] = {
        "from-sequence-number": receiver._amqp_transport.AMQP_LONG_VALUE(max(first, 1)),
        "message-count": min(count, PEEK),
    }
    if not wish.body:
        request["omit-message-body"] = True
    if wish.key is not None:
        request["partition-key"] = wish.key
    receiver._check_live()
    receiver._populate_message_properties(request)
    if wish.session is not None:
        request["session-id"] = wish.session
    found: list[Any] = receiver._mgmt_request_response_with_retry(_OPERATION, request, partial(_answered, receiver))
    return found


def _answered(receiver: Any, status: int, answer: Any, description: Any, amqp_transport: Any) -> list[Any]:
    """The encoded messages of an answer; the SDK tells what went wrong if it is none."""
    if status == 200 and answer.value:
        return [bytes(entry[b"message"]) for entry in answer.value[b"messages"]]
    from azure.servicebus._common import mgmt_handlers

    told: Any = mgmt_handlers
    return list(told.peek_op(status, answer, description, receiver=receiver, amqp_transport=amqp_transport))


def by_sdk(message: bytes, receiver: Any) -> Any:
    """Decode a message as the SDK does when it peeks.

    Raises:
        EntityError: The SDK cannot decode it either.
    """
    from azure.servicebus import ServiceBusReceivedMessage

    answer = SimpleNamespace(value={b"messages": [{b"message": message}]})
    try:
        (found,) = receiver._amqp_transport.parse_received_message(
            answer, message_type=ServiceBusReceivedMessage, receiver=receiver, is_peeked_message=True
        )
    except Exception as error:
        raise EntityError(
            f"'{receiver.entity_path}' holds a message that the SDK cannot decode ({type(error).__name__}: {error}); "
            "remove it with a client that can."
        ) from error
    return found
