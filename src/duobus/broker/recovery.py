"""Bringing a store's fragments back into memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from duobus.clock import Entropy
from duobus.fragment import paged_tail
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import (
    ACTIVE,
    DEFERRED,
    SCHEDULED,
    SESSION_STATE,
    SUB_QUEUES,
    TAKEN,
    TIMED,
    TRANSFER,
    state_in_memory,
    state_of,
)
from duobus.fragment.sessions import states as session_states
from duobus.fragment.source import Source, SourceSettings
from duobus.fragment.topics.topic_state import TopicState
from duobus.storage.interface import (
    COUNT_MAX,
    FragmentRow,
    SourceRow,
    StoreContents,
    StoredMessage,
    Tombstone,
    is_end,
)

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.broker.protocols import FragmentPlan

#: Rows read in one call of the store: a few milliseconds, so that other work of the process goes on between.
ROWS_AT_ONCE = 2000
#: Blocks of message ids, each of which holds those of one run.
BLOCKS_AT_ONCE = 200
#: Rows of a forward dedup, each of which is about one run that came from another store.
DEDUP_ROWS_AT_ONCE = 500
#: The same for states of sessions, of which each may have 256 KiB.
STATES_AT_ONCE = 100

#: Every state that a store's index of exceptional rows may hold.
_EXCEPTIONAL_STATES = (
    TIMED,
    TRANSFER,
    *(state for sub in range(SUB_QUEUES) for kind in (ACTIVE, DEFERRED, SCHEDULED) if (state := state_of(sub, kind))),
)
#: Every state that is looked for.
_SCANNED_STATES = (*_EXCEPTIONAL_STATES, SESSION_STATE, TAKEN)


async def recover_fragments(
    broker: MessageBroker, contents: StoreContents, entropy: Entropy, counters: Mapping[int, bytes]
) -> list[Fragment]:
    """Make the fragments that have a plan, not visible to others yet.

    Read are the messages that were delivered and those that are not plain; the untouched tail stays paged out, so
    that the time of a recovery does not grow with the backlog (I64). Of a source with sessions all is read: which
    sessions have messages is known to their messages only.

    Args:
        broker: Whose store it is.
        contents: What ``open`` found.
        entropy: For lock tokens.
        counters: By source key, what ``begin_generation`` wrote instead of what ``open`` found.
    """
    sources: dict[int, list[SourceRow]] = {}
    for row in contents.sources:
        sources.setdefault(row.fragment_key, []).append(row)
    known = await broker.call(partial(broker.store.occupied, _SCANNED_STATES))
    fragments = []
    for found in contents.fragments:
        plan = broker.plans.get((found.entity_id, found.fragment_no))
        if plan is None:
            # An entity being deleted, what is left of a move, or what ``ScaleUnit.demand_own`` has reported.
            continue
        # begin_generation has raised every epoch by one since ``contents`` was read.
        present = FragmentRow(found.fragment_key, found.entity_id, found.fragment_no, found.epoch + 1)
        rows = sources.get(found.fragment_key, [])
        shared = contents.shared.get(next((row.source_key for row in rows if row.source_no == 0), 0), 0)
        for row in rows:
            row.counters = counters.get(row.source_key, row.counters)
        fragments.append(await _recover_fragment(broker, plan, present, rows, shared, entropy.token(10), known))
    return fragments


async def recover_one(
    broker: MessageBroker, plan: FragmentPlan, row: FragmentRow, sources: list[SourceRow], shared: int, salt: bytes
) -> Fragment:
    """Make one fragment of an open store, as its rows are now; see ``recover_fragments``."""
    return await _recover_fragment(broker, plan, row, sources, shared, salt)


async def _recover_fragment(
    broker: MessageBroker,
    plan: FragmentPlan,
    found: FragmentRow,
    rows: list[SourceRow],
    shared: int,
    salt: bytes,
    known: set[tuple[int, int]] | None = None,
) -> Fragment:
    """``known``: see ``MessagingStore.occupied``."""
    fragment = Fragment(plan.handle, found.fragment_key, found.fragment_no, found.epoch, salt)
    if plan.topic is not None:
        fragment.topic = TopicState(plan.topic, shared)
    for row in rows:
        if row.source_no not in plan.settings:
            # Its subscription is being deleted.
            continue
        fragment.add_source(row, plan.settings[row.source_no])
        states = [state for state in _SCANNED_STATES if known is None or (row.source_key, state) in known]
        await _recover_source(broker, fragment, row, states)
        await _recover_history(broker, fragment, row)
        if TAKEN in states:
            await _recover_forward_dedup(broker, fragment, row)
        paged_tail.recovered(fragment, row.source_no)
    return fragment


async def _read(
    broker: MessageBroker,
    read: Callable[[int, int], list[StoredMessage]],
    limit: int,
    take: Callable[[list[StoredMessage]], None],
    *,
    first: int = 1,
    last: int = COUNT_MAX,
) -> None:
    """Read from ``first`` to ``last`` at least, in pages, with no call of the store that finds none behind them.

    Args:
        broker: Whose store is read.
        read: ``load`` or ``scan`` of a source: first count and limit to messages.
        limit: Messages of a page.
        take: Gets each page.
        first: The count with which reading begins.
        last: The count with which reading may end.
    """
    while first <= last:
        rows = await broker.call(partial(read, first, limit))
        if rows:
            take(rows)
        if is_end(rows, limit):
            break
        first = rows[-1].count + 1


async def _recover_sessions(broker: MessageBroker, fragment: Fragment, row: SourceRow, states: list[int]) -> None:
    source = fragment.sources[row.source_no]
    store = broker.store

    def take_states(rows: list[StoredMessage]) -> None:
        for found in rows:
            session_states.recover_state(source, found)

    if SESSION_STATE in states:
        await _read(broker, partial(store.scan, row.source_key, SESSION_STATE), STATES_AT_ONCE, take_states)
    take = partial(fragment.recover, row.source_no)
    await _read(broker, partial(store.load, row.source_key), ROWS_AT_ONCE, take)


async def _recover_source(broker: MessageBroker, fragment: Fragment, row: SourceRow, states: list[int]) -> None:
    if fragment.sources[row.source_no].sessions is not None:
        await _recover_sessions(broker, fragment, row, states)
        return
    delivered = row.highest_delivered

    def take_delivered(rows: list[StoredMessage]) -> None:
        fragment.recover(row.source_no, [found for found in rows if found.count <= delivered])

    load = partial(broker.store.load, row.source_key)
    await _read(broker, load, ROWS_AT_ONCE, take_delivered, last=delivered)
    for state in states:
        if state not in (SESSION_STATE, TAKEN):
            await _recover_state(broker, fragment, row, state)


async def _recover_history(broker: MessageBroker, fragment: Fragment, row: SourceRow) -> None:
    """Read a source's message ids; those that have run out are only noted, to be deleted."""
    source = fragment.sources[row.source_no]
    history, window_ms = source.history, source.settings.duplicate_window_ms
    if history is None or window_ms is None:
        return
    first, is_last = 0, False
    while not is_last:
        blocks = await broker.call(partial(broker.store.load_ids, row.source_key, first, BLOCKS_AT_ONCE))
        is_last = len(blocks) < BLOCKS_AT_ONCE
        if blocks:
            history.recover(blocks, broker.now_ms(), window_ms)
            first = blocks[-1].first_count + 1
            fragment.deadline = 0


