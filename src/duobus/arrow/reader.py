"""``read_queue``: the messages of a queue or subscription as Arrow batches, looked at or claimed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict, overload

import pyarrow as pa

from duobus.arrow.claims import Claim
from duobus.arrow.columns import Columns
from duobus.clock import Clock
from duobus.spark.connection import Kept, Place, demand_reachable, namespace_of, place_of
from duobus.spark.entities import demand_there, entities_of, peek, split_name
from duobus.spark.errors import EntityError, OptionError
from duobus.spark.offsets import Key
from duobus.spark.options import CONNECTION_OPTIONS, SOURCE_OPTIONS, parse
from duobus.spark.rows import BATCH_ROWS, Source
from duobus.spark.source.peek_pages import page_of
from duobus.spark.source.ranges import LAST_NUMBER, Bounds, looker, messages_of, ranges_of

if TYPE_CHECKING:
    from typing import Unpack

#: How long a session that another receiver holds is tried for.
_SESSION_S: Final = 30.0
#: Rows that a batch may have at most.
BATCH_ROWS_MAX: Final = 1_000_000


class Arguments(TypedDict, total=False):
    """The arguments that ``read_queue`` has in both modes, for type checkers."""

    queue: str | None
    topic: str | None
    subscription: str | None
    sub_queue: str | None
    session: str | None
    columns: Sequence[str] | None
    filter: Any
    from_sequence: int | None
    to_sequence: int | None
    from_time: datetime | None
    to_time: datetime | None
    limit: int | None
    batch_size: int
    max_wait: float
    ca_file: str | None
    connection_string_env: str | None


@overload
def read_queue(
    connection_string: str | None = None, *, mode: Literal["browse"] = "browse", **given: Unpack[Arguments]
) -> pa.RecordBatchReader: ...


@overload
def read_queue(
    connection_string: str | None = None, *, mode: Literal["claim"], **given: Unpack[Arguments]
) -> Claim: ...


def read_queue(
    connection_string: str | None = None,
    *,
    mode: str = "browse",
    queue: str | None = None,
    topic: str | None = None,
    subscription: str | None = None,
    sub_queue: str | None = None,
    session: str | None = None,
    columns: Sequence[str] | None = None,
    filter: Any = None,
    from_sequence: int | None = None,
    to_sequence: int | None = None,
    from_time: datetime | None = None,
    to_time: datetime | None = None,
    limit: int | None = None,
    batch_size: int = BATCH_ROWS,
    max_wait: float = 5.0,
    ca_file: str | None = None,
    connection_string_env: str | None = None,
) -> Any:
    """Read a queue, or a subscription of a topic, as a ``pyarrow.RecordBatchReader``.

    Polars (``polars.from_arrow``), pandas (``reader.read_pandas()``) and DuckDB (``duckdb.from_arrow``) take the result
    as it is. The columns and their types are those of the Spark source. A few thousand messages are in memory at a
    time, however many there are.

    Args:
        connection_string: As applications have it.
        mode: ``browse`` looks and removes nothing. ``claim`` locks messages and gives a ``Claim``: a context manager
            whose ``settle`` removes what was read. A process that is killed before removes nothing; the messages come
            again when their locks are over.
        queue: The queue.
        topic: The topic, together with ``subscription``.
        subscription: The subscription.
        sub_queue: ``deadletter`` or ``transferdeadletter`` reads this sub-queue instead.
        session: Of this session; required where the entity requires sessions.
        columns: Names of the columns; all of them by default.
        filter: An expression of pyarrow, or conditions as of ``pyarrow.parquet.read_table``. A claim gives the messages
            that the filter leaves out back when the claim is left.
        from_sequence: Only from this sequence number on, with ``browse``.
        to_sequence: Only up to this sequence number, with ``browse``.
        from_time: Only what was enqueued at this time or later, with ``browse``; without a zone the time is in UTC.
        to_time: Only what was enqueued before this time, with ``browse``.
        limit: Rows at most.
        batch_size: Rows of a batch at most; batches of large messages have fewer.
        max_wait: Seconds without a message after which a claim ends.
        ca_file: Certificate authority to trust, PEM.
        connection_string_env: Environment variable that holds the connection string, in place of the first argument.

    Raises:
        OptionError: An argument is wrong.
        EntityError: There is no such entity, or the rights do not suffice.
        AddressError: No server answers.
    """
    names = {"queue": queue, "topic": topic, "subscription": subscription, "subQueue": sub_queue}
    options = {
        "connectionString": connection_string,
        "connectionStringEnv": connection_string_env,
        "caFile": ca_file,
        **names,
    }
    parsed = parse({name: value for name, value in options.items() if value is not None}, _OPTIONS)
    place, (entity,) = place_of(parsed), entities_of(parsed)
    _check_numbers(limit, batch_size)
    wanted = Columns(columns, filter, batch_size)
    bounds = _bounds_of(from_sequence, to_sequence, from_time, to_time)
    with _session_told(entity):
        return _read(mode, place, Key(entity, session), wanted, bounds, limit, max_wait, batch_size)


def _read(
    mode: str,
    place: Place,
    key: Key,
    wanted: Columns,
    bounds: Bounds,
    limit: int | None,
    max_wait: float,
    batch_size: int,
) -> Any:
    if mode == "claim":
        if bounds != Bounds():
            raise OptionError("A claim takes messages in their order: from_... and to_... go with mode='browse' only.")
        demand_reachable(place)
        return Claim(place, key, wanted, limit=limit, wait_s=max_wait, batch_rows=batch_size)
    if mode != "browse":
        raise OptionError(f"The mode is {mode!r}; it has to be 'browse' or 'claim'.")
    return browsed(place, key, wanted, bounds, limit)


@contextmanager
def _session_told(entity: str) -> Iterator[None]:
    """Say which argument is missing, where the text of the error speaks of Spark's options."""
    try:
        yield
    except EntityError as error:
        if "exclusive=true" not in str(error):
            raise
        raise EntityError(
            f"'{entity}' requires sessions: give the argument session, which names one. An entity that does not "
            "require sessions is read without the argument."
        ) from None


