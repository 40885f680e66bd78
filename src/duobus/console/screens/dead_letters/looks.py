"""Looking through dead letters while a page waits: bounded in messages and in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duobus.clock import Clock
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.thread_client import WorkNamespace
from duobus.console.screens.dead_letters.groups import Groups
from duobus.console.screens.dead_letters.selection import Selection
from duobus.console.visits import Refusal
from duobus.dead_letters import runs
from duobus.dead_letters.client import DeadLetterClient
from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.work import Work
from duobus.errors import ServiceBusError

if TYPE_CHECKING:
    from concurrent.futures import Executor as ThreadPool

#: Messages that one look at an entity takes in, and how long a look may take, in ms.
LOOK_MAX: Final = 20_000
_LOOK_MS: Final = 4_000
#: How long one answer of the namespace may take, in seconds.
_TIMEOUT_S: Final = 20.0
#: How long a page waits for a thread, in seconds.
_WAIT_S: Final = 30.0
_PAGE: Final = 500

T = TypeVar("T")


async def in_thread(pool: ThreadPool, call: Callable[[], T]) -> T:
    """Do something that waits for the namespace in a thread.

    Raises:
        NamespaceError: The namespace refuses, or does not answer in time.
        Refusal: What was asked for makes no sense.
    """
    try:
        async with asyncio.timeout(_WAIT_S):
            return await asyncio.get_running_loop().run_in_executor(pool, call)
    except TimeoutError:
        raise NamespaceError(504, f"The namespace did not answer within {_WAIT_S:g} seconds.") from None
    except (DeadLetterError, ServiceBusError) as error:
        raise Refusal(422, str(error)) from error


def work_for(
    selection: Selection,
    *,
    action: str = "list",
    to: str | None = None,
    repair: dict[str, Any] | None = None,
    limit: int | None = None,
    chunk: int = _PAGE,
    first: int = 0,
    heads: bool = False,
    is_new: bool = True,
) -> Work:
    """Looking at a selection, or trying what a repair would make of it."""
    members = {
        "action": action,
        "to": to,
        "sql": selection.filter,
        "json": selection.json or None,
        "numbers": list(selection.numbers) or None,
        "repair": repair if action != "list" else None,
        "first": first,
        "heads": is_new and heads,
        # A store that is away must not hide what the others have.
        "partial": is_new,
    }
    return Work.of_members(
        members,
        selection.entity,
        selection.subscription,
        is_transfer=selection.is_transfer,
        limit=limit,
        chunk=chunk,
        takes=selection.takes,
    )


def pages_of(namespace: WorkNamespace, work: Work) -> Iterator[list[dict[str, Any]]]:
    """The messages of a work by pages; nothing is done to them."""
    work.is_client_side = not namespace.is_duobus
    with DeadLetterClient(namespace, _TIMEOUT_S) as link:
        yield from runs.executor_of(namespace, link, work).pages(is_dry=work.action != "list")


def told(
    namespace: WorkNamespace, selection: Selection, away: set[int], **options: Any
) -> Iterator[list[dict[str, Any]]]:
    """The messages of a selection by pages, as ``work_for`` says; ``away`` gets the fragments that were passed over."""
    work = work_for(selection, **options)
    pages = pages_of(namespace, work)
    try:
        page = next(pages, None)
    except NamespaceError as error:
        if error.status != HTTPStatus.BAD_REQUEST or "There is no member" not in error.text:
            raise
        # A server of an earlier version tells whole messages only, and those of all stores or none.
        pages = pages_of(namespace, work_for(selection, **options, is_new=False))
        page = next(pages, None)
    while page is not None:
        away |= work.unavailable
        yield page
        page = next(pages, None)
    away |= work.unavailable


class Found:
    """What a look at a selection has found.

    Attributes:
        count: How many messages are meant.
        is_complete: Whether everything was looked at, so that the count is whole.
        records: The first ones.
        following: Sequence number behind these; None when there are no more.
        is_too_large: The messages are too large to be read here, so that only what is known of them was.
        away: Fragments that were passed over, because their store is away.
    """

    def __init__(self) -> None:
        self.count = 0
        self.is_complete = True
        self.records: list[dict[str, Any]] = []
        self.following: int | None = None
        self.is_too_large = False
        self.away: set[int] = set()


def find(namespace: WorkNamespace, selection: Selection, clock: Clock, *, first: int, number: int) -> Found:
    """Count the messages of a selection, and take so many from a sequence number on."""
    found = Found()
    until_ms = clock.monotonic_ms() + _LOOK_MS
    for page in told(namespace, selection, found.away, heads=True):
        found.count += len(page)
        if found.count >= LOOK_MAX or clock.monotonic_ms() >= until_ms:
            found.is_complete = False
            break
    try:
        _take(found, told(namespace, selection, found.away, first=first, chunk=number + 1), number)
    except DeadLetterError:
        # Messages so large that their text is more than the console reads: what is known of them is enough for a list.
        found.records = []
        found.is_too_large = True
        _take(found, told(namespace, selection, found.away, first=first, chunk=number + 1, heads=True), number)
    found.is_complete = found.is_complete and not found.away
    return found


def _take(found: Found, pages: Iterator[list[dict[str, Any]]], number: int) -> None:
    for page in pages:
        found.records += page
        if len(found.records) > number:
            found.following = found.records[number]["sequenceNumber"]
            del found.records[number:]
            break


def group(namespace: WorkNamespace, places: list[Selection], clock: Clock, most: int = LOOK_MAX) -> Groups:
    """Put the dead letters of several places together by what they have died of."""
    groups = Groups()
    until_ms = clock.monotonic_ms() + _LOOK_MS
    for selection in places:
        away: set[int] = set()
        for page in told(namespace, selection, away, heads=True):
            for record in page:
                groups.add(selection.path, selection.is_transfer, record)
            if groups.looked >= most or clock.monotonic_ms() >= until_ms:
                groups.is_complete = False
                groups.away += len(away)
                return groups
        groups.away += len(away)
    return groups


def sample(
    namespace: WorkNamespace, selection: Selection, number: int, repair: dict[str, Any] | None
) -> dict[str, Any] | None:
    """One message, with what a repair would make of it (``repaired`` or ``refused``); None when it has gone."""
    one = selection._replace(numbers=(number,), reason=None, cause="", sql="", json="")
    pages = told(namespace, one, set(), action="resubmit", repair=repair, limit=1)
    return next((record for page in pages for record in page), None)
