"""The SQL of the SQLite store: tables, and statements of many rows made once.

One integer key per message (``source_key << COUNT_BITS | count``): a composite key without rowid measured
41 us a row against 7. No index that a plain message enters.
"""

from __future__ import annotations

#: Marks the file as ours in SQLite's header ("duob").
APPLICATION_ID = 0x64756F62

#: Rows per statement. More gain next to nothing (100 measured 4 % slower at commits of 100, 250 measured 2 %
#: faster at commits of 500), fewer meet the interpreter lock more often.
ROWS_PER_STATEMENT = 50
#: Rows of one where a commit has hundreds (decision 0072).
MANY_ROWS = 200

#: Blocks of message ids, appended at a source's end and deleted from its beginning: no index of random ids is on the
#: way of a message. Its own text, for files that were made before there was one.
CREATE_HISTORIES = """
CREATE TABLE IF NOT EXISTS histories(
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, ids BLOB NOT NULL, row_sum INTEGER NOT NULL);
"""

#: Which catalog the file belongs to (``catalog_identity.py``), made when it is first told. A version that does not know
#: of it leaves it alone, and the file is as safe with it as it was: it needs no format of its own.
CREATE_BELONGING = """
CREATE TABLE IF NOT EXISTS belonging(
    id INTEGER PRIMARY KEY CHECK (id = 1), identity INTEGER NOT NULL, revision INTEGER NOT NULL,
    highest_id INTEGER NOT NULL, is_prepared INTEGER NOT NULL, row_sum INTEGER NOT NULL);
"""
#: What the store keeps of its catalog's rows (``catalog_records.py``).
CREATE_RECORDS = """
CREATE TABLE IF NOT EXISTS records(
    name TEXT PRIMARY KEY, revision INTEGER NOT NULL, text BLOB NOT NULL, row_sum INTEGER NOT NULL) WITHOUT ROWID;
"""
READ_RECORDS = "SELECT name, revision, CAST(text AS BLOB), row_sum FROM records ORDER BY name"
WRITE_RECORD = "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)"
DELETE_RECORD = "DELETE FROM records WHERE name = ?"
READ_BELONGING = "SELECT identity, revision, highest_id, is_prepared, row_sum FROM belonging WHERE id = 1"
WRITE_BELONGING = "INSERT OR REPLACE INTO belonging VALUES (1, ?, ?, ?, ?, ?)"

#: Bodies that several copies share (``shared_bodies.py``): how many do, and the body's bytes. A body itself is a row
#: of messages with the same id. A row with count 0 has the bytes of all copies of a fragment.
CREATE_SHARES = """
CREATE TABLE shares(
    id INTEGER PRIMARY KEY, refs INTEGER NOT NULL, size INTEGER NOT NULL, row_sum INTEGER NOT NULL);
"""

#: Copies that have no row of their own yet (``packed_refs.py``), by the id of the body that they share.
CREATE_PACKED = """
CREATE TABLE folded(
    id INTEGER PRIMARY KEY, enqueued_ms INTEGER NOT NULL, size INTEGER NOT NULL, copies BLOB NOT NULL,
    row_sum INTEGER NOT NULL);
"""

