"""Runs: work on dead letters that goes on when the browser is closed, one thread for each, a few at a time."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from duobus.clock import Clock
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.thread_client import WorkNamespace
from duobus.console.screens.dead_letters import job_record as states
from duobus.console.screens.dead_letters.job_files import UNDO_MESSAGES_MAX, UNDO_MS, JobFiles
from duobus.console.screens.dead_letters.job_record import JobRecord
from duobus.console.visits import Refusal
from duobus.dead_letters import runs
from duobus.dead_letters.client import DeadLetterClient
from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.undo_file import UndoFile, read_undo
from duobus.dead_letters.work import Pace, Totals, Work
from duobus.errors import ServiceBusError

if TYPE_CHECKING:
    from duobus.console.uploads import Upload

#: Runs that work at a time, and runs that have not ended.
THREADS_MAX: Final = 4
JOBS_MAX: Final = 20
#: Messages of one order of a run without a bound on the rate.
_CHUNK: Final = 250
_DRY_CHUNK: Final = 500
#: How long a run waits for a namespace that does not answer, in all, and how long between two attempts, in seconds.
RETRY_S: Final = 600.0
_PAUSE_S: Final = 1.0
#: How often what is known of a run is written down, in ms; at its beginning and end in any case.
_SAVE_MS: Final = 1_000
#: How long the end of the console waits for runs to come to the end of a chunk, in seconds.
_CLOSE_S: Final = 10.0
#: For so long the same file is not brought to the same place again.
AGAIN_MS: Final = 10_000
#: Longest line of an uploaded file, in bytes: of a duobus, whose dead-letter service takes orders of 8 MiB, and of
#: other namespaces, to which the SDK sends the messages.
LINE_BYTES_MAX: Final = (8 << 20) - (64 << 10)
CLIENT_LINE_BYTES_MAX: Final = 136 << 20
#: Statuses of a namespace that is away for a while.
_AWAY: Final = frozenset({HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT})

T = TypeVar("T")
_log = logging.getLogger("duobus.console")


class Stopped(Exception):
    """Somebody has stopped the run."""


class Job:
    """A run of this console.

    Args:
        record: What is known of it.
        namespace: With the key of the person who began it.
        files: Where it is written down.
        clock: For the pace.
        source: An uploaded file, which is closed at the end of the run.

    Attributes:
        version: Changes whenever the record does.
    """

    def __init__(
        self, record: JobRecord, namespace: WorkNamespace, files: JobFiles, clock: Clock, source: Upload | None = None
    ) -> None:
        self.record = record
        self.namespace = namespace
        self.files = files
        self.clock = clock
        self.source = source
        self.version = 0
        self.is_closing = False
        self._stop = threading.Event()
        self._go = threading.Event()
        self._go.set()
        self._saved_ms = 0
        self._told = 0

    # -- what people do ---------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stay where it is, from the end of the chunk on."""
        self._go.clear()
        self.version += 1

    def go_on(self) -> None:
        """Go on after a pause."""
        self._go.set()
        self.version += 1

    def stop(self) -> None:
        """End at the end of the chunk."""
        if not self.record.has_ended:
            self.record.state = states.STOPPING
        self._stop.set()
        self._go.set()
        self.version += 1

    @property
    def is_paused(self) -> bool:
        """Whether somebody wants it to pause."""
        return not self._go.is_set()

    def lines(self) -> Iterator[bytes]:
        """The lines of the uploaded file."""
        return iter(()) if self.source is None else self.source.lines(line_bytes_max(self.namespace.is_duobus))

    # -- what its thread does ---------------------------------------------------------------------------------------

    def gate(self) -> int:
        """Wait while the run is paused; for how many ms it was.

        Raises:
            Stopped: It is to end.
        """
        began_ms = self.clock.monotonic_ms()
        while not self._go.is_set():
            self._set_state(states.PAUSED)
            self._go.wait()
        if self._stop.is_set():
            raise Stopped
        self._set_state(states.RUNNING)
        return self.clock.monotonic_ms() - began_ms

    def wait(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            Stopped: It is to end.
        """
        if self._stop.wait(seconds):
            raise Stopped

    def count(self, totals: Totals) -> None:
        """Take over what has become of messages."""
        record = self.record
        record.done, record.left, record.gone = totals.moved, totals.left, totals.gone
        for skipped in totals.skipped[self._told :]:
            record.skip(skipped["sequenceNumber"], skipped["reason"])
        self._told = len(totals.skipped)
        self.changed()

    def changed(self, *, at_once: bool = False) -> None:
        """Write down what is known, unless that was done just now."""
        self.version += 1
        now_ms = self.clock.monotonic_ms()
        if at_once or now_ms - self._saved_ms >= _SAVE_MS:
            self._saved_ms = now_ms
            self.files.save(self.record)

    def with_retries(self, call: Callable[[], T], *, may_repeat: bool) -> T:
        """Call the namespace, and wait for it when it is away.

        Args:
            call: The call.
            may_repeat: Whether the call does no harm when it has been done, and only its answer was lost.
        """
        waited_s = 0.0
        while True:
            try:
                found = call()
            except NamespaceError as error:
                can_wait = error.status == HTTPStatus.SERVICE_UNAVAILABLE or (may_repeat and error.status in _AWAY)
                if not can_wait or waited_s >= RETRY_S:
                    raise
                self.record.note = error.text
                self._set_state(states.HELD_UP)
                self.wait(_PAUSE_S)
                waited_s += _PAUSE_S
            else:
                if waited_s:
                    self.record.note = ""
                    self._set_state(states.RUNNING)
                return found

    def _set_state(self, state: str) -> None:
        if self.record.state != state:
            self.record.state = state
            self.changed(at_once=True)


class WaitingClient(DeadLetterClient):
    """A client that waits for a namespace that is away, since a run has time."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.namespace)
        self._job = job

    def is_there(self) -> bool:
        """See DeadLetterClient."""
        return self._job.with_retries(super().is_there, may_repeat=True)

    def order(self, address: str, order: dict[str, Any]) -> dict[str, Any]:
        """See DeadLetterClient."""
        ask = super().order
        may_repeat = order["action"] != states.SEND
        if order["action"] == states.RESTORE:
            # Where a message was moved to is looked at before it is made a dead letter a second time.
            may_repeat = all(item.get("movedTo") for item in order["items"])
        return self._job.with_retries(lambda: ask(address, order), may_repeat=may_repeat)


class JobPace(Pace):
    """Keeps a run to its rate, lets it pause, and takes over its numbers."""

    def __init__(self, job: Job) -> None:
        super().__init__(job.record.rate, job.clock)
        self._job = job

    def step(self, totals: Totals) -> None:
        """See Pace."""
        self._job.count(totals)
        self._started_ms += self._job.gate()
        super().step(totals)

    def wait(self, seconds: float) -> None:
        """See Pace."""
        self._job.wait(seconds)


class BoundedUndoFile(UndoFile):
    """An undo file that takes so many messages and no more."""

    def __init__(self, path: Path, work: Work, job: Job) -> None:
        super().__init__(path, work)
        self._job = job

    def plan(self, records: list[dict[str, Any]]) -> None:
        """See UndoFile."""
        room = UNDO_MESSAGES_MAX - self._job.record.recorded
        if room > 0:
            super().plan(records[:room])
            self._job.record.recorded += len(records[:room])


class Jobs:
    """The runs of a console.

    Args:
        files: Where they are written down.
        clock: Time.
    """

    def __init__(self, files: JobFiles, clock: Clock) -> None:
        self.files = files
        self._clock = clock
        self._records = files.load(clock.now_ms())
        self._jobs: dict[str, Job] = {}
        #: When which file was admitted to which place.
        self._imports: dict[tuple[str, str, str, bytes], int] = {}
        self._threads = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="console-dead-letters")
        #: For looks that a page waits for.
        self.lookers = ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="console-look")

    async def close(self) -> None:
        """Interrupt every run at the end of its chunk."""
        for job in self._jobs.values():
            job.is_closing = True
            job.stop()
        self.lookers.shutdown(wait=False, cancel_futures=True)
        ended = asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        await asyncio.wait([ended], timeout=_CLOSE_S)

    def records(self, namespace: str) -> list[JobRecord]:
        """The runs in a namespace, the latest first."""
        self.files.sweep(self._records, self._clock.now_ms())
        found = [record for record in self._records.values() if record.namespace == namespace]
        return sorted(found, key=lambda record: (-record.begun_ms, record.id))

    def record(self, namespace: str, identifier: str) -> JobRecord:
        """One run.

        Raises:
            Refusal: There is none.
        """
        record = self._records.get(identifier)
        if record is None or record.namespace != namespace:
            raise Refusal(HTTPStatus.NOT_FOUND, "There is no such run in this namespace. Runs are kept for seven days.")
        return record

    def job(self, identifier: str) -> Job | None:
        """The run while it goes on; None for one that has ended."""
        job = self._jobs.get(identifier)
        return None if job is None or job.record.has_ended else job

    def version(self, identifier: str) -> int:
        """Changes whenever what is known of the run does."""
        job = self._jobs.get(identifier)
        return -1 if job is None else job.version

    def admit_import(self, what: tuple[str, str, str, bytes]) -> bool:
        """Whether a file is to be brought, which was not admitted a moment ago: a form that two tabs send counts once.

        Args:
            what: The namespace, the action, the path of the entity and a digest of the file.
        """
        now_ms = self._clock.monotonic_ms()
        self._imports = {one: at for one, at in self._imports.items() if now_ms - at < AGAIN_MS}
        if what in self._imports:
            return False
        self._imports[what] = now_ms
        return True

    def start(self, record: JobRecord, namespace: WorkNamespace, source: Upload | None = None) -> None:
        """Begin a run.

        Raises:
            Refusal: There are too many.
        """
        for identifier in [name for name, job in self._jobs.items() if job.record.has_ended]:
            del self._jobs[identifier]
        if len(self._jobs) >= JOBS_MAX:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS, f"{JOBS_MAX} runs are under way. Wait for one of them, or stop one."
            )
        self.files.sweep(self._records, self._clock.now_ms())
        job = Job(record, namespace, self.files, self._clock, source)
        self.files.save(record)
        self.files.hold(record.id)
        self._records[record.id] = record
        self._jobs[record.id] = job
        self._threads.submit(self._run, job)

    # -- in the thread of a run -------------------------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        record = job.record
        try:
            job.gate()
            with WaitingClient(job) as link:
                _WORKS.get(record.action, _change)(job, link, self._records)
            record.state = states.DONE
        except Stopped:
            record.state = states.INTERRUPTED if job.is_closing else states.STOPPED
            record.note = "The console was stopped in the middle of this." if job.is_closing else ""
        except (NamespaceError, DeadLetterError, ServiceBusError) as error:
            record.state = states.FAILED
            record.note = getattr(error, "text", None) or str(error)
        except Exception:  # noqa: BLE001 - of any library; the person sees a sentence, the log has the rest
            _log.exception("A run on dead letters failed")
            record.state = states.FAILED
            record.note = "The console has failed at this; its log says more."
        finally:
            if job.source is not None:
                job.source.close()
            record.ended_ms = self._clock.now_ms()
            if record.recorded:
                record.undo_until_ms = record.ended_ms + UNDO_MS
            try:
                job.changed(at_once=True)
            except OSError:
                _log.exception("What is known of a run cannot be written down")
            self.files.release(record.id)


