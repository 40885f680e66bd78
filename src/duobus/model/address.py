"""Entity addresses: from what a client wrote to what it means (Azure: AMQP protocol guide).

An address is parsed from the right, because entity names may contain slashes: ``/$management`` first,
then the sub-queue, then ``/Subscriptions/<name>``; the rest is the path of a queue or topic. Parsed and
normalised once, here; rights are compared on the result, segment by segment, and never on text.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from duobus.errors import ArgumentInvalid, EntityNotFound

#: Longest path of a queue or topic, in characters (Azure: quotas).
PATH_LENGTH_MAX = 260

#: Longest name of a subscription or rule, in characters (Azure: quotas).
NAME_LENGTH_MAX = 50

#: Longest address as it arrives: scheme, authority and suffixes, and every character percent-encoded.
ADDRESS_LENGTH_MAX = 2048

#: Over HTTP every request brings its address: so many that came last are kept, unless they are longer.
KEPT_ADDRESSES: Final = 1024
KEPT_LENGTH_MAX: Final = 512

#: What ``Address.sub_queue`` says.
MAIN = 0
DEAD_LETTER = 1
TRANSFER_DEAD_LETTER = 2

SUB_QUEUE_SEGMENTS: tuple[tuple[str, ...], ...] = ((), ("$deadletterqueue",), ("$transfer", "$deadletterqueue"))

#: Inner segment of the addresses of what servers that share a catalog make of an entity among themselves.
SHARE: Final = "~share"

_ALPHANUMERIC = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
_NAME_CHARACTERS = _ALPHANUMERIC | frozenset(".-_~")

#: Inner segments that addresses and HTTP paths give a meaning of their own. A queue ``a/messages`` or
#: ``a/subscriptions/b`` could not be told from a part of ``a``; as a first segment they are harmless.
_RESERVED_INNER_SEGMENTS = frozenset({"subscriptions", "rules", "messages", SHARE})


class Address:
    """What one address means.

    Attributes:
        path: Queue or topic path in the client's spelling; empty for ``$cbs``.
        key: The path in lower case, under which the entity is looked up.
        subscription: Name of the subscription in the client's spelling, or None.
        sub_queue: MAIN, DEAD_LETTER or TRANSFER_DEAD_LETTER.
        is_management: Whether the entity's ``$management`` node is meant.
        is_cbs: Whether this is the token node ``$cbs``, which belongs to no entity.
    """

    __slots__ = ("is_cbs", "is_management", "key", "path", "sub_queue", "subscription")

    def __init__(
        self,
        path: str,
        subscription: str | None = None,
        sub_queue: int = MAIN,
        *,
        is_management: bool = False,
        is_cbs: bool = False,
    ) -> None:
        self.path = path
        self.key = path.lower()
        self.subscription = subscription
        self.sub_queue = sub_queue
        self.is_management = is_management
        self.is_cbs = is_cbs

    @property
    def entity_key(self) -> str:
        """The lower-case path of the queue, topic or subscription that is meant, whichever of its nodes."""
        return self.key if self.subscription is None else f"{self.key}/subscriptions/{self.subscription.lower()}"

    def segments(self) -> tuple[str, ...]:
        """Return the lower-case segments of what rights are asked for: all of the address except ``$management``."""
        found = tuple(self.key.split("/"))
        if self.subscription is not None:
            found += ("subscriptions", self.subscription.lower())
        return found + SUB_QUEUE_SEGMENTS[self.sub_queue]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Address):
            return NotImplemented
        return (self.segments(), self.is_management, self.is_cbs) == (
            other.segments(),
            other.is_management,
            other.is_cbs,
        )

    def __hash__(self) -> int:
        return hash((self.segments(), self.is_management, self.is_cbs))

    def __repr__(self) -> str:
        return f"Address({'/'.join(self.segments())!r}, management={self.is_management}, cbs={self.is_cbs})"


def parse_address(text: str) -> Address:
    """Return what ``text`` addresses. The caller keeps ``text`` itself for the echo (rule 0.5).

    Raises:
        ArgumentInvalid: The text is no address: too long, not decodable, with control characters, a
            backslash, an empty segment, ``.`` or ``..``. Trying again cannot help.
        EntityNotFound: It is well formed, but no entity can have this name.

    Source:
        Wire Azure: AMQP protocol guide (normalising) and 5.2 (nodes).
    """
    return _kept_address(text) if len(text) <= KEPT_LENGTH_MAX else _parse_address(text)


def _parse_address(text: str) -> Address:
    if len(text) > ADDRESS_LENGTH_MAX:
        raise ArgumentInvalid(f"The address has {len(text)} characters; at most {ADDRESS_LENGTH_MAX} are allowed.")
    segments = _segments(decode_percent(strip_authority(text).strip("/"), "address").strip("/"))
    if [segment.lower() for segment in segments] == ["$cbs"]:
        return Address("", is_cbs=True)
    is_management = segments[-1].lower() == "$management"
    if is_management:
        segments = segments[:-1]
    segments, sub_queue = _without_sub_queue(segments)
    subscription = None
    if len(segments) > 2 and segments[-2].lower() == "subscriptions":
        subscription = segments[-1]
        _found_or_refused(subscription, [subscription], text)
        segments = segments[:-2]
    path = "/".join(segments)
    if len(path) > PATH_LENGTH_MAX and len("/".join(without_share(segments))) > PATH_LENGTH_MAX:
        raise ArgumentInvalid(f"The entity path has {len(path)} characters; at most {PATH_LENGTH_MAX} are allowed.")
    _found_or_refused(path, segments, text)
    return Address(path, subscription, sub_queue, is_management=is_management)


_kept_address: Final = lru_cache(KEPT_ADDRESSES)(_parse_address)


def not_found(name: str) -> EntityNotFound:
    """Return the error for a missing entity.

    The first sentence is load-bearing: the JavaScript and Java SDKs decide by it that trying again is
    useless (Azure: AMQP protocol guide).
    """
    return EntityNotFound(
        f"The messaging entity '{name}' could not be found. Create the entity first, or correct the address."
    )


def without_share(segments: Sequence[str]) -> tuple[str, ...]:
    """Segments of what rights are asked for, where it is in a share: in the whole queue."""
    wanted = tuple(segments)
    if SHARE not in wanted:
        return wanted
    index = wanted.index(SHARE)
    return wanted[:index] + wanted[index + 2 :]


def shard_path(path: str, number: int) -> str:
    """The address of a share of an entity that lies in several stores."""
    return f"{path}/{SHARE}/{number}"


def whole_path(path: str) -> str:
    """What clients call an entity: the path of that of which it is a share, if it is one."""
    return "/".join(without_share(path.split("/")))


def sharded_entity_of(key: str) -> str | None:
    """The lower-case path of the entity of which this is the path of a share; None when it is none."""
    whole = whole_path(key)
    return None if whole == key else whole


def are_shards_of_one(path: str, other: str) -> bool:
    """Whether two entities are shards of one: to a client they are one entity, of different fragments."""
    whole = sharded_entity_of(path.lower())
    return whole is not None and whole == sharded_entity_of(other.lower())


def check_entity_name(name: str) -> str:
    """Return ``name`` if a queue or topic may be created under it.

    Raises:
        ArgumentInvalid: It may not; the text says why (Azure: quotas, limits A.6.2).
    """
    if not name:
        raise ArgumentInvalid("The entity name is empty.")
    if len(name) > PATH_LENGTH_MAX:
        raise ArgumentInvalid(f"The entity name has {len(name)} characters; at most {PATH_LENGTH_MAX} are allowed.")
    segments = name.split("/")
    for segment in segments:
        _check_characters(segment, name)
    if name[0] not in _ALPHANUMERIC or name[-1] not in _ALPHANUMERIC:
        raise ArgumentInvalid(f"The entity name {name!r} must begin and end with a letter or digit.")
    for segment in segments[1:]:
        if segment.lower() in _RESERVED_INNER_SEGMENTS:
            raise ArgumentInvalid(f"The entity name {name!r} holds the reserved segment '{segment}'.")
    return name


def check_subscription_name(name: str, *, kind: str = "subscription") -> str:
    """Return ``name`` if a subscription (or rule) may be created under it; ``$Default`` is legal for a rule.

    Raises:
        ArgumentInvalid: It may not; the text says why (Azure: quotas).
    """
    if not 0 < len(name) <= NAME_LENGTH_MAX:
        raise ArgumentInvalid(f"A {kind} name has 1 to {NAME_LENGTH_MAX} characters, not {len(name)}.")
    if kind == "rule" and name.lower() == "$default":
        return name
    _check_characters(name, name)
    if name[0] not in _ALPHANUMERIC or name[-1] not in _ALPHANUMERIC:
        raise ArgumentInvalid(f"The {kind} name {name!r} must begin and end with a letter or digit.")
    return name


def strip_authority(text: str) -> str:
    """Return ``text`` without ``scheme://host:port``; text without a scheme is a path already."""
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme.isascii() or not scheme.replace("+", "a").isalnum():
        return text
    return rest.partition("/")[2]


