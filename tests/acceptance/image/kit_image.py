"""The image as a container engine would run it: by buildah, with a network of its own and a root that is read-only."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pytest

from kits.programs import do_without
from tools import image

REQUIRED = "DUOBUS_REQUIRE_IMAGE"
START_S = 60.0
STOP_S = 30.0

#: What buildah puts into a root that it runs; made before, because the root is read-only by then.
_OWN_FILES = ("run/.containerenv", "etc/hosts", "etc/resolv.conf")


def built_image() -> dict[str, Any]:
    """Build the image, and return what it says about itself; skips, or fails where REQUIRED is set."""
    if not os.environ.get(REQUIRED):
        pytest.skip("make image builds and runs the image")
    lacking = [name for name in (*image.PROGRAMS, "unshare", "nsenter", "ip") if shutil.which(name) is None]
    if lacking:
        do_without(f"not installed: {', '.join(lacking)}", REQUIRED)
    if os.geteuid() != 0:
        do_without("buildah and debootstrap have to be run as root", REQUIRED)
    try:
        return image.build()
    except click.ClickException as error:
        pytest.fail(error.message)


class Volume:
    """A named volume: a folder that gets owner and mode of the place in the image where it is mounted first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder


class ImageRun:
    """A container of the image. What the image's configuration says is acted on here as an engine does.

    Args:
        config: The image's configuration.
        mounts: Path in the container to a file, a folder or a Volume.
        environment: Variables beside the image's.
        arguments: What stands behind the image's name.
        log: File for everything that it prints.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        mounts: Mapping[str, Path | Volume],
        environment: Mapping[str, str],
        arguments: tuple[str, ...],
        log: Path,
    ) -> None:
        self._config = config
        self._log = log
        self._name = image.call(image.buildah("from", "--pull-never", image.NAME))
        self._root = Path(image.call(image.buildah("mount", self._name)))
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        options = ["--isolation", "chroot", "--user", config["User"]]
        for path in config.get("Volumes") or {}:
            # buildah's own form of it would hide what is mounted there.
            image.call(image.buildah("config", "--volume", f"{path}-", self._name))
            mounts = {path: Volume(log.parent / f"unnamed-{self._name}"), **mounts}
        for path, source in mounts.items():
            options += ["--volume", f"{self._prepared(path, source)}:{path}"]
        for name, value in environment.items():
            options += ["--env", f"{name}={value}"]
        for path in _OWN_FILES:
            (self._root / path).parent.mkdir(exist_ok=True)
            (self._root / path).touch()
        self._command = image.buildah("run", *options, self._name, "--", *config["Entrypoint"], *arguments)

    def _prepared(self, path: str, source: Path | Volume) -> Path:
        """What is mounted, with a place for it in the root."""
        place = self._root / path.lstrip("/")
        if isinstance(source, Volume):
            if not source.folder.exists():
                source.folder.mkdir()
                about = place.stat()
                os.chown(source.folder, about.st_uid, about.st_gid)
                source.folder.chmod(about.st_mode & 0o7777)
            return source.folder
        if source.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        return source

    def start(self) -> None:
        """Start it, in a network and with mounts of its own."""
        root = shlex.quote(str(self._root))
        script = (
            "set -e; ip link set lo up; mount --make-rprivate /; "
            f"mount --bind {root} {root}; mount -o remount,bind,ro {root}; exec {shlex.join(self._command)}"
        )
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["unshare", "--mount", "--net", "sh", "-c", script],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_healthy(self) -> None:
        """Run the health check as the image says, until it passes."""
        limit = time.monotonic() + START_S
        while not self.is_healthy():
            assert self._process is not None
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < limit, self.said()
            threading.Event().wait(0.1)

    def is_healthy(self) -> bool:
        kind, *command = self._config["Healthcheck"]["Test"]
        assert kind == "CMD"
        return self._find() and self.inside(*command).returncode == 0

    def inside(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as its user and with the image's variables."""
        user, group = self._config["User"].split(":")
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--net", "--root", "--wd"]
        enter += ["--setgid", group, "--setuid", user, "env", "-i", *self._config["Env"]]
        return subprocess.run([*enter, *command], capture_output=True, text=True, timeout=60)

    def client(self, *arguments: str, address: str) -> str:
        """What duobus of this environment prints to whom the container's ports are reachable."""
        enter = ["nsenter", "--target", str(self.pid), "--net", sys.executable, "-m", "duobus", *arguments]
        environment = os.environ | {"DUOBUS_CONNECTION_STRING": address}
        done = subprocess.run(enter, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self) -> int:
        """Send the image's stop signal to the first process; returns the exit status of the container."""
        assert self._process is not None
        if self._find():
            # At its end buildah takes away what it has put into the root, and loses the status when it cannot. The
            # container has mounts of its own, and its root stays read-only.
            remount = ["nsenter", "--target", str(self._process.pid), "--mount", "mount", "-o", "remount,bind,rw"]
            subprocess.run([*remount, str(self._root)], check=True)
            signal = self._config["StopSignal"].removeprefix("SIG")
            subprocess.run(["kill", "-s", signal, str(self.pid)], check=True)
        return self._process.wait(STOP_S)

    def wait(self) -> int:
        """Wait for its end; the status is another one than 0 when the server has failed."""
        assert self._process is not None
        return self._process.wait(START_S)

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def remove(self) -> None:
        """End it if it still runs, and forget it."""
        if self._process is not None and self._process.poll() is None:
            if self._find():
                subprocess.run(["kill", "-s", "KILL", str(self.pid)])
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        image.call(image.buildah("umount", self._name))
        image.call(image.buildah("rm", self._name))

    def _find(self) -> bool:
        """Look for the first process of the container, below those of buildah; whether it has become the server."""
        assert self._process is not None
        waiting = _children(self._process.pid)
        while waiting:
            pid = waiting.pop()
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if not Path(os.fsdecode(words[0])).name.startswith("buildah"):
                self.pid = pid
                return b"serve" in words
            waiting.extend(_children(pid))
        return False


def _children(pid: int) -> list[int]:
    """The processes that a process has started, by any of its threads."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found.extend(map(int, path.read_text().split()))
    return found


@contextmanager
def running(
    config: Mapping[str, Any],
    log: Path,
    mounts: Mapping[str, Path | Volume] | None = None,
    environment: Mapping[str, str] | None = None,
    arguments: tuple[str, ...] = (),
) -> Iterator[ImageRun]:
    """A container that is healthy; it is removed at the end, stopped or not."""
    made = ImageRun(config, mounts or {}, environment or {}, arguments, log)
    try:
        made.start()
        made.wait_until_healthy()
        yield made
    finally:
        made.remove()
