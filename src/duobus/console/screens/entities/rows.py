"""The rows of the table of entities, and of the tree: made, searched, sorted, cut into pages and summed up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duobus.console.screens.entities.paths import parse_path
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC

#: Rows of a page of the table, and nodes of one level of the tree.
PAGE_ROWS: Final = 100
LEVEL_NODES: Final = 500


class Row(NamedTuple):
    """An entity with its numbers; None where a number is not known, or means nothing for the kind.

    Attributes:
        path: Of the entity.
        kind: ``queue``, ``topic`` or ``subscription``.
        status: As Service Bus names it; None where it is not known.
        is_available: Whether everything of it can be reached.
        active: Messages that can be received.
        dead_letters: In its dead-letter queue.
        scheduled: For later.
        deferred: Deferred messages.
        transfer: On the way to where it forwards to.
        transfer_dead_letters: In its transfer dead-letter queue.
        size_bytes: Of its messages.
        subscriptions: Number of subscriptions of a topic.
    """

    path: str
    kind: str
    status: str | None = None
    is_available: bool = True
    active: int | None = None
    dead_letters: int | None = None
    scheduled: int | None = None
    deferred: int | None = None
    transfer: int | None = None
    transfer_dead_letters: int | None = None
    size_bytes: int | None = None
    subscriptions: int | None = None

    @property
    def has_dead_letters(self) -> bool:
        """Whether a message is in one of its dead-letter queues."""
        return bool(self.dead_letters or self.transfer_dead_letters)

    @property
    def parent(self) -> str:
        """The topic of a subscription; empty for everything else."""
        path = parse_path(self.path)
        return "" if path.subscription is None else path.parent

    @property
    def name(self) -> str:
        """The last part of the path."""
        return parse_path(self.path).name


def row_of_numbers(found: Mapping[str, Any]) -> Row:
    """The row of an entity as ``GET /$duobus/entities`` tells it."""
    kind = str(found["kind"])
    is_topic = kind == TOPIC
    return Row(
        path=str(found["entity"]),
        kind=kind,
        status=found.get("status"),
        is_available=bool(found.get("available", True)),
        active=None if is_topic else found["active"],
        dead_letters=None if is_topic else found["deadLetter"],
        scheduled=None if kind == SUBSCRIPTION else found["scheduled"],
        deferred=None if is_topic else found["deferred"],
        transfer=None if is_topic else found["toForward"],
        transfer_dead_letters=None if is_topic else found["transferDeadLetter"],
        size_bytes=None if kind == SUBSCRIPTION else found["bytes"],
    )


def row_of_sdk(kind: str, path: str, runtime: Any, status: str | None, *, is_available: bool = True) -> Row:
    """The row of an entity as the SDK's administration client tells it."""
    return Row(
        path=path,
        kind=kind,
        status=status,
        is_available=is_available,
        active=getattr(runtime, "active_message_count", None),
        dead_letters=getattr(runtime, "dead_letter_message_count", None),
        scheduled=getattr(runtime, "scheduled_message_count", None),
        transfer=getattr(runtime, "transfer_message_count", None),
        transfer_dead_letters=getattr(runtime, "transfer_dead_letter_message_count", None),
        size_bytes=getattr(runtime, "size_in_bytes", None),
        subscriptions=getattr(runtime, "subscription_count", None),
    )


def with_subscriptions(rows: Iterable[Row]) -> list[Row]:
    """The same rows; each topic knows the number of its subscriptions."""
    kept = list(rows)
    counts: dict[str, int] = {}
    for row in kept:
        if row.kind == SUBSCRIPTION:
            parent = row.parent.lower()
            counts[parent] = counts.get(parent, 0) + 1
    return [row._replace(subscriptions=counts.get(row.path.lower(), 0)) if row.kind == TOPIC else row for row in kept]


def _by_name(row: Row) -> Any:
    # Segment by segment, so that the subscriptions of a topic follow the topic.
    return tuple(row.path.lower().split("/"))


#: Sort orders by their names in URLs; numbers that are not known count as none.
SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "name": _by_name,
    "status": lambda row: row.status or "",
    "active": lambda row: row.active or 0,
    "dead": lambda row: (row.dead_letters or 0) + (row.transfer_dead_letters or 0),
    "scheduled": lambda row: row.scheduled or 0,
    "deferred": lambda row: row.deferred or 0,
    "transfer": lambda row: row.transfer or 0,
    "size": lambda row: row.size_bytes or 0,
}
KINDS: Final = ("", QUEUE, TOPIC, SUBSCRIPTION)


class Choice(NamedTuple):
    """What a person wants to see.

    Attributes:
        text: Somewhere in the path, whatever the case of its letters.
        kind: Of the entity; empty for every kind.
        only_dead: Only what has dead letters.
        sort: A name of SORTS.
        is_descending: From high to low.
    """

    text: str = ""
    kind: str = ""
    only_dead: bool = False
    sort: str = "name"
    is_descending: bool = False


def chosen(rows: Iterable[Row], choice: Choice) -> list[Row]:
    """The rows that fit, in order; equal ones by their names."""
    wanted = choice.text.strip().lower()
    found = [
        row
        for row in rows
        if (not wanted or wanted in row.path.lower())
        and choice.kind in ("", row.kind)
        and (not choice.only_dead or row.has_dead_letters)
    ]
    found.sort(key=_by_name, reverse=choice.is_descending and choice.sort == "name")
    if choice.sort != "name":
        found.sort(key=SORTS[choice.sort], reverse=choice.is_descending)
    return found


class TreeNode(NamedTuple):
    """A line of the tree.

    Attributes:
        label: The part of the path that the line adds.
        under: Beginning of the paths below; empty when nothing is below.
        row: The entity with exactly this path; None for a mere folder.
        entities: Number of entities, the line's own among them.
        active: Of all of them.
        dead_letters: Of all of them, with those of transfer.
    """

    label: str
    under: str
    row: Row | None
    entities: int
    active: int
    dead_letters: int


def level_of(rows: Iterable[Row], under: str) -> list[TreeNode]:
    """The lines of the tree directly below a beginning of paths, by name: ``""``, ``"eu/"`` or ``"topic/"``.

    Subscriptions stand directly below their topic.
    """
    low = under.lower()
    depth = under.count("/")
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row.path.lower().startswith(low):
            groups.setdefault(_steps(row)[depth].lower(), []).append(row)
    return [_node(under, depth, groups[key]) for key in sorted(groups)]


def _steps(row: Row) -> list[str]:
    path = parse_path(row.path)
    return path.parent.split("/") + ([] if path.subscription is None else [path.subscription])


def _node(under: str, depth: int, rows: Sequence[Row]) -> TreeNode:
    label = _steps(rows[0])[depth]
    own = next((row for row in rows if len(_steps(row)) == depth + 1), None)
    has_more = len(rows) > (own is not None)
    return TreeNode(
        label=label,
        under=f"{under}{label}/" if has_more else "",
        row=own,
        entities=len(rows),
        active=sum(row.active or 0 for row in rows),
        dead_letters=sum((row.dead_letters or 0) + (row.transfer_dead_letters or 0) for row in rows),
    )