def decode_percent(text: str, what: str) -> str:
    """Return ``text`` percent-decoded exactly once.

    Raises:
        ArgumentInvalid: The result is no UTF-8.
    """
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise ArgumentInvalid(f"The percent-encoded {what} is not UTF-8.") from None


def _segments(path: str) -> list[str]:
    if not path:
        raise not_found("")
    if any(character < " " or character in "\x7f\\" for character in path):
        raise ArgumentInvalid("The address holds a control character or a backslash.")
    segments = path.split("/")
    for segment in segments:
        if segment in {"", ".", ".."}:
            raise ArgumentInvalid("The address holds an empty segment, '.' or '..'.")
    return segments


def _without_sub_queue(segments: list[str]) -> tuple[list[str], int]:
    lower = tuple(segment.lower() for segment in segments)
    # The longer suffix first: the shorter one is its end.
    for sub_queue in (TRANSFER_DEAD_LETTER, DEAD_LETTER):
        suffix = SUB_QUEUE_SEGMENTS[sub_queue]
        if lower[-len(suffix) :] == suffix:
            return segments[: -len(suffix)], sub_queue
    return segments, MAIN


def _found_or_refused(name: str, segments: list[str], text: str) -> None:
    """No entity can be called so: the same answer as for one that was never created."""
    if not name or any(not _NAME_CHARACTERS.issuperset(segment) for segment in segments):
        raise not_found(text)


def _check_characters(segment: str, name: str) -> None:
    if not segment or segment in {".", ".."}:
        raise ArgumentInvalid(f"The name {name!r} holds an empty segment, '.' or '..'.")
    if not _NAME_CHARACTERS.issuperset(segment):
        wrong = next(character for character in segment if character not in _NAME_CHARACTERS)
        raise ArgumentInvalid(f"The name {name!r} holds {wrong!r}; letters, digits and . - _ ~ are allowed.")