CREATE = f"""
PRAGMA application_id={APPLICATION_ID};
CREATE TABLE meta(
    id INTEGER PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, store_id INTEGER NOT NULL,
    generation INTEGER NOT NULL, last_commit_no INTEGER NOT NULL, broker_ms INTEGER NOT NULL,
    rows INTEGER NOT NULL, next_fragment_key INTEGER NOT NULL, next_source_key INTEGER NOT NULL,
    probes INTEGER NOT NULL, row_sum INTEGER NOT NULL);
CREATE TABLE fragments(
    fragment_key INTEGER PRIMARY KEY, entity_id INTEGER NOT NULL, fragment_no INTEGER NOT NULL,
    epoch INTEGER NOT NULL, row_sum INTEGER NOT NULL, UNIQUE(entity_id, fragment_no));
CREATE TABLE sources(
    source_key INTEGER PRIMARY KEY, fragment_key INTEGER NOT NULL, source_no INTEGER NOT NULL,
    next_count INTEGER NOT NULL, highest_delivered INTEGER NOT NULL, counters BLOB NOT NULL,
    row_sum INTEGER NOT NULL, UNIQUE(fragment_key, source_no));
CREATE TABLE messages(
    id INTEGER PRIMARY KEY, enqueued_ms INTEGER NOT NULL, state INTEGER NOT NULL DEFAULT 0,
    deliveries INTEGER NOT NULL DEFAULT 0, special BLOB, payload BLOB NOT NULL,
    body_sum INTEGER NOT NULL, state_sum INTEGER);
CREATE INDEX exceptional ON messages(state) WHERE state != 0;
CREATE TABLE tombstones(
    id INTEGER PRIMARY KEY, store_id INTEGER NOT NULL, generation INTEGER NOT NULL, commit_no INTEGER NOT NULL,
    source_key INTEGER NOT NULL, first_count INTEGER NOT NULL, last_count INTEGER NOT NULL,
    row_sum INTEGER NOT NULL);
{CREATE_HISTORIES}{CREATE_SHARES}{CREATE_PACKED}"""

