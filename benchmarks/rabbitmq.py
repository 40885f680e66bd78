"""RabbitMQ as a peer: a private node of Debian's package, with one durable quorum queue behind its AMQP 1.0 plugin.

Private means: a node name, data, configuration, cookie, plugin list and port mapper (epmd) of its own in a temporary
folder, ports that were free, everything on 127.0.0.1. A RabbitMQ that the machine runs is neither used nor disturbed.
Several nodes are a cluster, in which each has a copy of the queue.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter, sleep
from typing import BinaryIO

from benchmarks.load.link import Target
from benchmarks.load.workloads import queue_name
from benchmarks.peers import LOG_TAIL, Peer, PeerError, end_of_log

PACKAGE = "rabbitmq-server"
INSTALL_ROOT = Path("/usr/lib/rabbitmq/lib")
NAME = "rabbitmq-quorum"
QUEUE = "bench"
INSTALL_TIMEOUT = 600.0
MAPPER_PORT = 4369
"""Where the machine's own port mapper listens, if there is one."""

_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
log.console = true
log.console.level = warning
log.file = false
"""
# An evaluated expression instead of a client: the package brings no tool that declares queues without the management
# plugin, which would take processor time from the broker.
_DECLARE = (
    'rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"{name}">>), true, false, '
    '[{{<<"x-queue-type">>, longstr, <<"quorum">>}}], none, <<"bench">>).'
)
_MEMBERS = (
    '{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{name}">>)), '
    "length(maps:get(nodes, amqqueue:get_type_state(Q)))."
)
_RESOURCE = 'rabbit_misc:r(<<"/">>, queue, list_to_binary(io_lib:format("{name}-~4..0B", [N])))'
_DECLARE_MANY = (
    f"[rabbit_amqqueue:declare({_RESOURCE}, true, false, "
    '[{{<<"x-queue-type">>, longstr, <<"quorum">>}}], none, <<"bench">>) || N <- lists:seq(0, {last})], ok.'
)
_DELETE_MANY = (
    f"[begin {{{{ok, Q}}}} = rabbit_amqqueue:lookup({_RESOURCE}), "
    'rabbit_amqqueue:delete(Q, false, false, <<"bench">>) end || N <- lists:seq(0, {last})], ok.'
)


class NotInstalled(PeerError):
    """There is no RabbitMQ 3 from the package; the text says how to get it."""


def installation(root: Path = INSTALL_ROOT) -> tuple[Path, str]:
    """Return the folder of the package's programs and the version of RabbitMQ.

    Raises:
        NotInstalled: the package is not there, or is one whose plugins and addresses differ (RabbitMQ 4).
    """
    for folder in sorted(root.glob("rabbitmq_server-*")):
        version = folder.name.partition("-")[2]
        if not version.startswith("3."):
            raise NotInstalled(f"the comparison knows RabbitMQ 3 (3.10 in Debian 12), not {version}")
        if (folder / "sbin" / "rabbitmq-server").exists():
            return folder / "sbin", version
    raise NotInstalled(
        "RabbitMQ is not installed. As root on Debian 12 run this again with --install-peer, which runs apt-get update"
        f" and apt-get install {PACKAGE}; or install that package yourself"
    )


def install() -> bool:
    """Install Debian's package unless it is there, and stop the service that the installation started, if any.

    Returns:
        Whether anything was installed.

    Raises:
        PeerError: this is not root, there is no apt-get, or the installation failed; with the end of what it said.
    """
    with suppress(NotInstalled):
        installation()
        return False
    if shutil.which("apt-get") is None:
        raise PeerError(f"--install-peer needs apt-get (Debian 12); install {PACKAGE} 3.10 some other way")
    if os.geteuid() != 0:
        raise PeerError(f"--install-peer needs root: sudo apt-get install {PACKAGE}, then run this without it")
    apt = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    had_mapper = _listens(MAPPER_PORT)
    _apt(["apt-get", "update", "--quiet"], apt)
    _apt(["apt-get", "install", "--quiet", "--yes", "--no-install-recommends", PACKAGE], apt)
    _stop_service(had_mapper)
    installation()
    return True


def _stop_service(had_mapper: bool) -> None:
    """Stop the service that the installation starts; it was not there before, so it is ours to stop."""
    if Path("/run/systemd/system").is_dir() and shutil.which("systemctl"):
        subprocess.run(["systemctl", "disable", "--now", PACKAGE], capture_output=True, check=False)
    elif Path("/run/rabbitmq/pid").exists():
        subprocess.run([f"/etc/init.d/{PACKAGE}", "stop"], capture_output=True, check=False)
    if not had_mapper and _listens(MAPPER_PORT):
        # a port mapper stays behind its node; it refuses to end while it serves another one
        subprocess.run([_epmd(), "-port", str(MAPPER_PORT), "-kill"], capture_output=True, check=False)


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1.0).close()
        return True
    return False


def _apt(command: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT
    )
    if done.returncode != 0:
        raise PeerError(f"{' '.join(command)} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")


class _Node:
    """One node: an Erlang machine, with the folder and the ports that are its own.

    Args:
        programs: the folder of the package's programs.
        folder: for all that the node writes; it is made.
        shared: the folder that all nodes of a cluster have as their home, with the cookie in it.
        ports: for clients, for the other nodes and rabbitmqctl, and that of the port mapper.
    """

    def __init__(self, programs: Path, folder: Path, shared: Path, ports: tuple[int, int, int]) -> None:
        self.port, node_port, mapper_port = ports
        self.name = f"duobus-bench-{shared.name[-8:]}-{folder.name}@localhost"
        self.pid = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._programs = programs
        self._folder = folder
        folder.mkdir()
        (folder / "rabbitmq.conf").write_text(_CONFIG.format(port=self.port))
        (folder / "enabled_plugins").write_text("[rabbitmq_amqp1_0].\n")
        (folder / "environment").write_text("")
        own = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        self.environment = {
            **own,
            "HOME": str(shared),
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_CONF_ENV_FILE": str(folder / "environment"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "logs"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_DIST_PORT": str(node_port),
            "ERL_EPMD_PORT": str(mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_AFLAGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_CRASH_DUMP_SECONDS": "0",
        }

    def start(self, log: BinaryIO) -> None:
        # a session of its own, so that nothing of it is left when the group is ended
        self.process = subprocess.Popen(
            [str(self._programs / "rabbitmq-server")],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def note_pid(self) -> None:
        """Keep the process id of the Erlang machine, which the node writes before it opens its listeners."""
        self.pid = int((self._folder / "pid").read_text())

    def stop(self, timeout: float) -> None:
        if self.process is None:
            return
        if self.pid:
            # the Erlang machine ends in good order at SIGTERM, and the script that started it with it
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout)
        # also its helpers, which do not end at once; the group is gone when all have
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class RabbitPeer(Peer):
    """Private RabbitMQ nodes with a durable quorum queue, which syncs before it accepts.

    Args:
        data_root: the folder in which data folders are made; it should lie on the disk that counts.
        root: where the package keeps its programs.
        timeout: seconds that start and stop of a node may take.
        nodes: how many. Several are a cluster with a copy of the queue on each; its leader is on the first, to which
            the load goes.

    Raises:
        NotInstalled: see `installation`.
    """

    def __init__(self, *, data_root: Path, root: Path = INSTALL_ROOT, timeout: float = 90.0, nodes: int = 1) -> None:
        super().__init__(NAME)
        self._programs, self.version = installation(root)
        self._data_root = data_root
        self._timeout = timeout
        self._count = nodes
        self._folder: Path | None = None
        self._nodes: list[_Node] = []
        self._mapper: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the nodes and declare the queue; see `Peer.start`."""
        self.stop()
        self._folder = folder = Path(tempfile.mkdtemp(prefix="duobus-bench-rabbit-", dir=self._data_root))
        cookie = folder / ".erlang.cookie"
        cookie.touch(0o600)
        cookie.write_text(secrets.token_hex(16))
        mapper_port, *ports = _free_ports(1 + 2 * self._count)
        with (folder / "log").open("wb") as log:
            started = perf_counter()
            for number in range(self._count):
                own = (ports[2 * number], ports[2 * number + 1], mapper_port)
                node = _Node(self._programs, folder / f"node-{number}", folder, own)
                self._nodes.append(node)
                if self._mapper is None:
                    # as a child, since the one that the node would start is a daemon and would outlive the run
                    self._mapper = subprocess.Popen(
                        [_epmd(), "-port", str(mapper_port), "-address", "127.0.0.1"],
                        env=node.environment,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                    )
                    self._await_port(mapper_port, started)
                begun = perf_counter()
                node.start(log)
                # RabbitMQ opens its listeners at the end of its start
                self._await_port(node.port, begun)
                node.note_pid()
        for node in self._nodes[1:]:
            self._control("stop_app", node=node)
            self._control("join_cluster", self._nodes[0].name, node=node)
            self._control("start_app", node=node)
        self._control("eval", _DECLARE.format(name=QUEUE))
        if self._count > 1 and (found := self._control("eval", _MEMBERS.format(name=QUEUE)).strip()) != str(
            self._count
        ):
            raise PeerError(f"the queue of {self.name} is on {found} nodes, not on {self._count}")
        return perf_counter() - started

    def _await_port(self, port: int, started: float) -> None:
        while perf_counter() - started < self._timeout:
            for process in (self._mapper, *(node.process for node in self._nodes)):
                if process is not None and process.poll() is not None:
                    raise PeerError(f"{self.name} ended while it started:\n{self.log_tail()}")
            if _listens(port):
                return
            sleep(0.02)
        raise PeerError(f"{self.name} was not ready within {self._timeout:g} s:\n{self.log_tail()}")

    def _control(self, *words: str, node: _Node | None = None) -> str:
        """Run rabbitmqctl at a node, the first unless another is named."""
        command = [str(self._programs / "rabbitmqctl"), "--quiet", *words]
        environment = (node or self._nodes[0]).environment
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=self._timeout
        )
        # an expression that fails inside the node leaves the exit status at 0
        if done.returncode != 0 or re.match(r"\{error|\{protocol_error", done.stdout.strip()):
            raise PeerError(f"rabbitmqctl {words[0]} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")
        return done.stdout

    def stop(self) -> None:
        """Ask the nodes to end, make them end if they do not, end the port mapper, and delete the folder."""
        nodes, self._nodes = self._nodes, []
        mapper, self._mapper = self._mapper, None
        for node in reversed(nodes):
            node.stop(self._timeout)
        if mapper is not None:
            mapper.terminate()
            mapper.wait()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    @property
    def target(self) -> Target:
        """The queue, as RabbitMQ's user for this machine; the plugin refuses the receiver settle mode second."""
        address = f"/amq/queue/{QUEUE}"
        port = self._running()[0].port
        return Target(
            "127.0.0.1", port, address, "guest", "guest", "localhost", settles_second=False, wants_durable=True
        )

    @property
    def pid(self) -> int:
        """The process id of the first node's Erlang machine, in which all of the node runs.

        Raises:
            PeerError: it does not run.
        """
        return self.pids[0]

    @property
    def pids(self) -> Sequence[int]:
        """The process ids of all nodes; see `pid`."""
        return [node.pid for node in self._running()]

    def _running(self) -> Sequence[_Node]:
        if not self._nodes or not all(node.pid for node in self._nodes):
            raise PeerError(f"{self.name} does not run")
        return self._nodes

    @property
    def settings(self) -> Mapping[str, str]:
        """What differs from the package's defaults."""
        nodes = "one node" if self._count == 1 else f"{self._count} nodes, leader on the first"
        return {"queue": f"quorum, {nodes}", "plugins": "rabbitmq_amqp1_0", "listeners": "127.0.0.1"}

    @contextmanager
    def queues(self, count: int) -> Iterator[None]:
        """Declare further quorum queues and delete them afterwards; see `Peer.queues`."""
        assert queue_name(QUEUE, 7) == f"{QUEUE}-0007", "the names that _DECLARE_MANY makes"
        self._control("eval", _DECLARE_MANY.format(name=QUEUE, last=count - 1))
        try:
            yield
        finally:
            self._control("eval", _DELETE_MANY.format(name=QUEUE, last=count - 1))

    def supports(self, workload: str) -> bool:
        """Return False for E and S: the plugin does not know the batch format, sessions or SDK of Service Bus."""
        return not workload.startswith(("E", "S"))

    def log_tail(self) -> str:
        """Return the end of what the node printed."""
        return end_of_log(self._folder)


def _epmd() -> str:
    """Return the path of Erlang's port mapper.

    Raises:
        NotInstalled: Erlang is not there.
    """
    found = shutil.which("epmd")
    if found is None:
        raise NotInstalled("there is no epmd: Erlang is not installed")
    return found


def _free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that nobody listens on; held together until all are known, so that they differ."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
