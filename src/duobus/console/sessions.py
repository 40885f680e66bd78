"""Sessions: who has signed in, with which key, and until when.

A session ends after some time without a request, after a longer time in any case, and when the person signs out. The
browser holds nothing but the session's unguessable name; a restart of the console ends every session.
"""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Final, NamedTuple

from duobus.clock import Clock, Entropy
from duobus.console.namespace.client import NamespaceClient
from duobus.console.settings import ConsoleSettings

#: Notices that wait for the next page; older ones give way.
NOTICES_MAX: Final = 5
_TOKEN_BYTES: Final = 24
_MS: Final = 1_000
#: Other namespaces that a session has open beside its own; a further one closes the one that was opened first.
OTHERS_MAX: Final = 4
#: How often ended sessions are looked for, in seconds.
_SWEEP_S: Final = 30.0

_log = logging.getLogger("duobus.console")


class Notice(NamedTuple):
    """A sentence that is shown once.

    Attributes:
        text: The sentence.
        kind: ``done``, ``info``, ``warning`` or ``error``.
    """

    text: str
    kind: str


class Session:
    """One person who has signed in.

    Attributes:
        id: What the cookie holds.
        csrf: What every form and every request of htmx has to bring.
        namespace: The namespace, opened with the person's key.
        is_operator: Whether the person came with the access code, and so may use every key that the console has.
        others: Other namespaces that are open, by their connection strings.
        memory: What screens keep for the person, by the name of the screen; bounded by the screens.
        resources: What is closed at the end of the session.
        ended: Set at the end of the session, for what goes on meanwhile.
    """

    def __init__(
        self, identifier: str, csrf: str, namespace: NamespaceClient, now_ms: int, *, is_operator: bool
    ) -> None:
        self.id = identifier
        self.csrf = csrf
        self.namespace = namespace
        self.is_operator = is_operator
        self.created_ms = now_ms
        self.used_ms = now_ms
        self.notices: list[Notice] = []
        self.others: dict[str, NamespaceClient] = {}
        self.memory: dict[str, Any] = {}
        self.resources = AsyncExitStack()
        self.ended = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()

    def add_notice(self, text: str, kind: str = "done") -> None:
        """Show a sentence on the next page."""
        self.notices = [*self.notices, Notice(text, kind)][-NOTICES_MAX:]

    def take_notices(self) -> list[Notice]:
        """The sentences that no page has shown yet."""
        found, self.notices = self.notices, []
        return found

    async def add_other(self, namespace: NamespaceClient) -> NamespaceClient:
        """Keep another namespace until the session ends; return the one to use, which may have been there already."""
        kept = self.others.setdefault(namespace.address.text, namespace)
        if kept is not namespace:
            await namespace.close()
        while len(self.others) > OTHERS_MAX:
            await self.others.pop(next(iter(self.others))).close()
        return kept

    @contextmanager
    def one_more(self, name: str, most: int) -> Iterator[bool]:
        """Count something that goes on for the person, under a name in ``memory``.

        Yields:
            Whether there is room for it; False, and nothing is counted, when ``most`` go on already.
        """
        going_on: int = self.memory.get(name, 0)
        if going_on >= most:
            yield False
            return
        self.memory[name] = going_on + 1
        try:
            yield True
        finally:
            # The memory of a session that has ended is empty.
            self.memory[name] = self.memory.get(name, 1) - 1

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Do something beside the requests, until it is done or the session ends."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s of a session failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """End the session and everything that belongs to it."""
        self.ended.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self.resources.aclose()
        except Exception:  # noqa: BLE001 - of any screen; the rest has to be closed all the same
            _log.exception("A resource of a session closed badly")
        self.memory.clear()
        await asyncio.gather(*(one.close() for one in (self.namespace, *self.others.values())))


class Sessions:
    """All sessions of a console.

    Args:
        settings: How long sessions last, and how many there may be.
        clock, entropy: Time and randomness.
    """

    def __init__(self, settings: ConsoleSettings, clock: Clock, entropy: Entropy) -> None:
        self._settings = settings
        self._clock = clock
        self._entropy = entropy
        self._sessions: dict[str, Session] = {}
        self._sweeper: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def all(self) -> list[Session]:
        """Every session."""
        return list(self._sessions.values())

    def token(self) -> str:
        """An unguessable text."""
        return base64.urlsafe_b64encode(self._entropy.token(_TOKEN_BYTES)).decode()

    async def add(self, namespace: NamespaceClient, *, is_operator: bool = False) -> Session:
        """Begin a session under a name that nobody has had before."""
        while len(self._sessions) >= self._settings.sessions_max:
            await self.end(min(self._sessions.values(), key=lambda one: one.used_ms).id)
        session = Session(self.token(), self.token(), namespace, self._now_ms(), is_operator=is_operator)
        self._sessions[session.id] = session
        return session

    async def find(self, identifier: str | None, *, is_use: bool = True) -> Session | None:
        """The session of this name; None when there is none or it has ended.

        Args:
            identifier: As of the cookie.
            is_use: Whether a person is there, so that the session does not end for want of use.
        """
        session = self._sessions.get(identifier or "")
        if session is None:
            return None
        if self._has_ended(session):
            await self.end(session.id)
            return None
        if is_use:
            session.used_ms = self._now_ms()
        return session

    async def end(self, identifier: str) -> None:
        """End a session; one that is gone is no error."""
        session = self._sessions.pop(identifier, None)
        if session is not None:
            await session.close()

    async def sweep(self) -> None:
        """End the sessions whose time is over."""
        for session in self.all():
            if self._has_ended(session):
                await self.end(session.id)

    def start(self) -> None:
        """Look for ended sessions from time to time, so that their connections do not stay open."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_forever(), name="console-sessions")

    async def close(self) -> None:
        """End every session."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
        await asyncio.gather(*(self.end(identifier) for identifier in list(self._sessions)))

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            await self.sweep()

    def _has_ended(self, session: Session) -> bool:
        now_ms = self._now_ms()
        return (
            now_ms - session.used_ms >= self._settings.idle_s * _MS
            or now_ms - session.created_ms >= self._settings.absolute_s * _MS
        )

    def _now_ms(self) -> int:
        # A jump of the wall clock must neither end a session nor keep it.
        return self._clock.monotonic_ms()