def work_of(record: JobRecord, *, is_client_side: bool) -> Work:
    """What a run is to do.

    Raises:
        ServiceBusError: Its plan makes no sense.
    """
    selection = record.meant
    members = {
        "action": record.action,
        "sql": selection.filter,
        "json": selection.json or None,
        "numbers": list(selection.numbers) or None,
        "to": record.to or None,
        "repair": record.repair or None,
    }
    # About one chunk a second, so that the rate is even.
    chunk = _DRY_CHUNK if record.is_dry else min(record.rate or _CHUNK, _CHUNK)
    return Work.of_members(
        members,
        selection.entity,
        selection.subscription,
        is_transfer=selection.is_transfer,
        chunk=chunk,
        takes=selection.takes,
        is_client_side=is_client_side,
    )


def _change(job: Job, link: DeadLetterClient, _records: dict[str, JobRecord]) -> None:
    record = job.record
    work = work_of(record, is_client_side=not job.namespace.is_duobus)
    executor = runs.executor_of(job.namespace, link, work)
    if record.is_dry:
        _look(job, executor.pages(is_dry=True))
        return
    pace = JobPace(job)
    undo = BoundedUndoFile(job.files.undo_path(record.id), work, job) if executor.can_undo else None
    try:
        job.count(executor.run(pace, undo))
    finally:
        if undo is not None:
            undo.close()


