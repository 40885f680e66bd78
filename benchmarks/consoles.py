"""A broker that people look at: a console beside it, with pages that stay open."""

import json
import re
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from http.cookiejar import CookieJar
from time import perf_counter, sleep
from typing import Any

from benchmarks.peers import DuobusPeer, PeerError

#: Pages that are open, each of a session of its own.
CONSOLES = 3
#: What an open page asks for as long as it is open.
EVENTS = "overview/events"
READY_S = 30.0


class WatchedPeer(DuobusPeer):
    """A broker with a console in a process of its own, and people who look at its overview.

    The console stands still while other brokers are measured, so that these do not pay for it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._console: subprocess.Popen[bytes] | None = None
        self._pages: list[OpenPage] = []

    def start(self) -> float:
        """Start the server, then the console, and open its pages; see `Peer.start`."""
        took = super().start()
        assert self._folder is not None
        ready = self._folder / "console.json"
        words = ["console", "--connection-string", str(self._ready["connection_string"])]
        with (self._folder / "console.log").open("wb") as log:
            self._console = subprocess.Popen(
                [*self._command, *words, "--port", "0", "--ready-file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment(),
            )
        members = self._console_ready(ready, perf_counter())
        self._pages = [OpenPage(str(members["url"]), str(members["code"])) for _ in range(CONSOLES)]
        self._console.send_signal(signal.SIGSTOP)
        return took

    def _console_ready(self, ready: Any, started: float) -> dict[str, Any]:
        while perf_counter() - started < READY_S:
            if self._console is None or self._console.poll() is not None:
                raise PeerError(f"{self.name}: the console ended while it started")
            try:
                members: dict[str, Any] = json.loads(ready.read_text())
            except (FileNotFoundError, json.JSONDecodeError):
                sleep(0.01)
                continue
            return members
        raise PeerError(f"{self.name}: the console was not ready within {READY_S:g} s")

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Let the console go on meanwhile."""
        assert self._console is not None
        self._console.send_signal(signal.SIGCONT)
        heard = [page.events for page in self._pages]
        try:
            yield
        finally:
            self._console.send_signal(signal.SIGSTOP)
        if any(page.error for page in self._pages):
            raise PeerError(f"{self.name}: a page of the console ended: {[page.error for page in self._pages]}")
        if all(page.events == before for page, before in zip(self._pages, heard, strict=True)):
            raise PeerError(f"{self.name}: no page of the console heard anything, so that nobody has looked")

    def stop(self) -> None:
        """End pages, console and server; see `Peer.stop`."""
        for page in self._pages:
            page.is_closing = True
        console, self._console = self._console, None
        if console is not None:
            console.kill()
            console.wait()
        for page in self._pages:
            page.close()
        self._pages = []
        super().stop()


class OpenPage:
    """A page that a person has open: signed in, and listening for events.

    Attributes:
        events: Lines that have come.
        error: Why the page ended, or None.
        is_closing: Set before the console is ended, so that the end is none that counts.
    """

    def __init__(self, url: str, code: str) -> None:
        self.events = 0
        self.error: str | None = None
        self.is_closing = False
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(CookieJar())
        )
        with opener.open(f"{url}sign-in", timeout=READY_S) as answer:
            page = answer.read().decode()
        form = dict(re.findall(r'name="(csrf|namespace)"[^>]*value="([^"]*)"', page))
        form |= {"kind": "code", "code": code, "next": "/"}
        with opener.open(f"{url}sign-in", urllib.parse.urlencode(form).encode(), timeout=READY_S) as answer:
            if "Sign out" not in answer.read().decode():
                raise PeerError("the console did not let a page sign in")
        self._stream = opener.open(f"{url}{EVENTS}", timeout=None)
        self._listener = threading.Thread(target=self._listen, name="open-page", daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        try:
            for _ in self._stream:
                self.events += 1
            ended = "the stream of events ended"
        except (OSError, HTTPException) as error:
            ended = str(error) or type(error).__name__
        if not self.is_closing:
            self.error = ended

    def close(self) -> None:
        """Close the page, whose console has ended."""
        self._listener.join()
        self._stream.close()
