"""Dead letters: which there are and why, repair, resubmit, move and delete, runs, undo, and files."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from duobus.console.events import stream_events
from duobus.console.screens.dead_letters import entity_pages, files, run_pages, selection_pages
from duobus.console.screens.dead_letters.job_files import JobFiles, runs_folder
from duobus.console.screens.dead_letters.jobs import Jobs
from duobus.console.screens.dead_letters.selection import Selection
from duobus.console.settings import SETTINGS
from duobus.console.visits import Redirect, Screen, View, Visit

screen: Final = Screen("dead_letters", label="Dead letters", key="d", order=40)


def jobs_of(visit: Visit) -> Jobs:
    """The runs of the console."""
    found = visit.shared.get(screen.name)
    if not isinstance(found, Jobs):
        found = Jobs(JobFiles(runs_folder(visit.request.app[SETTINGS])), visit.clock)
        visit.shared[screen.name] = found
    return found


def selected(visit: Visit) -> Selection:
    """The selection that the address describes."""
    return Selection.read(visit.match["path"], visit.query, visit.query.getall("number", []))


@screen.get("/dead-letters", right="listen")
async def show_entities(visit: Visit) -> View | Redirect:
    """All entities with dead letters."""
    return await entity_pages.show_entities(visit, jobs_of(visit))


@screen.get("/dead-letter-causes", right="listen")
async def show_causes(visit: Visit) -> View:
    """What the dead letters of all entities have died of."""
    return await entity_pages.show_causes(visit, jobs_of(visit))


@screen.get("/dead-letters/{path:.+}", right="listen")
async def show(visit: Visit) -> View:
    """The dead letters of an entity by what they have died of, or the messages of one selection."""
    selection = selected(visit)
    if selection.is_whole and not visit.query.get("all") and not visit.query.get("sample"):
        return await entity_pages.show_entity(visit, jobs_of(visit), selection)
    return await selection_pages.show_selection(visit, jobs_of(visit), selection)


@screen.post("/dead-letter-repairs/{path:.+}", right="send")
async def show_difference(visit: Visit) -> View:
    """What a repair would make of the sample."""
    selection = run_pages.selection_of(visit)
    return await selection_pages.show_difference(visit, jobs_of(visit), selection)


@screen.get("/dead-letter-files/{path:.+}", right="listen")
async def download(visit: Visit) -> web.StreamResponse:
    """A selection as a file."""
    return await files.download(visit, jobs_of(visit), selected(visit))


@screen.post("/dead-letter-files", right=None, file_max=None)
async def upload(visit: Visit) -> Redirect:
    """The messages of a file."""
    return await files.upload(visit, jobs_of(visit))


@screen.get("/dead-letter-runs", right="listen")
async def show_runs(visit: Visit) -> View:
    """All runs."""
    return await run_pages.show_runs(visit, jobs_of(visit))


@screen.post("/dead-letter-runs", right="listen")
async def begin(visit: Visit) -> Redirect | View:
    """Begin a dry run."""
    return await run_pages.begin(visit, jobs_of(visit))


@screen.get("/dead-letter-runs/{run}", right="listen")
async def show_run(visit: Visit) -> View:
    """One run."""
    return await run_pages.show_run(visit, jobs_of(visit))


@screen.get("/dead-letter-runs/{run}/events", right="listen")
async def events(visit: Visit) -> web.StreamResponse:
    """News of a run."""
    return await stream_events(visit, run_pages.events(visit, jobs_of(visit)))


@screen.post("/dead-letter-runs/{run}/run", right="listen")
async def run(visit: Visit) -> Redirect:
    """Do what a dry run has tried."""
    return await run_pages.run(visit, jobs_of(visit))


@screen.post("/dead-letter-runs/{run}/{what:pause|go-on|stop}", right="listen")
async def steer(visit: Visit) -> Redirect:
    """Pause a run, let it go on, or stop it."""
    return await run_pages.steer(visit, jobs_of(visit), visit.match["what"])


@screen.post("/dead-letter-runs/{run}/again", right="listen")
async def try_again(visit: Visit) -> Redirect:
    """Try what a run has not come to."""
    return await run_pages.try_again(visit, jobs_of(visit))


@screen.post("/dead-letter-runs/{run}/undo", right="manage", only_duobus=True)
async def undo(visit: Visit) -> Redirect:
    """Undo a run."""
    return await run_pages.undo(visit, jobs_of(visit))
