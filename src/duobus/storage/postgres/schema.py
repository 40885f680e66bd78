"""The SQL of the PostgreSQL store: numbered migrations that only lead forward, functions, and queries.

The integer keys are those of the SQLite store (``schema.py``), and so are the checksums. A copy that shares a body with
others names it in ``body``; the body is a row with a negative key (``shared_bodies.body_key_of``). It is deleted with
the last row that names it, so that there is no number of references that could be wrong.

A commit is one string of statements: the rows to COPY, then calls of the functions below, whose plans PostgreSQL keeps.
Its values are integers and hexadecimal digits that ``rows.py`` made, and nothing else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from duobus.storage.interface import COUNT_BITS, SOURCE_KEY_MAX

#: SQLSTATE of a write by somebody who no longer owns the store, or knows an old epoch of a fragment.
STALE: Final = "DUB01"

# Rows that are updated in every commit get room on their page (HOT); the queue is vacuumed early and never truncated,
# which would lock commits out. Bodies are stored as they are: most are compressed or small, and time is what counts.
_TABLES: Final = """
CREATE TABLE meta(
    id int8 PRIMARY KEY CHECK (id = 1), store_id int8 NOT NULL, generation int8 NOT NULL, revision int8 NOT NULL,
    last_commit_no int8 NOT NULL, broker_ms int8 NOT NULL, next_fragment_key int8 NOT NULL,
    next_source_key int8 NOT NULL, row_sum int8 NOT NULL, rows int8 NOT NULL) WITH (fillfactor = 10);
CREATE TABLE fragments(
    fragment_key int8 PRIMARY KEY, entity_id int8 NOT NULL, fragment_no int8 NOT NULL, epoch int8 NOT NULL,
    row_sum int8 NOT NULL, UNIQUE(entity_id, fragment_no)) WITH (fillfactor = 50);
CREATE TABLE sources(
    source_key int8 PRIMARY KEY, fragment_key int8 NOT NULL, source_no int8 NOT NULL, next_count int8 NOT NULL,
    highest_delivered int8 NOT NULL, counters bytea NOT NULL, row_sum int8 NOT NULL,
    UNIQUE(fragment_key, source_no)) WITH (fillfactor = 20);
CREATE TABLE messages(
    id int8 PRIMARY KEY, enqueued_ms int8 NOT NULL, state int8 NOT NULL, deliveries int8 NOT NULL,
    body_sum int8 NOT NULL, state_sum int8, body int8, special bytea, payload bytea NOT NULL);
