"""The plugin of pytest that tries mutants: everything is imported and collected once, each mutant has a forked child.

A child gives the functions of the mutated module the code of the mutant and runs the tests that touch its lines, the
quickest first, up to the first that fails. So a mutant takes about as long as the test that kills it.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import resource
import selectors
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import pytest
from mutant_operators import ROOT, Mutant, Source, code_of, source_of

#: A test that takes longer without a mutant is left to the second stage.
SLOWEST_TEST_S: Final = 30.0
#: What the tests of one mutant may take in all without it; those that did not fit are counted.
TESTS_S: Final = 45.0
#: What the tests of one file may take in all while their lines are noted.
MEASURING_S: Final = 900.0
#: A test has not ended when it takes this many times what it took, and this much more: processor time, wall time.
PROCESSOR_FACTOR, PROCESSOR_MORE_S = 3.0, 3.0
WALL_FACTOR, WALL_MORE_S = 5.0, 6.0
#: A test that has not ended by then is run once more, with so many times as long: the machine may have been busy.
RETRY_TIME_FACTOR: Final = 5.0
#: What a child may take beyond what it had at its start; a loop without end must not take the machine.
MEMORY_MORE: Final = 2 << 30
_TICK: Final = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Known:
    """What one test took, and which lines of which modules it touched."""

    seconds: float
    lines: dict[str, list[int]]


@dataclass(slots=True)
class _Trial:
    mutant: Mutant
    tests: list[str]
    left_out: int
    pid: int
    pipe: int
    folder: Path
    time_factor: float = 1.0
    began: float = field(default_factory=time.monotonic)
    test: str = ""
    test_began: float = 0.0
    test_processor: float = 0.0
    said: bytes = b""


class MutantServer:
    """Tries mutants in the process that has collected the tests; ``told`` hears of each one's end."""

    def __init__(
        self,
        mutants: list[Mutant],
        modules: list[str],
        told: Callable[[Mutant, dict[str, Any]], None],
        folder: Path,
        workers: int,
        until: float,
    ) -> None:
        self.mutants = mutants
        self.modules = modules
        self.told = told
        self.folder = folder
        self.workers = workers
        self.until = until
        self.failed = ""
        self._session: pytest.Session | None = None

    def pytest_configure(self, config: pytest.Config) -> None:
        """Tests that draw draw the same each time, and don't look for the smallest of what fails."""
        from hypothesis import Phase, settings  # not before its own plugin is ready

        phases = [Phase.explicit, Phase.generate]
        settings.register_profile("mutants", derandomize=True, database=None, deadline=None, phases=phases)
        settings.load_profile("mutants")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hear which test failed."""
        if report.failed:
            self.failed = self.failed or report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running the tests."""
        self._session = session
        known = self._known(session)
        waiting = iter(self.mutants)
        doubted: list[Mutant] = []
        under_way: dict[int, _Trial] = {}
        with selectors.DefaultSelector() as selector:
            while True:
                while len(under_way) < self.workers and time.time() < self.until:
                    time_factor = RETRY_TIME_FACTOR if doubted else 1.0
                    mutant = doubted.pop() if doubted else next(waiting, None)
                    if mutant is None:
                        break
                    trial = self._begin(mutant, known, time_factor)
                    if trial is not None:
                        under_way[trial.pipe] = trial
                        selector.register(trial.pipe, selectors.EVENT_READ)
                if not under_way:
                    return True
                for key, _ in selector.select(0.5):
                    self._hear(under_way[key.fd])
                for trial in list(under_way.values()):
                    state = self._state(trial, known)
                    if state:
                        selector.unregister(trial.pipe)
                        del under_way[trial.pipe]
                        is_sure = state != "timeout" or trial.time_factor > 1
                        self._end(trial, state, is_told=is_sure)
                        if not is_sure:
                            doubted.append(trial.mutant)

    def _begin(self, mutant: Mutant, known: dict[str, Known], time_factor: float) -> _Trial | None:
        tests, left_out = self._tests_of(mutant, known)
        if not tests:
            self.told(mutant, {"state": "uncovered", "left_out": left_out})
            return None
        folder = self.folder / mutant.key
        source_of(mutant.module)  # parsed here, and not by each child
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._child(lambda: self._apply(mutant), tests, folder, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        return _Trial(mutant, tests, left_out, pid, reading, folder, time_factor)

    def _tests_of(self, mutant: Mutant, known: dict[str, Known]) -> tuple[list[str], int]:
        lines = set(range(mutant.first_line, mutant.line + 1))
        touching = [
            (test.seconds, name)
            for name, test in known.items()
            if lines.intersection(test.lines.get(mutant.module, ()))
        ]
        chosen: list[str] = []
        total = 0.0
        for seconds, name in sorted(touching):
            total += seconds
            if total > TESTS_S:
                break
            chosen.append(name)
        return chosen, len(touching) - len(chosen)

    def _hear(self, trial: _Trial) -> None:
        with contextlib.suppress(BlockingIOError):
            trial.said += os.read(trial.pipe, 1 << 16)
        lines = trial.said.decode().split("\n")
        begun = [line[2:] for line in lines[:-1] if line.startswith("T ")]
        if begun and begun[-1] != trial.test:
            trial.test = begun[-1]
            trial.test_began = time.monotonic()
            trial.test_processor = _processor_s(trial.pid)

    def _state(self, trial: _Trial, known: dict[str, Known]) -> str:
        """How it ended; empty while it goes on."""
        ended, status = os.waitpid(trial.pid, os.WNOHANG)
        if ended:
            self._hear(trial)
            code = os.waitstatus_to_exitcode(status)
            return {0: "survived", 1: "killed", 3: "unfit"}.get(code, "died")
        if not trial.test:
            return "timeout" if time.monotonic() - trial.began > 60 else ""
        usual, took_s = known[trial.test].seconds, time.monotonic() - trial.test_began
        if _processor_s(trial.pid) - trial.test_processor > trial.time_factor * (
            usual * PROCESSOR_FACTOR + PROCESSOR_MORE_S
        ):
            return "timeout"
        return "timeout" if took_s > trial.time_factor * (usual * WALL_FACTOR + WALL_MORE_S) else ""

    def _end(self, trial: _Trial, state: str, *, is_told: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(trial.pid, signal.SIGKILL)
        if state == "timeout":
            os.waitpid(trial.pid, 0)
        end_those_of(trial.folder)
        os.close(trial.pipe)
        shutil.rmtree(trial.folder, ignore_errors=True)
        found = {"state": state, "tests": len(trial.tests), "left_out": trial.left_out}
        found["seconds"] = round(time.monotonic() - trial.began, 2)
        if state != "survived":
            found["by"] = trial.test
        if is_told:
            self.told(trial.mutant, found | {"time_factor": trial.time_factor})

    def _child(self, prepare: Callable[[], bool], tests: list[str], folder: Path, pipe: int) -> None:
        """In the child: never returns."""
        code = 2
        try:
            _alone(folder)
            self._use(folder)
            if not prepare():
                code = 3
            else:
                # A mutant may lose the folder that it was given, and then writes where it is.
                os.chdir(folder)
                code = 1 if self._run(tests, lambda name: os.write(pipe, f"T {name}\n".encode())) else 0
        except BaseException:  # noqa: BLE001 - whatever it is, a mutant made it
            code = 2
        finally:
            os._exit(code)

    def _use(self, folder: Path) -> None:
        assert self._session is not None
        factory = self._session.config._tmp_path_factory  # type: ignore[attr-defined]
        factory._given_basetemp = folder / "tmp"
        factory._basetemp = None

    def _run(self, tests: list[str], begins: Callable[[str], object]) -> bool:
        """Whether a test fails."""
        assert self._session is not None
        items = {item.nodeid: item for item in self._session.items}
        for name, following in zip(tests, [*tests[1:], None], strict=True):
            begins(name)
            item = items[name]
            item.ihook.pytest_runtest_protocol(item=item, nextitem=items[following] if following else None)
            if self.failed:
                return True
        return False

    def _apply(self, mutant: Mutant) -> bool:
        """Give the functions the mutant's code; False when it has none that fits."""
        return apply(source_of(mutant.module), mutant)

    # What each test takes and touches

    def _known(self, session: pytest.Session) -> dict[str, Known]:
        """From the last time, where neither the tests' file nor the modules have changed; the others are run."""
        keep = self.folder / "coverage.json"
        kept: dict[str, Any] = json.loads(keep.read_text()) if keep.exists() else {}
        base = hashlib.sha256(b"".join((ROOT / name).read_bytes() for name in self.modules)).hexdigest()
        files: dict[Path, list[str]] = {}
        for item in session.items:
            files.setdefault(item.path, []).append(item.nodeid)
        for number, (path, names) in enumerate(files.items(), start=1):
            digest = hashlib.sha256(base.encode() + path.read_bytes() + "".join(names).encode()).hexdigest()
            if kept.get(str(path), {}).get("digest") == digest:
                continue
            if time.time() >= self.until:
                return {}  # No mutant is begun any more: the next run goes on with this file.
            print(
                f"  {number} of {len(files)}: which lines the tests of {path.name} touch", file=sys.stderr, flush=True
            )
            kept[str(path)] = {"digest": digest, "tests": self._measure(names)}
            keep.parent.mkdir(parents=True, exist_ok=True)
            keep.write_text(json.dumps(kept))
        found = {}
        for path, names in files.items():
            for name in names:
                test = kept[str(path)]["tests"].get(name)
                if test is not None and test["seconds"] <= SLOWEST_TEST_S:
                    found[name] = Known(**test)
        return found

    def _measure(self, names: list[str]) -> dict[str, Any]:
        """In a child, so that this process stays as it was imported: the tests that pass."""
        folder = self.folder / f"measure-{os.getpid()}"
        result = folder / "result.json"
        folder.mkdir(parents=True, exist_ok=True)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _alone(folder)
                self._use(folder)
                result.write_text(json.dumps(self._measured(names)))
                code = 0
            finally:
                os._exit(code)
        limit = time.monotonic() + MEASURING_S
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() > limit:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                break
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        end_those_of(folder)
        found: dict[str, Any] = json.loads(result.read_text()) if result.exists() else {}
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _measured(self, names: list[str]) -> dict[str, Any]:
        import coverage  # only here: it is in a place of its own

        paths = {str(ROOT / name): name for name in self.modules}
        measuring = coverage.Coverage(data_file=None, config_file=False, include=list(paths))
        assert self._session is not None
        items = {item.nodeid: item for item in self._session.items}
        seconds: dict[str, float] = {}
        began = 0.0
        previous = ""

        def begins(name: str) -> None:
            nonlocal began, previous
            now = time.monotonic()
            if previous:
                seconds[previous] = now - began
            began, previous = now, name
            measuring.switch_context(name)

        measuring.start()
        passing = []
        # What a whole file or session of tests shares, a server above all, is started once.
        for place, name in enumerate(names):
            self.failed = ""
            begins(name)
            following = items[names[place + 1]] if place + 1 < len(names) else None
            items[name].ihook.pytest_runtest_protocol(item=items[name], nextitem=following)
            if not self.failed:
                passing.append(name)
        seconds[previous] = time.monotonic() - began
        measuring.stop()
        lines: dict[str, dict[str, list[int]]] = {name: {} for name in passing}
        data = measuring.get_data()
        for path, module in paths.items():
            for line, contexts in data.contexts_by_lineno(path).items():
                for context in contexts:
                    if context in lines:
                        lines[context].setdefault(module, []).append(line)
        return {name: {"seconds": round(seconds[name], 3), "lines": lines[name]} for name in passing}


def _alone(folder: Path) -> None:
    """A child has its own group, which ends with it, writes nothing, and takes only so much memory."""
    os.setsid()
    folder.mkdir(parents=True, exist_ok=True)
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nothing, fd)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + MEMORY_MORE
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def end_those_of(folder: Path) -> None:
    """Kill the servers that a child left behind: each has a session of its own, and its data in the child's folder."""
    within = os.fsencode(folder) + b"/"
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # One that has ended meanwhile, or is of another user, is none of ours.
        with contextlib.suppress(OSError):
            if any(word.startswith(within) for word in path.read_bytes().split(b"\0")):
                os.kill(int(path.parent.name), signal.SIGKILL)


def _processor_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICK


def apply(source: Source, mutant: Mutant) -> bool:
    """Give the functions of the module, which is imported, the code of the mutant; False when it has none that fits."""
    before = code_of(
        compile(source.tree.code, str(source.path), "exec", dont_inherit=True), mutant.function, mutant.occurrence
    )
    try:
        changed = compile(source.mutated(mutant), str(source.path), "exec", dont_inherit=True)
    except SyntaxError:
        return False
    after = code_of(changed, mutant.function, mutant.occurrence)
    functions = list(_functions_of(before.co_filename, before.co_qualname, before.co_firstlineno))
    for function in functions:
        if function.__code__.co_freevars != after.co_freevars:
            return False
        function.__code__ = after
    return bool(functions)


def _functions_of(path: str, name: str, line: int) -> Iterator[FunctionType]:
    gc.unfreeze()  # what is frozen, the collector does not tell
    for found in gc.get_objects():
        if type(found) is FunctionType:
            code = found.__code__
            if code.co_qualname == name and code.co_firstlineno == line and code.co_filename == path:
                yield found
