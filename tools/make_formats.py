"""Writes what a commit's own code keeps on disk, with every feature in use, for tests to open with later code.

    python -m tools.make_formats e97fde9 HEAD

For each commit: ``tests/integration/durability/formats/COMMIT.tar.xz`` with a data folder of SQLite stores, a backup,
an outbox and a file of seen ids, and ``COMMIT-postgres.tar.xz`` with a dump of a database that holds a catalog and
stores. ``HEAD`` is written under that name, from what is committed. Needs PostgreSQL's programs, as the tests do.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from duobus.testing.postgres_server import PostgresServer, programs
from tools.archives import unpack_commit

ROOT: Final = Path(__file__).parent.parent
FORMATS: Final = ROOT / "tests" / "integration" / "durability" / "formats"
PROGRAM: Final = ROOT / "tests" / "integration" / "durability" / "program_formats.py"
LIMIT_S: Final = 300


def package_of(commit: str, folder: Path) -> Path:
    """Put the package of a commit into a folder; where to import it from."""
    unpack_commit(ROOT, commit, folder, "src")
    return folder / "src"


def write(source: Path, folder: Path, *arguments: str, **more: str) -> None:
    """Have the package write its files."""
    folder.mkdir()
    path = os.pathsep.join(map(str, (source, ROOT / "tests", PROGRAM.parent)))
    command = [sys.executable, str(PROGRAM), str(folder), *arguments]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path} | more, check=True, timeout=LIMIT_S)


def pack(folder: Path, target: Path, *names: str) -> None:
    """Compress some of a folder. The files belong to nobody in particular."""

    def nobodys(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(target, "w:xz", preset=9) as tar:
        for name in names:
            tar.add(folder / name, name, filter=nobodys)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size} bytes")


def dump(server: PostgresServer) -> str:
    """The database as statements."""
    command = [str(programs() / "pg_dump"), "--inserts", "--no-owner", "--no-privileges", server.url()]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def make(commit: str) -> None:
    """Write both files of a commit."""
    with tempfile.TemporaryDirectory(prefix="duobus-formats-", ignore_cleanup_errors=True) as name:
        work = Path(name)
        # PostgreSQL's processes are another user's, if we are root.
        work.chmod(0o755)
        source = package_of(commit, work / "package")
        write(source, work / "files")
        pack(work / "files", FORMATS / f"{commit}.tar.xz", "data", "backups", "found.json", "outbox.db", "seen.db")
        server = PostgresServer(work / "server", durable=True)
        server.create()
        server.start()
        try:
            # The catalog keeps the address, which has to be the same wherever the dump is loaded.
            where = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
            write(source, work / "database", "postgresql:///postgres", **where)
            (work / "database" / "dump.sql").write_text(dump(server))
        finally:
            server.remove()
        pack(work / "database", FORMATS / f"{commit}-postgres.tar.xz", "dump.sql", "found.json")


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("commits", nargs="+", help="commits, by the names that the files get")
    FORMATS.mkdir(exist_ok=True)
    for commit in parser.parse_args().commits:
        make(commit)


if __name__ == "__main__":
    main()
