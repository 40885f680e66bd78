"""Messaging stores and fragments: depth of each store, skew between them, and a table of where messages are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from duobus.console.observation.findings import store_reason

#: Steps of colour in the table of fragments, without the one for nothing.
LEVELS: Final = 5
_MS: Final = 1_000


def store_rows(stores: Iterable[Mapping[str, Any]], fragments: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One line for each store, with its depth, which is None while the store is away."""
    depths: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for fragment in fragments:
        if fragment["messages"] is not None:
            depths[fragment["store"]] = depths.get(fragment["store"], 0) + fragment["messages"]
            sizes[fragment["store"]] = sizes.get(fragment["store"], 0) + fragment["bytes"]
    deepest = max(depths.values(), default=0)
    rows = []
    for store in stores:
        is_open = store["state"] == "open"
        depth = depths.get(store["store"], 0) if is_open else None
        commits = store["commits"]
        rows.append(
            {
                **store,
                "generation": store.get("generation"),
                "is_open": is_open,
                "reason": store_reason(store) if not is_open else "",
                "depth": depth,
                "bytes": sizes.get(store["store"], 0) if is_open else None,
                "level": level_of(depth, deepest),
                "commit_ms": store["commitSeconds"] * _MS / commits if commits else None,
            }
        )
    return rows


def skew_of(rows: Iterable[Mapping[str, Any]]) -> float | None:
    """How much deeper the deepest store is than the mean of the open ones; None without messages or a second store."""
    depths = [row["depth"] for row in rows if row["depth"] is not None]
    if len(depths) < 2 or not sum(depths):
        return None
    return float(max(depths) * len(depths) / sum(depths))


def level_of(value: int | None, most: int) -> int:
    """The step of colour for a number: 0 for nothing, LEVELS for the most."""
    if not value or most <= 0:
        return 0
    return min(LEVELS, 1 + (value * LEVELS - 1) // most)


def heat_rows(fragments: Iterable[Mapping[str, Any]], numbers: list[int], most: int) -> list[dict[str, Any]]:
    """Where the messages of the deepest entities are: a line for each entity and a cell for each store.

    Args:
        fragments: What ``/$duobus/fragments`` tells.
        numbers: The stores, in the order of the columns.
        most: How many entities; those with a fragment in a store that is away come before all others.
    """
    entities: dict[str, dict[str, Any]] = {}
    for fragment in fragments:
        row = entities.setdefault(
            fragment["entity"],
            {
                "entity": fragment["entity"],
                "kind": fragment["kind"],
                "messages": 0,
                "fragments": 0,
                "away": 0,
                "by": {},
            },
        )
        row["fragments"] += 1
        cell = row["by"].setdefault(fragment["store"], {"fragments": 0, "messages": 0, "away": 0})
        cell["fragments"] += 1
        if fragment["messages"] is None:
            cell["away"] += 1
            row["away"] += 1
        else:
            cell["messages"] += fragment["messages"]
            row["messages"] += fragment["messages"]
    chosen = sorted(entities.values(), key=lambda row: (-min(row["away"], 1), -row["messages"], row["entity"]))[:most]
    deepest = max((cell["messages"] for row in chosen for cell in row["by"].values()), default=0)
    for row in chosen:
        by = row.pop("by")
        row["cells"] = [_cell(by.get(number), deepest) for number in numbers]
    return chosen


def _cell(cell: Mapping[str, int] | None, deepest: int) -> dict[str, Any] | None:
    if cell is None:
        return None
    return {**cell, "level": level_of(cell["messages"], deepest)}
