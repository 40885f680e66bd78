"""What a dead-letter command is asked to do, how fast, and what came of it."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any, Final

import click

from duobus.clock import Clock
from duobus.errors import ServiceBusError
from duobus.model.json.repair import parse_repair
from duobus.model.json.values import to_json

#: Messages that one command names one by one.
NUMBERS_MAX: Final = 500
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
    """What is to be done, where, to which messages.

    Attributes:
        action: Of the order.
        address: Where the messages are.
        named: The same as a person says it.
        entity, subscription, is_transfer: Its parts.
        to: Where they are moved to, or None.
        orders: Members of the order that say which messages are meant, and what becomes of them.
        limit: Most messages in all, or None.
        chunk: Messages of one order.
        is_client_side: The SDK is to do it.
    """

    def __init__(self, action: str, given: dict[str, Any]) -> None:
        self.action = action
        self.entity: str = given["entity"]
        self.subscription: str | None = given.get("subscription")
        self.is_transfer = bool(given.get("transfer"))
        self.named = self.entity if self.subscription is None else f"{self.entity}/{self.subscription}"
        self.path = self.entity if self.subscription is None else f"{self.entity}/Subscriptions/{self.subscription}"
        sub_queue = "/$Transfer/$DeadLetterQueue" if self.is_transfer else "/$DeadLetterQueue"
        self.address = self.path if action == "send" else self.path + sub_queue
        self.to: str | None = given.get("to")
        self.keeps_reason = action == "move" and not given.get("drop_reason")
        self.repair = _repair_of(given)
        self.sql: str | None = given.get("sql")
        self.condition: str | None = given.get("condition")
        self.numbers: list[int] = sorted(set(given.get("numbers") or ()))
        if len(self.numbers) > NUMBERS_MAX:
            raise click.UsageError(f"At most {NUMBERS_MAX} numbers can be given.")
        self.limit: int | None = given.get("count")
        self.chunk: int = given.get("chunk") or 100
        self.is_client_side = bool(given.get("client_side"))

    @classmethod
    def of(cls, action: str, given: dict[str, Any]) -> Work:
        """The work that options ask for."""
        return cls(action, given)

    @property
    def done_word(self) -> str:
        """What was done to messages."""
        return _DONE[self.action]

    def members(self) -> dict[str, Any]:
        """The members of every order."""
        found: dict[str, Any] = {"action": self.action}
        optional = {
            "sql": self.sql,
            "json": self.condition,
            "numbers": self.numbers or None,
            "to": self.to,
            "repair": self.repair,
        }
        found |= {name: value for name, value in optional.items() if value is not None}
        if self.action == "move":
            found["keepReason"] = self.keeps_reason
        return found


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
    if repair:
        # Told before anything is asked of a server.
        try:
            parse_repair(repair)
        except ServiceBusError as error:
            raise click.UsageError(str(error)) from None
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
    """Keeps work to a rate, and tells how far it is."""

    def __init__(self, rate: int | None, *, shows_progress: bool) -> None:
        self._rate = rate
        self._shows = shows_progress and sys.stderr.isatty()
        self._clock = Clock()
        self._started_ms = self._clock.monotonic_ms()

    def step(self, done: int, left: int) -> None:
        """So many are done in all: wait until the rate allows more."""
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