META_COLUMNS = "store_id, generation, last_commit_no, broker_ms, rows, next_fragment_key, next_source_key, probes"
READ_META = f"SELECT format, {META_COLUMNS}, row_sum FROM meta WHERE id = 1"
INSERT_META = f"INSERT INTO meta(id, format, {META_COLUMNS}, row_sum) VALUES (1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
#: The condition is the fence: whoever lost the store to another owner changes no row (L9).
UPDATE_META = (
    "UPDATE meta SET generation = ?, last_commit_no = ?, broker_ms = ?, rows = ?, next_fragment_key = ?,"
    " next_source_key = ?, probes = ?, row_sum = ? WHERE id = 1 AND generation = ? AND last_commit_no = ?"
)
UPDATE_FORMAT = "UPDATE meta SET format = ?, row_sum = ? WHERE id = 1"
READ_FRAGMENTS = "SELECT fragment_key, entity_id, fragment_no, epoch, row_sum FROM fragments ORDER BY 1"
INSERT_FRAGMENT = "INSERT INTO fragments VALUES (?, ?, ?, ?, ?)"
UPDATE_FRAGMENT = "UPDATE fragments SET epoch = ?, row_sum = ? WHERE fragment_key = ?"
DELETE_FRAGMENT = "DELETE FROM fragments WHERE fragment_key = ?"
READ_SOURCES = (
    "SELECT source_key, fragment_key, source_no, next_count, highest_delivered, CAST(counters AS BLOB), row_sum"
    " FROM sources ORDER BY 1"
)
INSERT_SOURCE = "INSERT INTO sources VALUES (?, ?, ?, ?, ?, ?, ?)"
DELETE_SOURCE = "DELETE FROM sources WHERE source_key = ?"
READ_TOMBSTONES = (
    "SELECT store_id, generation, commit_no, source_key, first_count, last_count, row_sum FROM tombstones ORDER BY id"
)
INSERT_TOMBSTONE = (
    "INSERT INTO tombstones(store_id, generation, commit_no, source_key, first_count, last_count, row_sum)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
DELETE_TOMBSTONES = "DELETE FROM tombstones WHERE store_id = ? AND generation = ?"
LOAD_HISTORIES = (
    "SELECT id, at_ms, CAST(ids AS BLOB), row_sum FROM histories WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
)
LOAD_HISTORY_IDS = "SELECT id FROM histories WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?"
DELETE_HISTORIES = "DELETE FROM histories WHERE id BETWEEN ? AND ?"
#: What is deleted of a source with copies says what it held: eight bytes are all of a reference to a body.
_COPY_COLUMNS = (
    "id, enqueued_ms, iif(octet_length(payload) = 8, CAST(payload AS BLOB), NULL), octet_length(payload), body_sum"
)
RETURNING = f" RETURNING {_COPY_COLUMNS}"
FIND_COPIES_BETWEEN = f"SELECT {_COPY_COLUMNS} FROM messages WHERE id BETWEEN ? AND ?"
READ_SHARES = "SELECT id, refs, size, row_sum FROM shares WHERE id BETWEEN ? AND ? ORDER BY id"
READ_PACKED = "SELECT id, enqueued_ms, size, CAST(copies AS BLOB), row_sum FROM folded ORDER BY id"
DELETE_SHARES = "DELETE FROM shares WHERE id BETWEEN ? AND ?"
DELETE_RANGE = "DELETE FROM messages WHERE id BETWEEN ? AND ?"
#: A dropped entity goes in slices, so that no transaction outgrows the log.
DELETE_SLICE = "DELETE FROM messages WHERE id IN (SELECT id FROM messages WHERE id BETWEEN ? AND ? ORDER BY id LIMIT ?)"
# The blobs are cast because a flipped bit can turn them into text, which need not be readable as such.
_BEFORE_PAYLOAD = "id, enqueued_ms, state, deliveries, CAST(special AS BLOB)"
_AFTER_PAYLOAD = "body_sum, state_sum"
_ALL_COLUMNS = f"{_BEFORE_PAYLOAD}, CAST(payload AS BLOB), {_AFTER_PAYLOAD}"
#: Payloads above it are NULL in the answer to most queries and read by themselves: SQLite would make a copy of its
#: own of each. Finding that out costs 0.3 us a row of 1 KiB on top of 1.8, so pages of many rows go without.
LARGE_BYTES = 1 << 20
_SMALL_COLUMNS = (
    f"{_BEFORE_PAYLOAD}, iif(octet_length(payload) > {LARGE_BYTES}, NULL, CAST(payload AS BLOB)), {_AFTER_PAYLOAD}"
)
#: Rows of a page up to which large messages are looked for; a page of these has 64 KiB a message or is no hot path.
FEW_ROWS = 256
#: Without an upper bound: only a row that verifies may say that the source has ended.
LOAD_MANY = f"SELECT {_ALL_COLUMNS} FROM messages WHERE id >= ? ORDER BY id"
LOAD_FEW = f"SELECT {_SMALL_COLUMNS} FROM messages WHERE id >= ? ORDER BY id"
#: Rows that one step of a statement puts together (``column_pages.py``), and what the payload of each may have: a
#: stretch is in memory as a whole, 16 MiB at most. Fewer rows meet the interpreter lock more often.
STRETCH, STRETCH_PAYLOAD_MAX = 256, 16 << 10
#: Bits of a length behind the time in the marks of a stretch. A time that leaves no room for them is no integer then.
LENGTH_BITS = 16
#: How many rows are plain, the sum of their distances from the first id, a zero that is an integer, the checksum of
#: each, the time and the length of each in one number, and the payloads. Decimal digits are what SQLite makes fastest.
LOAD_STRETCH = (
    "SELECT count(*), sum(id - ?), sum(state + deliveries), group_concat(body_sum),"
    f" group_concat(enqueued_ms * {1 << LENGTH_BITS} + octet_length(payload)),"
    " CAST(group_concat(payload, '') AS BLOB)"
    " FROM messages WHERE id BETWEEN ? AND ? AND state_sum IS NULL AND special IS NULL AND state = 0 AND deliveries = 0"
    f" AND octet_length(payload) <= {STRETCH_PAYLOAD_MAX}"
)
LOAD_IDS = "SELECT id FROM messages WHERE id >= ? ORDER BY id"
LOAD_ONE = f"SELECT {_SMALL_COLUMNS} FROM messages WHERE id = ?"
SCAN = (
    f"SELECT {_SMALL_COLUMNS} FROM messages INDEXED BY exceptional"
    " WHERE state != 0 AND state = ? AND id BETWEEN ? AND ? ORDER BY id"
)
SCAN_IDS = (
    "SELECT id FROM messages INDEXED BY exceptional WHERE state != 0 AND state = ? AND id BETWEEN ? AND ? ORDER BY id"
)

#: The next row of a state, from an id on.
NEXT_OF_STATE = (
    "SELECT id FROM messages INDEXED BY exceptional WHERE state != 0 AND state = ? AND id >= ? ORDER BY id LIMIT 1"
)
LOWEST_ID, HIGHEST_ID = -(1 << 63), (1 << 63) - 1


class Rows:
    """A statement over a variable number of rows; each text is made once, so that the driver finds it prepared.

    Attributes:
        texts: The statement for so many rows, 1 to ROWS_PER_STATEMENT.
        many: The one for MANY_ROWS rows.
        width: Values of a row.
    """

    __slots__ = ("many", "texts", "width")

    def __init__(self, head: str, row: str, tail: str = "") -> None:
        self.texts = tuple(head + ",".join([row] * n) + tail for n in range(ROWS_PER_STATEMENT + 1))
        self.many = head + ",".join([row] * MANY_ROWS) + tail
        self.width = row.count("?")


INSERT_ORDINARY = Rows("INSERT INTO messages(id, enqueued_ms, payload, body_sum) VALUES ", "(?,?,?,?)")
#: Of most messages with a session: they have no other metadata.
INSERT_WITH_METADATA = Rows(
    "INSERT INTO messages(id, enqueued_ms, special, payload, body_sum, state_sum) VALUES ", "(?,?,?,?,?,?)"
)
INSERT_EXCEPTIONAL = Rows(
    "INSERT INTO messages(id, enqueued_ms, state, deliveries, special, payload, body_sum, state_sum) VALUES ",
    "(?,?,?,?,?,?,?,?)",
)
INSERT_HISTORIES = Rows("INSERT INTO histories(id, at_ms, ids, row_sum) VALUES ", "(?,?,?,?)")
DELETE_IDS = Rows("DELETE FROM messages WHERE id IN (", "?", ")")
FIND_COPIES = Rows(f"SELECT {_COPY_COLUMNS} FROM messages WHERE id IN (", "?", ")")
DELETE_COPIES = Rows("DELETE FROM messages WHERE id IN (", "?", ")" + RETURNING)
LOAD_BODIES = Rows(f"SELECT {_SMALL_COLUMNS} FROM messages WHERE id IN (", "?", ") ORDER BY id")
LOAD_BODY_IDS = Rows("SELECT id FROM messages WHERE id IN (", "?", ") ORDER BY id")
FIND_SHARES = Rows("SELECT id, refs, size, row_sum FROM shares WHERE id IN (", "?", ")")
WRITE_SHARES = Rows("INSERT OR REPLACE INTO shares(id, refs, size, row_sum) VALUES ", "(?,?,?,?)")
DELETE_SHARE_IDS = Rows("DELETE FROM shares WHERE id IN (", "?", ")")
WRITE_PACKED = Rows("INSERT OR REPLACE INTO folded(id, enqueued_ms, size, copies, row_sum) VALUES ", "(?,?,?,?,?)")
DELETE_PACKED = Rows("DELETE FROM folded WHERE id IN (", "?", ")")
UPDATE_STATES = Rows(
    "UPDATE messages SET state = n.column2, deliveries = n.column3, special = n.column4, state_sum = n.column5"
    " FROM (VALUES ",
    "(?,?,?,?,?)",
    ") AS n WHERE messages.id = n.column1",
)
UPDATE_SOURCES = Rows(
    "UPDATE sources SET next_count = n.column2, highest_delivered = n.column3, counters = n.column4,"
    " row_sum = n.column5 FROM (VALUES ",
    "(?,?,?,?,?)",
    ") AS n WHERE sources.source_key = n.column1",
)
