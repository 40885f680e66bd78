"""A simulated network of nodes: connections with latency and faults, and processes that can be killed.

A node is a named machine that runs one process at a time. Code started with ``spawn`` or ``call`` belongs to the
node's current life; so does all that it schedules and every server it opens. Killing the node ends that
life; a later ``start`` begins a new one on the same machine. Connections between two nodes follow
the routes between them, one per direction, where latency, cuts and clogs are set.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from simulation.world.loop import INCARNATION, Incarnation, NodeKilled
from simulation.world.transport import RST, Pipe, SimulatedTransport

if TYPE_CHECKING:
    from simulation.world.loop import SimulationLoop

T = TypeVar("T")

#: Name of the node to which code outside every node belongs: the test driver.
OUTSIDE = "outside"

_LOOPBACK = ("127.0.0.1", "localhost", "::1", "0.0.0.0", "::")
_FIRST_EPHEMERAL_PORT = 49152


class Node:
    """A machine with at most one process.

    Attributes:
        name: Its host name in the network.
        life: The current or last life of its process.
        powered: False after a kill by power loss until the next start: its kernel is dead too.
    """

    __slots__ = ("_context", "_network", "life", "name", "powered")

    def __init__(self, network: SimulatedNetwork, name: str) -> None:
        self._network = network
        self.name = name
        self.powered = True
        self.life = Incarnation(name, 0)
        self.life.alive = False
        self._context = Context()

    @property
    def alive(self) -> bool:
        """Whether a process is running."""
        return self.life.alive

    def start(self) -> Incarnation:
        """Begin a new life; legal only when none is running."""
        if self.life.alive:
            raise RuntimeError(f"{self.name} is running already")
        self.life = Incarnation(self.name, self.life.number + 1)
        self.powered = True
        self._context = Context()
        self._context.run(INCARNATION.set, self.life)
        return self.life

    def spawn(self, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """Run a coroutine as part of this node; it is never resumed after a kill."""
        return self._network.loop.create_task(coro, name=name or self.name, context=self._context.copy())

    def call(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function as part of this node: what it schedules and opens is the node's."""
        return self._context.copy().run(function, *args)

    def kill(self, power: bool = False) -> None:
        """End the process at once (fault class K), with ``power`` the whole machine (P).

        A killed process leaves a kernel that closes its connections; after a loss of power peers hear nothing
        until the machine is up again and answers with resets.
        """
        if self.life.alive:
            self.powered = not power
            self._network.loop.kill(self.life)
            self._network.remove(self.life, farewell=not power)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): its kernel goes on taking what comes, nothing of it runs until ``resume``."""
        if self.life.alive and self.life.held is None:
            self.life.held = []

    def resume(self) -> None:
        """Let a stopped process go on (SIGCONT)."""
        if self.life.alive and self.life.held is not None:
            self._network.loop.resume(self.life)

    def crash(self) -> NoReturn:
        """Kill this node from inside its own code, at a crash point; does not return.

        Raises:
            NodeKilled: Always, to leave the running callback.
        """
        self.kill()
        raise NodeKilled(self.name)


class Route:
    """What happens to bytes from one node to another.

    Attributes:
        latency_s: Shortest and longest travel time, seconds.
        cut: True stalls everything; nothing is lost, it arrives after healing.
        clogged_until: Virtual time before which nothing arrives.
    """

    __slots__ = ("_rng", "clogged_until", "cut", "latency_s", "target")

    def __init__(self, rng: random.Random, target: Node, latency_s: tuple[float, float]) -> None:
        self._rng = rng
        self.target = target
        self.latency_s = latency_s
        self.cut = False
        self.clogged_until = 0.0

    def draw_latency(self) -> float:
        """Return the travel time of the next segment, seconds."""
        return self._rng.uniform(*self.latency_s)


class Connection:
    """Two ends and the two pipes between them, for the nemesis.

    Attributes:
        client: The end that connected.
        server: The end that accepted.
    """

    __slots__ = ("client", "client_pipe", "server", "server_pipe")

    def __init__(
        self, client: SimulatedTransport, server: SimulatedTransport, client_pipe: Pipe, server_pipe: Pipe
    ) -> None:
        self.client = client
        self.server = server
        self.client_pipe = client_pipe
        self.server_pipe = server_pipe

    def reset(self) -> None:
        """Both ends see a connection reset, after what has arrived already; what is under way is lost."""
        for pipe in (self.client_pipe, self.server_pipe):
            pipe.clear()
            if not pipe.sink.gone:
                pipe.sink.receive(RST, b"")

    def cut(self, to_server: bool = True, to_client: bool = True) -> None:
        """Stall this connection silently, in one direction or both, until ``heal``."""
        self.client_pipe.cut = self.client_pipe.cut or to_server
        self.server_pipe.cut = self.server_pipe.cut or to_client

    def heal(self) -> None:
        """End a ``cut``; what stalled arrives."""
        for pipe in (self.client_pipe, self.server_pipe):
            pipe.cut = False
            pipe.resume()

    def half_open(self, gone: str) -> None:
        """One end (``client`` or ``server``) loses the connection, the other never hears of it."""
        end = self.client if gone == "client" else self.server
        for pipe in (self.client_pipe, self.server_pipe):
            pipe.silent = True
        end.vanish(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))


class _ListeningSocket:
    """The little that servers ask of the sockets of an asyncio server."""

    __slots__ = ("_address",)

    family = socket.AF_INET

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address


class SimulatedServer(asyncio.AbstractServer):
    """A listener; accepts as long as it is open and its node lives."""

    def __init__(self, network: SimulatedNetwork, factory: Any, node: str, port: int) -> None:
        self._network = network
        self.factory = factory
        self.address = (node, port)
        self.context = copy_context()
        self._open = True

    @property
    def sockets(self) -> tuple[_ListeningSocket, ...]:
        """The listening sockets, each with ``getsockname() -> (node name, port)``."""
        return (_ListeningSocket(self.address),) if self._open else ()

    def close(self) -> None:
        """Stop accepting; connections live on."""
        if self._open:
            self._open = False
            self._network.unlisten(self)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop."""
        return self._network.loop

    def is_serving(self) -> bool:
        """Tell whether it accepts."""
        return self._open

    async def start_serving(self) -> None:
        """Do nothing: it accepts from the beginning."""

    async def serve_forever(self) -> None:
        """Wait until cancelled; it accepts anyway."""
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        """Return at once, as Python 3.11 does."""


