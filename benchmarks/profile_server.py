"""Where the broker spends its time: it runs in this process under cProfile, the load comes from another one.

    python benchmarks/profile_server.py C1x1                    one store
    python benchmarks/profile_server.py B --stores 4 --partitioned --top 20
    python benchmarks/profile_server.py C1x1 --seconds 10 --no-profile      processor time by thread only, undistorted

Only the measured part of the workload counts: not the start, the preloading of B, or the draining after A. The event
loop and the thread of the stores have a table each, functions by own time. The profiler makes every call dearer,
small ones most: shares show where to look, and `--no-profile` what was gained. Time that a function in C waits without
the interpreter lock (a commit's sync) counts as its own, too, so the store's table shows time, not work.
"""

import argparse
import asyncio
import cProfile
import gc
import json
import multiprocessing
import os
import pstats
import sys
import tempfile
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

if not __package__:
    # started as a file: Python put its folder on the path, not the root of the project
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import sdk_programs, usage
from benchmarks.load import workloads
from benchmarks.load.exchange import Limits
from benchmarks.load.link import Target
from benchmarks.load.wire import LoadError
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE, queue_config
from duobus.clock import Clock, Entropy
from duobus.server.composition import Server
from duobus.server.process import GC_THRESHOLDS
from duobus.server.settings import Settings, load_settings
from duobus.server.turn_selector import new_event_loop
from duobus.storage.writers import set_switch_interval

QUEUE = "profiled"
WARM_UP_SECONDS = 0.5


class _Announcer(workloads.Observer):
    """Tells the process of the broker when the measured part begins and ends, and waits until it is ready for it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self) -> None:
        self._connection.send("begin")
        self._connection.recv()

    def end(self) -> None:
        self._connection.send("end")
        self._connection.recv()


def _drive(connection: Connection, target: Target, name: str, limits: Limits) -> None:
    """Run the workload in a process of its own; send what it measured, or in words why it is void."""
    try:
        workloads.run(target, workloads.parse("C1x1", Limits(seconds=WARM_UP_SECONDS)))
        announcer = _Announcer(connection)
        if name == sdk_programs.NAME:
            credentials = f"SharedAccessKeyName={target.user};SharedAccessKey={target.password}"
            address = f"Endpoint=sb://localhost:{target.port};{credentials};UseDevelopmentEmulator=true;"
            result = sdk_programs.run(address, target.address, limits.seconds or 0.0, announcer, limits.stall)
        else:
            result = workloads.run(target, workloads.parse(name, limits), announcer)
        connection.send(result.as_dict())
    except (LoadError, OSError) as error:
        connection.send(str(error))


@dataclass
class Measured:
    """What a run brought.

    Attributes:
        load: the figures of the load generator.
        profiles: by thread, `event loop` and `stores`; empty without a profiler.
        cpu: microseconds of processor time per message by thread, the names as in the stack dumps.
        memory_mb: resident memory at the end of the measured part, and its peak.
    """

    load: dict[str, Any]
    profiles: dict[str, cProfile.Profile]
    cpu: dict[str, float]
    memory_mb: tuple[float, float]


class _Probe:
    """The profilers of the event loop and the stores, and the processor time of all threads."""

    def __init__(self, server: Server, *, with_profile: bool) -> None:
        names = ["stores"] if with_profile else []
        self._stores = {name: cProfile.Profile() for name in names}
        self._loop = cProfile.Profile()
        self._with_profile = with_profile
        self._brokers = list(server.unit.brokers.values())
        self._before = self._after = usage.Cpu(0.0, 0.0)
        self._names: dict[int, str] = {}
        self.memory_mb = (0.0, 0.0)

    @property
    def profiles(self) -> dict[str, cProfile.Profile]:
        return {"event loop": self._loop, **self._stores} if self._with_profile else {}

    async def begin(self) -> None:
        # a profiler belongs to the thread that enables it: of the writer pool that is the thread at work, nearly always
        for broker, profile in zip(self._brokers, self._stores.values(), strict=False):
            await broker.call(profile.enable)
        self._before = usage.cpu(os.getpid())
        if self._with_profile:
            self._loop.enable()

    async def end(self) -> None:
        self._loop.disable()
        self._after = usage.cpu(os.getpid())
        self.memory_mb = usage.memory_mb(os.getpid())
        self._names = {thread.native_id: thread.name for thread in threading.enumerate() if thread.native_id}
        for broker, profile in zip(self._brokers, self._stores.values(), strict=False):
            await broker.call(profile.disable)

    def cpu(self, messages: int) -> dict[str, float]:
        scale = 1e6 / messages
        found: dict[str, float] = {}
        for thread, used in self._after.threads.items():
            name = "event loop" if thread == os.getpid() else self._names.get(thread, "other")
            found[name] = found.get(name, 0.0) + (used - self._before.threads.get(thread, 0.0)) * scale
        found["kernel part of all"] = (self._after.system - self._before.system) * scale
        return found


def _config(options: argparse.Namespace) -> dict[str, Any]:
    """Return a configuration with the queues of the workload."""
    config = queue_config(QUEUE, partitioned=options.partitioned)
    queues = config["UserConfig"]["Namespaces"][0]["Queues"]
    if options.workload != sdk_programs.NAME:
        for number in range(workloads.parse(options.workload, Limits()).queues):
            queues.append({**queues[0], "Name": workloads.queue_name(QUEUE, number)})
    return config


async def measure(folder: Path, options: argparse.Namespace) -> Measured:
    """Start a server, let another process load it, and stop it.

    Raises:
        LoadError: the measurement is void.
    """
    config = folder / "Config.json"
    config.write_text(json.dumps(_config(options)))
    settings = Settings(data=folder / "data", config=config, port=0, http_port=0, stores=options.stores, emulator=True)
    server = Server(load_settings(settings), Clock(), Entropy())
    try:
        # also after a start that failed, since the threads of the stores have to end
        await server.start()
        gc.collect()
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        probe = _Probe(server, with_profile=not options.no_profile)
        port = server.port("amqp")
        if port is None:
            raise LoadError("the server offers no AMQP")
        load = await _load(Target("127.0.0.1", port, QUEUE, EMULATOR_RULE, EMULATOR_KEY), options, probe)
    finally:
        await server.stop()
    return Measured(load, probe.profiles, probe.cpu(load["messages"]), probe.memory_mb)


async def _load(target: Target, options: argparse.Namespace, probe: _Probe) -> dict[str, Any]:
    limits = Limits(seconds=options.seconds)
    if options.workload == "B":
        limits = Limits(messages=options.messages)
    # a fresh interpreter: a fork would take the sockets and the stores of the server along
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_drive, args=(there, target, options.workload, limits))
    process.start()
    there.close()
    try:
        while True:
            word = await _receive(here)
            if isinstance(word, dict):
                return word
            if word not in ("begin", "end"):
                raise LoadError(word)
            await (probe.begin() if word == "begin" else probe.end())
            here.send("go on")
    finally:
        here.close()
        process.terminate()
        process.join()


async def _receive(connection: Connection) -> Any:
    """Wait for the next word of the load without keeping the server from its work."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())
    try:
        return connection.recv()
    except EOFError:
        return "the load ended without a word"


