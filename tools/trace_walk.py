"""How far a message walks through the code: files and functions from the bytes in to the bytes out.

    python tools/trace_walk.py              print the walk of a plain send, as docs/explanation/architecture.md has it
    python tools/trace_walk.py --all        print all walks
    python tools/trace_walk.py --write      write the page's section, and tests/unit/walks.json

One process, one plain queue in one SQLite store, links that have carried a message before, no socket. Four walks, each
from ``Peer.data_received`` to the write of the answer on the transport:

    send       a transfer comes in, and its disposition goes out
    deliver    a receiver asks by its flow while a message waits, and the transfer goes out
    hand over  a transfer comes in, and the message goes out to a receiver that waits with credit, on another connection
    complete   a disposition comes in (accepted), and the one that settles goes out

A profile hook in the loop's thread and in those of the stores notes which functions of ``duobus`` are called. Not
counted: constructors, properties, lambdas, comprehensions and generator expressions, ``clock``, and the threads of the
checkpoints and of the journal's write-back, which do not run here.

The walks are the same at each run. The loop's time stands still within a walk, so that no timer fires. What a thread
has to say to the loop is held until that thread sleeps again: so a walk is what the loop does, then what the store's
thread does, then what the loop does after that. Chance comes from a seed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple, NoReturn, TypeVar, TypeVarTuple, Unpack
from unittest.mock import patch

import msgspec

import duobus
from duobus.amqp import (
    ACCEPTED,
    Connection,
    ConnectionSettings,
    Dispositions,
    Link,
    LinkAttached,
    Source,
    Target,
    Transfers,
)
from duobus.clock import Clock, Entropy
from duobus.codec import build_message
from duobus.gateway.amqp.peer import Peer
from duobus.model.descriptions import QueueDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY, NamespaceConfig, Settings, load_settings
from duobus.storage.journal.writeback import WritebackThread
from duobus.storage.sqlite.checkpoint import CheckpointThread

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "explanation" / "architecture.md"
RECORD: Final = ROOT / "tests" / "unit" / "walks.json"
BEGIN: Final = "<!-- walk of a plain send, written by tools/trace_walk.py -->"
END: Final = "<!-- end of the walk -->"

PACKAGE: Final = Path(duobus.__file__).parent
_PREFIX: Final = f"{PACKAGE}{os.sep}"
_CLOCK: Final = Clock.now_ms.__code__.co_filename
_CONSTRUCTORS: Final = frozenset({"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__"})
_EXPRESSIONS: Final = frozenset({"<lambda>", "<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})
_NOT_COUNTED: Final = _CONSTRUCTORS | _EXPRESSIONS

QUEUE: Final = "q"
#: Messages that go all ways before one is traced: some things are done once, as long as a connection is new.
WARM_UPS: Final = 3
#: Longest time that one step may take, on a machine that has much else to do.
LIMIT_S: Final = 30.0
#: How much time passes between two steps: timers that a step has set fire outside of the next one.
PAUSE_S: Final = 1.0
#: Turns of the loop without a call, after which nothing goes on in it.
QUIET_TURNS: Final = 3
#: 2023-11-14, ten seconds into a minute: no walk is the first of a minute.
START_MS: Final = 1_700_000_010_000 // 60_000 * 60_000 + 10_000
#: Folders seem to have been left alone for so long, as those of a server do.
SETTLED_S: Final = 3_600

EventT = TypeVar("EventT")
_Ts = TypeVarTuple("_Ts")
#: Functions by file, both in the order of their first call.
Walk = dict[str, list[str]]


class Size(NamedTuple):
    """Files and functions that a walk touches."""

    files: int
    functions: int


def size_of(walk: Walk) -> Size:
    """Count a walk."""
    return Size(len(walk), sum(map(len, walk.values())))


# -- time, chance and threads ----------------------------------------------------------------------------------------


class HandLoop(asyncio.SelectorEventLoop):
    """A loop whose time can be stopped and moved by hand, and that can hold what other threads say to it."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s: float | None = None
        self.held: list[asyncio.Handle] = []

    def time(self) -> float:
        """See asyncio."""
        return super().time() if self._now_s is None else self._now_s

    def stop_time(self) -> None:
        """From now on time moves by ``pass_time`` only, and other threads are heard when ``hear`` is called."""
        self._now_s = super().time()

    def pass_time(self, seconds: float) -> None:
        """Move the time on."""
        assert self._now_s is not None
        self._now_s += seconds

    def go_on(self) -> None:
        """Let time run again."""
        self._now_s = None
        self.hear()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """See asyncio."""
        if self._now_s is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self.held.append(handle)
        return handle

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        """See asyncio. Refused, so that the stores' threads call and ring no bell, which nothing here could hold."""
        raise NotImplementedError

    def hear(self) -> None:
        """Call what other threads have asked for."""
        held, self.held = self.held, []
        for handle in held:
            self.call_soon(handle._run)