ALTER TABLE messages ALTER payload SET STORAGE EXTERNAL, ALTER special SET STORAGE EXTERNAL;
ALTER TABLE messages SET (
    vacuum_truncate = off, toast.vacuum_truncate = off, autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX exceptional ON messages(state, id) WHERE state <> 0;
CREATE INDEX copies ON messages(body) WHERE body IS NOT NULL;
CREATE TABLE totals(home int8 PRIMARY KEY, size int8 NOT NULL) WITH (fillfactor = 20);
CREATE TABLE histories(id int8 PRIMARY KEY, at_ms int8 NOT NULL, ids bytea NOT NULL, row_sum int8 NOT NULL);
CREATE TABLE tombstones(
    id int8 GENERATED ALWAYS AS IDENTITY PRIMARY KEY, store_id int8 NOT NULL, generation int8 NOT NULL,
    commit_no int8 NOT NULL, source_key int8 NOT NULL, first_count int8 NOT NULL, last_count int8 NOT NULL,
    row_sum int8 NOT NULL);
"""

# The condition in ``advance`` is the fence: whoever lost the store to another owner changes no row, and what it did in
# the same transaction is undone (I55). It waits for a transaction of before that is still under way.
_FUNCTIONS: Final = f"""
CREATE FUNCTION advance(
    old_generation int8, old_revision int8, new_generation int8, commit_no int8, ms int8, next_fragment int8,
    next_source int8, check_sum int8, change int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE total int8;
BEGIN
    UPDATE meta SET generation = new_generation, revision = old_revision + 1, last_commit_no = commit_no,
        broker_ms = ms, next_fragment_key = next_fragment, next_source_key = next_source, row_sum = check_sum,
        rows = rows + change
        WHERE id = 1 AND generation = old_generation AND revision = old_revision RETURNING rows INTO total;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another owner has taken the store over' USING ERRCODE = '{STALE}';
    END IF;
    RETURN total;
END $$;
CREATE FUNCTION demand_epochs(keys int8[], known int8[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM unnest(keys, known) AS k(fragment_key, epoch)
               LEFT JOIN fragments f USING (fragment_key) WHERE f.epoch IS DISTINCT FROM k.epoch) THEN
        RAISE EXCEPTION 'a fragment has another epoch' USING ERRCODE = '{STALE}';
    END IF;
END $$;
CREATE FUNCTION write_sources(keys int8[], nexts int8[], delivered int8[], numbers bytea[], sums int8[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE sources s SET next_count = n.next_count, highest_delivered = n.delivered, counters = n.counters,
        row_sum = n.row_sum
        FROM unnest(keys, nexts, delivered, numbers, sums) AS n(source_key, next_count, delivered, counters, row_sum)
        WHERE s.source_key = n.source_key;
END $$;
CREATE FUNCTION write_states(ids int8[], states int8[], counts int8[], specials bytea[], sums int8[])
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE messages m SET state = n.state, deliveries = n.deliveries, special = n.special, state_sum = n.state_sum
        FROM unnest(ids, states, counts, specials, sums) AS n(id, state, deliveries, special, state_sum)
        WHERE m.id = n.id;
END $$;
CREATE FUNCTION remove(firsts int8[], lasts int8[], singles int8[]) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    gone int8 := 0;
    more int8;
BEGIN
    FOR i IN 1 .. cardinality(firsts) LOOP
        DELETE FROM messages WHERE id BETWEEN firsts[i] AND lasts[i];
        GET DIAGNOSTICS more = ROW_COUNT;
        gone := gone + more;
    END LOOP;
    IF cardinality(singles) > 0 THEN
        DELETE FROM messages WHERE id = ANY(singles);
        GET DIAGNOSTICS more = ROW_COUNT;
        gone := gone + more;
    END IF;
    RETURN gone;
END $$;
CREATE FUNCTION remove_slice(first_id int8, last_id int8, most int8) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE gone int8;
BEGIN
    DELETE FROM messages WHERE id = ANY(ARRAY(
        SELECT id FROM messages WHERE id BETWEEN first_id AND last_id ORDER BY id LIMIT most));
    GET DIAGNOSTICS gone = ROW_COUNT;
    RETURN gone;
END $$;
CREATE FUNCTION remove_copies(firsts int8[], lasts int8[]) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    gone int8;
    bodies int8[];
    more int8 := 0;
BEGIN
    WITH old AS (
        DELETE FROM messages m USING unnest(firsts, lasts) AS r(first_id, last_id)
        WHERE m.id BETWEEN r.first_id AND r.last_id RETURNING m.id, m.body, octet_length(m.payload) AS size
    ), less AS (
        UPDATE totals t SET size = t.size - o.size FROM (
            SELECT h.source_key AS home, sum(old.size - 8)::int8 AS size FROM old
            JOIN sources s ON s.source_key = old.id >> {COUNT_BITS}
            JOIN sources h ON h.fragment_key = s.fragment_key AND h.source_no = 0
            WHERE old.body IS NULL GROUP BY h.source_key) o
        WHERE t.home = o.home
    )
    SELECT count(*), array_agg(DISTINCT body) FILTER (WHERE body IS NOT NULL) INTO gone, bodies FROM old;
    IF bodies IS NOT NULL THEN
        WITH old AS (
            DELETE FROM messages b WHERE b.id = ANY(bodies)
            AND NOT EXISTS (SELECT 1 FROM messages c WHERE c.body = b.id)
            RETURNING (b.id >> {COUNT_BITS}) + {SOURCE_KEY_MAX + 1} AS home, octet_length(b.payload) AS size
        ), less AS (
            UPDATE totals t SET size = t.size - o.size
            FROM (SELECT home, sum(size)::int8 AS size FROM old GROUP BY home) o WHERE t.home = o.home
        )
        SELECT count(*) INTO more FROM old;
    END IF;
    RETURN gone + more;
END $$;
CREATE FUNCTION add_totals(homes int8[], sizes int8[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO totals SELECT * FROM unnest(homes, sizes) ON CONFLICT (home) DO UPDATE
        SET size = totals.size + excluded.size;
END $$;
"""

# What every commit calls. A statement for each source and fragment, and none of the functions above: those took the
# server a third of a commit of 50 messages (decision 0032), and sixteen sources in turn take less than a list of them.
# Lists of functions in the place of columns: what stands in FROM is laid aside first.
_PLAIN_COMMIT: Final = f"""
CREATE FUNCTION commit_plain(
    ids int8[], moments int8[], sums int8[], payloads bytea[], firsts int8[], lasts int8[], singles int8[],
    keys int8[], nexts int8[], delivered int8[], numbers bytea[], checks int8[], fragment_keys int8[],
    fragment_epochs int8[], own int8[]) RETURNS int8 LANGUAGE plpgsql AS $$
DECLARE
    change int8 := cardinality(ids);
    gone int8;
BEGIN
    IF change > 0 THEN
        INSERT INTO messages(id, enqueued_ms, state, deliveries, body_sum, payload)
            SELECT unnest(ids), unnest(moments), 0, 0, unnest(sums), unnest(payloads);
    END IF;
    FOR i IN 1 .. cardinality(keys) LOOP
        UPDATE sources SET next_count = nexts[i], highest_delivered = delivered[i], counters = numbers[i],
            row_sum = checks[i] WHERE source_key = keys[i];
    END LOOP;
    FOR i IN 1 .. cardinality(fragment_keys) LOOP
        PERFORM 1 FROM fragments WHERE fragment_key = fragment_keys[i] AND epoch = fragment_epochs[i];
        IF NOT FOUND THEN
            RAISE EXCEPTION 'a fragment has another epoch' USING ERRCODE = '{STALE}';
        END IF;
    END LOOP;
    FOR i IN 1 .. cardinality(firsts) LOOP
        DELETE FROM messages WHERE id BETWEEN firsts[i] AND lasts[i];
        GET DIAGNOSTICS gone = ROW_COUNT;
        change := change - gone;
    END LOOP;
    IF cardinality(singles) > 0 THEN
        DELETE FROM messages WHERE id = ANY(singles);
        GET DIAGNOSTICS gone = ROW_COUNT;
        change := change - gone;
    END IF;
    -- The fence, as in advance().
    UPDATE meta SET generation = own[3], revision = own[2] + 1, last_commit_no = own[4], broker_ms = own[5],
        next_fragment_key = own[6], next_source_key = own[7], row_sum = own[8], rows = rows + change
        WHERE id = 1 AND generation = own[1] AND revision = own[2] RETURNING rows INTO change;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another owner has taken the store over' USING ERRCODE = '{STALE}';
    END IF;
    RETURN change;
END $$;
"""

#: In the order in which they are applied; one that was published is never changed, a further one is appended.
MIGRATIONS: Final = (_TABLES + _FUNCTIONS, _PLAIN_COMMIT)
#: What this version reads and writes; a store with a later migration is refused (I65).
FORMAT_VERSION: Final = len(MIGRATIONS)

#: Which catalog the store belongs to (``catalog_identity.py``), made when it is first told. It is no migration: a
#: version that does not know of it leaves it alone, and may go on to use the store.
HAS_BELONGING: Final = "SELECT to_regclass('belonging') IS NOT NULL"
READ_BELONGING: Final = "SELECT identity, revision, highest_id, is_prepared, row_sum FROM belonging WHERE id = 1"
CREATE_BELONGING: Final = (
    "CREATE TABLE IF NOT EXISTS belonging(id int8 PRIMARY KEY CHECK (id = 1), identity int8 NOT NULL,"
    " revision int8 NOT NULL, highest_id int8 NOT NULL, is_prepared int8 NOT NULL, row_sum int8 NOT NULL)"
)
WRITE_BELONGING: Final = (
    "INSERT INTO belonging VALUES (1, {}, {}, {}, {}, {}) ON CONFLICT (id) DO UPDATE SET identity = excluded.identity,"
    " revision = excluded.revision, highest_id = excluded.highest_id, is_prepared = excluded.is_prepared,"
    " row_sum = excluded.row_sum"
)

#: What the store keeps of its catalog's rows (``catalog_records.py``), made when it is first told, too.
HAS_RECORDS: Final = "SELECT to_regclass('records') IS NOT NULL"
READ_RECORDS: Final = "SELECT name, revision, text, row_sum FROM records ORDER BY name"
CREATE_RECORDS: Final = (
    "CREATE TABLE IF NOT EXISTS records(name text PRIMARY KEY, revision int8 NOT NULL, text bytea NOT NULL,"
    " row_sum int8 NOT NULL)"
)
WRITE_RECORDS: Final = (
    "INSERT INTO records VALUES {} ON CONFLICT (name) DO UPDATE SET revision = excluded.revision,"
    " text = excluded.text, row_sum = excluded.row_sum"
)
DELETE_RECORDS: Final = "DELETE FROM records WHERE name IN ({})"

CREATE_MIGRATIONS: Final = "CREATE TABLE IF NOT EXISTS migrations(number int8 PRIMARY KEY, digest text NOT NULL)"
READ_MIGRATIONS: Final = "SELECT number, digest FROM migrations ORDER BY number"


def digest(migration: str) -> str:
    """What is recorded of a migration, so that a store made by another text is noticed."""
    return sha256(migration.encode()).hexdigest()


META_COLUMNS: Final = (
    "store_id, generation, revision, last_commit_no, broker_ms, next_fragment_key, next_source_key, row_sum, rows"
)
READ_META: Final = f"SELECT {META_COLUMNS} FROM meta WHERE id = 1"
READ_FRAGMENTS: Final = "SELECT fragment_key, entity_id, fragment_no, epoch, row_sum FROM fragments ORDER BY 1"
READ_SOURCES: Final = (
    "SELECT source_key, fragment_key, source_no, next_count, highest_delivered, counters, row_sum"
    " FROM sources ORDER BY 1"
)
READ_TOMBSTONES: Final = (
    "SELECT store_id, generation, commit_no, source_key, first_count, last_count, row_sum FROM tombstones ORDER BY id"
)
READ_TOTALS: Final = "SELECT home, size FROM totals"
READ_SIZE: Final = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::int8 FROM pg_class"
    " WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
)
LOAD_HISTORIES: Final = (
    "SELECT id, at_ms, ids, row_sum FROM histories WHERE id BETWEEN $1::int8 AND $2::int8 ORDER BY id LIMIT $3::int8"
)
READ_IDS: Final = "SELECT id FROM messages WHERE id BETWEEN $1::int8 AND $2::int8 ORDER BY id LIMIT $3::int8"

#: As ``checksums.message_row_fault`` takes them.
_ROW: Final = (
    "{0}.id, {0}.enqueued_ms, {0}.state, {0}.deliveries, {0}.special, {0}.payload, {0}.body_sum, {0}.state_sum"
)
COLUMNS: Final = 8
_BODY: Final = ", m.body, " + _ROW.format("b")


def _page(condition: str, *, with_bodies: bool) -> str:
    """A page of rows that ends with the one that makes it $4 bytes of payload: the answer is in memory as a whole."""
    join = " LEFT JOIN messages b ON b.id = m.body" if with_bodies else ""
    size = "octet_length(payload)"
    if with_bodies:
        size += " + coalesce((SELECT octet_length(o.payload) FROM messages o WHERE o.id = q.body), 0)"
    return (
        f"SELECT {_ROW.format('m')}{_BODY if with_bodies else ''} FROM (SELECT q.*, sum({size})"
        " OVER (ORDER BY q.id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before"
        f" FROM (SELECT * FROM messages WHERE {condition}id BETWEEN $1::int8 AND $2::int8"
        f" ORDER BY id LIMIT $3::int8) q) m{join}"
        " WHERE m.before IS NULL OR m.before < $4::int8 ORDER BY m.id"
    )


LOAD: Final = _page("", with_bodies=False)
LOAD_COPIES: Final = _page("", with_bodies=True)
SCAN: Final = _page("state <> 0 AND state = $5::int8 AND ", with_bodies=False)
SCAN_COPIES: Final = _page("state <> 0 AND state = $5::int8 AND ", with_bodies=True)

COPY_MESSAGES: Final = (
    "COPY messages(id, enqueued_ms, state, deliveries, body_sum, state_sum, body, special, payload)"
    " FROM STDIN (FORMAT binary)"
)
