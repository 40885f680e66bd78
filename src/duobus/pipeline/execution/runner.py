"""A run of a pipeline: starts what is due, keeps what there is to tell, and ends in order when it is told to."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock, Entropy
from duobus.pipeline import status
from duobus.pipeline.document.model import Pipeline, Stage
from duobus.pipeline.execution.stage_runs import Outcome, StageRun, is_unfinished, rows_by_batch, waiting_in
from duobus.pipeline.execution.views import add_folder
from duobus.pipeline.schedule import Planned, Schedule
from duobus.pipeline.state_folder import StateError, StateFolder
from duobus.pipeline.table_versions import behind, newest_batch, version_of
from duobus.spark.jobs.interruption import GRACE_S, WAS_STOPPED, Stopping

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two looks at what runs and what is due.
_LOOK_S: Final = 0.1
#: Between two looks at a stream that goes on.
_PROGRESS_MS: Final = 1_000
#: Between two counts of the messages that wait for a stream.
_LAG_MS: Final = 15_000
#: How long the JVM of a run that was killed may take to end.
_LEFT_S: Final = 30.0
_WRITE_NAME_BYTES: Final = 4

Tell = Callable[[str], None]


class PipelineStopping(Stopping):
    """Stops a pipeline when a signal comes: each stream after its batch, and work over tables when it takes too long.

    Attributes:
        requested: Set when the signal comes.
    """

    def __init__(self, spark: SparkSession, clock: Clock) -> None:
        super().__init__(spark, clock)
        self.requested = Event()
        self.sessions: list[SparkSession] = []

    def stop(self) -> None:
        """Stop everything that is under way."""
        WAS_STOPPED.set()
        self.requested.set()
        until_ms = self._clock.monotonic_ms() + int(GRACE_S * 1000)
        while not self._over.wait(_LOOK_S):
            is_late = self._clock.monotonic_ms() >= until_ms
            for session in list(self.sessions):
                # What has ended in the meantime need not be stopped.
                with suppress(Exception):
                    for query in session.streams.active:
                        if is_late or not query.status["message"].startswith("Processing new data"):
                            query.stop()
            if is_late:
                with suppress(Exception):
                    self._spark.sparkContext.cancelAllJobs()


class _Telling:
    """Keeps and tells what each stage does."""

    def __init__(self, pipeline: Pipeline, state: StateFolder, clock: Clock, tell: Tell) -> None:
        self._pipeline = pipeline
        self._state = state
        self._clock = clock
        self._tell = tell
        self._began_ms: dict[str, int] = {}
        self._total = {name: int(state.stage(name).status().get("totalRows") or 0) for name in pipeline.stages}
        self._seen: dict[str, dict[int, int]] = {}
        self._lag: dict[str, int | None] = {}

    def now(self) -> str:
        return datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC).isoformat(timespec="milliseconds")

    def started(self, stage: Stage) -> None:
        self._began_ms[stage.name] = self._clock.monotonic_ms()
        self._seen[stage.name] = {}
        before = self._state.stage(stage.name).status()
        self._keep(stage, {**before, "state": status.RUNNING, "startedAt": self.now()})
        self._tell(f"{stage.name}: begins")

    def progress(self, stage: Stage, rows: Mapping[int, int]) -> bool:
        """Keep what a stream has done until now; whether it has done more than before."""
        seen = self._seen[stage.name]
        fresh = {batch: count for batch, count in rows.items() if batch not in seen}
        if not fresh:
            return False
        seen.update(fresh)
        newest = max(fresh)
        self._keep(
            stage,
            {
                **self._state.stage(stage.name).status(),
                "batch": newest,
                "rows": fresh[newest],
                "totalRows": self._total[stage.name] + sum(seen.values()),
                "at": self.now(),
                "error": None,
                **self._lag_of(stage),
            },
        )
        self._tell(f"{stage.name}: batch {newest}, {fresh[newest]:,} rows")
        return True

    def ended(self, stage: Stage, outcome: Outcome, *, is_stopped: bool) -> None:
        state = self._state.stage(stage.name)
        seconds = (self._clock.monotonic_ms() - self._began_ms[stage.name]) / 1000
        before = state.status()
        rows = outcome.rows if outcome.rows is not None else sum(self._seen[stage.name].values()) or None
        self._total[stage.name] += rows or 0
        how = (
            status.FAILED
            if outcome.error is not None and not is_stopped
            else status.STOPPED
            if is_stopped
            else status.UNCHANGED
            if outcome.is_unchanged
            else status.DONE
        )
        batch = newest_batch(state) if stage.is_streaming else state.newest()[0] or None
        self._keep(
            stage,
            {
                "state": how,
                "batch": batch,
                "rows": before.get("rows") if outcome.is_unchanged else rows,
                "totalRows": self._total[stage.name],
                "startedAt": before.get("startedAt"),
                "at": before.get("at") if outcome.is_unchanged else self.now(),
                "seconds": round(seconds, 3),
                "error": outcome.error if how == status.FAILED else outcome.note,
                "summary": outcome.summary or before.get("summary") or None,
                **self._lag_of(stage),
            },
        )
        said = outcome.error if how == status.FAILED else outcome.note
        told = "" if rows is None or outcome.is_unchanged else f", {rows:,} rows"
        self._tell(f"{stage.name}: {how}{told}, {seconds:.1f} s" + (f": {said}" if said else ""))

    def failed(self, stage: Stage, attempt: int, error: str) -> None:
        """Tell of an attempt that failed."""
        self._tell(f"{stage.name}: attempt {attempt} failed: {error}")

    def held_back(self, stage: Stage) -> None:
        self._keep(stage, {**self._state.stage(stage.name).status(), "state": status.HELD_BACK})

    def count_waiting(self, stage: Stage) -> None:
        """Ask the broker how many messages wait for a stream."""
        counts = [waiting_in(self._pipeline.sources[name]) for name in stage.sources]
        self._lag[stage.name] = None if None in counts else sum(count or 0 for count in counts)

    def _lag_of(self, stage: Stage) -> dict[str, Any]:
        if stage.sources:
            return {"lag": self._lag.get(stage.name), "lagOf": "messages"}
        if not stage.tables:
            return {"lag": None, "lagOf": None}
        _, plan, result = self._state.stage(stage.name).newest()
        read = plan.get("inputs", {}) if result is not None else {}
        late = sum(behind(version_of(self._pipeline, self._state, name), read.get(name, {})) for name in stage.tables)
        return {"lag": late, "lagOf": "batches"}

    def _keep(self, stage: Stage, told: Mapping[str, Any]) -> None:
        self._state.stage(stage.name).tell(told)


def overview_of(pipeline: Pipeline, identifier: str) -> dict[str, Any]:
    """What the folder of the state says of the document."""
    return {
        "pipeline": pipeline.name,
        "document": str(pipeline.file),
        "id": identifier,
        "stages": [
            {"stage": stage.name, "job": stage.kind.value, "trigger": stage.trigger}
            for stage in pipeline.stages.values()
        ],
    }


def run_pipeline(
    pipeline: Pipeline,
    new_session: Callable[[], SparkSession],
    *,
    once: bool = False,
    tell: Tell = lambda _: None,
    clock: Clock | None = None,
    entropy: Entropy | None = None,
) -> dict[str, Any]:
    """Run a pipeline to its end, or until a signal comes.

    Args:
        pipeline: The document.
        new_session: Starts the session of Spark, which is stopped at the end.
        once: Whether each stage has one run, whatever its period.
        tell: Called with a line for each thing that happens.
        clock: Time.
        entropy: Randomness.

    Returns:
        The status of all stages, ``failed`` with the names of those that failed or were held back, and ``signal``.

    Raises:
        PipelineBusy: Somebody runs it.
        StateError: The folder of the state cannot be used.
    """
    clock, state = clock or Clock(), StateFolder(pipeline.state)
    began = datetime.fromtimestamp(clock.now_ms() / 1000, UTC).isoformat(timespec="seconds")
    about = {
        "process": os.getpid(),
        "host": socket.gethostname(),
        "since": began,
        "document": str(pipeline.file),
    }
    left = state.last_holder()
    with state.lock(about):
        _wait_for_left_jvm(left, clock)
        identifier = _identifier(pipeline, state, entropy or Entropy())
        add_folder(str(pipeline.folder))
        spark = new_session()
        try:
            with suppress(Exception):
                # Killed without its driver, it may go on for a moment; the next run waits for its end.
                jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
                state.tell_holder({**about, "jvm": int(jvm)})
            return _Run(pipeline, state, spark, identifier, once, tell, clock).run()
        finally:
            spark.stop()
            # It has ended in order, so that the next run need not wait for its JVM.
            state.tell_holder(about)


def _identifier(pipeline: Pipeline, state: StateFolder, entropy: Entropy) -> str:
    before = state.overview() or {}
    if before.get("pipeline") not in (None, pipeline.name):
        raise StateError(
            f"The folder {state.folder} is the state of the pipeline {before['pipeline']!r}, not of {pipeline.name!r}: "
            "give each pipeline a folder of its own by 'state'."
        )
    identifier = str(before.get("id") or entropy.token(_WRITE_NAME_BYTES).hex())
    state.write_overview(overview_of(pipeline, identifier))
    return identifier


def _wait_for_left_jvm(left: Mapping[str, Any], clock: Clock) -> None:
    """Wait until the JVM of a run whose driver was killed has ended: it would still write."""
    pid = left.get("jvm")
    if not isinstance(pid, int) or left.get("host") != socket.gethostname():
        return
    until_ms = clock.monotonic_ms() + int(_LEFT_S * 1000)
    while _is_spark(pid):
        if clock.monotonic_ms() >= until_ms:
            raise StateError(
                f"The JVM of the run before, process {pid}, is still there though its driver is gone. End it, and "
                "start the pipeline again."
            )
        Event().wait(_LOOK_S)


def _is_spark(pid: int) -> bool:
    try:
        return b"org.apache.spark" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


class _Run:
    """One run, in the thread that signals come to; each stage that runs has a thread of its own."""

    def __init__(
        self,
        pipeline: Pipeline,
        state: StateFolder,
        spark: SparkSession,
        identifier: str,
        once: bool,
        tell: Tell,
        clock: Clock,
    ) -> None:
        self._pipeline = pipeline
        self._state = state
        self._spark = spark
        self._identifier = identifier
        self._once = once
        self._clock = clock
        self._telling = _Telling(pipeline, state, clock, tell)
        self._stopping = PipelineStopping(spark, clock)
        stages = pipeline.stages.values()
        self._schedule = Schedule(
            (Planned(one.name, one.every_ms, one.after, pipeline.before(one), one.is_streaming) for one in stages),
            once=once,
            unfinished=(one.name for one in stages if not one.is_streaming and is_unfinished(state.stage(one.name))),
        )
        self._running: dict[str, tuple[Future[Outcome], SparkSession]] = {}
        self._sessions: dict[str, SparkSession] = {}
        self._looked_ms = self._counted_ms = 0
        self._failed: set[str] = set()

    def run(self) -> dict[str, Any]:
        with self._stopping.watching(), ThreadPoolExecutor(len(self._pipeline.stages) + 1, "stage") as threads:
            while not (self._schedule.is_over or (self._stopping.requested.is_set() and not self._running)):
                if not self._stopping.requested.is_set():
                    self._start_due(threads)
                self._gather()
                self._look(threads)
                Event().wait(_LOOK_S)
        held = [] if self._stopping.requested.is_set() else self._schedule.held_back()
        for name in held:
            self._telling.held_back(self._pipeline.stages[name])
        found = status.status_of(self._pipeline.state) or {}
        return {**found, "failed": sorted({*self._failed, *held}), "signal": self._stopping.signum}

    def _start_due(self, threads: ThreadPoolExecutor) -> None:
        for name in self._schedule.due(self._clock.monotonic_ms()):
            stage = self._pipeline.stages[name]
            goes_on = stage.is_streaming and stage.every_ms is not None and not self._once
            if not goes_on and self._at_a_time() >= self._pipeline.parallel:
                continue
            session = self._session_of(name)
            work = StageRun(
                session,
                self._pipeline,
                stage,
                self._state,
                self._identifier,
                once=self._once,
                stopping=self._stopping.requested,
            )
            self._telling.started(stage)
            self._schedule.started(name)
            self._running[name] = threads.submit(self._worked, work, stage), session

    def _session_of(self, name: str) -> SparkSession:
        """The session of a stage, for all of its runs: with temporary views and queries of its own."""
        from duobus.spark import DuobusDataSource

        if name not in self._sessions:
            session = self._sessions[name] = self._spark.newSession()
            # Sessions after the first do not find the format by themselves.
            session.dataSource.register(DuobusDataSource)
            self._stopping.sessions.append(session)
        return self._sessions[name]

    def _at_a_time(self) -> int:
        stages = (self._pipeline.stages[name] for name in self._running)
        return sum(not (one.is_streaming and one.every_ms is not None and not self._once) for one in stages)

    def _worked(self, work: StageRun, stage: Stage) -> Outcome:
        outcome = work.run()
        for attempt in range(1, self._pipeline.attempts):
            if outcome.error is None or not outcome.may_pass or self._stopping.requested.is_set():
                break
            self._telling.failed(stage, attempt, outcome.error)
            outcome = work.run()
        if stage.sources:
            self._telling.count_waiting(stage)
        return outcome

    def _gather(self) -> None:
        for name, (future, _) in list(self._running.items()):
            if not future.done():
                continue
            stage, outcome = self._pipeline.stages[name], future.result()
            del self._running[name]
            is_stopped = self._stopping.requested.is_set() and (stage.is_streaming or outcome.error is not None)
            self._telling.ended(stage, outcome, is_stopped=is_stopped)
            is_good = outcome.error is None
            if is_good or is_stopped:
                self._failed.discard(name)
            else:
                self._failed.add(name)
            self._schedule.ended(name, self._clock.monotonic_ms(), is_good=is_good, is_new=outcome.is_new)

    def _look(self, threads: ThreadPoolExecutor) -> None:
        """Tell of streams that go on, and let run what comes after them."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < _PROGRESS_MS:
            return
        self._looked_ms = now_ms
        streams = [self._pipeline.stages[name] for name in self._running if self._pipeline.stages[name].is_streaming]
        if streams and now_ms - self._counted_ms >= _LAG_MS and not self._once:
            self._counted_ms = now_ms
            threads.submit(self._count_waiting, streams)
        for stage in streams:
            with suppress(Exception):
                # It may have ended since.
                for query in self._running[stage.name][1].streams.active:
                    if self._telling.progress(stage, rows_by_batch(query)):
                        self._schedule.advanced(stage.name)

    def _count_waiting(self, streams: list[Stage]) -> None:
        for stage in streams:
            self._telling.count_waiting(stage)