class HandClock(Clock):
    """The clock that goes with such a loop."""

    def __init__(self, loop: HandLoop) -> None:
        self._loop = loop
        self._begun_s = loop.time()

    def now_ms(self) -> int:
        """See Clock."""
        return START_MS + int((self._loop.time() - self._begun_s) * 1000)

    def monotonic_ms(self) -> int:
        """See Clock."""
        return int(self._loop.time() * 1000)


class SeededEntropy(Entropy):
    """The same chance at each run."""

    def __init__(self) -> None:
        self._random = random.Random(7)

    def token(self, size: int) -> bytes:
        """See Entropy."""
        return self._random.randbytes(size)

    def number(self, bits: int) -> int:
        """See Entropy."""
        return self._random.getrandbits(bits)


class Trace:
    """The profile hook; made in the thread of the loop."""

    def __init__(self) -> None:
        self.calls = 0
        self._begin = Peer.data_received.__code__
        self._loop_thread = threading.get_ident()
        self._is_armed = self._is_open = False
        # What the loop called, what the threads called meanwhile, what the loop called when it had heard of that, ...
        self._stages: list[dict[CodeType, None]] = []
        # Of each other thread, the C function that it is in.
        self._inside: dict[int, str] = {}
        self._put = self._got = 0

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Watch this thread, and those that are started meanwhile."""
        before, of_threads = sys.getprofile(), threading.getprofile()
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)
        try:
            yield
        finally:
            sys.setprofile(before)
            threading.setprofile(of_threads)

    def arm(self) -> None:
        """Note what is called from the next ``Peer.data_received`` on."""
        self._is_armed = True
        self._stages = [{}, {}]

    def heard(self) -> None:
        """The loop hears now what the threads have done."""
        self._stages += [{}, {}]

    def close(self) -> None:
        """The answer is written."""
        self._is_open = False

    @property
    def is_asleep(self) -> bool:
        """Whether every other thread waits for work, and there is none."""
        alive = {thread.ident for thread in threading.enumerate()}
        return self._put == self._got and all(
            inside in ("get", "acquire") for ident, inside in list(self._inside.items()) if ident in alive
        )

    def _hook(self, frame: FrameType, event: str, about: Any) -> None:
        ident = threading.get_ident()
        if event == "call":
            self._called(frame.f_code, ident)
        elif isinstance(getattr(about, "__self__", None), SimpleQueue):
            self._put += event == "c_call" and about.__name__ == "put"
            self._got += event == "c_return" and about.__name__ in ("get", "get_nowait")
        if ident != self._loop_thread:
            self._inside[ident] = about.__name__ if event == "c_call" else ""

    def _called(self, code: CodeType, ident: int) -> None:
        if not code.co_filename.startswith(_PREFIX):
            return
        is_loop = ident == self._loop_thread
        self.calls += is_loop
        if self._is_armed and code is self._begin:
            self._is_armed, self._is_open = False, True
        if self._is_open:
            self._stages[-2 if is_loop else -1][code] = None

    def walk(self) -> Walk:
        """Return what was called."""
        skipped = _properties()
        codes = dict.fromkeys(code for stage in self._stages for code in stage)
        found: Walk = {}
        for code in codes:
            if code.co_name not in _NOT_COUNTED and code.co_filename != _CLOCK and code not in skipped:
                names = found.setdefault(Path(code.co_filename).relative_to(PACKAGE).as_posix(), [])
                names.append(code.co_qualname.replace(".<locals>", ""))
        return found


def _properties() -> set[CodeType]:
    """Return the code of every property of the package."""
    found: set[CodeType] = set()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "duobus":
            continue
        for item in list(vars(module).values()):
            if isinstance(item, type):
                for member in vars(item).values():
                    if isinstance(member, property):
                        accessors: tuple[Any, ...] = (member.fget, member.fset, member.fdel)
                    elif isinstance(member, cached_property):
                        accessors = (member.func,)
                    else:
                        continue
                    found |= {accessor.__code__ for accessor in accessors if hasattr(accessor, "__code__")}
    return found


# -- a server without sockets, and its clients -----------------------------------------------------------------------


class _QuietServer(Server):
    """A server whose listeners are not opened: its connections are made by hand."""

    async def _listen(self, *_arguments: Any) -> None:
        pass


class _Transport(asyncio.Transport):
    """The server's end of a connection: it keeps what is written."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.written = bytearray()
        self.on_write: Callable[[], None] = lambda: None
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data
        self.on_write()

    def is_closing(self) -> bool:
        return self._is_closing

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    close = abort

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class _Client:
    """A client on a connection of its own: the project's engine."""

    def __init__(self, stage: _Stage) -> None:
        self._stage = stage
        self._peer = stage.server.amqp()
        self.transport = _Transport(self._peer)
        self._peer.connection_made(self.transport)
        response = f"\0RootManageSharedAccessKey\0{EMULATOR_KEY}".encode()
        settings = ConnectionSettings("client", hostname="localhost", mechanisms=("PLAIN",), sasl_response=response)
        self._engine = Connection(settings, acceptor=False)
        self._engine.open(0)
        self.session = self._engine.begin()
        self._events: list[Any] = []

    def flush(self) -> None:
        """Have the server receive what this client has to say, in one piece."""
        output = self._engine.take_output(1 << 18)
        if output:
            self._peer.data_received(output)

    def read(self) -> None:
        """Read what the server has written."""
        data = bytes(self.transport.written)
        self.transport.written.clear()
        self._events += self._engine.receive(data, 0)

    def take(self, kind: type[EventT]) -> EventT | None:
        """Return the first event of a kind that was read, and forget it; None when there is none."""
        self.read()
        for event in self._events:
            if isinstance(event, kind):
                self._events.remove(event)
                return event
        return None

    async def wait(self, kind: type[EventT]) -> EventT:
        """Say what there is to be said, and wait for an event."""
        while (event := self.take(kind)) is None:
            self.flush()
            await self._stage.settle(lambda: bool(self.transport.written))
        return event


