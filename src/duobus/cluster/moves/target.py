"""RemoteTarget: the messaging store of another server as what a fragment is copied to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duobus.broker.fragment_moves.copy import MoveAborted
from duobus.cluster.moves.protocol import (
    BeginCopy,
    ReadCopy,
    decode_begun,
    decode_blocks,
    decode_rows,
    decode_shared,
    write_request,
)
from duobus.storage.interface import CommitBatch, FragmentRow, IdBlock, SourceRow, StoredMessage

if TYPE_CHECKING:
    from duobus.cluster.forwarding.protocol import Request
    from duobus.cluster.forwarding.sender import ClusterConnection
    from duobus.storage.catalog_rows import MoveRow


class RemoteTarget:
    """One fragment's copy at another server; see CopyTarget.

    Args:
        connection: To the owner of the store.
        move: The move, as the catalog has it.
        epoch: Of the fragment where it is.
    """

    def __init__(self, connection: ClusterConnection, move: MoveRow, epoch: int) -> None:
        self._connection = connection
        self._move = move
        self._epoch = epoch
        self._copy_no = 0

    def demand(self) -> None:
        """See CopyTarget."""
        if self._connection.is_gone:
            raise MoveAborted(f"the server that has messaging store {self._move.to_store} is not reached any more")

    async def begin(
        self, entity_id: int, fragment_no: int, source_nos: list[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """See CopyTarget."""
        move = self._move
        asked = (entity_id, fragment_no, move.from_store, move.to_store)
        begun = decode_begun(await self._ask(lambda number: BeginCopy(number, asked, self._epoch, source_nos)))
        self._copy_no = begun.copy_no
        row = FragmentRow(begun.fragment_key, entity_id, fragment_no, begun.epoch)
        if sorted(number for number, _ in begun.sources) != sorted(source_nos):
            raise MoveAborted("the other server has made other sources than it was asked for")
        return row, [SourceRow(key, begun.fragment_key, number) for number, key in begun.sources]

    async def write(self, row: FragmentRow, fill: Callable[[CommitBatch], None]) -> dict[int, int]:
        """See CopyTarget; the other server adds the fence."""
        del row
        commit = CommitBatch(0, 0)
        fill(commit)
        return decode_shared(await self._ask(lambda number: write_request(number, self._copy_no, commit)))

    async def load(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[StoredMessage]:
        """See CopyTarget."""
        del row
        copy_no = self._copy_no
        data = await self._ask(
            lambda number: ReadCopy(number, copy_no, source_key, first_count, limit, is_of_ids=False)
        )
        return decode_rows(data)

    async def load_ids(self, row: FragmentRow, source_key: int, first_count: int, limit: int) -> list[IdBlock]:
        """See CopyTarget."""
        del row
        copy_no = self._copy_no
        data = await self._ask(lambda number: ReadCopy(number, copy_no, source_key, first_count, limit, is_of_ids=True))
        return decode_blocks(data, source_key)

    async def _ask(self, make: Callable[[int], Request]) -> bytes:
        try:
            reply = await self._connection.ask(make)
        except ConnectionError as error:
            raise MoveAborted(f"the server that has messaging store {self._move.to_store}: {error}") from error
        refused = reply.error()
        if refused is not None:
            raise MoveAborted(f"the server that has messaging store {self._move.to_store} says: {refused}")
        return reply.data
