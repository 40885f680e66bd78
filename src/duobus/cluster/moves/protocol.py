"""What servers say to each other about the copy of a fragment; pure, in MessagePack (decision 0070).

The server that has a fragment *begins* a copy at the owner of the store that gets it, and is given its number; each
request that writes or reads names that. A copy is good for one life of that store at one server.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from duobus.errors import Undecodable
from duobus.storage.interface import CommitBatch, IdBlock, Put, StoredMessage

#: Sources of a fragment that is copied: a topic's, one for each of its subscriptions.
_SOURCES_LIMIT: Final = 10_000
#: Rows that one request reads.
_ROWS_LIMIT: Final = 10_000

_Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
#: Index, state, deliveries, metadata.
_Metadata = tuple[_Number, int, _Number, bytes | None]


class PutForm(msgspec.Struct, array_like=True, frozen=True):
    """See ``Put``; its counts were used up long ago."""

    source_key: _Number
    first_count: _Count
    enqueued_ms: int
    payloads: Annotated[list[bytes], msgspec.Meta(min_length=1)]
    all_metadata: list[_Metadata]
    origins: list[int] | None

    def put(self) -> Put:
        """As a store takes it."""
        metadata = {index: (state, deliveries, data) for index, state, deliveries, data in self.all_metadata}
        made = Put(self.source_key, self.first_count, self.enqueued_ms, self.payloads, metadata, self.origins)
        made.is_reserved = True
        return made


class BeginCopy(msgspec.Struct, array_like=True, tag="begin copy", frozen=True):
    """A fragment is to be copied. ``move``: its row in the catalog; ``epoch``: that of the fragment where it is."""

    number: _Number
    move: tuple[_Number, Annotated[int, msgspec.Meta(ge=0, lt=1 << 16)], _Number, _Number]
    epoch: _Number
    source_nos: Annotated[list[_Number], msgspec.Meta(max_length=_SOURCES_LIMIT)]


class WriteCopy(msgspec.Struct, array_like=True, tag="write copy", frozen=True):
    """What one commit is to write of it; see ``CommitBatch``."""

    number: _Number
    copy_no: _Number
    puts: list[PutForm]
    changes: list[tuple[_Number, _Count, int, _Number, bytes | None]]
    removed: list[tuple[_Number, _Count, _Count]]
    sources: list[tuple[_Number, _Number, _Number, bytes]]
    outdated: list[tuple[_Number, _Number]]
    histories: list[tuple[_Number, _Number, int, bytes]]

    def source_keys(self) -> set[int]:
        """Every source of which it speaks."""
        columns = self.changes, self.removed, self.sources, self.outdated, self.histories
        return {put.source_key for put in self.puts} | {row[0] for column in columns for row in column}

    def fill(self, commit: CommitBatch) -> None:
        """Add it to a commit."""
        commit.puts += [put.put() for put in self.puts]
        commit.changes += self.changes
        commit.removed += self.removed
        commit.sources += self.sources
        commit.outdated += self.outdated
        commit.histories += [IdBlock(*row) for row in self.histories]


class ReadCopy(msgspec.Struct, array_like=True, tag="read copy", frozen=True):
    """Rows of it, or blocks of message ids; see ``MessagingStore.load`` and ``load_ids``."""

    number: _Number
    copy_no: _Number
    source_key: _Number
    first: _Number
    limit: Annotated[int, msgspec.Meta(ge=1, le=_ROWS_LIMIT)]
    is_of_ids: bool


CopyRequest = BeginCopy | WriteCopy | ReadCopy


class CopyBegun(msgspec.Struct, array_like=True, frozen=True):
    """The answer to ``BeginCopy``: what the store has made. ``sources``: number and key of each."""

    copy_no: int
    fragment_key: int
    epoch: int
    sources: list[tuple[int, int]]


_ENCODER: Final = msgspec.msgpack.Encoder()
_BEGUN: Final = msgspec.msgpack.Decoder(CopyBegun)
_SHARED: Final = msgspec.msgpack.Decoder(dict[int, int])
_ROWS: Final = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, bytes, bytes | None, int]])
_BLOCKS: Final = msgspec.msgpack.Decoder(list[tuple[int, int, bytes]])


def write_request(number: int, copy_no: int, commit: CommitBatch) -> WriteCopy:
    """What a commit holds of the copy, as a request."""
    puts = [
        PutForm(
            put.source_key,
            put.first_count,
            put.enqueued_ms,
            list(put.payloads),
            [(index, *found) for index, found in (put.all_metadata or {}).items()],
            None if put.origins is None else list(put.origins),
        )
        for put in commit.puts
    ]
    histories = [(block.source_key, block.first_count, block.at_ms, block.ids) for block in commit.histories]
    return WriteCopy(number, copy_no, puts, commit.changes, commit.removed, commit.sources, commit.outdated, histories)


def encode_answer(what: CopyBegun | dict[int, int]) -> bytes:
    """The data of an answer to ``BeginCopy`` or ``WriteCopy``."""
    return _ENCODER.encode(what)


def encode_rows(rows: list[StoredMessage]) -> bytes:
    """The data of an answer to ``ReadCopy``."""
    return _ENCODER.encode(
        [(row.count, row.enqueued_ms, row.state, row.deliveries, row.payload, row.metadata, row.origin) for row in rows]
    )


def encode_blocks(blocks: list[IdBlock]) -> bytes:
    """The data of an answer to ``ReadCopy`` of ids."""
    return _ENCODER.encode([(block.first_count, block.at_ms, block.ids) for block in blocks])


def decode_begun(data: bytes) -> CopyBegun:
    """Raises Undecodable, as the others below."""
    try:
        return _BEGUN.decode(data)
    except msgspec.MsgspecError as error:
        raise _undecodable(error) from None


def decode_shared(data: bytes) -> dict[int, int]:
    """See ``CommitBatch.shared``."""
    try:
        return _SHARED.decode(data)
    except msgspec.MsgspecError as error:
        raise _undecodable(error) from None


def decode_rows(data: bytes) -> list[StoredMessage]:
    """Messages."""
    try:
        return [StoredMessage(*row) for row in _ROWS.decode(data)]
    except msgspec.MsgspecError as error:
        raise _undecodable(error) from None


def decode_blocks(data: bytes, source_key: int) -> list[IdBlock]:
    """Blocks of message ids."""
    try:
        return [IdBlock(source_key, *row) for row in _BLOCKS.decode(data)]
    except msgspec.MsgspecError as error:
        raise _undecodable(error) from None


def _undecodable(error: Exception) -> Undecodable:
    return Undecodable(f"The answer of another server about a copy cannot be decoded: {error}")
