"""What the dead-letter commands do, chunk by chunk: order, note, count, keep to the rate, tell of progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.dead_letters.work import RateLimit, Totals, Work
from duobus.errors import ServiceBusError
from duobus.model.json.messages import message_of

if TYPE_CHECKING:
    from duobus.cli.dead_letters.client import DeadLetterClient
    from duobus.cli.dead_letters.undo_file import UndoFile
    from duobus.cli.remote import Remote

#: Bytes of messages that one import order brings, about.
_ORDER_BYTES: Final = 1 << 20

_OTHERWISE: Final = (
    "This server has no dead-letter desk, so the SDK does it: each message is received, sent, and completed then. A "
    "crash in between leaves it on both sides."
)


class Runner:
    """Does work at the dead-letter service of the server; where there is none, with the SDK."""

    def __init__(self, remote: Remote, link: DeadLetterClient, work: Work) -> None:
        self._work = work
        self._link = link
        self._sdk: Any = None
        if work.is_client_side or not link.is_there():
            from duobus.cli.dead_letters.sdk_backend import SdkDeadLetters

            if not work.is_client_side and work.action != "list":
                click.echo(_OTHERWISE, err=True)
            self._sdk = SdkDeadLetters(remote, work)

    @property
    def can_undo(self) -> bool:
        """Whether what is done can be undone."""
        return self._sdk is None

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """The messages that are meant, by pages; nothing is done to them."""
        if self._sdk is not None:
            yield from self._sdk.pages()
            return
        members = self._work.members() | {"messages": True}
        if is_dry:
            members["dryRun"] = True
        limit, number = self._work.limit, 0

        def left() -> int | None:
            return None if limit is None else limit - number

        for answer in self._answers(members, left):
            number += len(answer["messages"])
            yield answer["messages"]

    def _answers(self, members: dict[str, Any], left: Callable[[], int | None]) -> Iterator[dict[str, Any]]:
        """Order after order, until nothing follows or enough was found."""
        first: int | None = 0
        members = dict(members)
        while first is not None:
            limit = left()
            if limit is not None and limit <= 0:
                return
            members |= {"first": first, "limit": self._work.chunk if limit is None else min(limit, self._work.chunk)}
            answer = self._link.order(self._work.address, members)
            # The instant of the first order: what dies again later is not gone through again.
            members["before"] = answer["before"]
            first = answer["next"]
            yield answer

    def sample(self, number: int) -> list[dict[str, Any]]:
        """The first messages, with what the repair would make of them."""
        found: list[dict[str, Any]] = []
        for page in self.pages(is_dry=True):
            found += page
            if len(found) >= number:
                break
        return found[:number]

    def run(self, undo: UndoFile | None, *, rate: int | None, shows_progress: bool) -> Totals:
        """Do it."""
        pace = RateLimit(rate, shows_progress=shows_progress)
        try:
            if self._sdk is not None:
                totals: Totals = self._sdk.run(pace)
                return totals
            return self._run(undo, pace)
        finally:
            pace.end()

    def _run(self, undo: UndoFile | None, pace: RateLimit) -> Totals:
        totals = Totals()
        work = self._work
        members = work.members()
        if undo is not None:
            # What they are is on this disk before anything becomes of them.
            members |= {"dryRun": True, "messages": True}
        limit = work.limit

        def left() -> int | None:
            return None if limit is None else limit - totals.moved - totals.left

        for answer in self._answers(members, left):
            if undo is not None:
                numbers = undo.plan(answer["messages"])
                if not numbers:
                    continue
                order = work.members() | {"numbers": numbers, "limit": len(numbers), "before": answer["before"]}
                answer = self._link.order(work.address, order)
                undo.done(answer["moved"])
            totals.moved += len(answer["moved"])
            for skipped in answer["skipped"]:
                totals.skip(skipped["sequenceNumber"], skipped["reason"])
            pace.step(totals.moved, totals.left)
        return totals

    # -- bringing -----------------------------------------------------------------------------------------------

    def bring(
        self,
        records: Iterator[dict[str, Any]],
        *,
        is_dry: bool,
        note: Callable[[list[int]], None] | None = None,
    ) -> Totals:
        """Send messages, or make dead letters of them; ``note`` hears of those that are dead letters again."""
        totals = Totals()
        for chunk in _chunks(records, self._work.chunk):
            if is_dry:
                for record in chunk:
                    self._check(record, totals)
            elif self._sdk is not None:
                self._sdk.bring(chunk, totals)
            elif self._work.action == "send":
                self._send(chunk, totals)
            else:
                self._restore(chunk, totals, note)
        return totals

    @staticmethod
    def _check(record: dict[str, Any], totals: Totals) -> None:
        try:
            message_of(record["message"])
        except ServiceBusError as error:
            totals.skip(record.get("sequenceNumber"), str(error))
        else:
            totals.moved += 1

    def _send(self, chunk: list[dict[str, Any]], totals: Totals) -> None:
        items = [{"message": record["message"]} for record in chunk]
        answer = self._link.order(self._work.address, {"action": "send", "items": items})
        totals.moved += answer["sent"]
        for refused in answer["refused"]:
            totals.skip(chunk[refused["index"]].get("sequenceNumber"), refused["reason"])

    def _restore(self, chunk: list[dict[str, Any]], totals: Totals, note: Callable[[list[int]], None] | None) -> None:
        names = ("message", "reason", "description", "sequenceNumber", "movedTo")
        items = [{name: record[name] for name in names if record.get(name) is not None} for record in chunk]
        answer = self._link.order(self._work.address, {"action": "bury", "items": items})
        if note is not None:
            note([moved["sequenceNumber"] for moved in answer["moved"]])
        totals.moved += len(answer["moved"])
        for skipped in answer["skipped"]:
            totals.skip(skipped["sequenceNumber"], skipped["reason"])


def _chunks(records: Iterator[dict[str, Any]], number: int) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(json.dumps(record["message"]))
        if len(chunk) >= number or size >= _ORDER_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
