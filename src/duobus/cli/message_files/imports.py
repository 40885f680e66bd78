"""Files of messages, read and sent again: what is wrong with a line or row is told, and the others are sent.

How far an import has come is written beside the file after each chunk that the broker has accepted. The same command
goes on from there: at least once, since the broker may have accepted a chunk that a kill kept from being noted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import click

from duobus.cli.message_files.exports import MESSAGE
from duobus.dead_letters.sdk_messages import sdk_message
from duobus.dead_letters.work import Pace, Totals
from duobus.errors import ServiceBusError
from duobus.file_sync import whole_file

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusSender

#: Messages of a chunk.
CHUNK: Final = 500
#: Longest line, in bytes: a message of 100 MB does not travel this way.
LINE_BYTES_MAX: Final = 16 << 20
#: Columns of the Spark source that a file of Parquet without forms needs.
_BODY: Final = "body"
_ROWS: Final = 1_000


class Item(NamedTuple):
    """A line or row of a file.

    Attributes:
        place: Where the item stands, from 1 on.
        message: The message of the SDK; None when there is a fault.
        key: Session id or partition key.
        fault: What is wrong, as a sentence.
    """

    place: int
    message: Any
    key: str | None = None
    fault: str | None = None


def json_items(file: IO[bytes]) -> Iterator[Item]:
    """The lines of a file that ``message export`` or ``dlq export`` has written."""
    place = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        place += 1
        if len(line) > LINE_BYTES_MAX:
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_BYTES_MAX)
            yield Item(place, None, fault=f"The line {place} is longer than {LINE_BYTES_MAX} bytes.")
        elif line.strip():
            yield _json_item(place, line)


def _json_item(place: int, line: bytes) -> Item:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        return Item(place, None, fault=f"The line {place} is no JSON: {error}.")
    form = record.get("message") if isinstance(record, dict) else None
    if not isinstance(form, dict):
        return Item(place, None, fault=f"The line {place} is no exported message: it has no object 'message'.")
    return _item("line", place, form, None)


def _item(word: str, place: int, form: dict[str, Any], data: bytes | None) -> Item:
    try:
        message = sdk_message(form, data)
    except (ServiceBusError, ValueError, TypeError, KeyError) as error:
        return Item(place, None, fault=f"The {word} {place} cannot be sent: {error}")
    session = (form.get("properties") or {}).get("groupId")
    return Item(place, message, str(session) if session is not None else form.get("partitionKey"))


def parquet_items(path: Path) -> Iterator[Item]:
    """The rows of a file of Parquet, or of a folder of such files, in the order of their names.

    Raises:
        click.ClickException: A file cannot be read, or has no messages in it.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    place = 0
    for one in _files(path):
        try:
            with pq.ParquetFile(one) as file:
                names = set(file.schema_arrow.names)
                if _BODY not in names:
                    raise click.ClickException(f"{one} has no column 'body', so it holds no messages.")
                for batch in file.iter_batches(_ROWS):
                    yield from _rows(batch, place, has_forms=MESSAGE in names)
                    place += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise click.ClickException(f"{one} is no file of Parquet that can be read: {error}") from None


def _files(path: Path) -> list[Path]:
    """The file itself; of a folder, the files that readers of Parquet look at."""
    if not path.is_dir():
        return [path]
    found = sorted(
        one
        for one in path.rglob("*.parquet")
        if not any(part.startswith(("_", ".")) for part in one.relative_to(path).parts)
    )
    if not found:
        raise click.ClickException(f"{path} holds no files of Parquet.")
    return found


def _rows(batch: Any, before: int, *, has_forms: bool) -> Iterator[Item]:
    if has_forms:
        forms, bodies = batch.column(MESSAGE).to_pylist(), batch.column(_BODY).to_pylist()
        for place, (text, body) in enumerate(zip(forms, bodies, strict=True), before + 1):
            try:
                form = json.loads(text or "")
            except (ValueError, RecursionError):
                form = None
            if not isinstance(form, dict):
                yield Item(place, None, fault=f"The row {place} has no form of a message in the column 'message'.")
            else:
                yield _item("row", place, form, None if "body" in form else body or b"")
        return
    yield from _captured_rows(batch, before)