class _Stage:
    """The server, a sender and a receiver on connections of their own, and the steps of a message."""

    def __init__(self, loop: HandLoop, trace: Trace, server: Server) -> None:
        self._loop = loop
        self._trace = trace
        self.server = server
        self._walks: dict[str, Walk] = {}

    async def settle(self, until: Callable[[], bool] = lambda: True) -> None:
        """Let the loop turn until that is so and nothing goes on any more."""
        deadline_s = time.monotonic() + LIMIT_S
        quiet = 0
        while quiet < QUIET_TURNS or self._loop.held or not self._trace.is_asleep or not until():
            if time.monotonic() > deadline_s:
                raise TimeoutError("what was waited for did not come")
            before = self._trace.calls
            await asyncio.sleep(0)
            quiet = quiet + 1 if self._trace.calls == before else 0
            if quiet >= QUIET_TURNS and self._loop.held and self._trace.is_asleep:
                quiet = 0
                self._trace.heard()
                self._loop.hear()

    async def attach(self) -> None:
        """Connect both clients and attach a link each."""
        self._sending, self._receiving = _Client(self), _Client(self)
        self._sender = self._sending.session.attach_sender("s", Source(address="c"), Target(address=QUEUE))
        await self._sending.wait(LinkAttached)
        await self.settle(self._has_credit)
        self._receiver = self._receiving.session.attach_receiver("r", Source(address=QUEUE), Target(address="c"))
        await self._receiving.wait(LinkAttached)

    def _has_credit(self) -> bool:
        self._sending.read()
        return bool(self._sender.sendable())

    async def walk(self, name: str, client: _Client, answering: _Client, kind: type[EventT]) -> EventT:
        """Have the server receive what a client says, and trace it until it writes to one; return the event of that."""
        self._loop.pass_time(PAUSE_S)
        await self.settle()
        answering.read()
        self._trace.arm()
        answering.transport.on_write = self._trace.close
        client.flush()
        await self.settle(lambda: bool(answering.transport.written))
        answering.transport.on_write = lambda: None
        self._walks[name] = self._trace.walk()
        event = answering.take(kind)
        assert event is not None, f"{name}: what was written first is not the answer"
        return event

    def _send(self, link: Link) -> None:
        link.send_one(b"tag", build_message(["id"], data=b"body"), False)

    async def round(self) -> dict[str, Walk]:
        """All walks, once."""
        sending, receiving = self._sending, self._receiving
        self._send(self._sender)
        answer = await self.walk("send", sending, sending, Dispositions)
        assert answer.ranges[0][3] == ACCEPTED
        self._receiver.grant(1)
        transfers = await self.walk("deliver", receiving, receiving, Transfers)
        self._complete(transfers.first_delivery_id)
        await self.walk("complete", receiving, receiving, Dispositions)

        self._receiver.grant(1)
        receiving.flush()
        self._send(self._sender)
        transfers = await self.walk("hand over", sending, receiving, Transfers)
        await sending.wait(Dispositions)
        self._complete(transfers.first_delivery_id)
        await receiving.wait(Dispositions)
        return {name: self._walks[name] for name in ("send", "deliver", "hand over", "complete")}

    def _complete(self, delivery_id: int) -> None:
        self._receiving.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)


