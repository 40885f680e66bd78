"""How far a plain message walks through the code: distinct files and functions from the bytes in to the bytes out.

One process, one plain queue in one SQLite store, links that have carried a message before. A profile hook in the thread
of the loop and in those of the stores notes every function of ``duobus`` that is called between
``Peer.data_received`` and the next write on a socket. Not counted: constructors, properties, comprehensions and
generator expressions, ``clock``, and the thread of checkpoints.

The figures are limits: what makes a walk longer fails, what makes it shorter lowers the limit here. Each run writes
them to ``.build/house.json`` and prints the walk file by file (``pytest -s``).
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from kit_wire import WireClient

import duobus
from duobus.clock import Clock, Entropy
from duobus.compiled import compiled_rooms
from duobus.gateway.amqp.peer import Peer
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import NamespaceConfig, Settings, load_settings

PACKAGE: Final = Path(duobus.__file__).parent
#: Where these stand, whatever the folders are called.
PEER: Final = Path(Peer.data_received.__code__.co_filename)
CLOCK: Final = Path(Clock.now_ms.__code__.co_filename)
RECORD: Final = Path(__file__).parents[2] / ".build" / "house.json"
LIMIT_S: Final = 20.0
#: Messages whose walks are compared.
TRIES: Final = 25
CONSTRUCTORS: Final = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__"})
COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})


class Limit(NamedTuple):
    """Files and functions that a walk may touch."""

    files: int
    functions: int


#: What a send to a queue, the delivery to a link that asks for a message, and its completion touched when this test was
#: written. The targets of the reorganization: send 25 and 90, deliver 18 and 55, complete 24 and 80.
LIMITS: Final = {"send": Limit(48, 159), "deliver": Limit(20, 60), "complete": Limit(40, 130)}

pytestmark = pytest.mark.skipif(bool(compiled_rooms()), reason="a profile hook does not see compiled functions")


def properties() -> set[CodeType]:
    """Return the code of every property of the package."""
    found: set[CodeType] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "duobus":
            continue
        for item in vars(module).values():
            if isinstance(item, type):
                for member in vars(item).values():
                    getter = getattr(member, "fget", None) or (
                        getattr(member, "func", None) if type(member).__name__ == "cached_property" else None
                    )
                    if hasattr(getter, "__code__"):
                        found.add(getter.__code__)
    return found


def is_write(function: Any) -> bool:
    """Whether that writes to a peer. The loop is woken by a socket of its own, which is none of the network's."""
    of = getattr(function, "__self__", None)
    return (
        function.__name__ in ("send", "sendmsg", "sendall")
        and isinstance(of, socket.socket)
        and of.family in (socket.AF_INET, socket.AF_INET6)
    )


class Trace:
    """The profile hook. ``arm`` has it note what is called from the next ``Peer.data_received`` to the next write."""

    def __init__(self) -> None:
        self._begin = Peer.data_received.__code__
        self._is_armed = self._is_open = False
        self._others = {threading.get_ident()}
        self._calls: dict[CodeType, None] = {}
        self._ended = threading.Event()

    def arm(self) -> None:
        self._calls = {}
        self._ended.clear()
        self._is_armed = True

    def hook(self, frame: FrameType, event: str, about: Any) -> None:
        if event == "call":
            if self._is_armed and frame.f_code is self._begin:
                self._is_armed, self._is_open = False, True
            if self._is_open and self._is_watched():
                self._calls[frame.f_code] = None
        elif event == "c_call" and self._is_open and is_write(about):
            self._is_open = False
            self._ended.set()

    def _is_watched(self) -> bool:
        thread = threading.current_thread()
        return thread.ident not in self._others and thread.name != "checkpoint"

    def walk(self) -> dict[str, list[str]]:
        """Functions by file, both in the order of their first call; waits for the end."""
        assert self._ended.wait(LIMIT_S), "nothing was written"
        skipped = properties()
        found: dict[str, list[str]] = {}
        for code in self._calls:
            path = Path(code.co_filename)
            if (
                PACKAGE not in path.parents
                or path == CLOCK
                or code.co_name in CONSTRUCTORS | COMPREHENSIONS
                or code in skipped
            ):
                continue
            # Two functions of one name, lambdas for the most part, are two.
            names = found.setdefault(path.relative_to(PACKAGE).as_posix(), [])
            name = code.co_qualname.replace(".<locals>", "")
            names.append(f"{name} (again)" if name in names else name)
        return found


