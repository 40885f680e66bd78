"""Readings of a server, and the rates that two of them give.

A reading is what the addresses below ``/$duobus`` tell at one moment. Numbers that only grow there become rates by the
difference of two readings, over the server's own time; a restart in between gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import click

#: Asks one of them: its name and the query, to what the server answers.
Ask = Callable[[str, Mapping[str, str]], Any]

#: Totals of an entity, and the rate that each becomes.
_RATES: Final = {
    "sent": "sentPerSecond",
    "received": "receivedPerSecond",
    "settled": "settledPerSecond",
    "sentBytes": "sentBytesPerSecond",
    "receivedBytes": "receivedBytesPerSecond",
}


#: Rates of a relay, and the total from which each comes.
_RELAY_RATES: Final[dict[str, Callable[[Mapping[str, Any]], float]]] = {
    "requestsPerSecond": lambda row: sum(row["requests"].values()),
    "messagesPerSecond": lambda row: row["messages"],
    "bytesPerSecond": lambda row: row["bytes"],
}


class Reading(NamedTuple):
    """What a server told.

    Attributes:
        server: Of itself.
        entities: Of its entities.
        stores: Of its messaging stores; None when the key may not ask.
        connections: Of its AMQP connections; the same.
        relays: Of its relays; None for a server of a version without relays.
        notes: Why something was not told, one sentence each.
    """

    server: Mapping[str, Any]
    entities: Sequence[Mapping[str, Any]]
    stores: Sequence[Mapping[str, Any]] | None
    connections: Sequence[Mapping[str, Any]] | None
    notes: tuple[str, ...]
    relays: Sequence[Mapping[str, Any]] | None = None


def read(ask: Ask, prefix: str = "") -> Reading:
    """Read everything that the key may know.

    Raises:
        click.ClickException: The server does not answer, or the key may not even listen.
    """
    server = ask("server", {})
    entities = ask("entities", {"prefix": prefix} if prefix else {})
    notes: list[str] = []

    def managed(name: str) -> Any:
        try:
            return ask(name, {})
        except click.ClickException as error:
            notes.append(f"{name} not shown: {error.message.splitlines()[0]}")
            return None

    stores, connections = managed("stores"), managed("connections")
    return Reading(server, entities, stores, connections, tuple(notes), _relays(ask, prefix))


def _relays(ask: Ask, prefix: str) -> list[Mapping[str, Any]] | None:
    try:
        found = ask("relays", {})
    except click.ClickException:
        # A version before relays, or a key for one entity: there is nothing to say of that on every screen.
        return None
    return [row for row in found if str(row["name"]).lower().startswith(prefix.lower())]


def is_restart(before: Reading, now: Reading) -> bool:
    """Whether the server was started anew between two readings."""
    started = before.server.get("startedMs") != now.server.get("startedMs")
    return started or now.server["uptimeMs"] < before.server["uptimeMs"]


def view(before: Reading | None, now: Reading) -> dict[str, Any]:
    """Return a reading with the rates since the one before it, ready for JSON; without one all rates are null."""
    seconds = 0.0
    was_restarted = before is not None and is_restart(before, now)
    if before is not None and not was_restarted:
        seconds = (now.server["uptimeMs"] - before.server["uptimeMs"]) / 1000
    old_entities = {row["entity"]: row for row in before.entities} if before is not None else {}
    old_stores = {row["store"]: row for row in before.stores or ()} if before is not None else {}
    entities = [_rated(row, old_entities.get(row["entity"]), seconds) for row in now.entities]
    return {
        "server": {**now.server, "wasRestarted": was_restarted, **_errors(before, now, seconds)},
        "entities": entities,
        "stores": None
        if now.stores is None
        else [_store(row, old_stores.get(row["store"]), seconds) for row in now.stores],
        "connections": now.connections,
        "relays": None if now.relays is None else _rated_relays(before, now.relays, seconds),
        "notes": list(now.notes),
    }


def _per_second(now: float, before: float | None, seconds: float) -> float | None:
    """A rate; None without an earlier number, or when the number is smaller, which another life of it has made so."""
    if before is None or seconds <= 0 or now < before:
        return None
    return round((now - before) / seconds, 3)


def _rated(row: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    # An entity that was not there before has got what it has since then.
    rates = {
        rate: _per_second(row[total], before[total] if before is not None else 0.0, seconds)
        for total, rate in _RATES.items()
    }
    return {**row, **rates}


def _rated_relays(before: Reading | None, relays: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    old = {row["name"]: row for row in before.relays or ()} if before is not None else {}
    found = []
    for row in relays:
        earlier = old.get(row["name"])
        rates: dict[str, float | None] = {}
        for rate, total in _RELAY_RATES.items():
            was = total(earlier) if earlier is not None else 0.0 if before is not None else None
            rates[rate] = _per_second(total(row), was, seconds)
        found.append({**row, **rates})
    return found


def _store(row: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> dict[str, Any]:
    if before is None:
        return {**row, "commitsPerSecond": None, "commitMs": None}
    commits = row["commits"] - before["commits"]
    # A server that is older than this command does not tell the time.
    spent = row.get("commitSeconds", 0.0) - before.get("commitSeconds", 0.0)
    return {
        **row,
        "commitsPerSecond": _per_second(row["commits"], before["commits"], seconds),
        "commitMs": round(1000 * spent / commits, 3) if commits > 0 and seconds > 0 and spent >= 0 else None,
    }


def _errors(before: Reading | None, now: Reading, seconds: float) -> dict[str, float | None]:
    number = sum(now.server.get("errors", {}).values())
    earlier = None if before is None else sum(before.server.get("errors", {}).values())
    return {"errorsPerSecond": _per_second(number, earlier, seconds)}


def ordered(entities: Sequence[Mapping[str, Any]], by: str) -> list[Mapping[str, Any]]:
    """Return entities with the most of something first: ``rate``, ``depth`` or ``dead``; or by ``name``."""
    if by == "name":
        return sorted(entities, key=lambda row: str(row["entity"]).lower())
    numbers: dict[str, Callable[[Mapping[str, Any]], float]] = {
        "rate": lambda row: (row["sentPerSecond"] or 0) + (row["receivedPerSecond"] or 0),
        "depth": lambda row: row["active"],
        "dead": lambda row: row["deadLetter"] + row["transferDeadLetter"],
    }
    chosen = numbers[by]
    # Those that are equal by that stand by their depth, and then by name: nothing jumps about from turn to turn.
    return sorted(entities, key=lambda row: (-chosen(row), -row["active"], str(row["entity"]).lower()))
