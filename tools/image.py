"""Build the container image where no image registry is reached: by buildah, over a base made by debootstrap.

    apt-get install buildah debootstrap
    python tools/image.py                builds deploy/Dockerfile of this folder as localhost/duobus

As root on Debian or Ubuntu. Everything is kept in .build/image: the base and the packages that pip installs are made
once, and again when what they depend on changes. The Dockerfile is the one that everybody uses. Two things differ: the
base, which is a build argument, and the place where pip finds packages, which is a folder that was filled before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

ROOT: Final = Path(__file__).resolve().parents[1]
PLACE: Final = ROOT / ".build" / "image"
NAME: Final = "localhost/duobus"
BASE: Final = "localhost/duobus-base"
#: Debian's release and what the base has beside the least.
SUITE: Final = "bookworm"
PACKAGES: Final = "python3,python3-venv"
DOCKERFILE: Final = ROOT / "deploy" / "Dockerfile"
PROGRAMS: Final = ("buildah", "debootstrap")


def missing() -> list[str]:
    """Programs that have to be installed first."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


def buildah(*arguments: str) -> list[str]:
    """A command line of buildah on images of our own, in which no daemon and no kernel feature has a part."""
    storage = ["--storage-driver", "vfs", "--root", str(PLACE / "storage"), "--runroot", str(PLACE / "run")]
    return ["buildah", *storage, *arguments]


def call(command: Sequence[str]) -> str:
    """Run a command to its end and return what it printed.

    Raises:
        click.ClickException: It failed; the text is the end of what it said.
    """
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-20:])
        raise click.ClickException(f"{' '.join(command[:1])} failed with status {done.returncode}:\n{end}")
    return done.stdout.strip()


def _is_made(stamp: Path, text: str) -> bool:
    return stamp.exists() and stamp.read_text() == text


def make_base() -> None:
    """The base image: Debian with Python, of packages of the machine's own mirror."""
    stamp = PLACE / "base.made"
    if _is_made(stamp, f"{SUITE} {PACKAGES}"):
        return
    stamp.unlink(missing_ok=True)
    folder = PLACE / "base"
    shutil.rmtree(folder, ignore_errors=True)
    call(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(folder), *_mirror()])
    # Packages are not needed any more; an image from a registry has none either.
    for name in ("var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(folder / name, ignore_errors=True)
    container = call(buildah("from", "scratch"))
    try:
        call(buildah("add", "--quiet", container, str(folder), "/"))
        call(buildah("commit", "--quiet", container, BASE))
    finally:
        call(buildah("rm", container))
    stamp.write_text(f"{SUITE} {PACKAGES}")


def _mirror() -> list[str]:
    """The mirror that this machine's apt uses; debootstrap has its own default."""
    found = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)", f"Release: {SUITE}"], capture_output=True, text=True
    )
    return found.stdout.split()[:1] if found.returncode == 0 else []


def extras() -> list[str]:
    """Extras in the image: the Dockerfile's default."""
    (line,) = (one for one in DOCKERFILE.read_text().splitlines() if one.startswith("ARG EXTRAS="))
    return line.partition("=")[2].split(",")


def make_packages() -> Path:
    """A folder with everything that pip installs into the image, for the Python of the base."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *(one for extra in extras() for one in project["project"]["optional-dependencies"][extra]),
        *project["build-system"]["requires"],
    ]
    constraints = ROOT / "constraints.txt"
    text = json.dumps([SUITE, wanted, hashlib.sha256(constraints.read_bytes()).hexdigest()])
    folder, stamp = PLACE / "packages", PLACE / "packages.made"
    if not _is_made(stamp, text):
        stamp.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        version = call(
            ["chroot", str(PLACE / "base"), "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
        )
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
        command += ["--only-binary=:all:", "--python-version", version, "-c", str(constraints), "-d", str(folder)]
        call([*command, *wanted])
        stamp.write_text(text)
    return folder


def build() -> dict[str, Any]:
    """Build the image of this folder, and return its configuration."""
    PLACE.mkdir(parents=True, exist_ok=True)
    make_base()
    packages = make_packages()
    command = buildah("bud", "--isolation", "chroot", "--format", "docker", "--pull-never", "--layers=false")
    for argument in (f"BASE={BASE}", "PIP_NO_INDEX=1", "PIP_FIND_LINKS=/packages"):
        command += ["--build-arg", argument]
    command += ["--volume", f"{packages}:/packages:ro"]
    command += ["--ignorefile", str(ROOT / "deploy" / "Dockerfile.dockerignore")]
    command += ["--file", str(DOCKERFILE), "--tag", NAME]
    call([*command, str(ROOT)])
    # What had this name before.
    call(buildah("rmi", "--prune"))
    return configuration()


def configuration() -> dict[str, Any]:
    """What the image says about itself: user, volumes, ports, health check, stop signal, variables, entry point."""
    found = json.loads(call(buildah("inspect", "--type", "image", NAME)))
    config: dict[str, Any] = json.loads(found["Config"])["config"]
    return config


@click.command()
def main() -> None:
    """Build the image and print its configuration."""
    lacking = missing()
    if lacking:
        raise click.ClickException(f"Install these first: apt-get install {' '.join(lacking)}")
    if os.geteuid() != 0:
        raise click.ClickException("debootstrap and buildah have to be run as root here.")
    click.echo(json.dumps(build(), indent=2))


if __name__ == "__main__":
    main()