def usual(walks: list[dict[str, list[str]]]) -> dict[str, list[str]]:
    """What most of the walks have in common. Now and then a timer fires meanwhile, or the log is laid out anew."""
    times = Counter((path, name) for walk in walks for path, names in walk.items() for name in set(names))
    found: dict[str, list[str]] = {}
    for walk in walks:
        for path, names in walk.items():
            chosen = found.setdefault(path, [])
            chosen += [name for name in names if 2 * times[path, name] > len(walks) and name not in chosen]
    return {path: names for path, names in found.items() if names}


def size_of(walk: dict[str, list[str]]) -> Limit:
    return Limit(len(walk), sum(map(len, walk.values())))


@contextmanager
def serving(data: Path) -> Iterator[int]:
    """A server in a thread of its own; its port. It keeps one plain queue, ``q``, in one store, with nothing beside."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server", daemon=True)
    settings = load_settings(Settings(data=data, emulator=True, stores=1, port=0, tls_port=0, http_port=0))
    namespace = NamespaceConfig(name="ns", queues=(QueueDescription(name="q"),))

    async def make() -> Server:
        server = Server(msgspec.structs.replace(settings, namespaces=(namespace,)), Clock(), Entropy())
        await server.start()
        return server

    thread.start()
    try:
        started: Future[Server] = asyncio.run_coroutine_threadsafe(make(), loop)
        server = started.result(LIMIT_S)
        port = server.port("amqp")
        assert port is not None
        yield port
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(LIMIT_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(LIMIT_S)
        loop.close()


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[str]]]:
    """The walk of a send, of a delivery and of a completion."""
    found: dict[str, list[dict[str, list[str]]]] = {name: [] for name in LIMITS}
    trace = Trace()
    before = threading.getprofile()
    threading.setprofile(trace.hook)
    try:
        with serving(tmp_path_factory.mktemp("walk")) as port:
            client = WireClient(port)
            sender, receiver = client.sender(), client.receiver()
            for _ in range(1 + TRIES):
                trace.arm()
                client.send(sender)
                found["send"].append(trace.walk())
                trace.arm()
                delivery = client.receive(receiver)
                found["deliver"].append(trace.walk())
                trace.arm()
                client.complete(delivery)
                found["complete"].append(trace.walk())
            client.close()
    finally:
        threading.setprofile(before)
    # The first message finds links that are cold.
    return {name: usual(each[1:]) for name, each in found.items()}


@pytest.mark.parametrize("name", LIMITS)
def test_a_plain_message_walks_no_further_than_it_did(walks: dict[str, dict[str, list[str]]], name: str) -> None:
    walk = walks[name]
    size = size_of(walk)
    text = "\n".join(f"  {path}: {', '.join(functions)}" for path, functions in walk.items())
    print(f"\n{name}: {size.files} files, {size.functions} functions\n{text}")
    assert PEER.relative_to(PACKAGE).as_posix() in walk, "the hook saw nothing"
    limit = LIMITS[name]
    assert size.files <= limit.files, f"{name} walks through {size.files} files:\n{text}"
    assert size.functions <= limit.functions, f"{name} calls {size.functions} functions:\n{text}"


def test_the_figures_are_kept_for_the_report(walks: dict[str, dict[str, list[str]]]) -> None:
    """tools/house.py of the blueprint reads walk_files and walk_calls; what else is in the file stays."""
    record: dict[str, Any] = json.loads(RECORD.read_text("utf-8")) if RECORD.is_file() else {}
    sizes = {name: size_of(walk)._asdict() for name, walk in walks.items()}
    record |= {"walk_files": sizes["send"]["files"], "walk_calls": sizes["send"]["functions"], "walks": sizes}
    RECORD.parent.mkdir(exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    assert json.loads(RECORD.read_text("utf-8"))["walk_files"] == size_of(walks["send"]).files
