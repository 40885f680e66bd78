"""Runs: begin one, see how far it is, pause and stop it, undo it."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from duobus.clock import Entropy
from duobus.console.events import Event
from duobus.console.namespace.thread_client import namespace_of
from duobus.console.screens.dead_letters import job_record as states
from duobus.console.screens.dead_letters import looks, selection_pages
from duobus.console.screens.dead_letters.entity_pages import address_of
from duobus.console.screens.dead_letters.job_record import JobRecord
from duobus.console.screens.dead_letters.jobs import AGAIN_MS, Jobs, line_bytes_max, work_of
from duobus.console.screens.dead_letters.repairs import RepairForm, read_repair, summary_of
from duobus.console.screens.dead_letters.selection import Selection, number_of
from duobus.console.screens.messages import drafts
from duobus.console.visits import Redirect, Refusal, View
from duobus.errors import ServiceBusError

if TYPE_CHECKING:
    from duobus.console.uploads import Upload
    from duobus.console.visits import Visit

#: Runs on a page.
_ROWS: Final = 50
RATE_MAX: Final = 100_000
#: How often a page that shows a run looks for news, in seconds.
_LOOK_S: Final = 0.4

#: What a run does, in words: to be done, and done.
ACTIONS: Final = {
    states.RESUBMIT: ("Resubmit", "resubmitted"),
    states.MOVE: ("Move", "moved"),
    states.PURGE: ("Delete", "deleted"),
    states.UNDO: ("Undo", "undone"),
    states.SEND: ("Send from a file", "sent"),
    states.RESTORE: ("Restore from a file", "restored"),
}


#: What a run is called in the audit log.
_AUDITED: Final = {
    states.RESUBMIT: "resubmit",
    states.MOVE: "move",
    states.PURGE: "delete",
    states.UNDO: "undo",
    states.SEND: "send",
    states.RESTORE: "restore",
}


async def show_runs(visit: Visit, jobs: Jobs) -> View:
    """The runs of the namespace, the latest first."""
    records = jobs.records(visit.namespace.name)
    return View("dead_letters/runs.html", "Runs", {"runs": [data_of(visit, one, jobs) for one in records[:_ROWS]]})


async def show_run(visit: Visit, jobs: Jobs) -> View:
    """One run."""
    record = jobs.record(visit.namespace.name, visit.match["run"])
    data = data_of(visit, record, jobs)
    return View("dead_letters/run.html", data["title"], {"run": data})


def data_of(visit: Visit, record: JobRecord, jobs: Jobs) -> dict[str, Any]:
    """A run as the templates need it."""
    found: dict[str, Any] = msgspec.to_builtins(record)
    verb, past = ACTIONS[record.action]
    now_ms = visit.clock.now_ms()
    handled = record.looked if record.is_dry else record.done + record.left + record.gone
    selection = record.meant
    job = jobs.job(record.id)
    can_do = job is not None
    return found | {
        "title": f"{'Dry run: ' if record.is_dry else ''}{verb} · {record.selection['path']}",
        "verb": verb,
        "past": past,
        "url": f"/dead-letter-runs/{record.id}",
        "selection_url": address_of(selection, all="1" if selection.is_whole else None),
        "fields": selection.fields,
        "has_ended": record.has_ended,
        "is_paused": job is not None and job.is_paused,
        "can_pause": can_do and not record.is_dry and record.state != states.STOPPING,
        "can_stop": can_do and record.state != states.STOPPING,
        "can_try_again": not record.is_dry
        and record.state in {states.STOPPED, states.FAILED, states.INTERRUPTED}
        and record.action in {states.RESUBMIT, states.MOVE, states.PURGE},
        "can_undo": record.can_be_undone(now_ms) and visit.namespace.rights.manage and visit.namespace.is_duobus,
        "undo_until": record.undo_until_ms,
        "handled": handled,
        "rate_now": _rate(record, now_ms),
        "seconds_left": record.seconds_left(now_ms),
        "summary": summary_of(record.repair),
        "reasons": sorted(record.reasons.copy().items(), key=lambda item: -item[1])[:20],
        "begun": record.begun_ms,
        "ended": record.ended_ms or None,
        "undoable": visit.namespace.is_duobus,
    }


def _rate(record: JobRecord, now_ms: int) -> float | None:
    took_ms = (record.ended_ms or now_ms) - record.begun_ms
    return None if took_ms < 200 or record.is_dry else record.done / took_ms * 1000


async def begin(visit: Visit, jobs: Jobs) -> Redirect | View:
    """Begin a dry run of what the form of a selection says."""
    selection = selection_of(visit)
    action = visit.form.get("action", states.RESUBMIT)
    if action not in {states.RESUBMIT, states.MOVE, states.PURGE}:
        raise Refusal(422, "Choose what is to be done: resubmit, move or delete.")
    _demand_rights(visit, action)
    to = visit.form.get("target", "").strip().strip("/")
    repair = None
    if action != states.PURGE:
        form = await _repair_of(visit, jobs, selection)
        if action == states.MOVE and not to:
            form.errors["target"] = "Name the queue or topic to move the messages to."
        if form.errors:
            # Nothing that was typed is lost.
            return await selection_pages.show_selection(visit, jobs, selection, form)
        repair = form.repair
    record = _record(visit, action, selection)
    record.expected = number_of(visit.form.get("expected"))
    record.to = to if action == states.MOVE else ""
    record.repair = repair
    record.is_dry = True
    return await _started(visit, jobs, record)


async def _repair_of(visit: Visit, jobs: Jobs, selection: Selection) -> RepairForm:
    number = number_of(visit.form.get("sample"))
    original = None
    if number:
        look = partial(looks.sample, namespace_of(visit), selection, number, None)
        original = await looks.in_thread(jobs.lookers, look)
    return read_repair(visit.form, None if original is None else original["message"])


async def run(visit: Visit, jobs: Jobs) -> Redirect:
    """Do what a dry run has tried."""
    tried = jobs.record(visit.namespace.name, visit.match["run"])
    if not tried.is_dry or not tried.has_ended:
        raise Refusal(409, "Wait for the end of the dry run.")
    _demand_rights(visit, tried.action)
    if tried.action == states.PURGE:
        visit.confirmed(tried.selection["path"])
    same = (tried.action, tried.selection, tried.to, tried.repair)
    for one in jobs.records(visit.namespace.name):
        if not one.is_dry and not one.has_ended and (one.action, one.selection, one.to, one.repair) == same:
            # In another tab, or by somebody else.
            raise Refusal(409, f"This is being done already, by the run that {one.who} began: {one.id}.")
    record = _record(visit, tried.action, tried.meant)
    record.to, record.repair = tried.to, tried.repair
    record.expected = tried.done + tried.left
    record.rate = _read_rate(visit.form.get("rate", ""))
    return await _started(visit, jobs, record)


async def try_again(visit: Visit, jobs: Jobs) -> Redirect:
    """Begin a dry run for what a run has not come to."""
    ended = jobs.record(visit.namespace.name, visit.match["run"])
    if ended.is_dry or not ended.has_ended or ended.action not in {states.RESUBMIT, states.MOVE, states.PURGE}:
        raise Refusal(409, "Only a run that has ended before its time can be taken up again.")
    _demand_rights(visit, ended.action)
    record = _record(visit, ended.action, ended.meant)
    record.to, record.repair, record.is_dry = ended.to, ended.repair, True
    return await _started(visit, jobs, record)


async def steer(visit: Visit, jobs: Jobs, what: str) -> Redirect:
    """Pause a run, let it go on, or stop it."""
    record = jobs.record(visit.namespace.name, visit.match["run"])
    job = jobs.job(record.id)
    url = f"/dead-letter-runs/{record.id}"
    if job is None:
        return Redirect(url, notice="The run had ended already.", kind="info")
    {"pause": job.pause, "go-on": job.go_on, "stop": job.stop}[what]()
    return Redirect(url)


async def undo(visit: Visit, jobs: Jobs) -> Redirect:
    """Make dead letters again of what a run has moved or deleted."""
    original = jobs.record(visit.namespace.name, visit.match["run"])
    if not original.can_be_undone(visit.clock.now_ms()):
        raise Refusal(409, "This run cannot be undone: it was undone already, or its undo file is gone after 24 hours.")
    if any(one.undoes == original.id and not one.has_ended for one in jobs.records(visit.namespace.name)):
        raise Refusal(409, "This run is being undone by somebody else at the moment.")
    record = _record(visit, states.UNDO, Selection(original.selection["path"]))
    record.undoes = original.id
    record.expected = original.recorded
    return await _started(visit, jobs, record)


async def start_import(visit: Visit, jobs: Jobs, selection: Selection, action: str, source: Upload) -> Redirect:
    """Bring the messages of an uploaded file."""
    record = _record(visit, action, selection)
    most = line_bytes_max(visit.namespace.is_duobus)
    record.expected, digest = await looks.in_thread(jobs.lookers, lambda: _read_through(source, most))
    if not jobs.admit_import((record.namespace, action, selection.path, digest)):
        text = (
            "The same file was given a moment ago: see the runs for what has become of its messages. "
            f"Who means to bring them twice waits {AGAIN_MS // 1_000} seconds."
        )
        raise Refusal(409, text)
    return await _started(visit, jobs, record, source)


def _read_through(source: Upload, most: int) -> tuple[int, bytes]:
    """How many lines an uploaded file has, and a digest of the file.

    Raises:
        Refusal: A line is too long; nothing was brought yet.
    """
    number, digest = 0, hashlib.sha256()
    for number, line in enumerate(source.lines(most), 1):
        digest.update(line)
        if len(line) > most:
            text = (
                f"Line {number} of the file has more than {most / (1 << 20):.4g} MiB, which is the most that a dead "
                "letter may have here. Nothing was brought. The page Send of a queue or topic takes lines of up to "
                f"{drafts.LINE_BYTES_MAX >> 20} MiB."
            )
            raise Refusal(413, text)
    return number, digest.digest()


def selection_of(visit: Visit) -> Selection:
    """The selection that a form describes."""
    path = visit.form.get("path", "").strip("/")
    if not path:
        raise Refusal(422, "Name the queue or subscription.")
    return Selection.read(path, visit.form, visit.form.getall("number", []))


def _record(visit: Visit, action: str, selection: Selection) -> JobRecord:
    return JobRecord(
        id=Entropy().token(8).hex(),
        namespace=visit.namespace.name,
        who=visit.namespace.rule_name,
        action=action,
        selection=selection.data(),
        begun_ms=visit.clock.now_ms(),
    )


async def _started(visit: Visit, jobs: Jobs, record: JobRecord, source: Upload | None = None) -> Redirect:
    if record.action in {states.RESUBMIT, states.MOVE, states.PURGE}:
        try:
            # What makes no sense is told at once, not by a run that fails.
            work_of(record, is_client_side=False)
        except ServiceBusError as error:
            raise Refusal(422, str(error)) from error
    try:
        jobs.start(record, namespace_of(visit), source)
    except OSError as error:
        raise Refusal(507, f"The console cannot write down what it is about to do: {error.strerror}.") from error
    if source is not None:
        source.keep()
    if not record.is_dry:
        note = f"About {record.expected} messages, run {record.id} of the console"
        await visit.write_down(_AUDITED[record.action], "dead letters", record.selection["path"], note=note)
    return Redirect(f"/dead-letter-runs/{record.id}")


def _read_rate(text: str) -> int | None:
    if not text.strip():
        return None
    try:
        rate = int(text)
    except ValueError:
        rate = 0
    if not 1 <= rate <= RATE_MAX:
        raise Refusal(422, f"A rate is a whole number of messages a second, from 1 to {RATE_MAX:,}.")
    return rate


def _demand_rights(visit: Visit, action: str) -> None:
    rights = visit.namespace.rights
    if action != states.PURGE and not rights.send:
        raise Refusal(403, "This needs the right Send as well as Listen. Sign in with a key that has both.")


async def events(visit: Visit, jobs: Jobs) -> AsyncIterator[Event]:
    """News of a run for the page that shows it, until it has ended."""
    record = jobs.record(visit.namespace.name, visit.match["run"])
    shown = None
    while True:
        version = jobs.version(record.id)
        data = data_of(visit, record, jobs)
        state = (record.state, data["is_paused"], record.note, record.undone_by)
        if shown is None or shown[1] != state:
            html = visit.render("dead_letters/parts/run.html", {"run": data})
            yield Event("html", {"target": "#run", "swap": "innerHTML", "html": html})
            said = f"{record.state}: {record.done} {data['past']}, {record.left} left"
            yield Event("html", {"target": "#run-said", "swap": "textContent", "html": said})
        elif shown[0] != version:
            # The buttons stay as they are, so that the focus does.
            html = visit.render("dead_letters/parts/run_figures.html", {"run": data})
            yield Event("html", {"target": "#run-figures", "swap": "innerHTML", "html": html})
        shown = (version, state)
        if record.has_ended:
            return
        await asyncio.sleep(_LOOK_S)
