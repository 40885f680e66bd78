"""Copies of fragments that other servers bring into the stores of this one; see ``protocol.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from duobus.broker.fragment_moves.copy import LocalTarget, MoveAborted
from duobus.cluster.moves.protocol import (
    BeginCopy,
    CopyBegun,
    CopyRequest,
    ReadCopy,
    WriteCopy,
    encode_answer,
    encode_blocks,
    encode_rows,
)
from duobus.errors import ArgumentInvalid, NotAllowed, ServerBusy, StoreFailed, StoreUnavailable
from duobus.storage.catalog_rows import MoveRow
from duobus.storage.interface import CommitBatch, FragmentRow, SourceRow

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker
    from duobus.cluster.moves.host import MoveHost
    from duobus.storage.catalog_rows import CatalogContents

#: Copies that are under way into the stores of one server: those of as many fragments as a move has, of several moves.
INCOMING_MAX: Final = 256


class EpochTarget(LocalTarget):
    """A store of this server; the fragment's next life is a later one than all that it had where it was.

    Attributes:
        is_over: Nothing is written any more: the move has ended.
    """

    def __init__(self, broker: MessageBroker, epoch: int) -> None:
        super().__init__(broker)
        self.is_over = False
        self._epoch = epoch

    def demand(self) -> None:
        """See CopyTarget."""
        if self.is_over:
            raise MoveAborted("The move of this fragment has ended. Begin another one.")
        super().demand()

    async def begin(
        self, entity_id: int, fragment_no: int, source_nos: list[int]
    ) -> tuple[FragmentRow, list[SourceRow]]:
        """See CopyTarget."""
        row, sources = await super().begin(entity_id, fragment_no, source_nos)
        row.epoch = max(row.epoch, self._epoch + 1)
        store = self.broker.store
        await self.broker.use(partial(store.relabel_fragment, entity_id, fragment_no, entity_id, row.epoch))
        return row, sources


class IncomingCopy:
    """One copy that is brought here.

    Attributes:
        namespace: Of its entity, in lower case; servers prove themselves for one namespace.
    """

    def __init__(self, namespace: str, move: MoveRow, target: EpochTarget) -> None:
        self.namespace = namespace
        self.move = move
        self.target = target
        self.row = FragmentRow(0, 0, 0, 0)
        self.keys: set[int] = set()

    def demand(self) -> None:
        """Raise StoreUnavailable when nothing more can be done with it."""
        try:
            self.target.demand()
        except MoveAborted as error:
            raise StoreUnavailable(str(error)) from None

    async def begin(self, source_nos: list[int]) -> list[SourceRow]:
        """Make an empty fragment; returns its sources.

        Raises:
            StoreUnavailable: The copy is over.
        """
        move = self.move
        try:
            self.row, sources = await self.target.begin(move.entity_id, move.fragment_no, source_nos)
        except MoveAborted as error:
            raise StoreUnavailable(str(error)) from None
        self.keys = {source.source_key for source in sources}
        self.demand()
        return sources

    async def write(self, request: WriteCopy) -> bytes:
        """Write what has come, and say when it is durable.

        Raises:
            ArgumentInvalid: It speaks of another fragment's messages.
            StoreUnavailable: The copy is over.
        """
        self._demand_keys(request.source_keys())

        def fill(commit: CommitBatch) -> None:
            if self.target.is_over:
                # Its fragment may be deleted by now: a commit that names it would be refused as a whole.
                return
            commit.epochs.append((self.row.fragment_key, self.row.epoch))
            request.fill(commit)

        commit = await self.target.broker.commit_loop.add_writes(fill)
        self.demand()
        return encode_answer({key: size for key, size in commit.shared.items() if key in self.keys})

    async def read(self, request: ReadCopy) -> bytes:
        """Rows, or blocks of message ids."""
        self._demand_keys({request.source_key})
        if request.is_of_ids:
            blocks = await self.target.load_ids(self.row, request.source_key, request.first, request.limit)
            return encode_blocks(blocks)
        return encode_rows(await self.target.load(self.row, request.source_key, request.first, request.limit))

    def _demand_keys(self, keys: set[int]) -> None:
        if not keys <= self.keys:
            raise ArgumentInvalid("A request about a copy names sources of another fragment.")


class IncomingCopies:
    """All copies that are brought to this server."""

    def __init__(self, unit: MoveHost) -> None:
        self._unit = unit
        self._copies: dict[int, IncomingCopy] = {}

    async def answer(self, namespace: str, request: CopyRequest) -> bytes:
        """Do what another server asks for; ``namespace``: for which it has proved itself.

        Raises:
            ServiceBusError: It is refused.
        """
        if isinstance(request, BeginCopy):
            return await self._begin(namespace.lower(), request)
        copy = self._copies.get(request.copy_no)
        if copy is None or copy.namespace != namespace.lower():
            raise StoreUnavailable("This server knows nothing of that copy. Begin the move again.")
        copy.demand()
        return await (copy.write(request) if isinstance(request, WriteCopy) else copy.read(request))

    async def _begin(self, namespace: str, request: BeginCopy) -> bytes:
        unit, move = self._unit, MoveRow(*request.move)
        broker = unit.brokers.get(move.to_store)
        if broker is None or broker.state != "open" or move.to_store not in unit.adopted:
            raise StoreUnavailable(f"Messaging store {move.to_store} is not at this server. Ask for its owner again.")
        try:
            contents = unit.catalog.read()
        except StoreFailed as error:
            raise ServerBusy(f"The catalog is not reached: {error}") from error
        _demand_recorded(contents, namespace, move)
        self.end(move.entity_id, move.fragment_no)
        if len(self._copies) >= INCOMING_MAX:
            raise ServerBusy(f"{INCOMING_MAX} fragments are being moved to this server, which is the limit.")
        copy = IncomingCopy(namespace, move, EpochTarget(broker, request.epoch))
        number = unit.new_id().int >> 68
        # The copy is known before anything is written: a move that is cleared up meanwhile takes the rows with it that
        # are there, and rows written behind that would stay for good.
        self._copies[number] = copy
        try:
            sources = await copy.begin(request.source_nos)
        except BaseException:
            # A request that is cancelled leaves no copy either.
            self._copies.pop(number, None)
            raise
        told = [(source.source_no, source.source_key) for source in sources]
        return encode_answer(CopyBegun(number, copy.row.fragment_key, copy.row.epoch, told))

    def end(self, entity_id: int, fragment_no: int) -> None:
        """Write nothing more of a fragment."""
        for number, copy in list(self._copies.items()):
            if (copy.move.entity_id, copy.move.fragment_no) == (entity_id, fragment_no):
                copy.target.is_over = True
                del self._copies[number]

    def see(self, contents: CatalogContents) -> None:
        """End those whose move is not under way any more, by the catalog."""
        homes = homes_of(contents)
        running = {move for move in contents.moves if homes.get((move.entity_id, move.fragment_no)) == move.from_store}
        for number, copy in list(self._copies.items()):
            if copy.move not in running:
                copy.target.is_over = True
                del self._copies[number]


def homes_of(contents: CatalogContents) -> dict[tuple[int, int], int]:
    """Entity id and fragment number to the store that has the fragment."""
    return {(row.entity_id, slot.fragment_no): slot.store_id for row in contents.entities for slot in row.slots}


def _demand_recorded(contents: CatalogContents, namespace: str, move: MoveRow) -> None:
    """Raise NotAllowed unless the catalog knows of a move, as one that is under way."""
    home = homes_of(contents).get((move.entity_id, move.fragment_no))
    owner = next((row.namespace.lower() for row in contents.entities if row.entity_id == move.entity_id), None)
    if move not in contents.moves or home != move.from_store or owner != namespace:
        raise NotAllowed("The catalog knows of no such move in this namespace.")
