"""What a dead-letter command is asked to do, how fast, and what came of it."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from duobus.clock import Clock
from duobus.errors import ServiceBusError
from duobus.model.json.plan import BRINGING, CHUNK_MAX, LIMIT_DEFAULT, MOVE, SEND, DeadLetterPlan, parse_plan
from duobus.model.json.values import to_json

if TYPE_CHECKING:
    from duobus.cli.dead_letters.undo_file import UndoFile

#: Hears of the numbers of messages that are dead letters again.
Note = Callable[[list[int]], None]

#: Messages that one command names one by one.
NUMBERS_MAX: Final = CHUNK_MAX
#: Messages that were left and are told singly; of further ones only the number.
SKIPPED_MAX: Final = 10_000
_PATCH_BYTES_MAX: Final = 1 << 20

_DONE: Final = {"resubmit": "Resubmitted", "move": "Moved", "purge": "Purged"}


class Totals:
    """What has become of messages.

    Attributes:
        moved: How many were done with.
        left: How many were not.
        skipped: Which, and why.
    """

    def __init__(self) -> None:
        self.moved = 0
        self.left = 0
        self.skipped: list[dict[str, Any]] = []

    def skip(self, number: int | None, reason: str) -> None:
        """Count one that was left."""
        self.left += 1
        if len(self.skipped) < SKIPPED_MAX:
            self.skipped.append({"sequenceNumber": number, "reason": reason})

    def skip_all(self, numbers: list[int], reason: str) -> None:
        """Count several."""
        for number in numbers:
            self.skip(number, reason)


class Work:
    """What is to be done, where, to how many messages.

    Attributes:
        plan: Which messages are meant, and what becomes of them.
        action: The plan's.
        address: Where the messages are.
        named: The same as a person says it.
        entity, subscription, is_transfer: Its parts.
        limit: Most messages in all, or None.
        chunk: Messages of one order.
        is_client_side: The SDK is to do it.
    """

    def __init__(self, action: str, given: dict[str, Any]) -> None:
        """The work that options ask for."""
        self.plan = _plan_of(action, given)
        self.action = action
        self.entity: str = given["entity"]
        self.subscription: str | None = given.get("subscription")
        self.is_transfer = bool(given.get("transfer"))
        self.named = self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"
        self.path = self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"
        sub_queue = "/$Transfer/$DeadLetterQueue" if self.is_transfer else "/$DeadLetterQueue"
        self.address = self.path if action == SEND else self.path + sub_queue
        self.limit: int | None = given.get("count")
        self.chunk: int = given.get("chunk") or LIMIT_DEFAULT
        self.is_client_side = bool(given.get("client_side"))

    @property
    def done_word(self) -> str:
        """What was done to messages."""
        return _DONE[self.action]


class Executor(Protocol):
    """What does the work: the server, or the SDK."""

    #: Whether what is done can be undone.
    can_undo: bool

    def pages(self, *, is_dry: bool = False) -> Iterator[list[dict[str, Any]]]:
        """The messages that are meant, by pages; nothing is done to them."""

    def run(self, pace: RateLimit, undo: UndoFile | None) -> Totals:
        """Do it."""

    def bring(self, chunk: list[dict[str, Any]], totals: Totals, note: Note | None) -> None:
        """Send messages, or make dead letters of them; ``note`` hears of those that are dead letters again."""


def _plan_of(action: str, given: dict[str, Any]) -> DeadLetterPlan:
    if action in BRINGING:
        return DeadLetterPlan(action=action)
    numbers = sorted(set(given.get("numbers") or ()))
    if len(numbers) > NUMBERS_MAX:
        raise click.UsageError(f"At most {NUMBERS_MAX} numbers can be given.")
    members = {
        "action": action,
        "sql": given.get("sql"),
        "json": given.get("condition"),
        "numbers": numbers or None,
        "to": given.get("to"),
        "keepReason": action == MOVE and not given.get("drop_reason"),
        "repair": _repair_of(given),
    }
    # What is wrong is told before anything is asked of a server.
    try:
        return parse_plan(members)
    except ServiceBusError as error:
        raise click.UsageError(str(error)) from None


def _repair_of(given: dict[str, Any]) -> dict[str, Any] | None:
    repair: dict[str, Any] = {}
    if given.get("values"):
        repair["set"] = {name: to_json(value) for name, value in given["values"]}
    if given.get("remove"):
        repair["remove"] = list(given["remove"])
    fields = {"subject": given.get("subject"), "groupId": given.get("session_id")}
    fields = {name: value for name, value in fields.items() if value is not None}
    if fields:
        repair["properties"] = fields
    if given.get("patch"):
        repair["patch"] = _patch_of(given["patch"])
    return repair or None


def _patch_of(text: str) -> Any:
    try:
        if text.startswith("@"):
            with Path(text[1:]).open(encoding="utf-8") as file:
                text = file.read(_PATCH_BYTES_MAX)
        return json.loads(text)
    except OSError as error:
        raise click.UsageError(f"The patch cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise click.UsageError("The patch is no JSON.") from None


class RateLimit:
    """Keeps work to a rate, and tells how far it is.

    Attributes:
        done, left: Messages, as of the last step.
    """

    def __init__(self, rate: int | None, *, shows_progress: bool) -> None:
        self._rate = rate
        self._shows = shows_progress and sys.stderr.isatty()
        self.done = self.left = 0
        self._clock = Clock()
        self._started_ms = self._clock.monotonic_ms()

    def step(self, done: int, left: int) -> None:
        """So many are done in all: wait until the rate allows more."""
        self.done, self.left = done, left
        if self._shows:
            click.echo(f"\r{done} done, {left} left ", nl=False, err=True)
        if self._rate is not None:
            ahead_s = done / self._rate - (self._clock.monotonic_ms() - self._started_ms) / 1000
            if ahead_s > 0:
                threading.Event().wait(ahead_s)

    def end(self) -> None:
        """The line of progress goes."""
        if self._shows:
            click.echo("\r" + " " * 50 + "\r", nl=False, err=True)
