"""Bringing a store's fragments back into memory."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from duobus.broker.fragment.fragment import Fragment
from duobus.clock import Entropy
from duobus.stores.interface import SourceRow, StoreContents

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker

#: Rows read in one call of the store: a few milliseconds, so that other work of the process goes on between.
ROWS_AT_ONCE = 2000


async def recover_fragments(broker: MessageBroker, contents: StoreContents, entropy: Entropy) -> list[Fragment]:
    """Make the fragments that have a plan, with all their messages; they are not yet visible to anyone."""
    sources: dict[int, list[SourceRow]] = {}
    for row in contents.sources:
        sources.setdefault(row.fragment_key, []).append(row)
    fragments = []
    for found in contents.fragments:
        plan = broker.plans.get((found.entity_id, found.fragment_no))
        if plan is None:
            # The catalog does not know it: a creation that was undone, or an entity being deleted.
            continue
        # begin_generation has raised every epoch by one since ``contents`` was read.
        fragment = Fragment(plan.handle, found.fragment_key, found.fragment_no, found.epoch + 1, entropy.token(10))
        for row in sources.get(found.fragment_key, []):
            fragment.add_source(row, plan.settings[row.source_no])
            await _recover_source(broker, fragment, row)
        fragments.append(fragment)
    return fragments


async def _recover_source(broker: MessageBroker, fragment: Fragment, row: SourceRow) -> None:
    first = 1
    while rows := await broker.call(partial(broker.store.load, row.source_key, first, ROWS_AT_ONCE)):
        fragment.recover(row.source_no, rows)
        first = rows[-1].count + 1