def _captured_rows(batch: Any, before: int) -> Iterator[Item]:
    """Rows that a capture has written: the sink of Spark makes messages of them."""
    from duobus.spark.rows import columns_of
    from duobus.spark.sink.messages import SENT, RowError, messages_of

    columns = columns_of(batch, [name for name in batch.schema.names if name in SENT and name != "entity"])
    ids = columns.get("message_id") or [None] * batch.num_rows
    for index in range(batch.num_rows):
        place = before + index + 1
        row = {name: [values[index]] for name, values in columns.items()}
        try:
            (found,) = messages_of(row, [ids[index]], "-", partial(_place_of, place))
        except RowError as error:
            yield Item(place, None, fault=str(error))
        else:
            yield Item(place, found.message, found.key)


def _place_of(place: int, _index: int) -> str:
    return str(place)


class ImportRecord:
    """How far an import has come, in a file beside the imported one.

    Args:
        path: The file of the progress; None: nothing is kept.
        target: Namespace and entity.

    Raises:
        click.ClickException: The progress is another import's.
    """

    def __init__(self, path: Path | None, target: str) -> None:
        self._path = path
        self._target = target
        self.done = 0
        if path is None or not path.exists():
            return
        try:
            found = json.loads(path.read_text("utf-8"))
            self.done = int(found["done"])
            other = str(found["target"])
        except (ValueError, KeyError, TypeError):
            raise click.ClickException(f"{path} is no progress of an import. Move it away.") from None
        if other != target:
            raise click.ClickException(
                f"{path} says that an import of this file to {other} has not ended. Finish that import, or remove "
                f"{path.name} to import from the beginning."
            )

    def note(self, done: int) -> None:
        """Write down that everything up to a place is done."""
        self.done = done
        if self._path is None:
            return
        with whole_file(self._path) as file:
            file.write(json.dumps({"target": self._target, "done": done}).encode())

    def end(self) -> None:
        """The import is complete: the next one begins anew."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def check_items(items: Iterator[Item], totals: Totals, tell: Any) -> None:
    """Count the messages that could be sent, and tell what is wrong with the others; send none."""
    for item in items:
        if item.fault is None:
            totals.moved += 1
        else:
            totals.skip(item.place, item.fault)
            tell(item.fault)


def send_items(
    items: Iterator[Item], sender: ServiceBusSender, totals: Totals, progress: ImportRecord, pace: Pace, tell: Any
) -> None:
    """Send messages chunk by chunk.

    Args:
        items: The lines or rows of the file.
        sender: To the entity.
        totals: What has become of messages; true also after an error.
        progress: What was done before is not done again.
        pace: Keeps to a rate.
        tell: Called with a sentence for each line or row that cannot be sent.
    """
    items = (item for item in items if item.place > progress.done)
    while chunk := list(islice(items, CHUNK)):
        by_key: dict[str | None, list[Item]] = {}
        for item in chunk:
            if item.fault is not None:
                totals.skip(item.place, item.fault)
                tell(item.fault)
            else:
                by_key.setdefault(item.key, []).append(item)
        # A batch goes to one fragment, so that it has one key; the order within a key stays.
        for some in by_key.values():
            _send(sender, some, totals, tell)
        progress.note(chunk[-1].place)
        pace.step(totals)
    progress.end()


def _send(sender: ServiceBusSender, items: list[Item], totals: Totals, tell: Any) -> None:
    from azure.servicebus.exceptions import MessageSizeExceededError

    batch, size = sender.create_message_batch(), 0
    for item in items:
        try:
            batch.add_message(item.message)
        except (MessageSizeExceededError, ValueError):
            if size:
                sender.send_messages(batch)
                totals.moved += size
                batch, size = sender.create_message_batch(), 0
            try:
                batch.add_message(item.message)
            except (MessageSizeExceededError, ValueError) as error:
                fault = f"The message at {item.place} cannot be sent: {error}"
                totals.skip(item.place, fault)
                tell(fault)
                batch = sender.create_message_batch()
                continue
        size += 1
    if size:
        sender.send_messages(batch)
        totals.moved += size
