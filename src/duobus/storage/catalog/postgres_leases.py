"""The table of leases in the catalog's database, or in that of stores; its work is done there, by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from duobus.errors import StoreFailed
from duobus.storage.catalog.leases import Exchange, LeaseTable, Table
from duobus.storage.catalog.postgres import SESSION_LOCK, connect
from duobus.storage.postgres.address import PostgresAddress

if TYPE_CHECKING:
    import psycopg

_R = TypeVar("_R")

_EXCHANGE: Final = "SELECT exchange_times(%s)::text"
#: Wakes all servers, so that nobody waits for the next beat.
_TELL: Final = "SELECT pg_notify(current_schema(), 'leases')"


def session_lock(node_id: str) -> str:
    """The statement by which a session is a server's: a lock that PostgreSQL ends with the session (decision 0067).

    ``node_id``: letters, digits and hyphens.
    """
    return f"SELECT pg_advisory_lock_shared({SESSION_LOCK}, hashtext('{node_id}'))"


class PostgresLeases(LeaseTable):
    """Leases in PostgreSQL, on a connection of their own: they must not wait behind anything.

    Args:
        place: The database, and the catalog's schema in it or, ``of_stores``, that of the leases alone.
        node_id: Of the server whose session this is.
        of_stores: The leases are those of stores whose catalog is in another database.
    """

    def __init__(self, place: PostgresAddress, node_id: str, *, of_stores: bool = False) -> None:
        self._place = place
        self._node_id = node_id
        self._of_stores = of_stores
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def exchange(self, told: Exchange) -> Table:
        """See LeaseTable; one round trip."""
        text = msgspec.json.encode(told).decode()
        row = self._do(lambda connection: connection.execute(_EXCHANGE, (text,)).fetchone())
        if row is None:
            raise StoreFailed("The table of leases gave no answer.")
        return msgspec.json.decode(row[0], type=Table)

    def wait(self, limit_s: float) -> bool:
        """See LeaseTable."""
        return self._do(lambda connection: any(True for _ in connection.notifies(timeout=limit_s, stop_after=1)))

    def forget(self, node_id: str) -> None:
        """See LeaseTable."""
        self._do(lambda connection: connection.execute("DELETE FROM nodes WHERE node_id = %s", (node_id,)))

    def prefer(self, store_id: int, where: str | None) -> None:
        """See LeaseTable."""
        if where is None:
            self._change("DELETE FROM preferences WHERE store_id = %s", (store_id,))
            return
        self._change(
            "INSERT INTO preferences VALUES (%s, %s) ON CONFLICT (store_id) DO UPDATE SET target = excluded.target",
            (store_id, where),
        )

    def drain(self, http_address: str, *, is_wanted: bool) -> None:
        """See LeaseTable."""
        insert = "INSERT INTO drains VALUES (%s) ON CONFLICT DO NOTHING"
        self._change(insert if is_wanted else "DELETE FROM drains WHERE http_address = %s", (http_address,))

    def _change(self, statement: str, values: tuple[object, ...]) -> None:
        def change(connection: psycopg.Connection[tuple[Any, ...]]) -> None:
            with connection.transaction():
                connection.execute(statement.encode(), values)
                connection.execute(_TELL)

        self._do(change)

    def close(self) -> None:
        """Close the connection; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _do(self, call: Callable[[psycopg.Connection[tuple[Any, ...]]], _R]) -> _R:
        import psycopg

        try:
            if self._connection is None:
                self._connection = connect(self._place, "duobus-leases", of_leases=self._of_stores)
                self._connection.execute(session_lock(self._node_id).encode())
                self._connection.execute(f"LISTEN {self._place.schema}".encode())
            return call(self._connection)
        except (psycopg.Error, OSError) as error:
            self.close()
            raise StoreFailed(f"The table of leases failed: {str(error).strip()}") from error
