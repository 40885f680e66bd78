"""The dead-letter service of a duobus server: one HTTP connection, an order a request, an order a chunk."""

from __future__ import annotations

import http.client
import json
import re
import ssl
import threading
from collections.abc import Iterator
from http import HTTPStatus
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from msgspec.structs import replace

from duobus.dead_letters.namespace import DeadLetterError
from duobus.dead_letters.work import Note, Pace, Totals, Work
from duobus.model.json.plan import SEND, DeadLetterPlan

if TYPE_CHECKING:
    from duobus.dead_letters.namespace import Namespace
    from duobus.dead_letters.undo_file import UndoFile

_TIMEOUT_S: Final = 120.0
#: Attempts of an order when the server is busy: a store may be away for a few seconds.
_ATTEMPTS: Final = 5
_PAUSE_S: Final = 1.0
#: Bytes of one answer: a chunk's messages in JSON.
ANSWER_BYTES_MAX: Final = 64 << 20


class DeadLetterClient:
    """A connection to the dead-letter service; ``order`` gives the answer, and raises the errors of the namespace."""

    def __init__(self, namespace: Namespace, timeout_s: float = _TIMEOUT_S) -> None:
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._drop()

    def is_there(self) -> bool:
        """Whether the server is one that has a dead-letter service; Azure has none."""
        status, text = self._ask("GET", "/health", b"")
        try:
            return status in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE) and "stores" in json.loads(text)
        except (ValueError, TypeError):
            return False

    def order(self, address: str, order: dict[str, Any]) -> dict[str, Any]:
        """Give an order for the messages of an address and return the answer.

        A chunk whose answer was lost may be ordered again: what it has moved is not there any more.
        """
        path = "/" + quote(address, safe="/$~") + "/$desk"
        body = json.dumps(order).encode()
        status, text = self._ask("POST", path, body)
        for _ in range(_ATTEMPTS - 1):
            if status != HTTPStatus.SERVICE_UNAVAILABLE:
                break
            status, text = self._paused_ask(path, body)
        if status == HTTPStatus.OK:
            found: dict[str, Any] = json.loads(text)
            return found
        raise self._failure(status, text.decode("utf-8", "replace"), address)

    def _paused_ask(self, path: str, body: bytes) -> tuple[int, bytes]:
        threading.Event().wait(_PAUSE_S)
        return self._ask("POST", path, body)

    def _failure(self, status: int, text: str, address: str) -> Exception:
        detail = re.search(r"<Detail>(.*?)</Detail>", text, re.DOTALL)
        said = detail[1] if detail else f"The server answered {status}."
        if status == HTTPStatus.NOT_FOUND:
            said = f"There is no {address}, or nothing to move it to. {said}"
        return self._namespace.failure(status, said)

    def _ask(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        for attempt in (1, 2):
            fresh = self._connection is None
            connection = self._connected()
            try:
                connection.request(method, path, body, {"Authorization": self._namespace.authorization()})
                answer = connection.getresponse()
                text = answer.read(ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                # One that was kept open may have ended meanwhile.
                if fresh or attempt == 2:
                    raise self._namespace.silence(str(error)) from None
                continue
            if len(text) > ANSWER_BYTES_MAX:
                raise DeadLetterError(f"The server's answer is larger than {ANSWER_BYTES_MAX} bytes.")
            return answer.status, text
        raise AssertionError

    def _connected(self) -> http.client.HTTPConnection:
        if self._connection is None:
            netloc = self._namespace.netloc
            if self._namespace.is_plain:
                self._connection = http.client.HTTPConnection(netloc, timeout=self._timeout_s)
            else:
                context = ssl.create_default_context(cafile=self._namespace.ca)
                self._connection = http.client.HTTPSConnection(netloc, timeout=self._timeout_s, context=context)
        return self._connection

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ServerDeadLetters:
    """Has the server do the work, a chunk in one commit."""

    can_undo = True

    def __init__(self, link: DeadLetterClient, work: Work) -> None:
        self._link = link
        self._work = work

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """See Executor."""
        told = Totals()
        for answer in self._answers(replace(self._work.plan, shows=True, is_dry=is_dry), told):
            found = self._meant(answer)
            told.moved += len(found)
            yield found

    def _meant(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        takes = self._work.takes
        found: list[dict[str, Any]] = answer["messages"]
        return found if takes is None else [record for record in found if takes(record)]

    def _answers(self, plan: DeadLetterPlan, totals: Totals) -> Iterator[dict[str, Any]]:
        """Order after order, until nothing follows or as many are counted as were asked for."""
        first: int | None = plan.first
        most = self._work.limit
        while first is not None and (most is None or totals.moved + totals.left < most):
            chunk = self._work.chunk if most is None else min(most - totals.moved - totals.left, self._work.chunk)
            answer = self._ordered(replace(plan, first=first, limit=chunk))
            # The instant of the first order: what dies again later is not gone through again.
            plan = replace(plan, before_ms=answer["before"])
            first = answer["next"]
            self._work.unavailable.update(answer.get("unavailable", ()))
            yield answer

    def _ordered(self, plan: DeadLetterPlan, **members: Any) -> dict[str, Any]:
        return self._link.order(self._work.address, plan.members() | members)

    def run(self, pace: Pace, undo: UndoFile | None) -> Totals:
        """See Executor."""
        totals = Totals()
        plan = self._work.plan
        # With an undo file, the messages are on this disk before anything becomes of them.
        looks_first = undo is not None or self._work.takes is not None
        for answer in self._answers(replace(plan, is_dry=True, shows=True) if looks_first else plan, totals):
            if looks_first:
                answer = self._done_by_number(plan, answer, undo, totals)
            self._count(answer, totals)
            pace.step(totals)
        return totals

    def _done_by_number(
        self, plan: DeadLetterPlan, looked: dict[str, Any], undo: UndoFile | None, totals: Totals
    ) -> dict[str, Any]:
        """Do it to those of the messages that were found and are meant; the answer."""
        found = self._meant(looked)
        for record in found:
            if "refused" in record:
                totals.skip(record["sequenceNumber"], record["refused"])
        good = [record for record in found if "refused" not in record]
        if not good:
            return {"moved": [], "skipped": []}
        if undo is not None:
            undo.plan(good)
        numbers = tuple(record["sequenceNumber"] for record in good)
        answer = self._ordered(replace(plan, numbers=numbers, limit=len(numbers), before_ms=looked["before"]))
        if undo is not None:
            undo.done(answer["moved"])
        totals.gone += len(numbers) - len(answer["moved"]) - len(answer["skipped"])
        return answer

    @staticmethod
    def _count(answer: dict[str, Any], totals: Totals) -> None:
        totals.moved += len(answer["moved"])
        for skipped in answer["skipped"]:
            totals.skip(skipped["sequenceNumber"], skipped["reason"])

    def bring(self, chunk: list[dict[str, Any]], totals: Totals, note: Note | None) -> None:
        """See Executor."""
        is_sent = self._work.plan.action == SEND
        names = ("message",) if is_sent else ("message", "reason", "description", "sequenceNumber", "movedTo")
        items = [{name: record[name] for name in names if record.get(name) is not None} for record in chunk]
        answer = self._ordered(self._work.plan, items=items)
        if is_sent:
            totals.moved += answer["sent"]
            for refused in answer["refused"]:
                totals.skip(chunk[refused["index"]].get("sequenceNumber"), refused["reason"])
            return
        if note is not None:
            note([moved["sequenceNumber"] for moved in answer["moved"]])
        self._count(answer, totals)