def trace_walks(folder: Path, rounds: int = 1) -> list[dict[str, Walk]]:
    """Return the walks by name, of so many messages one after the other, with a store in an empty folder."""
    trace = Trace()
    without_checkpoints = patch.object(CheckpointThread, "start", lambda _thread: None)
    without_writeback = patch.object(WritebackThread, "_run", lambda _thread: None)
    with trace.hooked(), without_checkpoints, without_writeback, asyncio.Runner(loop_factory=HandLoop) as runner:
        return runner.run(_trace_in_loop(trace, folder, rounds))


async def _trace_in_loop(trace: Trace, folder: Path, rounds: int) -> list[dict[str, Walk]]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, HandLoop)
    settings = load_settings(Settings(data=folder, emulator=True, stores=1, port=0, tls_port=0, http_port=0))
    namespace = NamespaceConfig(name="ns", queues=(QueueDescription(name=QUEUE),))
    settings = msgspec.structs.replace(settings, namespaces=(namespace,))
    server = _QuietServer(settings, HandClock(loop), SeededEntropy())
    await server.start()
    _leave_alone(folder)
    # Objects that are collected may have something to call.
    gc.disable()
    try:
        stage = _Stage(loop, trace, server)
        await stage.attach()
        loop.stop_time()
        return [await stage.round() for _ in range(WARM_UPS + rounds)][WARM_UPS:]
    finally:
        gc.enable()
        loop.go_on()
        for peer in list(server.amqp.peers):
            peer.abort()
        await server.stop()


def _leave_alone(folder: Path) -> None:
    """A store looks more closely at a folder that was changed a moment ago; one in use was made long before."""
    then_s = time.time() - SETTLED_S
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            os.utime(path, (then_s, then_s))


# -- the page --------------------------------------------------------------------------------------------------------


def markdown(walk: Walk) -> str:
    """A walk as a table, file by file."""
    size = size_of(walk)
    lines = [f"{size.functions} functions in {size.files} files, in the order of their first call:", ""]
    lines += ["| file | functions |", "|---|---|"]
    lines += [f"| `{path}` | {', '.join(f'`{name}`' for name in names)} |" for path, names in walk.items()]
    return "\n".join(lines)


def section_of(text: str) -> str:
    """What stands between the two comments of the page."""
    _, begun, rest = text.partition(f"{BEGIN}\n")
    section, ended, _ = rest.partition(f"\n{END}")
    if not begun or not ended:
        raise SystemExit(f"{PAGE}: the comments {BEGIN} and {END} are missing")
    return section


def written(text: str, walk: Walk) -> str:
    """The page with another walk between the comments."""
    section_of(text)
    before, _, rest = text.partition(f"{BEGIN}\n")
    return f"{before}{BEGIN}\n{markdown(walk)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    """Print or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="print all walks")
    parser.add_argument("--write", action="store_true", help=f"write them into {PAGE.name} and {RECORD.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duobus-walk-") as folder:
        [walks] = trace_walks(Path(folder) / "data")
    if options.write:
        PAGE.write_text(written(PAGE.read_text("utf-8"), walks["send"]), "utf-8")
        RECORD.write_text(json.dumps(walks, indent=1) + "\n", "utf-8")
        print(*(f"{name}: {len(walk)} files" for name, walk in walks.items()), sep=", ")
    elif options.all:
        print("\n\n".join(f"## {name}\n\n{markdown(walk)}" for name, walk in walks.items()))
    else:
        print(markdown(walks["send"]))


if __name__ == "__main__":
    main()
