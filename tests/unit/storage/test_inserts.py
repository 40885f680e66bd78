"""What a commit puts: in few statements where it is much, in smaller ones where its messages are large."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from duobus.storage.interface import Put
from duobus.storage.sqlite import schema
from duobus.storage.sqlite.rows import rows_at_once, run
from kits.store_builders import Broker, payloads_of, sqlite_store

MANY, FEW = schema.MANY_ROWS, schema.ROWS_PER_STATEMENT


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1_000] * 20_000, (MANY, True)),
        ([10_000] * 1_000, (MANY, True)),
        ([30_000] * 1_000, (FEW, True)),
        ([100_000] * 1_000, (FEW, False)),
        ([100_000] * 3, (MANY, True)),
        ([3_000_000], (FEW, False)),
        ([0], (MANY, True)),
    ],
)
def test_a_statement_is_kept_with_two_mebibytes_of_messages_at_the_most(
    sizes: list[int], expected: tuple[int, bool]
) -> None:
    longest = bytes(max(sizes))
    assert rows_at_once([Put(1, 1, 1, [longest[:size] for size in sizes])]) == expected


@pytest.mark.parametrize("number", [1, FEW, FEW + 1, MANY - 1, MANY, MANY + 1, 3 * MANY + 2 * FEW + 7])
@pytest.mark.parametrize("rows", [FEW, MANY])
def test_all_rows_are_written_whatever_their_number_by_few_statements(number: int, rows: int) -> None:
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE histories(id INTEGER PRIMARY KEY, at_ms, ids, row_sum)")
    texts: list[int] = []

    def note(_cursor: object, text: str, _bound: object) -> bool:
        texts.append(text.count("?,?,?,?"))
        return True

    db.set_exec_trace(note)
    values = [value for at in range(number) for value in (at, 1, b"", 0)]
    assert run(db, schema.INSERT_HISTORIES, values, rows=rows) == number
    assert sum(texts) == number
    assert set(texts) <= {MANY, FEW, number % FEW} - ({MANY} if rows == FEW else set())
    assert [row[0] for row in db.execute("SELECT id FROM histories ORDER BY id")] == list(range(number))


def test_a_large_commit_is_read_as_it_was_put(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path)
    broker = Broker(store)
    (source,) = broker.add()
    sent = [b"%d" % at for at in range(MANY * 2 + FEW + 3)]
    broker.send(source, sent)
    broker.reopen()
    assert payloads_of(store.load(source.source_key, 1, len(sent) + 1)) == sent
    store.close()
