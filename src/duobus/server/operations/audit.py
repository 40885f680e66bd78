"""The audit log over HTTP: its pages, and lines of a console about what a person did with it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from duobus.clock import Clock
from duobus.errors import ArgumentInvalid, NotAllowed, ServerBusy
from duobus.telemetry.audit_log import DONE, AuditTrail, Change
from duobus.telemetry.audit_pages import Place, read_audit_page

#: Changes of one answer: by default, and at most.
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
#: Lines that consoles may write in a second, over all of them: each is on disk before it is answered.
LINES_PER_SECOND_MAX: Final = 10
#: Characters of the words that a console gives, and of its note.
WORD_LENGTH_MAX: Final = 64
PATH_LENGTH_MAX: Final = 512
NOTE_LENGTH_MAX: Final = 1_024

_CURSOR: Final = re.compile(r"(\d{1,9})\.(\d{1,15})", re.ASCII)
_MEMBERS: Final = {
    "operation": WORD_LENGTH_MAX,
    "kind": WORD_LENGTH_MAX,
    "path": PATH_LENGTH_MAX,
    "outcome": NOTE_LENGTH_MAX,
    "note": NOTE_LENGTH_MAX,
}
_NEEDED: Final = ("operation", "kind", "path")


class AuditReader:
    """Reads the log in a thread, and writes to it what a console says."""

    def __init__(self, trail: AuditTrail, clock: Clock) -> None:
        self._trail = trail
        self._clock = clock
        self._second = self._lines = 0

    async def page(self, namespace: str, after: str, limit: int | None) -> dict[str, Any]:
        """Return a page of the changes of a namespace, the latest first.

        Raises:
            NotAllowed: This server keeps no audit log.
            ArgumentInvalid: ``after`` is not what an answer gave.
        """
        before = None
        if after:
            found = _CURSOR.fullmatch(after)
            if found is None:
                raise ArgumentInvalid("after is not the next of an earlier answer. Leave it out to begin at the end.")
            before = Place(int(found[1]), int(found[2]))
        if self._trail.folder is None:
            raise NotAllowed("This server keeps everything in memory (--ephemeral), and so no audit log.")
        room = PAGE_DEFAULT if limit is None else max(1, min(limit, PAGE_MAX))
        loop = asyncio.get_running_loop()
        page = await loop.run_in_executor(None, partial(read_audit_page, self._trail.folder, namespace, before, room))
        following = page.following
        return {"changes": page.changes, "next": None if following is None else f"{following.file}.{following.offset}"}

    def write(self, namespace: str, form: Any, *, who: str, origin: str) -> dict[str, Any]:
        """Write down what a person did with a console, and return what was written.

        Raises:
            ArgumentInvalid: It is not what a line may say.
            ServerBusy: There are too many, or the log cannot be written.
        """
        said = _said(form)
        now_ms = self._clock.now_ms()
        if now_ms // 1000 != self._second:
            self._second, self._lines = now_ms // 1000, 0
        if self._lines >= LINES_PER_SECOND_MAX:
            raise ServerBusy("The audit log takes no more lines of consoles in this second. Try again in the next.")
        self._lines += 1
        change = Change(
            said["operation"], said["kind"], namespace, said["path"], who=who, origin=origin, interface="console"
        )
        self._trail.begin(change, now_ms)
        note = {"note": [None, said["note"]]} if "note" in said else None
        self._trail.end(change, now_ms, said.get("outcome", DONE), note)
        return said


def _said(form: Any) -> dict[str, str]:
    if not isinstance(form, Mapping):
        raise ArgumentInvalid("The body is an object with operation, kind and path, and perhaps outcome and note.")
    unknown = sorted(form.keys() - _MEMBERS.keys())
    if unknown:
        raise ArgumentInvalid(f"A line has no member {unknown[0][:64]!r}; there are {', '.join(_MEMBERS)}.")
    missing = [name for name in _NEEDED if not form.get(name)]
    if missing:
        raise ArgumentInvalid(f"A line needs {missing[0]}.")
    said: dict[str, str] = {}
    for name, value in form.items():
        if value is None:
            continue
        if not isinstance(value, str) or len(value) > _MEMBERS[name]:
            raise ArgumentInvalid(f"{name} is a text of at most {_MEMBERS[name]} characters.")
        said[name] = value
    return said
