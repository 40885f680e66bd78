"""The screen of ``duobus top``: one reading as tables that fit a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from duobus.cli.output import clean

#: Lines for the head of the screen, and for the heads of tables with the empty line before each.
_HEAD_LINES: Final = 2
_TABLE_LINES: Final = 2
#: Rows that each table gets at least, however small the terminal.
_ROWS_LEAST: Final = 3
_KINDS: Final = {"queue": "Q", "topic": "T", "subscription": "S"}
_KIB: Final = 1024


def screen(view: Mapping[str, Any], where: str, entities: Sequence[Mapping[str, Any]], lines: int | None) -> Group:
    """Return what to show.

    Args:
        view: The reading with its rates.
        where: Which server it is of.
        entities: Its entities, in the order in which they are to stand.
        lines: How many lines the terminal has; None: show everything.
    """
    stores, connections, relays = view["stores"] or (), view["connections"] or (), view["relays"] or ()
    rooms = _rooms((len(entities), len(stores), len(connections), len(relays)), lines)
    parts: list[RenderableType] = [
        _head(view["server"], where),
        *(Text(clean(note), "yellow") for note in view["notes"]),
    ]
    parts += [Text(), _entities(entities[: rooms[0]])]
    hidden = len(entities) - rooms[0]
    if hidden > 0:
        parts.append(Text(f"{hidden} more entities", "dim"))
    if relays:
        # Those that nobody serves first: they must not be the ones for which there is no room.
        rows = sorted(relays, key=lambda row: (row["listeners"] > 0, str(row["name"]).lower()))
        parts += [Text(), _relays(rows[: rooms[3]])]
    if view["stores"] is not None:
        # Those that are away first: they must not be the ones for which there is no room.
        rows = sorted(stores, key=lambda row: (row["state"] == "open", row["store"]))
        parts += [Text(), _stores(rows[: rooms[1]])]
    if view["connections"] is not None:
        busiest = sorted(connections, key=lambda row: -row["linkCount"])
        parts += [Text(), _connections(busiest[: rooms[2]])]
    return Group(*parts)


def _rooms(wanted: tuple[int, int, int, int], lines: int | None) -> tuple[int, int, int, int]:
    """How many rows each table gets: stores, connections and relays a quarter each at most, entities what is left."""
    if lines is None:
        return wanted
    tables = 4 if wanted[3] else 3
    free = max(lines - _HEAD_LINES - tables * _TABLE_LINES - 1, tables * _ROWS_LEAST)
    part = max(free // 4, _ROWS_LEAST)
    stores, connections, relays = (min(number, part) for number in wanted[1:])
    return min(wanted[0], free - stores - connections - relays), stores, connections, relays


def _head(server: Mapping[str, Any], where: str) -> Text:
    limit = server["incomingLimitBytes"] or 1
    parts = [
        f"duobus {clean(str(server['version']))} at {clean(where)}",
        f"up {_span(server['uptimeMs'] // 1000)}" + (" (just started anew)" if server["wasRestarted"] else ""),
        f"memory {_size(server['memoryBytes'])}",
        f"connections {server['connections']:,}",
        f"links {server['links']:,}",
        f"incoming {100 * server['incomingBytes'] // limit} %",
        f"refused {_rate(server['errorsPerSecond'])}/s",
    ]
    if others := len(server.get("servers", ())):
        parts.append(f"1 of {others} servers, with what its stores have")
    return Text(" · ".join(parts), "bold")


def _table(*heads: tuple[str, bool]) -> Table:
    """An empty table: (head, whether it is of numbers)."""
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    for head, is_number in heads:
        table.add_column(head, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    return table


def _entities(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not rows:
        return Text("No entities.", "dim")
    table = _table(
        ("entity", False),
        ("", False),
        ("active", True),
        ("locked", True),
        ("dead", True),
        ("later", True),
        ("size", True),
        ("in/s", True),
        ("out/s", True),
        ("done/s", True),
    )
    for row in rows:
        dead = row["deadLetter"] + row["transferDeadLetter"]
        table.add_row(
            Text(clean(str(row["entity"])), "" if row["available"] else "red"),
            _KINDS.get(row["kind"], "?"),
            f"{row['active']:,}",
            f"{row['locked']:,}",
            Text(f"{dead:,}", "red" if dead else ""),
            f"{row['deferred'] + row['scheduled']:,}",
            _size(row["bytes"]),
            _rate(row["sentPerSecond"]),
            _rate(row["receivedPerSecond"]),
            _rate(row["settledPerSecond"]),
        )
    return table


def _relays(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        ("relay", False),
        ("status", False),
        ("listeners", True),
        ("joined", True),
        ("waiting", True),
        ("requests/s", True),
        ("messages/s", True),
        ("bytes/s", True),
    )
    for row in rows:
        is_served = row["listeners"] > 0 or row["status"] != "Active"
        table.add_row(
            Text(clean(str(row["name"]))),
            clean(row["status"]),
            Text(f"{row['listeners']:,}", "" if is_served else "red"),
            f"{row['joined']:,}",
            f"{row['waiting']:,}",
            _rate(row["requestsPerSecond"]),
            _rate(row["messagesPerSecond"]),
            "-" if row["bytesPerSecond"] is None else _size(int(row["bytesPerSecond"])),
        )
    return table


def _stores(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        ("store", True),
        ("state", False),
        ("commits/s", True),
        ("ms each", True),
        ("fragments", True),
        ("failures", True),
        ("damaged", True),
        ("place", False),
    )
    for row in rows:
        is_open = row["state"] == "open"
        reason = "" if is_open or not row["reason"] else f"  {row['reason']}"
        table.add_row(
            str(row["store"]),
            Text(clean(row["state"]), "" if is_open else "red"),
            _rate(row["commitsPerSecond"]),
            "" if row["commitMs"] is None else f"{row['commitMs']:.1f}",
            f"{row['fragments']:,}",
            Text(str(row["failures"]), "red" if row["failures"] else ""),
            Text(str(row["quarantined"]), "red" if row["quarantined"] else ""),
            Text(clean(f"{row['place']}{reason}")),
        )
    return table


def _connections(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    if not rows:
        return Text("No AMQP connections.", "dim")
    table = _table(
        ("client", False),
        ("since", True),
        ("links", True),
        ("rule", False),
        ("sends to", False),
        ("receives from", False),
    )
    for row in rows:
        table.add_row(
            Text(clean(f"{row['from']} {row['product']}".strip())),
            _span(row["seconds"]),
            str(row["linkCount"]),
            Text(clean(", ".join(row["rules"]))),
            _addresses(row["links"], "sender"),
            _addresses(row["links"], "receiver"),
        )
    return table


def _addresses(links: Sequence[Mapping[str, Any]], role: str) -> Text:
    # Links to $cbs and $management are the SDK's own.
    found = {link["address"]: None for link in links if link["role"] == role}
    names = [name for name in found if name and not str(name).split("/")[-1].startswith("$")]
    return Text(clean(", ".join(map(str, names))))


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    number = float(value)
    for unit in ("B", "K", "M", "G"):
        if number < _KIB:
            return f"{number:.0f}{unit}" if number >= 10 or unit == "B" else f"{number:.1f}{unit}"
        number /= _KIB
    return f"{number:.1f}T"


def _span(seconds: int) -> str:
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02}h"
