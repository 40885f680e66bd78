"""A network of this machine alone, whose wires can be cut: each server in a network namespace of its own.

    hub ---- PostgreSQL, servers          one bridge in a namespace of its own, where clients are, too

A cut is silent: both ends send their frames to an address that nobody has, so that no packet arrives and no reset is
heard, for connections that exist as for new ones. That is the worst case, and takes nothing but ``ip``. A cut of one
way is the same at one of the ends.
Namespaces carry the id of the process that made them; what a process that is gone has left is removed by the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from duobus.testing.postgres_server import PostgresServer

PREFIX: Final = "duobus-cut-"
#: A network for documentation and tests (RFC 5737): nothing of it is routed anywhere.
_SUBNET: Final = "192.0.2."
_HUB: Final = "hub"
_HUB_ADDRESS: Final = f"{_SUBNET}254"
#: Nobody's: a locally administered address that no end was given.
_NOBODY: Final = "02:00:00:00:00:00"
_NEW_NETWORK: Final = 0x4000_0000
_LEFT = itertools.count(1)


def reason_against() -> str | None:
    """Why this machine cannot have such networks; None when it can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "there is no ip (iproute2) to make network namespaces with"
    name = f"{PREFIX}{os.getpid()}-try{next(_LEFT)}"
    steps = [("netns", "add", name), ("-n", name, "link", "add", "br0", "type", "bridge")]
    steps.append(("-n", name, "link", "add", "port0", "type", "veth", "peer", "name", "eth0"))
    try:
        for words in steps:
            _ip(*words)
    except subprocess.CalledProcessError as error:
        return f"no network namespaces can be made here: {error.stderr.strip()}"
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
    return None


class Network:
    """Namespaces with one address each, wired to a bridge.

    Args:
        names: Of the ends, short.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._prefix = f"{PREFIX}{os.getpid()}-{next(_LEFT)}-"
        self._addresses = {name: f"{_SUBNET}{number}" for number, name in enumerate(names, 1)}
        self._cuts: set[tuple[str, str]] = set()

    def address(self, name: str) -> str:
        """The address of an end."""
        return self._addresses[name]

    def make(self) -> None:
        """Make it; what processes that are gone have left is removed before."""
        remove_leftovers()
        hub = self._space(_HUB)
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "set", "lo", "up")
        _ip("-n", hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", hub, "addr", "add", f"{_HUB_ADDRESS}/24", "dev", "br0")
        _ip("-n", hub, "link", "set", "br0", "up")
        for number, (name, address) in enumerate(self._addresses.items()):
            space, port = self._space(name), f"port{number}"
            _ip("netns", "add", space)
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", hub, "link", "set", port, "master", "br0", "up")
            _ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def words(self, name: str) -> list[str]:
        """What a command begins with that is run at an end, or at the hub when the name is ``hub``."""
        return ["ip", "netns", "exec", self._space(name)]

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Sockets and processes that this thread makes meanwhile are at an end."""
        with Path("/proc/thread-self/ns/net").open() as home, Path("/run/netns", self._space(name)).open() as space:
            _enter(space.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def cut(self, one: str, other: str) -> None:
        """From now on nothing passes between two ends, in either direction, and nobody is told."""
        self.block([(one, other), (other, one)])

    def block(self, ways: Iterable[tuple[str, str]]) -> None:
        """From now on nothing passes from the first to the second of each of these pairs of ends.

        What the second sends to the first arrives: the end that sends has the wrong address, and no other.
        """
        words: dict[str, list[str]] = {}
        for source, target in ways:
            line = f"neigh replace {self.address(target)} lladdr {_NOBODY} nud permanent dev eth0"
            words.setdefault(source, []).append(line)
            self._cuts.add((source, target))
        self._play(words)

    def heal(self) -> None:
        """Undo all cuts."""
        words: dict[str, list[str]] = {}
        for source, target in sorted(self._cuts):
            words.setdefault(source, []).append(f"neigh del {self.address(target)} dev eth0")
        self._cuts.clear()
        self._play(words)

    def _play(self, words: dict[str, list[str]]) -> None:
        """Give each of these ends its commands, all of an end by one process."""
        for end, lines in words.items():
            _ip("-n", self._space(end), "-batch", "-", given="\n".join(lines) + "\n")

    def remove(self) -> None:
        """Remove it, with the processes that are left in it."""
        _remove(self._prefix)

    def _space(self, name: str) -> str:
        return self._prefix + name


@contextmanager
def running_network(names: Iterable[str]) -> Iterator[Network]:
    """A network that is gone afterwards."""
    network = Network(names)
    try:
        network.make()
        yield network
    finally:
        network.remove()


def remove_leftovers() -> None:
    """Remove the networks of processes that are no more."""
    owners = {name.removeprefix(PREFIX).split("-")[0] for name in _spaces(PREFIX)}
    for owner in owners:
        if owner.isdigit() and not Path("/proc", owner).exists():
            _remove(f"{PREFIX}{owner}-")


def spaces_of(pid: int) -> list[str]:
    """The namespaces that are there in the name of a process."""
    return _spaces(f"{PREFIX}{pid}-")


class NetworkedPostgres(PostgresServer):
    """PostgreSQL at an end of a network; for others it is at the end's address."""

    def __init__(self, network: Network, name: str, *arguments: Any, **options: Any) -> None:
        self._network = network
        self._name = name
        listen = f"127.0.0.1,{network.address(name)}"
        super().__init__(*arguments, settings={"listen_addresses": listen}, **options)

    def create(self) -> None:
        """See PostgresServer; it lets the whole network in."""
        super().create()
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write(f"host all all {_SUBNET}0/24 trust\n")

    def start(self) -> None:
        """See PostgresServer."""
        with self._network.inside(self._name):
            super().start()

    def url(self, database: str = "postgres", **parameters: str) -> str:
        """See PostgresServer."""
        return super().url(database, **parameters).replace("127.0.0.1", self._network.address(self._name))


def _spaces(prefix: str) -> list[str]:
    found = _ip("netns", "list").splitlines()
    return [line.split()[0] for line in found if line.startswith(prefix)]


def _remove(prefix: str) -> None:
    for name in _spaces(prefix):
        try:
            for pid in _ip("netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            _ip("netns", "del", name)
        except subprocess.CalledProcessError:
            # Another process that runs tests may have removed the namespace meanwhile.
            if name in _spaces(name):
                raise


def _ip(*words: str, given: str | None = None) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, input=given).stdout


def _enter(handle: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "setns")