_OPTIONS: Final = (*CONNECTION_OPTIONS, *SOURCE_OPTIONS)


def _check_numbers(limit: int | None, batch_size: int) -> None:
    if limit is not None and limit < 0:
        raise OptionError(f"The limit is {limit}; it has to be 0 or more.")
    if not 1 <= batch_size <= BATCH_ROWS_MAX:
        raise OptionError(f"The batch_size is {batch_size}; it has to be 1 to {BATCH_ROWS_MAX}.")


def _bounds_of(first: int | None, last: int | None, since: datetime | None, until: datetime | None) -> Bounds:
    return Bounds(
        since_ms=_milliseconds(since),
        until_ms=_milliseconds(until),
        least=0 if first is None else first,
        most=LAST_NUMBER if last is None else last,
    )


def _milliseconds(instant: datetime | None) -> int | None:
    if instant is None:
        return None
    return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)


def browsed(place: Place, key: Key, columns: Columns, bounds: Bounds, limit: int | None) -> pa.RecordBatchReader:
    """The messages of an entity that are within bounds when this is called, by fragment and number.

    Args:
        place: The namespace.
        key: The entity, with its sub-queue, as in offsets; and a session where the entity requires sessions.
        columns: Makes the batches.
        bounds: The messages that are read.
        limit: Rows at most.
    """
    demand_reachable(place)
    kept = Kept(Clock())
    looks = partial(looker, place, key.entity, _SESSION_S, session=key.session, kept=kept)
    try:
        page = looks(peek)
        # The ends are fixed now, so that what is wrong with the entity is an error of this call.
        ranges = list(ranges_of(key.entity, bounds, lambda number: next(iter(page(number, 1)), None)))
    except BaseException:
        kept.clear()
        raise
    source = Source(namespace_of(place), split_name(key.entity)[0])
    messages = (messages_of(part, looks(page_of), looks(demand_there)) for part in ranges)
    batches = (batch for some in messages for batch in columns.rows.batches(source, some))
    return pa.RecordBatchReader.from_batches(columns.schema, _limited(batches, columns, limit, kept))


def _limited(
    batches: Iterator[pa.RecordBatch], columns: Columns, limit: int | None, kept: Kept
) -> Iterator[pa.RecordBatch]:
    """So many rows of the wanted ones; the connections are closed behind the last one."""
    left = limit
    try:
        while left is None or left:
            made = next(batches, None)
            if made is None:
                return
            batch = columns.wanted(columns.kept(made)).slice(0, left)
            left = None if left is None else left - batch.num_rows
            if batch.num_rows:
                yield batch
    finally:
        kept.clear()
