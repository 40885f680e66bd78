"""From a request to messages: bare AMQP messages and what is kept beside them (Azure: Service Bus REST API)."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, TypeVar

from duobus.broker import string_key
from duobus.clock import Entropy
from duobus.codec import EncodeError, Symbol, build_message, data_section, encode, with_made_id
from duobus.errors import ArgumentInvalid, MessageTooLarge
from duobus.gateway.rest.runtime.broker_properties import BrokerProperties, read_members
from duobus.model.batches import CONTENT_TYPE
from duobus.model.metadata import MessageMetadata

T = TypeVar("T")

#: Messages of one batch: what 1 MiB holds of small ones.
BATCH_MESSAGES_MAX: Final = 4_500
#: All properties of a message, and one (Azure: quotas), in bytes.
PROPERTIES_BYTES_MAX: Final = 65_536
PROPERTY_BYTES_MAX: Final = 32_768

_NOTHING: Final = BrokerProperties()
#: As long as any.
_ANY_ID: Final = b"0" * 32
#: Content types that came last are kept, encoded, unless they are longer.
_KEPT_FRAMES: Final = 256
_KEPT_LENGTH: Final = 128
_NO_METADATA: Final = (None,) * 5
_LONG_MAX: Final = (1 << 63) - 1
_BASE64_FLAGS: Final = ("isbodybase64", "isbodybase64encoded")


class Outgoing:
    """One message on its way to the broker."""

    __slots__ = ("bare", "is_ping", "key", "metadata")

    def __init__(self, bare: bytes, metadata: MessageMetadata | None, key: bytes | None, *, is_ping: bool) -> None:
        self.bare = bare
        self.metadata = metadata
        self.key = key
        self.is_ping = is_ping


def make_message(
    body: bytes, about: BrokerProperties, properties: Mapping[str, Any], content_type: str | None, entropy: Entropy
) -> Outgoing:
    """Return the message that a request sends.

    Raises:
        ArgumentInvalid: A property has no form in AMQP.
        MessageTooLarge: The properties are too large.
    """
    is_ping = not body and content_type == CONTENT_TYPE
    if not properties and about == _NOTHING and (content_type is None or len(content_type) <= _KEPT_LENGTH):
        # What a script sends: an id of ours, its content type, and the body.
        before, behind = _frame(content_type)
        whole = b"".join((before, entropy.uuid_text().encode(), behind, data_section(body)))
        return Outgoing(whole, None, None, is_ping=is_ping)
    fields = [
        about.message_id or None,
        None,
        about.to,
        about.label,
        about.reply_to,
        about.correlation_id,
        None if content_type is None else Symbol(content_type),
        None,
        None,
        None,
        about.session_id,
        None,
        about.reply_to_session_id,
    ]
    while fields and fields[-1] is None:
        fields.pop()
    try:
        bare = build_message(fields, properties or None, data=body)
        if not about.message_id:
            bare = with_made_id(bare, 0, entropy.uuid_text().encode())
        _check_size(properties)
    except (EncodeError, UnicodeEncodeError) as error:
        raise ArgumentInvalid(f"The message cannot be encoded: {error}") from None
    with_metadata = (about.ttl_ms, about.scheduled_ms, about.partition_key, about.via_partition_key, about.session_id)
    if with_metadata == _NO_METADATA:
        return Outgoing(bare, None, None, is_ping=is_ping)
    key = about.session_id or about.partition_key
    return Outgoing(bare, MessageMetadata(*with_metadata), None if key is None else string_key(key), is_ping=is_ping)


@lru_cache(_KEPT_FRAMES)
def _frame(content_type: str | None) -> tuple[bytes, bytes]:
    """What stands around the id in the properties of a message that has a content type besides, at most."""
    fields = [None] if content_type is None else [*[None] * 6, Symbol(content_type)]
    try:
        before, _, behind = with_made_id(build_message(fields), 0, _ANY_ID).partition(_ANY_ID)
    except (EncodeError, UnicodeEncodeError) as error:
        raise ArgumentInvalid(f"The message cannot be encoded: {error}") from None
    return before, behind


def _check_size(properties: Mapping[str, Any]) -> None:
    total = 0
    for name, value in properties.items():
        size = len(encode(value))
        total += size + len(name)
        if size > PROPERTY_BYTES_MAX or total > PROPERTIES_BYTES_MAX:
            raise MessageTooLarge(
                f"The properties of the message are too large: {PROPERTY_BYTES_MAX} bytes are allowed for one, "
                f"{PROPERTIES_BYTES_MAX} for all."
            )


def read_batch(body: bytes, entropy: Entropy) -> list[Outgoing]:
    """Return the messages of a batch.

    Raises:
        ArgumentInvalid: It is no list of messages; the text names the first wrong one.
        MessageTooLarge: There are too many.
    """
    return _each(body, lambda item: _entry(item, entropy))


def batch_properties(body: bytes) -> list[BrokerProperties]:
    """Return the broker properties of the messages of a batch; raises as ``read_batch``."""
    return _each(body, lambda item: _read(item)[1])


def _each(body: bytes, read: Callable[[Any], T]) -> list[T]:
    """What is read of each message of a batch."""
    try:
        entries = json.loads(body)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body of a batch must be JSON: a list of messages.") from None
    if not isinstance(entries, list) or not entries:
        raise ArgumentInvalid("The body of a batch must be a list of at least one message.")
    if len(entries) > BATCH_MESSAGES_MAX:
        raise MessageTooLarge(f"The batch has {len(entries)} messages; at most {BATCH_MESSAGES_MAX} are allowed.")
    found = []
    for index, item in enumerate(entries):
        try:
            found.append(read(item))
        except ArgumentInvalid as error:
            raise ArgumentInvalid(f"Message {index} of the batch: {error}") from None
    return found


def _read(item: Any) -> tuple[dict[str, Any], BrokerProperties]:
    """The members of a message by their lower-case names, and its broker properties."""
    if not isinstance(item, dict):
        raise ArgumentInvalid("It must be an object with a Body.")
    members = {name.lower(): value for name, value in item.items()}
    about = members.get("brokerproperties") or {}
    if not isinstance(about, dict) or not isinstance(members.get("userproperties") or {}, dict):
        raise ArgumentInvalid("BrokerProperties and UserProperties must be objects.")
    return members, read_members(about)


def _entry(item: Any, entropy: Entropy) -> Outgoing:
    members, read = _read(item)
    properties = members.get("userproperties") or {}
    values = {name: _value(name, value) for name, value in properties.items() if value is not None}
    return make_message(_body(members), read, values, read.content_type, entropy)


def _body(members: dict[str, Any]) -> bytes:
    body = members.get("body", "")
    if not isinstance(body, str):
        return json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass")
    if any(members.get(flag) is True for flag in _BASE64_FLAGS):
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise ArgumentInvalid("Its Body is not base64.") from None
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise ArgumentInvalid("Its Body is no legal text.") from None


def _value(name: str, value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool) and not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        raise ArgumentInvalid(f"The property {name[:64]!r} does not fit 64 bits.")
    if not isinstance(value, str | bool | int | float):
        raise ArgumentInvalid(f"The property {name[:64]!r} must be a string, a number, true or false.")
    return value
