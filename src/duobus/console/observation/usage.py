"""What was metered, summed by entity and by hour, and what that costs at a price that a person gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from duobus.console.formats import UNKNOWN
from duobus.model.metering import KINDS, RELAY_KINDS, RELAY_MESSAGE, RELAY_REQUEST

#: Operations for which a price is given.
PRICED: Final = 1_000_000
#: Highest price that is taken; more is a slip of the finger.
PRICE_MAX: Final = 1_000_000.0
_HOUR_MS: Final = 3_600_000
_SUMMED: Final = ("operations", "messages", "bytes")


def price_of(text: str) -> float | None:
    """The price of a million operations as a person writes it, with a comma or a point; None for no price."""
    try:
        price = float(text.strip().replace(",", "."))
    except ValueError:
        return None
    return price if 0 <= price <= PRICE_MAX else None


def cost_of(operations: int, price: float | None) -> float | None:
    """What operations cost; None without a price."""
    return None if price is None else operations * price / PRICED


def cost_text(cost: float | None) -> str:
    """A cost with two digits behind the point, and a small one with as many as it takes to see something."""
    if cost is None:
        return UNKNOWN
    return f"{cost:,.2f}" if cost >= 1 or cost == 0 else f"{cost:.2g}" if cost < 0.01 else f"{cost:.3f}"


def billed(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows whose kinds cost; a kind of a newer server counts as one that does."""
    return [row for row in rows if KINDS.get(row["kind"], True)]


def total_of(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The sums over all rows."""
    found = dict.fromkeys(_SUMMED, 0)
    for row in rows:
        for name in _SUMMED:
            found[name] += row[name]
    return found


def of_relays(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A line for each relay with what was metered of its use, the one that has carried most first."""
    relays: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["kind"] not in RELAY_KINDS:
            continue
        zeros = {"requests": 0, "messages": 0, "bytes": 0, "listener_ms": 0}
        found = relays.setdefault(row["entity"], {"entity": row["entity"], **zeros})
        found["bytes"] += row["bytes"]
        if row["kind"] == RELAY_REQUEST:
            found["requests"] += row["messages"]
        elif row["kind"] == RELAY_MESSAGE:
            found["messages"] += row["messages"]
        else:
            found["listener_ms"] += 1000 * row["messages"]
    return sorted(relays.values(), key=lambda one: (-one["bytes"], -one["listener_ms"], one["entity"]))


def by_entity(rows: Iterable[Mapping[str, Any]], price: float | None) -> list[dict[str, Any]]:
    """A line for each entity, with its kinds of operations; the dearest first."""
    entities: dict[str, dict[str, Any]] = {}
    for row in rows:
        found = entities.setdefault(row["entity"], {"entity": row["entity"], **dict.fromkeys(_SUMMED, 0), "kinds": {}})
        for name in _SUMMED:
            found[name] += row[name]
        found["kinds"][row["kind"]] = found["kinds"].get(row["kind"], 0) + row["operations"]
    for found in entities.values():
        found["cost"] = cost_of(found["operations"], price)
        found["cost_text"] = cost_text(found["cost"])
        found["kinds"] = dict(sorted(found["kinds"].items(), key=lambda pair: (-pair[1], pair[0])))
    return sorted(entities.values(), key=lambda one: (-one["operations"], -one["messages"], one["entity"]))


def by_hour(rows: Iterable[Mapping[str, Any]], from_ms: int, to_ms: int, price: float | None) -> list[dict[str, Any]]:
    """A line for each hour between two instants, the latest last; hours without operations are there, too."""
    first = from_ms - from_ms % _HOUR_MS
    every = range(first, max(first + 1, to_ms), _HOUR_MS)
    hours: dict[int, dict[str, Any]] = {at_ms: {"hour_ms": at_ms, **dict.fromkeys(_SUMMED, 0)} for at_ms in every}
    for row in rows:
        found = hours.get(row["hourMs"])
        if found is not None:
            for name in _SUMMED:
                found[name] += row[name]
    for found in hours.values():
        found["cost_text"] = cost_text(cost_of(found["operations"], price))
    return list(hours.values())