def _look(job: Job, pages: Iterator[list[dict[str, Any]]]) -> None:
    record = job.record
    for page in pages:
        for found in page:
            record.looked += 1
            if "refused" in found or found.get("isHeld"):
                record.left += 1
                record.skip(found["sequenceNumber"], found.get("refused") or "A receiver holds it.")
            else:
                record.done += 1
        job.changed()
        job.gate()


def _undo(job: Job, link: DeadLetterClient, records: dict[str, JobRecord]) -> None:
    undoes = job.record.undoes
    # A deletion that two consoles undo at the same time would bring every message back twice.
    if not job.files.hold(undoes):
        raise DeadLetterError("Another console of this machine is undoing this run.")
    try:
        _bring_back(job, link, records)
    finally:
        job.files.release(undoes)


def _bring_back(job: Job, link: DeadLetterClient, records: dict[str, JobRecord]) -> None:
    record = job.record
    undone = read_undo(job.files.undo_path(record.undoes))
    record.expected = len(undone) + len(undone.unknown)
    totals = Totals()

    def note(numbers: list[int]) -> None:
        undone.note(numbers)
        job.count(totals)

    work = _bringing(job)
    executor = runs.executor_of(job.namespace, link, work)
    try:
        runs.bring(executor, _gated(job, undone.items(), totals), work.chunk, totals, note)
    finally:
        job.count(totals)
    totals.skip_all(undone.unknown, "Nobody knows where it is: the answer was lost, or it went to a topic.")
    job.count(totals)
    original = records.get(record.undoes)
    if original is not None:
        original.undone_by = record.id
        job.files.save(original)