class SimulatedNetwork:
    """All nodes, routes and connections of one simulation; becomes ``loop.network``.

    Args:
        loop: The loop of the simulation.
        seed: Decides latencies and where the stream of bytes is cut into pieces.
        latency_s: Shortest and longest travel time of routes that are not set otherwise, seconds.
        split_probability: How often a write, and again a read, is split at a random byte.
        capacity: Bytes that a connection holds in one direction before a writer's buffer grows.
        connect_timeout_s: How long a connection attempt without an answer lasts, seconds.
    """

    def __init__(
        self,
        loop: SimulationLoop,
        seed: int | str = 0,
        *,
        latency_s: tuple[float, float] = (0.0001, 0.002),
        split_probability: float = 0.2,
        capacity: int = 256 * 1024,
        connect_timeout_s: float = 60.0,
    ) -> None:
        self.loop = loop
        self.random = random.Random(f"network:{seed}")
        self.context = Context()
        self.split_probability = split_probability
        self.capacity = capacity
        self.connect_timeout_s = connect_timeout_s
        self._latency_s = latency_s
        self._nodes: dict[str, Node] = {}
        self._aliases: dict[str, str] = {}
        self._routes: dict[tuple[str, str], Route] = {}
        self._listeners: dict[tuple[str, int], SimulatedServer] = {}
        self._connections: list[Connection] = []
        self._next_port = _FIRST_EPHEMERAL_PORT
        self.node(OUTSIDE)
        loop.network = self

    # --- nodes and routes ---

    def node(self, name: str) -> Node:
        """Return the node of this name; a new one has no process yet."""
        if name not in self._nodes:
            self._nodes[name] = Node(self, name)
        return self._nodes[name]

    def alias(self, host: str, node: str) -> None:
        """Let ``host`` lead to ``node``, as a name server would."""
        self._aliases[host] = node

    def route(self, source: str, target: str) -> Route:
        """Return the route between two nodes, to read it or to set its latency."""
        route = self._routes.get((source, target))
        if route is None:
            route = self._routes[source, target] = Route(self.random, self.node(target), self._latency_s)
        return route

    def cut(self, source: str, target: str, both: bool = True) -> None:
        """Stall everything from ``source`` to ``target``, and back (fault class N)."""
        self.route(source, target).cut = True
        if both:
            self.route(target, source).cut = True

    def clog(self, source: str, target: str, seconds: float) -> None:
        """Stall everything from ``source`` to ``target`` for a while."""
        self.route(source, target).clogged_until = self.loop.time() + seconds

    def heal(self) -> None:
        """End every cut and clog, of routes and of single connections."""
        for route in self._routes.values():
            route.cut = False
            route.clogged_until = 0.0
        for connection in self._connections:
            connection.heal()

    def connections(self, node: str | None = None) -> list[Connection]:
        """Return the connections that still have an end, oldest first; of one node when it is named."""
        if node is None:
            return list(self._connections)
        return [c for c in self._connections if node in (_name(c.client), _name(c.server))]

    # --- servers and connections ---

    def listen(self, factory: Any, host: Any, port: int) -> SimulatedServer:
        """Open a server on the node that calls; port 0 lets the network choose.

        Raises:
            OSError: The port is taken.
        """
        node = _caller()
        if not port:
            port = self._draw_port()
        if (node, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, f"{node}:{port} is in use")
        server = self._listeners[node, port] = SimulatedServer(self, factory, node, port)
        return server

    def unlisten(self, server: SimulatedServer) -> None:
        """Forget a server that was closed."""
        self._listeners.pop(server.address, None)

    async def connect(self, factory: Any, host: str, port: int) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        """Connect the node that calls to ``host``.

        Raises:
            OSError: Unknown host, refused, or no answer within ``connect_timeout_s``.
        """
        source = _caller()
        target = source if host in _LOOPBACK else self._aliases.get(host, host)
        if target not in self._nodes:
            raise socket.gaierror(socket.EAI_NONAME, f"no node {host!r} in the simulated network")
        there, back = self.route(source, target), self.route(target, source)
        await self._knock(there)
        server = self._listeners.get((target, port))
        if server is None:
            await self._knock(back)
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refused the connection")
        client_end = self._join(there, back, server, (source, self._draw_port()))
        try:
            await self._knock(back)
        except BaseException:
            client_end.abort()
            raise
        if client_end.gone:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        return client_end, client_end.start(factory)

    async def _knock(self, route: Route) -> None:
        """Let one packet travel; it is sent again after 1, 2, 4, ... seconds while the way is blocked."""
        give_up = self.loop.time() + self.connect_timeout_s
        pause = 1.0
        while route.cut or route.clogged_until > self.loop.time() or not route.target.powered:
            if self.loop.time() >= give_up:
                raise TimeoutError(errno.ETIMEDOUT, f"{route.target.name} does not answer")
            await asyncio.sleep(min(pause, give_up - self.loop.time()))
            pause *= 2
        await asyncio.sleep(route.draw_latency())

    def _join(
        self, there: Route, back: Route, server: SimulatedServer, client_address: tuple[str, int]
    ) -> SimulatedTransport:
        client_pipe, server_pipe = Pipe(self, there), Pipe(self, back)
        near = {"peername": server.address, "sockname": client_address}
        remote = {"peername": client_address, "sockname": server.address}
        client = SimulatedTransport(self, copy_context(), client_pipe, server_pipe, near)
        accepted = SimulatedTransport(self, server.context.copy(), server_pipe, client_pipe, remote)
        self._connections.append(Connection(client, accepted, client_pipe, server_pipe))
        accepted.call_in_context(accepted.start_unless_gone, server.factory)
        return client

    def _draw_port(self) -> int:
        self._next_port += 1
        return self._next_port - 1

    # --- ends ---

    def forget(self, end: SimulatedTransport) -> None:
        """Take note that an end is gone; a connection without ends is dropped."""
        self._connections = [c for c in self._connections if not (c.client.gone and c.server.gone)]

    def remove(self, life: Incarnation, farewell: bool) -> None:
        """Close every server and connection of a life that has just ended."""
        for server in [s for s in self._listeners.values() if s.context.get(INCARNATION) is life]:
            server.close()
        for connection in list(self._connections):
            for end in (connection.client, connection.server):
                if end.life is life:
                    end.die(farewell)


def _caller() -> str:
    life = INCARNATION.get()
    return OUTSIDE if life is None else life.node


def _name(end: SimulatedTransport) -> str:
    return OUTSIDE if end.life is None else end.life.node
