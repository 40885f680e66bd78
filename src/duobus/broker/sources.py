"""Sources of a topic's fragments that come and go while it is in use: one per subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from duobus.errors import RowsInTheWay
from duobus.storage.catalog_identity import ADVICE
from duobus.storage.interface import COUNTS_LEFT_OUT

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.broker.message_broker import MessageBroker
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import SourceSettings
    from duobus.storage.interface import SourceRow

#: Copies that one transaction deletes: some 30 ms, so that others are not kept from their commits.
DROP_SLICE = 5_000


def apply_settings(fragment: Fragment, settings: dict[int, SourceSettings]) -> None:
    """Give those sources of a fragment new settings whose settings are others."""
    for source_no, source in fragment.sources.items():
        if source.settings is not settings.get(source_no, source.settings):
            fragment.set_settings(settings[source_no], source_no)


def demand_untouched(handle: FragmentHandle, sources: Iterable[SourceRow]) -> None:
    """Refuse to create an entity over what has had messages.

    What a crash has left of the same creation has had none: nobody can send before the entity is live. So this tells
    that from the rows of another entity, which are there when the catalog has forgotten it.

    Raises:
        RowsInTheWay: These are somebody else's; they stay as they are.
    """
    for row in sources:
        # A source that was restored from a backup has left out counts.
        if (row.next_count - 1) % COUNTS_LEFT_OUT or row.highest_delivered:
            raise RowsInTheWay(
                f"Messaging store {handle.broker.store_id} holds messages under the number {handle.entity_id} of this "
                "entity, which are not its own; they are left as they are. The catalog is not the one of this store. "
                f"{ADVICE}."
            )


async def add_source(handle: FragmentHandle, source_no: int, settings: SourceSettings) -> None:
    """Create (or find) a source of a fragment in its store, and in memory when the fragment is there.

    Raises:
        StoreUnavailable: The store is away, or failed on this and is being reopened.
        RowsInTheWay: It has had messages already.
    """
    store = handle.broker.store
    _, rows = await handle.broker.use(lambda: store.add_fragment(handle.entity_id, handle.number, [source_no]))
    demand_untouched(handle, [row for row in rows if row.source_no == source_no])
    fragment = handle.fragment
    if fragment is not None and source_no not in fragment.sources:
        for row in rows:
            if row.source_no == source_no:
                fragment.add_source(row, settings)


def forget_source(part: FragmentHandle, source_no: int) -> None:
    """A source is gone for everybody: what comes back for it later finds nothing."""
    fragment, part.fragment = part.fragment, None
    part.home.parts.pop(source_no, None)
    source = None if fragment is None else fragment.sources.pop(source_no, None)
    if source is not None and source.sessions is not None:
        for owner in source.sessions.forget_holders():
            owner.lost()


async def drop_source(handles: Iterable[FragmentHandle], entity_id: int, source_no: int) -> None:
    """Delete a source with its copies from every store, in slices between which others have their turn.

    Raises:
        StoreUnavailable: A store is away, or failed on this and is being reopened.
    """
    brokers = {handle.broker.store_id: handle.broker for handle in handles}
    await asyncio.gather(*(_drop(broker, entity_id, source_no) for broker in brokers.values()))


async def _drop(broker: MessageBroker, entity_id: int, source_no: int) -> None:
    store = broker.store
    while await broker.use(lambda: store.drop_source(entity_id, source_no, DROP_SLICE)):
        pass