def top(profile: cProfile.Profile, messages: int, count: int) -> str:
    """Lay out the `count` functions with the most own time; microseconds and calls per message."""
    functions: dict[tuple[str, int, str], tuple[Any, ...]] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    whole = sum(entry[2] for entry in functions.values()) or 1.0
    rows = [f"{'own us':>8}  {'share':>6}  {'calls':>8}  {'with callees us':>15}  function"]
    busiest = sorted(functions.items(), key=lambda item: float(item[1][2]), reverse=True)
    for (file, line, name), (_, calls, time, cumulative, _) in busiest[:count]:
        where = name if file == "~" else f"{'/'.join(Path(file).parts[-2:])}:{line} {name}"
        figures = f"{time / messages * 1e6:8.3f}  {time / whole:6.1%}  {calls / messages:8.3f}"
        rows.append(f"{figures}  {cumulative / messages * 1e6:15.3f}  {where}")
    return "\n".join(rows)


def _report(options: argparse.Namespace, measured: Measured) -> str:
    load = measured.load
    parts = [f"{load['workload']}: {load['messages']:,} messages, {load['rate']:,.0f}/s"]
    busy = {name: value for name, value in measured.cpu.items() if value >= 0.005}
    parts.append("CPU us per message: " + ", ".join(f"{name} {value:.2f}" for name, value in busy.items()))
    parts.append(f"CPU us per message of the load generator: {load['generator_cpu_us']:.2f}")
    parts.append("resident {:.0f} MB, at most {:.0f} MB".format(*measured.memory_mb))
    for name, profile in measured.profiles.items():
        parts.append(f"\n{name}\n{top(profile, load['messages'], options.top)}")
    return "\n".join(parts)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "workload", nargs="?", default="C1x1", help="A100, A1000, B, C1x1, C4x4, D, E1, E10, M1000, SDK1"
    )
    parser.add_argument("--stores", type=int, default=1)
    parser.add_argument("--partitioned", action="store_true", help="spread the queue over fragments")
    parser.add_argument("--seconds", type=float, default=3.0, help="time that the workload sends for")
    parser.add_argument("--messages", type=int, default=100_000, help="messages of workload B")
    parser.add_argument("--top", type=int, default=30, help="functions to print for each thread")
    parser.add_argument("--no-profile", action="store_true", help="processor time by thread only")
    parser.add_argument("--data-root", default=tempfile.gettempdir(), help="folder on the disk that counts")
    options = parser.parse_args(arguments)
    try:
        if options.workload != sdk_programs.NAME:
            workloads.parse(options.workload, Limits())
    except ValueError as error:
        parser.error(str(error))
    if sys.version_info >= (3, 12) and not options.no_profile:
        parser.error("from Python 3.12 on cProfile cannot tell threads apart: use 3.11, or --no-profile")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return 0, or 1 when the measurement is void."""
    options = _options(arguments)
    interval = sys.getswitchinterval()
    set_switch_interval()
    try:
        with (
            tempfile.TemporaryDirectory(prefix="duobus-profile-", dir=options.data_root) as folder,
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            measured = runner.run(measure(Path(folder), options))
    except LoadError as error:
        print(f"the measurement is void: {error}", file=sys.stderr)
        return 1
    finally:
        sys.setswitchinterval(interval)
    print(_report(options, measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