async def _recover_forward_dedup(broker: MessageBroker, fragment: Fragment, row: SourceRow) -> None:
    dedup = fragment.sources[row.source_no].dedup
    await _read(broker, partial(broker.store.scan, row.source_key, TAKEN), DEDUP_ROWS_AT_ONCE, dedup.recover)


async def _recover_state(broker: MessageBroker, fragment: Fragment, row: SourceRow, state: int) -> None:
    def take_timed(rows: list[StoredMessage]) -> None:
        for found in rows:
            paged_tail.note_expiry(fragment, row.source_no, found)

    scan = partial(broker.store.scan, row.source_key, state)
    take = take_timed if state == TIMED else partial(fragment.recover, row.source_no)
    await _read(broker, scan, ROWS_AT_ONCE, take, first=row.highest_delivered + 1)


async def counters_without(
    broker: MessageBroker, contents: StoreContents, tombstones: list[Tombstone]
) -> dict[int, bytes]:
    """What sources count without the runs that are about to be deleted, by source key.

    It is written with the deletion. Kept in memory alone it would be forgotten by a crash before the next commit, and
    the messages of those runs would be counted, and reported as missing, by every life after that (I32).
    """
    deleted = await _load_runs(broker, tombstones)
    counters: dict[int, bytes] = {}
    for row in contents.sources:
        if row.source_key in deleted:
            source = Source(row.source_key, row.source_no, SourceSettings())
            source.set_counters(row.counters)
            for gone in deleted[row.source_key]:
                source.counted(state_in_memory(gone.state), -1)
                source.bytes -= len(gone.payload)
            counters[row.source_key] = source.counters()
    return counters


async def _load_runs(broker: MessageBroker, tombstones: list[Tombstone]) -> dict[int, list[StoredMessage]]:
    """The messages of runs, by source key."""
    found: dict[int, list[StoredMessage]] = {}
    for tombstone in tombstones:
        first = tombstone.first_count
        while first <= tombstone.last_count:
            number = tombstone.last_count - first + 1
            rows = await broker.call(partial(broker.store.load, tombstone.source_key, first, number))
            found.setdefault(tombstone.source_key, []).extend(row for row in rows if row.count <= tombstone.last_count)
            first = tombstone.last_count + 1 if is_end(rows, number) else rows[-1].count + 1
    return found
