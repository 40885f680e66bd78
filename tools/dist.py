"""Build the source archive and the wheel of a commit, the same bytes each time, and check them.

    python -m tools.dist                 into dist/, from the commit that is checked out
    python -m tools.dist --output DIR

What is built is the commit and not the folder: what is not committed is left out, and said. The wheel is built from the
source archive, so that an archive that lacks something shows here. Times in both are that of the commit, or what
SOURCE_DATE_EPOCH says; owners, modes and the order of files do not depend on who builds. The tools come from the
registry, at fixed versions, into a folder of their own.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path
from typing import Final

import click

from tools.archives import unpack, unpack_commit

ROOT: Final = Path(__file__).resolve().parents[1]
#: Another version of the backend may write other bytes.
TOOLS: Final = ("build==1.3.0", "setuptools==80.9.0", "twine==6.2.0")
_PLACE: Final = ROOT / ".build" / "dist-tools"
#: A wheel cannot be older.
_ZIP_BEGIN: Final = 315_532_800


def tools() -> Path:
    """The interpreter that has the tools, made if it is missing or has others."""
    python = _PLACE / "bin" / "python"
    stamp = _PLACE / "versions"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        # A pip in there would be installed and compiled first, and most of what the tools bring is never imported.
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(_PLACE)], check=True)
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-input", "--no-compile", *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return python


def commit_time(commit: str = "HEAD") -> int:
    """What SOURCE_DATE_EPOCH says, or when the commit was made."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given) if given else int(_git("log", "-1", "--format=%ct", commit))


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def build(output: Path, commit: str = "HEAD") -> list[Path]:
    """Build the source archive and the wheel of a commit into a folder, and return their paths."""
    python = tools()
    epoch = max(commit_time(commit), _ZIP_BEGIN)
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        unpack_commit(ROOT, commit, place / "tree")
        archive = _run_build(python, "--sdist", place / "tree", place / "sdist", epoch)
        same = _repack_tar(archive.read_bytes(), epoch)
        with tarfile.open(fileobj=io.BytesIO(same)) as tar:
            unpack(tar, place / "unpacked")
        (unpacked,) = (place / "unpacked").iterdir()
        wheel = _run_build(python, "--wheel", unpacked, place / "wheel", epoch)
        output.mkdir(parents=True, exist_ok=True)
        for path, data in ((archive, same), (wheel, _repack_zip(wheel.read_bytes(), epoch))):
            (output / path.name).write_bytes(data)
    return [output / archive.name, output / wheel.name]


def _run_build(python: Path, kind: str, source: Path, output: Path, epoch: int) -> Path:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "DUOBUS_COMPILE")}
    subprocess.run(
        [str(python), "-m", "build", kind, "--no-isolation", "--outdir", str(output), str(source)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment | {"SOURCE_DATE_EPOCH": str(epoch)},
    )
    (made,) = output.iterdir()
    return made


def _repack_tar(data: bytes, epoch: int) -> bytes:
    """The same archive with times, owners, modes and order that do not depend on who builds."""
    made = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(data)) as old,
        gzip.GzipFile(filename="", fileobj=made, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new,
    ):
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    return made.getvalue()


def _repack_zip(data: bytes, epoch: int) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        # What is known about the packages comes last, as the format of wheels advises.
        for name in sorted(old.namelist(), key=lambda one: (".dist-info/" in one, one)):
            member = zipfile.ZipInfo(name, time.gmtime(epoch)[:6])
            member.compress_type = zipfile.ZIP_DEFLATED
            member.external_attr = 0o100644 << 16
            member.create_system = 3
            new.writestr(member, old.read(name))
    return made.getvalue()


def check(paths: list[Path]) -> None:
    """Have twine look at what a package index would show; raises CalledProcessError."""
    subprocess.run([str(tools()), "-m", "twine", "check", "--strict", *map(str, paths)], check=True)


@click.command()
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "dist")
def main(output: Path) -> None:
    """Build both, check both, and print their digests."""
    if _git("status", "--porcelain", "--untracked-files=no"):
        click.echo("What is not committed is left out.", err=True)
    paths = build(output)
    check(paths)
    for path in paths:
        click.echo(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path}")


if __name__ == "__main__":
    main()
