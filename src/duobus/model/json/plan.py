"""The plan of work on dead letters: which messages are meant, and what becomes of them.

A plan is the JSON body of ``POST /{entity}/$desk``. The server reads it, the command line writes it, and where the
server has no dead-letter service the command line follows it with the SDK.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec

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
#: Actions that bring messages.
BRINGING: Final = (RESTORE, SEND)

#: Messages of one plan: a part of a commit, so that others have room in it.
CHUNK_MAX: Final = 500
#: Messages of one plan that does not say how many.
LIMIT_DEFAULT: Final = 100
#: Longest text of a reason or description (Azure: quotas).
REASON_LENGTH_MAX: Final = 4_096

_SELECTING: Final = frozenset({"numbers", "sql", "json", "first", "before", "limit"})
_WORKING: Final = frozenset({"action", "to", "repair", "keepReason", "dryRun", "messages", "heads", "partial", "items"})
_ITEM: Final = frozenset({"message", "reason", "description", "sequenceNumber", "movedTo"})
_NUMBER_MAX: Final = (1 << 63) - 1


class Item(NamedTuple):
    """A message that is brought: to be sent, or to be a dead letter.

    Attributes:
        payload, metadata: The message, with its reasons.
        number: The sequence number that it had as a dead letter, or 0.
        where: Where it was moved to, or None.
        now: Its sequence number there.
    """

    payload: bytes
    metadata: MessageMetadata
    number: int
    where: Address | None
    now: int


class DeadLetterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A checked plan.

    Attributes:
        action: One of ACTIONS.
        sql: SQL filter of the messages that are meant, or None.
        condition: Condition on the JSON body of the messages that are meant, or None.
        numbers: The only sequence numbers that are meant; None for any.
        first: Lowest sequence number that is meant.
        before_ms: Only messages that were enqueued before this instant are meant; None for all that are there.
        limit: Most messages.
        to: Path of the entity to move to; None: back to where the messages are.
        repair: What is changed on the messages.
        keeps_reason: The reasons why messages died stay with them as properties.
        is_dry: Nothing is done.
        shows: The messages themselves are told, too.
        only_heads: Of LIST: what is known of the messages is told without what they hold, which costs far less.
        is_partial: Messages in stores that are away are passed over, in place of an error at the end.
        items: Of RESTORE and SEND: the messages.
    """

    action: str
    sql: str | None = None
    condition: str | None = None
    numbers: tuple[int, ...] | None = None
    first: int = 0
    before_ms: int | None = None
    limit: int = LIMIT_DEFAULT
    to: str | None = None
    repair: Repair = msgspec.field(default_factory=Repair)
    keeps_reason: bool = False
    is_dry: bool = False
    shows: bool = False
    only_heads: bool = False
    is_partial: bool = False
    items: tuple[Item, ...] = ()

    def members(self) -> dict[str, Any]:
        """The plan as JSON, but for its items; what is as it would be anyway is left out."""
        told = {
            "action": (self.action, None),
            "sql": (self.sql, None),
            "json": (self.condition, None),
            "numbers": (None if self.numbers is None else list(self.numbers), None),
            "first": (self.first, 0),
            "before": (self.before_ms, None),
            "limit": (self.limit, LIMIT_DEFAULT),
            "to": (self.to, None),
            "repair": (self.repair.asked, None),
            "keepReason": (self.keeps_reason, self.action == MOVE),
            "dryRun": (self.is_dry, False),
            "messages": (self.shows, self.action == LIST),
            "heads": (self.only_heads, False),
            "partial": (self.is_partial, False),
        }
        return {name: value for name, (value, default) in told.items() if value != default}


def read_plan(body: bytes) -> DeadLetterPlan:
    """Return the plan of a request's body; raises as ``parse_plan``."""
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        raise ArgumentInvalid("The body must be JSON: an object with an 'action'.") from None
    if not isinstance(members, dict):
        raise ArgumentInvalid("The body must be an object with an 'action'.")
    return parse_plan(members)


def parse_plan(members: dict[str, Any]) -> DeadLetterPlan:
    """Return the plan that these members describe. A member that is None is one that is left out.

    Raises:
        ArgumentInvalid: Something of it is wrong.
    """
    unknown = members.keys() - _SELECTING - _WORKING
    if unknown:
        raise ArgumentInvalid(f"There is no member {sorted(unknown)[0]!r:.60}.")
    action = members.get("action", "")
    if action not in ACTIONS:
        raise ArgumentInvalid(f"'action' must be one of {', '.join(ACTIONS)}.")
    to = _text(members, "to")
    if (to is None) == (action == MOVE):
        raise ArgumentInvalid("'to' names the entity of a move, and belongs to nothing else.")
    if members.get("repair") is not None and action not in (RESUBMIT, MOVE):
        raise ArgumentInvalid("'repair' belongs to resubmit and move.")
    if members.get("heads") and action != LIST:
        raise ArgumentInvalid("'heads' belongs to list.")
    plan = DeadLetterPlan(
        action=action,
        to=to,
        repair=parse_repair(members.get("repair")),
        keeps_reason=_flag(members, "keepReason", action == MOVE),
        is_dry=_flag(members, "dryRun", False),
        shows=_flag(members, "messages", action == LIST),
        only_heads=_flag(members, "heads", False),
        is_partial=_flag(members, "partial", False),
    )
    if action in BRINGING:
        return msgspec.structs.replace(plan, items=_items(members.get("items")))
    numbers = members.get("numbers")
    if numbers is not None:
        if not isinstance(numbers, list) or len(numbers) > CHUNK_MAX or not all(map(_is_number, numbers)):
            raise ArgumentInvalid(f"'numbers' must be a list of at most {CHUNK_MAX} sequence numbers.")
        numbers = tuple(numbers)
    limit = _number(members, "limit", LIMIT_DEFAULT)
    if not 1 <= limit <= CHUNK_MAX:
        raise ArgumentInvalid(f"'limit' is {limit}; it must be from 1 to {CHUNK_MAX}.")
    return msgspec.structs.replace(
        plan,
        sql=_text(members, "sql"),
        condition=_text(members, "json"),
        numbers=numbers,
        first=_number(members, "first", 0),
        before_ms=None if members.get("before") is None else _number(members, "before", 0),
        limit=limit,
    )


def _items(items: Any) -> tuple[Item, ...]:
    if not isinstance(items, list) or not 0 < len(items) <= CHUNK_MAX:
        raise ArgumentInvalid(f"'items' must be a list of 1 to {CHUNK_MAX} messages.")
    return tuple(_item(index, item) for index, item in enumerate(items))


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
