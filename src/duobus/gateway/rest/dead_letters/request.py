"""What a request to the dead-letter service asks for: its JSON body, checked before anything is done."""

from __future__ import annotations

import json
from typing import Any, Final, TypeGuard

from duobus.broker.dead_letters import CHUNK_MAX, DeadLetterQuery, Selection
from duobus.errors import ArgumentInvalid
from duobus.model.address import Address, parse_address
from duobus.model.json.messages import message_of
from duobus.model.json.repair import Repair, parse_repair
from duobus.model.metadata import MessageMetadata

LIST: Final = "list"
RESUBMIT: Final = "resubmit"
MOVE: Final = "move"
PURGE: Final = "purge"
RESTORE: Final = "bury"
SEND: Final = "send"
ACTIONS: Final = (LIST, RESUBMIT, MOVE, PURGE, RESTORE, SEND)
#: Those that bring messages.
_BRINGING: Final = (RESTORE, SEND)

#: Messages of one request when it does not say.
LIMIT_DEFAULT: Final = 100
#: Longest text of a reason or description (Azure: quotas).
REASON_LENGTH_MAX: Final = 4_096

_MEMBERS: Final = frozenset(
    {
        "action",
        "first",
        "before",
        "limit",
        "numbers",
        "sql",
        "json",
        "to",
        "repair",
        "keepReason",
        "dryRun",
        "messages",
        "items",
    }
)
_ITEM: Final = frozenset({"message", "reason", "description", "sequenceNumber", "movedTo"})
_NUMBER_MAX: Final = (1 << 63) - 1


class Order:
    """A checked request.

    Attributes:
        action: One of ACTIONS.
        to: Path of the entity to move to; None: back to where the messages are.
        repair: What is changed on them.
        keeps_reason: The reasons why they died stay as properties.
        is_dry: Nothing is done.
        shows: The messages themselves are told, too.
        items: Of ``restore`` and ``send``: the messages.
    """

    __slots__ = ("_members", "action", "is_dry", "items", "keeps_reason", "repair", "shows", "to")

    def __init__(self, body: bytes) -> None:
        """Check it.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: Something of it is wrong.
        """
        members = _object(body)
        self._members = members
        self.action: str = members.get("action", "")
        if self.action not in ACTIONS:
            raise ArgumentInvalid(f"'action' must be one of {', '.join(ACTIONS)}.")
        self.to = _text(members, "to")
        if (self.to is None) == (self.action == MOVE):
            raise ArgumentInvalid("'to' names the entity of a move, and belongs to nothing else.")
        if members.get("repair") is not None and self.action not in (RESUBMIT, MOVE):
            raise ArgumentInvalid("'repair' belongs to resubmit and move.")
        self.repair: Repair = parse_repair(members.get("repair"))
        self.keeps_reason = _flag(members, "keepReason", self.action == MOVE)
        self.is_dry = _flag(members, "dryRun", False)
        self.shows = _flag(members, "messages", self.action == LIST)
        self.items: list[Item] = []
        if self.action in _BRINGING:
            items = members.get("items")
            if not isinstance(items, list) or not 0 < len(items) <= CHUNK_MAX:
                raise ArgumentInvalid(f"'items' must be a list of 1 to {CHUNK_MAX} messages.")
            self.items = [_item(index, item) for index, item in enumerate(items)]

    def query(self, now_ms: int) -> DeadLetterQuery:
        """Which messages are meant.

        Raises:
            ArgumentInvalid, ArgumentOutOfRange: A filter is wrong.
        """
        members = self._members
        numbers = members.get("numbers")
        if numbers is not None:
            if not isinstance(numbers, list) or len(numbers) > CHUNK_MAX or not all(map(_is_number, numbers)):
                raise ArgumentInvalid(f"'numbers' must be a list of at most {CHUNK_MAX} sequence numbers.")
            numbers = frozenset(numbers)
        limit = _number(members, "limit", LIMIT_DEFAULT)
        if not 1 <= limit <= CHUNK_MAX:
            raise ArgumentInvalid(f"'limit' is {limit}; it must be from 1 to {CHUNK_MAX}.")
        return DeadLetterQuery(
            Selection(_text(members, "sql"), _text(members, "json")),
            first=_number(members, "first", 0),
            # What came in this very millisecond is there, too.
            before_ms=min(_number(members, "before", now_ms + 1), now_ms + 1),
            limit=limit,
            numbers=numbers,
        )


class Item:
    """A message that is brought: to be sent, or to be a dead letter.

    Attributes:
        payload, metadata: The message, with its reasons.
        number: The sequence number that it had as a dead letter, or 0.
        where: Where it was moved to, or None.
        now: Its sequence number there.
    """

    __slots__ = ("metadata", "now", "number", "payload", "where")

    def __init__(self, payload: bytes, metadata: MessageMetadata, number: int, where: Address | None, now: int) -> None:
        self.payload = payload
        self.metadata = metadata
        self.number = number
        self.where = where
        self.now = now


def _item(index: int, item: Any) -> Item:
    try:
        if not isinstance(item, dict) or item.keys() - _ITEM:
            raise ArgumentInvalid(f"It must be an object with members out of {', '.join(sorted(_ITEM))}.")
        payload, metadata = message_of(item.get("message"))
        metadata.reason = _reason(item, "reason")
        metadata.description = _reason(item, "description")
        moved = item.get("movedTo")
        where, now = None, 0
        if moved is not None:
            if not isinstance(moved, dict) or moved.keys() != {"entity", "sequenceNumber"}:
                raise ArgumentInvalid("'movedTo' must be an object with 'entity' and 'sequenceNumber'.")
            where, now = parse_address(_text(moved, "entity") or ""), _number(moved, "sequenceNumber", 0)
        return Item(payload, metadata, _number(item, "sequenceNumber", 0), where, now)
    except ArgumentInvalid as error:
        raise ArgumentInvalid(f"Item {index}: {error}") from None


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body must be JSON: an object with an 'action'.") from None
    if not isinstance(found, dict):
        raise ArgumentInvalid("The body must be an object with an 'action'.")
    unknown = found.keys() - _MEMBERS
    if unknown:
        raise ArgumentInvalid(f"There is no member {sorted(unknown)[0]!r:.60}.")
    return found


def _text(members: dict[str, Any], name: str) -> str | None:
    found = members.get(name)
    if found is not None and not isinstance(found, str):
        raise ArgumentInvalid(f"'{name}' must be text.")
    return found


def _reason(members: dict[str, Any], name: str) -> str | None:
    found = _text(members, name)
    return None if found is None else found[:REASON_LENGTH_MAX]


def _flag(members: dict[str, Any], name: str, default: bool) -> bool:
    found = members.get(name, default)
    if not isinstance(found, bool):
        raise ArgumentInvalid(f"'{name}' must be true or false.")
    return found


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _NUMBER_MAX


def _number(members: dict[str, Any], name: str, default: int) -> int:
    found = members.get(name)
    if found is None:
        return default
    if not _is_number(found):
        raise ArgumentInvalid(f"'{name}' must be a whole number from 0 to {_NUMBER_MAX}.")
    return found
