"""PostgreSQL behind a pooler, over TLS, without connections left, made read-only, and under much churn (issue 27)."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from kit_faults import until
from kit_postgres import Bus, can_send, start_again

from duobus.clock import Clock, Entropy
from duobus.errors import StoreFailed
from duobus.gateway.tls import SelfSigned, TlsFiles
from duobus.storage.catalog.leases import Exchange, NodeDetails, NodeEntry
from duobus.storage.catalog.postgres_leases import PostgresLeases
from duobus.storage.postgres.address import catalog_place, parse
from duobus.storage.postgres.store import PostgresStore
from duobus.testing.ports import HeldPort
from duobus.testing.postgres_server import PostgresServer
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # The SDK forgets the socket of a connection that could not be made.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]
#: As root these programs refuse to run, and files of the server have to be its own.
_USER = "nobody"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    """One of this test alone, which syncs."""
    with running_postgres(durable=True) as server:
        yield server


class Pooler:
    """PgBouncer in session mode, before a PostgreSQL server."""

    def __init__(self, folder: Path, postgres: PostgresServer, tls: TlsFiles | None = None) -> None:
        self._held = HeldPort()
        self.url = f"postgresql://postgres@127.0.0.1:{self._held.number}/postgres"
        self._config = folder / "pgbouncer.ini"
        self._config.write_text(
            f"[databases]\n* = host=127.0.0.1 port={postgres.port} user=postgres\n[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._held.number}\nunix_socket_dir =\nauth_type = any\n"
            "pool_mode = session\ndefault_pool_size = 30\nserver_login_retry = 1\nignore_startup_parameters = options\n"
            + ("" if tls is None else self._copied(folder, tls))
        )
        folder.chmod(0o755)
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def _copied(folder: Path, tls: TlsFiles) -> str:
        lines = ["client_tls_sslmode = require"]
        for name, path in (("cert", tls.certificate), ("key", tls.key)):
            place = folder / f"{name}.pem"
            place.write_bytes(path.read_bytes())
            place.chmod(0o600)
            if os.geteuid() == 0:
                owner = pwd.getpwnam(_USER)
                os.chown(place, owner.pw_uid, owner.pw_gid)
            lines.append(f"client_tls_{name}_file = {place}")
        return "\n".join(lines) + "\n"

    def start(self) -> None:
        """Start it."""
        user = ["-u", _USER] if os.geteuid() == 0 else []
        self._process = subprocess.Popen(
            ["pgbouncer", "-q", *user, str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        def listens() -> bool:
            assert self._process is not None
            assert self._process.poll() is None, f"PgBouncer ended with status {self._process.returncode}"
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self._held.number)) == 0

        until(listens)

    def stop(self) -> None:
        """Kill it: all connections break at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextmanager
def _pooler(postgres: PostgresServer, tls: TlsFiles | None = None) -> Iterator[Pooler]:
    if shutil.which("pgbouncer") is None:
        pytest.skip("PgBouncer is not installed")
    # Below a folder that other users may read.
    with tempfile.TemporaryDirectory(prefix="duobus-pooler-") as folder:
        pooler = Pooler(Path(folder), postgres, tls)
        pooler.start()
        try:
            yield pooler
        finally:
            pooler.stop()