def _import(job: Job, link: DeadLetterClient, _records: dict[str, JobRecord]) -> None:
    work = _bringing(job)
    executor = runs.executor_of(job.namespace, link, work)
    totals = Totals()
    try:
        runs.bring(executor, _gated(job, messages_of(job.lines()), totals), work.chunk, totals)
    finally:
        job.count(totals)


def _bringing(job: Job) -> Work:
    selection = job.record.meant
    action = states.RESTORE if job.record.action == states.UNDO else job.record.action
    is_client_side = not job.namespace.is_duobus
    return Work.of_members(
        {"action": action}, selection.entity, selection.subscription, chunk=_CHUNK, is_client_side=is_client_side
    )


def _gated(job: Job, items: Iterator[dict[str, Any]], totals: Totals) -> Iterator[dict[str, Any]]:
    for position, item in enumerate(items):
        if position % _CHUNK == 0:
            job.count(totals)
            job.gate()
        yield item


def line_bytes_max(is_duobus: bool) -> int:
    """The most bytes of a line of an uploaded file, which holds one message."""
    return LINE_BYTES_MAX if is_duobus else CLIENT_LINE_BYTES_MAX


def messages_of(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The messages of an uploaded file, which has one a line.

    Raises:
        DeadLetterError: A line is none.
    """
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("message"), dict):
            raise DeadLetterError(f"Line {number} is no exported message. What stood before the line was brought.")
        yield record


_WORKS: Final[dict[str, Callable[[Job, DeadLetterClient, dict[str, JobRecord]], None]]] = {
    states.UNDO: _undo,
    states.SEND: _import,
    states.RESTORE: _import,
}
