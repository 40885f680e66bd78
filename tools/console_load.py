"""Load the console: a deep queue, many open consoles, large messages, many entities; and say what each costs.

    python -m tools.console_load                              # all of it; some 15 minutes and 6 GB of disk
    python -m tools.console_load --part consoles --seconds 60
    python -m tools.console_load --quick                      # all of it in small; no time is judged

Starts a broker and a console as processes of their own, on data that is deleted afterwards, and looks at pages as a
browser does that runs no scripts. Every figure has the time of the answer, the console's memory (resident now, and the
most meanwhile), and the longest answer of the broker to a probe that is sent all the time: no turn of the broker's
loop was longer than that.

Exit status: 0 everything held; 1 a bound was passed, or something was lost or not released.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from time import perf_counter
from typing import Any, Final

import aiohttp
import click
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from benchmarks import usage
from benchmarks.load.exchange import Exchange, Limits
from benchmarks.load.link import Target
from benchmarks.load.message import Run
from benchmarks.load.sender import Sender
from benchmarks.load.verify import check_accepted
from benchmarks.peers import EMULATOR_KEY, EMULATOR_RULE
from duobus.ha.sdk import prompt_client
from duobus.testing.server import ServerProcess, queues_config

ROOT: Final = Path(__file__).resolve().parents[1]
DEEP, DEAD, BUSY, TAILED, LARGE, FILED = "deep", "dead", "busy", "tailed", "large", "filed"
NEEDLE: Final = "needle"
#: Messages that one sender sends before another takes its place: it keeps the time of each.
PER_SENDER: Final = 200_000
WINDOW: Final = 1_000
BODY_BYTES: Final = 1_024
#: Between two probes of the broker, and between two looks at what the console has released, in seconds.
PROBE_S: Final = 0.02
LOOK_S: Final = 0.25
#: Messages a second to the queue that live tails follow.
TAILED_RATE: Final = 20
READY_S: Final = 60.0
#: After so many seconds of traffic every live page has something to tell.
HEARD_S: Final = 15.0
#: What may be left when all sessions have ended, beside what there was before: threads are kept for the next work.
RELEASED: Final = {"connections": 0, "descriptors": 2, "threads": 8}
#: How long answers may take, in seconds: a page, and what moves a message of 100 MB.
PAGE_S_MAX: Final = 10.0
LARGE_S_MAX: Final = 120.0
#: What the console may hold resident, in MB: with ordinary pages, and while it carries a message of 100 MB.
RESIDENT_MB_MAX: Final = 400.0
LARGE_MB_MAX: Final = 1_600.0
#: The longest answer of the broker to a probe, in seconds, while nothing but the console is at work. Messages of 100 MB
#: are moved in one piece.
PROBE_S_MAX: Final = 0.5
PROBE_LARGE_S_MAX: Final = 5.0


@dataclass
class Figure:
    """What one step has cost.

    Attributes:
        what: The step.
        seconds: Until the last byte of the answer.
        console_mb, console_peak_mb: Memory of the console at the end of the step, and the most during the step.
        probe_ms: The broker's longest answer to a probe.
        console_probe_ms: That of the console.
        more: What else there is to tell.
    """

    what: str
    seconds: float
    console_mb: float
    console_peak_mb: float
    probe_ms: float
    console_probe_ms: float
    more: dict[str, Any] = field(default_factory=dict)


class Campaign:
    """One broker with one console, and what was found.

    Args:
        server: The broker.
        console: The process of the console.
        url: Of the console.
        code: Its access code.

    Attributes:
        judges_times: Whether a bound of time that is passed is a fault.
    """

    def __init__(self, server: ServerProcess, console: Popen[bytes], url: str, code: str) -> None:
        self.judges_times = True
        self.server = server
        self.console = console
        self.url = url
        self.code = code
        self.figures: list[Figure] = []
        self.faults: list[str] = []

    def target(self, queue: str) -> Target:
        """Where a queue is."""
        return Target("127.0.0.1", int(self.server.ready["amqp_port"]), queue, EMULATOR_RULE, EMULATOR_KEY)

    def demand(self, is_so: bool, fault: str) -> None:
        """Note a fault unless something is so."""
        if not is_so:
            self.faults.append(fault)

    async def measured(
        self,
        what: str,
        work: Callable[[], Awaitable[dict[str, Any]]],
        *,
        seconds_max: float = PAGE_S_MAX,
        mb_max: float = RESIDENT_MB_MAX,
        probe_s_max: float = PROBE_S_MAX,
    ) -> Figure:
        """Do a step, and note what it has cost and which bounds it has passed."""
        _forget_peak(self.console.pid)
        async with (
            probing(f"{self.server.ready['admin_url']}/health/live") as probe,
            probing(f"{self.url}/healthz") as own_probe,
        ):
            began = perf_counter()
            more = await work()
            seconds = perf_counter() - began
        now_mb, peak_mb = usage.memory_mb(self.console.pid)
        probe_ms, own_ms = (round(one.longest_s * 1_000) for one in (probe, own_probe))
        figure = Figure(what, round(seconds, 3), round(now_mb), round(peak_mb), probe_ms, own_ms, more)
        self.figures.append(figure)
        print(json.dumps(asdict(figure)), flush=True)
        self.demand(peak_mb <= mb_max, f"{what}: the console held {peak_mb:.0f} MB, more than {mb_max:g}.")
        if not self.judges_times:
            return figure
        self.demand(seconds <= seconds_max, f"{what}: took {seconds:.1f} s, more than {seconds_max:g}.")
        self.demand(
            probe.longest_s <= probe_s_max,
            f"{what}: the broker took {probe.longest_s:.2f} s to answer a probe, more than {probe_s_max:g}.",
        )
        return figure


def _forget_peak(pid: int) -> None:
    # Linux begins to count the most that was resident anew.
    Path(f"/proc/{pid}/clear_refs").write_text("5\n")


class Probe:
    """The longest answer so far, in seconds."""

    longest_s = 0.0


@asynccontextmanager
async def probing(url: str) -> AsyncIterator[Probe]:
    """Ask a server all the time whether it is alive."""
    probe = Probe()

    async def ask(session: aiohttp.ClientSession) -> None:
        while True:
            began = perf_counter()
            async with session.get(url) as answer:
                await answer.read()
            probe.longest_s = max(probe.longest_s, perf_counter() - began)
            await asyncio.sleep(PROBE_S)

    async with aiohttp.ClientSession() as session:
        task = asyncio.ensure_future(ask(session))
        await asyncio.sleep(PROBE_S)
        try:
            yield probe
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Person:
    """Somebody with a browser, signed in."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self.http = aiohttp.ClientSession(
            cookie_jar=aiohttp.CookieJar(unsafe=True), timeout=aiohttp.ClientTimeout(total=600)
        )
        self.csrf = ""

    async def __aenter__(self) -> Person:
        page = await self._read("GET", "/sign-in")
        form = dict(re.findall(r'name="(csrf|namespace)"[^>]*value="([^"]*)"', page))
        form |= {"kind": "code", "code": self._campaign.code, "next": "/healthz"}
        await self._read("POST", "/sign-in", data=form)
        page = await self._read("GET", "/send/none")
        self.csrf = re.findall(r'data-csrf="([^"]+)"', page)[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._read("POST", "/sign-out", data={"csrf": self.csrf})
        await self.http.close()

    async def _read(self, method: str, path: str, **options: Any) -> str:
        async with self.http.request(method, self._campaign.url + path, **options) as answer:
            return await answer.text()

    async def page(self, path: str, *, accept: str = "text/html", status: int = 200) -> dict[str, Any]:
        """Load a page; tells how large it was."""
        size = 0
        async with self.http.get(self._campaign.url + path, headers={"Accept": accept}) as answer:
            async for part in answer.content.iter_chunked(1 << 20):
                size += len(part)
        self._campaign.demand(answer.status == status, f"GET {path} answered {answer.status}.")
        return {"bytes": size}

    async def data(self, path: str) -> Any:
        """What a program gets."""
        return json.loads(await self._read("GET", path, headers={"Accept": "application/json"}))

    async def upload(self, path: str, fields: dict[str, str], name: str, file: Path) -> dict[str, Any]:
        """Send a form with a file; tells the status and where the answer leads."""
        form = aiohttp.FormData({"csrf": self.csrf} | fields)
        with file.open("rb") as content:
            form.add_field(name, content, filename=file.name, content_type="application/octet-stream")
            async with self.http.post(self._campaign.url + path, data=form, allow_redirects=False) as answer:
                await answer.read()
        return {"status": answer.status, "location": answer.headers.get("Location", "")}

    async def events(self, path: str) -> AsyncGenerator[tuple[str, Any], None]:
        """Name and data of each event of a live page."""
        async with self.http.get(self._campaign.url + path, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            name = ""
            buffer = b""
            async for part in answer.content.iter_any():
                *lines, buffer = (buffer + part).split(b"\n")
                for line in lines:
                    if line.startswith(b"event: "):
                        name = line[7:].decode()
                    elif line.startswith(b"data: "):
                        yield name, json.loads(line[6:])


# -- the parts -------------------------------------------------------------------------------------------------------


async def deep(campaign: Campaign, size: Size) -> None:
    """A queue with very many messages, of which one is looked for."""
    await asyncio.to_thread(fill, campaign, DEEP, size.messages)
    await send_one(campaign, DEEP, subject=NEEDLE)
    async with Person(campaign) as person:
        first = (await person.data(f"/messages/{DEEP}?count=1"))["rows"][0]["number"]
        middle, last = first + size.messages // 2, first + size.messages
        for what, path in (
            ("overview", "/"),
            ("entities", "/entities"),
            ("messages: first page", f"/messages/{DEEP}"),
            ("messages: page in the middle", f"/messages/{DEEP}?from={middle}&count=200"),
            ("messages: last page", f"/messages/{DEEP}?from={last - 50}"),
            ("messages: 200 with bodies", f"/messages/{DEEP}?from={middle}&count=200&columns=number,body"),
            ("one message in the middle", f"/messages/{DEEP}?number={middle}"),
            ("live tail: the page", f"/tail/{DEEP}"),
            ("stores", "/stores"),
        ):
            await campaign.measured(f"{size.messages:,} messages, {what}", partial(person.page, path))
        await search(campaign, person, size)


async def search(campaign: Campaign, person: Person, size: Size) -> None:
    """Look for the last message; then begin again and stop."""
    path = f"/messages/{DEEP}?sql=sys.label='{NEEDLE}'"
    found: dict[str, Any] = {}

    async def look() -> dict[str, Any]:
        told = 0
        async for name, data in person.events(f"{path}&events=1"):
            told += name == "html"
            if name in ("done", "failed"):
                found.update(data)
                break
        return {"looked": found.get("looked"), "found": found.get("found"), "told": told}

    what = f"{size.messages:,} messages"
    await campaign.measured(f"{what}, the first step of a filter", partial(person.page, path))
    await campaign.measured(f"{what}, a filter that the last one matches", look, seconds_max=600)
    campaign.demand(found.get("found") == 1, f"The filter did not find the last message: {found}.")

    async def begin_and_stop() -> dict[str, Any]:
        events = person.events(f"{path}&events=1")
        await anext(events)
        await events.aclose()
        before = usage.cpu(campaign.console.pid)
        await asyncio.sleep(2 * LOOK_S)
        after = usage.cpu(campaign.console.pid)
        used = after.user + after.system - before.user - before.system
        campaign.demand(used < LOOK_S, f"A search that was stopped took {used:.2f} s of processor time afterwards.")
        return {"cpu_s_after_the_stop": round(used, 2)}

    await campaign.measured(f"{what}, a filter that is stopped", begin_and_stop)


async def dead(campaign: Campaign, size: Size) -> None:
    """Very many dead letters, put together by their causes."""
    await asyncio.to_thread(fill, campaign, DEAD, size.dead)
    async with Person(campaign) as person:
        await expired(person, size.dead)
        for what, path in (
            ("entities with dead letters", "/dead-letters"),
            ("causes of all entities", "/dead-letter-causes"),
            ("causes of the entity", f"/dead-letters/{DEAD}"),
            ("all of them as a selection", f"/dead-letters/{DEAD}?all=1"),
            ("messages: first page", f"/messages/{DEAD}?place=deadletter"),
            ("download", f"/dead-letter-files/{DEAD}?all=1"),
        ):
            longest_s = 900.0 if what == "download" else PAGE_S_MAX
            await campaign.measured(
                f"{size.dead:,} dead letters, {what}", partial(person.page, path), seconds_max=longest_s
            )


async def expired(person: Person, number: int) -> None:
    """Wait until the messages have expired."""
    for _ in range(600):
        rows = (await person.data("/entities?q=dead"))["entities"]
        if any(row["path"] == DEAD and (row["dead_letters"] or 0) >= number for row in rows):
            return
        await asyncio.sleep(1.0)
    raise click.ClickException("the messages did not expire")


async def entities(campaign: Campaign, size: Size) -> None:
    """A namespace with very many entities: the first look after the start of the console, and the next ones."""
    async with Person(campaign) as person:
        for what, path in (
            ("overview, the first", "/"),
            ("overview", "/"),
            ("table, the first", "/entities"),
            ("table", "/entities"),
            ("table, searched", "/entities?q=99"),
            ("table, last page", "/entities?skip=1000000"),
            ("table, by dead letters", "/entities?sort=dead&order=desc"),
            ("tree", "/entities?view=tree"),
            ("one entity", "/entities/queue-00001"),
            ("dead letters", "/dead-letters"),
            ("stores", "/stores"),
            ("topology", "/topology"),
            ("locks, the field that proposes", "/connections/locks"),
        ):
            await campaign.measured(f"{size.entities:,} entities, {what}", partial(person.page, path))


async def large(campaign: Campaign, size: Size) -> None:
    """A message as large as messages can be: up, shown, down."""
    bounds: dict[str, Any] = {"seconds_max": LARGE_S_MAX, "mb_max": LARGE_MB_MAX, "probe_s_max": PROBE_LARGE_S_MAX}
    what = f"a message of {size.body_bytes / 1e6:,.0f} MB"
    with tempfile.TemporaryDirectory(prefix="duobus-large-") as folder:
        body, lines = Path(folder) / "body.bin", Path(folder) / "messages.jsonl"
        body.write_bytes(bytes(range(256)) * (size.body_bytes // 256))
        async with Person(campaign) as person:

            async def sent(path: str, fields: dict[str, str], name: str, file: Path) -> dict[str, Any]:
                answer = await person.upload(path, fields, name, file)
                campaign.demand(answer["status"] == 303, f"POST {path} answered {answer['status']}.")
                return answer

            fields = {"kind": "file", "count": "1", "do": "send", "subject": "large"}
            await campaign.measured(f"{what}, sent", lambda: sent(f"/send/{LARGE}", fields, "file", body), **bounds)
            rows = (await person.data(f"/messages/{LARGE}"))["rows"]
            campaign.demand(len(rows) == 1, "The large message did not come.")
            number = rows[0]["number"] if rows else 1
            for step, path in (
                ("list", f"/messages/{LARGE}"),
                ("list with bodies", f"/messages/{LARGE}?columns=number,size,body"),
                ("its page", f"/messages/{LARGE}?number={number}"),
                ("its page as hex", f"/messages/{LARGE}?number={number}&view=hex"),
                ("download of the body", f"/messages/{LARGE}?number={number}&download=body"),
                ("download as a line of JSON", f"/messages/{LARGE}?number={number}&download=message"),
                ("the form for a copy", f"/send/{LARGE}?original={number}&of={LARGE}"),
            ):
                await campaign.measured(f"{what}, {step}", partial(person.page, path), **bounds)
            copied = {"original": str(number), "of": LARGE, "kind": "original", "count": "1", "do": "send"}
            copied["subject"] = "copy"
            nothing = Path(folder) / "nothing"
            nothing.write_bytes(b"")
            await campaign.measured(
                f"{what}, a copy sent", lambda: sent(f"/send/{LARGE}", copied, "file", nothing), **bounds
            )
            with lines.open("w") as file:
                for number in range(size.lines):
                    file.write(json.dumps({"message": {"body": {"data": [f"{number}-" + "x" * 1_000]}}}) + "\n")
            await campaign.measured(
                f"{size.lines:,} messages of a file ({lines.stat().st_size / 1e6:,.0f} MB)",
                lambda: sent(f"/send-file/{FILED}", {}, "lines", lines),
                **bounds,
            )


async def consoles(campaign: Campaign, size: Size) -> None:
    """Many people with live pages, while messages go through the broker."""
    await traffic(campaign, size, "before anybody has signed in")
    before = await counted(campaign)
    people = [Person(campaign) for _ in range(size.people)]

    async def sign_in() -> dict[str, Any]:
        for person in people:
            await person.__aenter__()
        return {}

    await campaign.measured(f"{size.people} people sign in", sign_in, seconds_max=120)
    places = ("/overview/events", "/stores/events", f"/tail/{TAILED}?events=1", "/connections/events")
    pages = [LivePage(person, places[number % len(places)]) for number, person in enumerate(people)]
    await asyncio.gather(*(page.begun.wait() for page in pages))
    sent, tails = await watched(campaign, size, pages)
    during = await counted(campaign)
    await traffic(campaign, size, f"{size.people} people load pages", loading=people)
    for page in pages:
        await page.close()
    for person in people:
        await person.__aexit__()
    after = await counted(campaign)
    for _ in range(80):
        if all(after[name] <= before[name] + room for name, room in RELEASED.items()):
            break
        await asyncio.sleep(LOOK_S)
        after = await counted(campaign)
    print(json.dumps({"before": before, "during": during, "after": after, "sent": sent, "seen": tails}), flush=True)
    async with Person(campaign) as person:
        left = [(row["client"], row["addresses"]) for row in (await person.data("/connections"))["rows"]]
    for name, room in RELEASED.items():
        is_released = after[name] <= before[name] + room
        campaign.demand(is_released, f"{name} before, during, after: {before}, {during}, {after}; still there: {left}.")


async def watched(campaign: Campaign, size: Size, pages: list[LivePage]) -> tuple[int, list[int]]:
    """Send while live pages are open; returns how many messages their queue got, and how many each live tail saw."""
    is_over = asyncio.Event()
    sending = asyncio.ensure_future(send_slowly(campaign, is_over))
    await traffic(campaign, size, f"{size.people} live pages are open")
    is_over.set()
    sent = await sending
    for _ in range(100):
        if all(page.seen >= sent for page in pages if page.is_tail):
            break
        await asyncio.sleep(LOOK_S)
    tails = [page.seen for page in pages if page.is_tail]
    campaign.demand(all(seen == sent for seen in tails), f"{sent} messages were sent, and live tails saw {tails}.")
    ended = [f"{page.path}: {page.error}" for page in pages if page.error]
    campaign.demand(not ended, f"Live pages ended: {ended}.")
    # Some pages look every five seconds only, and send nothing unless something has changed.
    quiet = [page.path for page in pages if not page.events and (page.is_tail or size.seconds >= HEARD_S)]
    campaign.demand(not quiet, f"Live pages heard nothing: {quiet}.")
    return sent, tails


class LivePage:
    """A page that stays open.

    Attributes:
        seen: Messages that the server says a live tail has seen.
        events: Events that have come.
        error: Why the page ended.
    """

    def __init__(self, person: Person, path: str) -> None:
        self.path = path
        self.is_tail = path.startswith("/tail/")
        self.seen = self.events = 0
        self.error = ""
        self.begun = asyncio.Event()
        if not self.is_tail:
            self.begun.set()
        self._task = asyncio.ensure_future(self._listen(person))

    async def _listen(self, person: Person) -> None:
        try:
            async for name, data in person.events(self.path):
                self.events += 1
                if name == "looked":
                    self.seen += data["seen"]
                if name in ("failed", "ended"):
                    self.error = name
                self.begun.set()
            self.error = self.error or "the stream ended"
        except (aiohttp.ClientError, OSError) as error:
            self.error = str(error) or type(error).__name__

    async def close(self) -> None:
        """Close the page."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def send_slowly(campaign: Campaign, is_over: asyncio.Event) -> int:
    """Send to the queue that live tails follow; returns how many."""
    sent = 0
    async with (
        prompt_client(ServiceBusClient.from_connection_string(campaign.server.connection_string)) as client,
        client.get_queue_sender(TAILED) as sender,
    ):
        while not is_over.is_set():
            await sender.send_messages([ServiceBusMessage(f"tailed {sent + one}") for one in range(TAILED_RATE // 2)])
            sent += TAILED_RATE // 2
            await asyncio.sleep(0.5)
    return sent


async def traffic(campaign: Campaign, size: Size, what: str, *, loading: list[Person] | None = None) -> None:
    """Send and receive for some seconds; the workload refuses a message that was lost or came twice."""
    pids = {"broker": campaign.server.pid, "console": campaign.console.pid}
    pages = 0

    async def load(person: Person, is_over: asyncio.Event) -> None:
        nonlocal pages
        paths = ("/", "/entities", f"/messages/{TAILED}", "/connections", "/stores")
        while not is_over.is_set():
            for path in paths:
                await person.page(path)
                pages += 1
            await asyncio.sleep(2.0)

    async def work() -> dict[str, Any]:
        is_over = asyncio.Event()
        loads = [asyncio.ensure_future(load(person, is_over)) for person in loading or ()]
        before = {name: usage.cpu(pid) for name, pid in pids.items()}
        words = [sys.executable, "-m", "benchmarks.load", "C1x1", "--json", "--seconds", str(size.seconds)]
        words += ["--address", BUSY, "--port", str(campaign.server.ready["amqp_port"])]
        process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=PIPE, cwd=ROOT)
        told, complaint = await process.communicate()
        if process.returncode:
            raise click.ClickException(f"The traffic failed: {complaint.decode()}")
        result = json.loads(told)
        after = {name: usage.cpu(pid) for name, pid in pids.items()}
        is_over.set()
        await asyncio.gather(*loads)
        found: dict[str, Any] = {"messages": result["messages"], "rate": round(result["rate"]), "pages": pages}
        for name in pids:
            used = after[name].user + after[name].system - before[name].user - before[name].system
            found[f"{name}_cores"] = round(used / (after[name].at - before[name].at), 2)
            found[f"{name}_us_per_message"] = round(used / result["messages"] * 1e6, 1)
        found["broker_mb"] = round(usage.memory_mb(pids["broker"])[0])
        return found

    # The broker is at its limit meanwhile, with and without the console.
    await campaign.measured(
        f"C1x1 for {size.seconds:g} s while {what}", work, seconds_max=size.seconds + 60, probe_s_max=5.0
    )


async def counted(campaign: Campaign) -> dict[str, Any]:
    """What the console holds: descriptors, threads, connections to the broker, memory."""
    root = Path(f"/proc/{campaign.console.pid}")
    # The broker's own count of connections is a metric, which asks for no key.
    url = f"{campaign.server.ready['admin_url']}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        text = await answer.text()
    found = re.search(r"^duobus_connections(?:\{[^}]*\})? (\d+)", text, re.MULTILINE)
    return {
        "descriptors": len(list((root / "fd").iterdir())),
        "threads": len(list((root / "task").iterdir())),
        "connections": int(found[1]) if found else -1,
        "mb": round(usage.memory_mb(campaign.console.pid)[0]),
    }


# -- filling ---------------------------------------------------------------------------------------------------------


def fill(campaign: Campaign, queue: str, messages: int) -> None:
    """Send so many messages, all of them accepted once."""
    run, sent, number = Run(), 0, 0
    while sent < messages:
        more = min(PER_SENDER, messages - sent)
        with closing(Sender(campaign.target(queue), run, number, WINDOW, BODY_BYTES)) as sender:
            Exchange([sender], [], Limits(messages=more)).run()
            check_accepted(sender)
        sent, number = sent + more, number + 1


async def send_one(campaign: Campaign, queue: str, *, subject: str) -> None:
    """Send one message with a subject."""
    async with (
        prompt_client(ServiceBusClient.from_connection_string(campaign.server.connection_string)) as client,
        client.get_queue_sender(queue) as sender,
    ):
        await sender.send_messages(ServiceBusMessage(b"here", subject=subject))


# -- the whole -------------------------------------------------------------------------------------------------------


@dataclass
class Size:
    """How much of everything."""

    messages: int = 1_000_000
    dead: int = 1_000_000
    entities: int = 10_000
    #: A message of 100 MB has headers, too.
    body_bytes: int = 100 * 1024 * 1024 - 65_536
    lines: int = 100_000
    people: int = 100
    seconds: float = 60.0


QUICK: Final = Size(messages=3_000, dead=1_000, entities=200, body_bytes=4 << 20, lines=1_000, people=8, seconds=1.0)
PARTS: Final[dict[str, Callable[[Campaign, Size], Awaitable[None]]]] = {
    "entities": entities,
    "deep": deep,
    "dead": dead,
    "large": large,
    "consoles": consoles,
}


def queues_of(parts: tuple[str, ...], size: Size) -> dict[str, dict[str, Any]]:
    """The queues that the parts need."""
    room = {"MaxSizeInMegabytes": 5120}
    # Locks of the workload's messages must not end while the machine is busy.
    queues: dict[str, dict[str, Any]] = {name: {"LockDuration": "PT5M", **room} for name in (BUSY, TAILED, FILED)}
    if "deep" in parts:
        queues[DEEP] = room
    if "dead" in parts:
        queues[DEAD] = {**room, "DefaultMessageTimeToLive": "PT1S", "DeadLetteringOnMessageExpiration": True}
    if "large" in parts:
        queues[LARGE] = {**room, "MaxMessageSizeInKilobytes": 102_400}
    if "entities" in parts:
        queues |= {f"queue-{number:05d}": {} for number in range(size.entities)}
    return queues


@contextmanager
def campaign_of(parts: tuple[str, ...], size: Size) -> Iterator[Campaign]:
    """A broker and a console that are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="duobus-console-load-") as name:
        folder = Path(name)
        config = queues_config(queues_of(parts, size))
        with ServerProcess(folder, config=config, arguments=("--emulator", "--stores", "2")) as server:
            ready = folder / "console.json"
            words = [sys.executable, "-m", "duobus", "console", "--connection-string", server.connection_string]
            words += ["--port", "0", "--ready-file", str(ready)]
            with (folder / "console.log").open("wb") as log:
                console = Popen(words, stdin=DEVNULL, stdout=log, stderr=log)
            try:
                members = _until_ready(ready, console)
                yield Campaign(server, console, str(members["url"]).rstrip("/"), str(members["code"]))
            finally:
                console.terminate()
                console.wait()
                said = (folder / "console.log").read_text(errors="replace")
                if "Traceback" in said:
                    print(said[-8_000:], file=sys.stderr)


def _until_ready(ready: Path, console: Popen[bytes]) -> dict[str, Any]:
    began = perf_counter()
    while perf_counter() - began < READY_S and console.poll() is None:
        try:
            members: dict[str, Any] = json.loads(ready.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            asyncio.run(asyncio.sleep(0.02))
            continue
        return members
    raise click.ClickException("the console did not start")


async def _run(campaign: Campaign, parts: tuple[str, ...], size: Size) -> None:
    for part in parts:
        await PARTS[part](campaign, size)


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(tuple(PARTS)), help="These parts only.")
@click.option("--messages", type=click.IntRange(1_000), help="In the deep queue.")
@click.option("--dead", type=click.IntRange(1_000), help="Dead letters.")
@click.option("--entities", type=click.IntRange(100))
@click.option("--people", type=click.IntRange(4), help="Sessions with a live page each.")
@click.option("--seconds", type=click.FloatRange(0.5), help="Of traffic.")
@click.option("--quick", is_flag=True, help="All of it in small; no time is judged.")
def main(parts: tuple[str, ...], *, quick: bool, **given: Any) -> None:
    """Load the console, and say what each page costs."""
    size = Size(**asdict(QUICK if quick else Size()) | {name: value for name, value in given.items() if value})
    # A namespace with very many entities is one of its own, so that the other parts are not slowed by them.
    names = parts or tuple(PARTS)
    faults: list[str] = []
    for some in filter(None, (tuple(n for n in names if n == "entities"), tuple(n for n in names if n != "entities"))):
        with campaign_of(some, size) as campaign:
            # In small a time tells of the machine: the tests run beside others.
            campaign.judges_times = not quick
            asyncio.run(_run(campaign, some, size))
            faults += campaign.faults
    for fault in faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(faults))


def _end(number: int, _frame: object) -> None:
    """End as at Ctrl-C, so that the broker and the console are stopped and their data deleted, too."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    main()