def test_a_store_behind_pgbouncer_in_session_mode_outlives_restarts_of_everything(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    with _pooler(postgres) as pooler:
        bus = Bus(tmp_path, pooler.url)
        with bus.process:
            with bus.traffic() as more:
                more(100)
                bus.process.restart()
                more(100)
                pooler.stop()
                pooler.start()
                more(100)
                postgres.stop("immediate")
                start_again(postgres)
                more(100)
            bus.verify()


def test_the_end_of_a_server_is_seen_through_pgbouncer(postgres: PostgresServer) -> None:
    def told(name: str, *gone: str) -> Exchange:
        me = NodeEntry(name, name, name, False, NodeDetails(keeps_own=True))
        return Exchange(me, 60_000, {}, {}, {}, gone=gone)

    with _pooler(postgres) as pooler:
        place = catalog_place(pooler.url)
        with closing(PostgresLeases(place, "one")) as one, closing(PostgresLeases(place, "two")) as two:
            until(lambda: _asks(one, told("one")))
            two.exchange(told("two"))
            assert len(two.exchange(told("two", "one")).nodes) == 2
            one.close()
            until(lambda: [node.node_id for node in two.exchange(told("two", "one")).nodes] == ["two"])


def _asks(leases: PostgresLeases, told: Exchange) -> bool:
    try:
        leases.exchange(told)
    except StoreFailed:
        # The pooler has only just begun to listen.
        return False
    return True


def test_a_postgresql_without_connections_left_is_named_as_the_reason() -> None:
    with running_postgres(max_connections="8", superuser_reserved_connections="3") as postgres:
        postgres.execute("CREATE ROLE other LOGIN")
        held = []
        try:
            while True:
                held.append(psycopg.connect(postgres.url().replace("postgres@", "other@")))
        except psycopg.Error:
            pass
        try:
            store = PostgresStore(parse(postgres.url().replace("postgres@", "other@")).in_schema("full"), 1)
            with pytest.raises(StoreFailed, match="no connection left; raise its max_connections"):
                store.open()
        finally:
            for one in held:
                one.close()


def test_tls_to_the_database_is_verified_with_an_authority_of_ones_own(
    tmp_path: Path, postgres: PostgresServer
) -> None:
    # The PostgreSQL of the tests is built without TLS; the pooler speaks it in its place.
    files = SelfSigned(tmp_path / "tls", Clock(), Entropy()).ensure([])
    with _pooler(postgres, files) as pooler:
        address = f"{pooler.url.replace('127.0.0.1', 'localhost')}?sslmode=verify-full&sslrootcert="
        bus = Bus(tmp_path / "bus", f"{address}{files.authority}")
        with bus.process:
            with bus.traffic() as more:
                more(40)
            bus.verify()
        stranger = SelfSigned(tmp_path / "stranger", Clock(), Entropy()).ensure([]).authority
        with pytest.raises(StoreFailed, match="its certificate is not trusted; give sslrootcert"):
            PostgresStore(parse(f"{address}{stranger}").in_schema("none"), 1).open()


def test_a_database_that_is_made_read_only_refuses_and_loses_nothing(tmp_path: Path, postgres: PostgresServer) -> None:
    def set_read_only(value: str) -> None:
        postgres.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
        postgres.execute("SELECT pg_reload_conf()")

    bus = Bus(tmp_path, postgres.url())
    with bus.process:
        with bus.traffic() as more:
            more(100)
            set_read_only("on")
            until(lambda: "read-only" in bus.process.log_path.read_text())
            acknowledged = len(bus.outcomes.acknowledged)
            with bus.client() as client:
                assert not can_send(bus, client)
            assert len(bus.outcomes.acknowledged) <= acknowledged + 20
            # The session that ends it says so itself: the default is read-only.
            with_option = postgres.url(options="-c%20default_transaction_read_only%3Doff")
            with psycopg.connect(with_option, autocommit=True) as connection:
                connection.execute("ALTER SYSTEM SET default_transaction_read_only = off")
                connection.execute("SELECT pg_reload_conf()")
            more(100)
        bus.verify()


def test_tables_stay_small_while_messages_come_and_go(tmp_path: Path, postgres: PostgresServer) -> None:
    bus = Bus(tmp_path, postgres.url())

    def sizes() -> dict[str, int]:
        return dict(
            postgres.execute(
                "SELECT c.relname::text, pg_total_relation_size(c.oid) FROM pg_class c JOIN pg_namespace n"
                " ON n.oid = c.relnamespace WHERE c.relkind = 'r' AND n.nspname LIKE 'duobus%'"
            )
        )

    with bus.process:
        with bus.traffic() as more:
            more(2_000)
            before = sizes()
            begun = time.monotonic()
            more(6_000)
            after = sizes()
        print(f"{before} and {after} after {time.monotonic() - begun:.0f} s")
        bus.verify()
    # Rows that every commit changes have room on their page, and are pruned there.
    for name in ("meta", "sources", "fragments"):
        assert after[name] <= max(2 * before[name], 200_000), (name, before, after)
