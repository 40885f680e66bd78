"""RecordKeeping: stores get what they are to keep of the catalog, so that it could be made again from them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from duobus.errors import ServiceBusError, StoreFailed
from duobus.storage.catalog_records import differences, records_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from duobus.broker.message_broker import MessageBroker
    from duobus.storage.catalog.interface import Catalog
    from duobus.storage.catalog_rows import CatalogContents

#: How long changes are collected that no other commit of a store goes with, in seconds.
COLLECT_S: Final = 0.2


class RecordKeeping:
    """Has the stores of a scale unit write what their catalog has, beside the traffic and seldom.

    Args:
        catalog: Of all entities.
        brokers: Store id to message broker; stores come and go in it.
    """

    __slots__ = ("_brokers", "_catalog", "_task", "_timer")

    def __init__(self, catalog: Catalog, brokers: Mapping[int, MessageBroker]) -> None:
        self._catalog = catalog
        self._brokers = brokers
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self, broker: MessageBroker, contents: CatalogContents) -> None:
        """A store was opened at the start: its first commit is to bring its records up to date.

        Raises:
            StoreFailed: The store failed on this.
        """
        copies = self._catalog.mark.copies
        if copies is None:
            return
        copies.hurry = self._hurry
        kept = await broker.call(broker.store.records)
        if kept is not None:
            copies.begin(broker.store_id, differences(broker.store_id, records_of(contents), kept))

    def store_opened(self, broker: MessageBroker) -> None:
        """A store that was away is there: what it owes is written soon."""
        copies = self._catalog.mark.copies
        if copies is not None and (copies.is_owing(broker.store_id) or not copies.knows(broker.store_id)):
            self._hurry()

    async def stop(self) -> None:
        """Write what is owed, before the stores are closed; what fails is written at the next start."""
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            await self._task
        if self._catalog.mark.copies is not None:
            await self._keep_all()

    def _hurry(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(COLLECT_S, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if self._task is not None and not self._task.done():
            # It may have passed a store that owes something more by now.
            self._hurry()
            return
        self._task = asyncio.get_running_loop().create_task(self._keep_all(), name="keep-records")

    async def _keep_all(self) -> None:
        for broker in list(self._brokers.values()):
            if broker.state == "open":
                # One that fails on this is reopened, and owes it still.
                with suppress(StoreFailed, ServiceBusError):
                    await self._keep(broker)

    async def _keep(self, broker: MessageBroker) -> None:
        copies = self._catalog.mark.copies
        if copies is None:
            return
        if not copies.knows(broker.store_id):
            kept = await broker.use(broker.store.records)
            if kept is None:
                return
            contents = self._catalog.read()
            copies.begin(broker.store_id, differences(broker.store_id, records_of(contents), kept))
        if copies.is_owing(broker.store_id):
            await broker.use(broker.store.keep_records)
