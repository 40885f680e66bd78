"""Readings of a server: rates by difference, a restart in between, what a key may not ask, and the screen."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import click
import pytest
from rich.console import Console

from duobus.cli.watch.readings import Reading, ordered, read, view
from duobus.cli.watch.screen import screen
from duobus.cli.watch.top import views


def entity(name: str, **numbers: Any) -> dict[str, Any]:
    """What the server tells of an entity; 0 for what is not given."""
    zeros = (
        "active deadLetter transferDeadLetter deferred scheduled locked toForward bytes sent received settled sentBytes"
        " receivedBytes"
    )
    return {"entity": name, "kind": "queue", "available": True, **dict.fromkeys(zeros.split(), 0), **numbers}


def store(number: int, **numbers: Any) -> dict[str, Any]:
    found = {"store": number, "place": f"stores/store-{number}.db", "state": "open", "reason": None, "drill": None}
    return {**found, "fragments": 1, "commits": 0, "commitSeconds": 0.0, "failures": 0, "quarantined": 0, **numbers}


def server(uptime_ms: int, started_ms: int = 1, **numbers: Any) -> dict[str, Any]:
    found = {"version": "1", "startedMs": started_ms, "uptimeMs": uptime_ms, "nowMs": 5, "clockAheadMs": 0}
    rest = {"memoryBytes": 65 << 20, "connections": 0, "links": 0, "incomingBytes": 0, "incomingLimitBytes": 100}
    return {**found, **rest, "errors": {}, **numbers}


def reading(uptime_ms: int, *entities: Any, started_ms: int = 1, stores: Any = (), **numbers: Any) -> Reading:
    return Reading(server(uptime_ms, started_ms, **numbers), entities, stores, (), ())


def test_rates_are_differences_by_the_time_of_the_server() -> None:
    before = reading(1_000, entity("q", sent=10, received=5, sentBytes=100), errors={"a": 1})
    now = reading(3_000, entity("q", sent=30, received=5, settled=4, sentBytes=300), errors={"a": 3, "b": 2})
    found = view(before, now)
    (row,) = found["entities"]
    assert (row["sentPerSecond"], row["receivedPerSecond"], row["settledPerSecond"]) == (10, 0, 2)
    assert row["sentBytesPerSecond"] == 100
    assert found["server"]["errorsPerSecond"] == 2
    assert found["server"]["wasRestarted"] is False


def test_a_single_reading_has_no_rates() -> None:
    found = view(None, reading(1_000, entity("q", sent=10), stores=[store(1, commits=3)]))
    assert found["entities"][0]["sentPerSecond"] is None
    assert found["stores"][0]["commitsPerSecond"] is None
    assert found["server"]["errorsPerSecond"] is None


def test_an_entity_that_is_new_has_rates_from_nothing_and_one_that_was_made_anew_has_none() -> None:
    before = reading(0, entity("old", sent=100))
    found = view(before, reading(2_000, entity("old", sent=4), entity("new", sent=8)))
    assert [row["sentPerSecond"] for row in found["entities"]] == [None, 4]


def test_after_a_restart_of_the_server_there_are_no_rates_once() -> None:
    before = reading(60_000, entity("q", sent=100), stores=[store(1, commits=9)])
    again = reading(500, entity("q", sent=200), started_ms=2, stores=[store(1, commits=12)])
    found = view(before, again)
    assert found["server"]["wasRestarted"] is True
    assert found["entities"][0]["sentPerSecond"] is None
    assert found["stores"][0]["commitMs"] is None
    later = view(again, reading(1_500, entity("q", sent=210), started_ms=2))
    assert later["entities"][0]["sentPerSecond"] == 10


def test_a_server_that_was_started_anew_has_no_rates_though_it_runs_for_longer_than_before() -> None:
    found = view(reading(500, entity("q", sent=1)), reading(9_000, entity("q", sent=50), started_ms=2))
    assert found["server"]["wasRestarted"] is True
    assert found["entities"][0]["sentPerSecond"] is None


def test_the_time_of_a_commit_is_that_of_those_in_between() -> None:
    before = reading(0, stores=[store(1, commits=10, commitSeconds=5.0), store(2, commits=7)])
    now = reading(1_000, stores=[store(1, commits=30, commitSeconds=5.1), store(2, commits=7), store(3, commits=1)])
    first, second, third = view(before, now)["stores"]
    assert (first["commitsPerSecond"], first["commitMs"]) == (20, 5)
    assert (second["commitsPerSecond"], second["commitMs"]) == (0, None)
    assert third["commitsPerSecond"] is None


def test_entities_stand_in_the_order_that_was_asked_for() -> None:
    rows = view(
        reading(0),
        reading(
            1_000,
            entity("b", active=5, sent=1),
            entity("A", active=9, deadLetter=1),
            entity("c", transferDeadLetter=3, received=7),
            entity("d", active=9),
        ),
    )["entities"]
    names = {by: [row["entity"] for row in ordered(rows, by)] for by in ("rate", "depth", "dead", "name")}
    assert names == {
        "rate": ["c", "b", "A", "d"],
        "depth": ["A", "d", "b", "c"],
        "dead": ["c", "A", "d", "b"],
        "name": ["A", "b", "c", "d"],
    }


class Doors:
    """A server in a test: answers doors, or refuses them."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {"server": server(0), "entities": [], "stores": [], "connections": [], "relays": [], **answers}
        self.asked: list[tuple[str, Mapping[str, str]]] = []

    def __call__(self, door: str, query: Mapping[str, str]) -> Any:
        self.asked.append((door, query))
        answer = self.answers[door]
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_key_without_manage_reads_what_it_may_and_is_told_what_is_missing() -> None:
    refused = click.ClickException("Unauthorized access. 'Manage' claim(s) are required.\nMore.")
    doors = Doors(stores=refused, connections=refused, entities=[entity("q")])
    found = read(doors, "q")
    assert (found.stores, found.connections) == (None, None)
    assert len(found.notes) == 2
    assert found.notes[0] == "stores not shown: Unauthorized access. 'Manage' claim(s) are required."
    assert ("entities", {"prefix": "q"}) in doors.asked
    text = shown(view(None, found))
    assert "stores not shown" in text
    assert "commits/s" not in text


def test_a_server_that_goes_away_is_told_of_and_read_again_when_it_is_back() -> None:
    doors = Doors(entities=[entity("q", sent=1)])
    pauses: list[float] = []
    turns = views(doors, "", 2.0, pauses.append)
    first = next(turns)
    assert isinstance(first, dict)
    assert pauses == [2.0]
    doors.answers["server"] = click.ClickException("does not answer")
    assert isinstance(next(turns), click.ClickException)
    assert isinstance(next(turns), click.ClickException)
    doors.answers["server"] = server(100, 2)
    back = next(turns)
    # The first reading after it has nothing to be compared with, and is not shown.
    assert isinstance(back, dict)
    assert back["server"]["wasRestarted"] is False
    assert len(pauses) == 5


def shown(found: Mapping[str, Any], lines: int | None = None, width: int = 160) -> str:
    output = io.StringIO()
    console = Console(file=output, width=width, force_terminal=True, color_system="standard")
    console.print(screen(found, "http://localhost:5300", ordered(found["entities"], "depth"), lines))
    return output.getvalue()


def test_an_empty_server_is_shown_as_one() -> None:
    text = shown(view(None, reading(61_000)))
    assert "No entities." in text
    assert "No AMQP connections." in text
    assert "up 1m01s" in text


def test_one_of_several_servers_says_that_it_shows_what_its_stores_have() -> None:
    text = shown(view(None, reading(0, servers=["localhost:5300", "localhost:5301"])))
    assert "1 of 2 servers, with what its stores have" in " ".join(text.split())
    assert "servers" not in shown(view(None, reading(0)))


RED = "\x1b[31m"


def test_dead_letters_and_stores_that_are_away_stand_out() -> None:
    rows = [entity("sound", active=1), entity("dying", deadLetter=7)]
    stores = [store(1), store(2, state="failed", reason="disk full", failures=3)]
    text = shown(view(None, reading(0, *rows, stores=stores)))
    assert re.search(re.escape(RED) + " *7", text)
    assert f"{RED}failed" in text
    assert "disk full" in text
    assert text.index("failed") < text.index("open")
    assert RED not in shown(view(None, reading(0, entity("sound"), stores=[store(1)])))


@pytest.mark.parametrize("lines", [10, 24, 60])
def test_what_is_shown_fits_the_terminal_and_says_how_much_is_hidden(lines: int) -> None:
    many = [entity(f"q{number:04}", active=number) for number in range(500)]
    connections = [connection(number) for number in range(90)]
    found = view(None, reading(0, *many, stores=[store(number) for number in range(1, 40)]))
    found["connections"] = connections
    text = shown(found, lines)
    assert len(text.splitlines()) <= max(lines, 19)
    # The deepest is there, and the number of those that are not.
    assert "q0499" in text
    assert "more entities" in text


def connection(number: int, **more: Any) -> dict[str, Any]:
    links = [
        {"role": "sender", "address": "q", "credit": 1},
        {"role": "sender", "address": "$cbs", "credit": 1},
        {"role": "receiver", "address": "q/$management", "credit": 1},
    ]
    found = {"from": f"127.0.0.1:{number}", "client": "c", "product": "sdk 1", "seconds": 90_061, "rules": ["Root"]}
    return {**found, "linkCount": 3, "links": links, **more}


def test_clients_are_shown_by_what_they_send_to_and_receive_from() -> None:
    found = view(None, reading(0))
    found["connections"] = [connection(7)]
    text = shown(found)
    assert "127.0.0.1:7 sdk 1" in text
    assert "1d01h" in text
    assert "$cbs" not in text
    assert "$management" not in text


def test_what_clients_call_themselves_moves_no_cursor() -> None:
    found = view(None, reading(0, entity("evil\x1b[2J", active=1)))
    found["connections"] = [connection(1, product="\x1b]0;title\x07")]
    text = shown(found)
    assert "\x1b[2J" not in text
    assert "\x1b]0;" not in text
    assert "evil\\x1b[2J" in text


def relay(name: str, **numbers: Any) -> dict[str, Any]:
    zeros = dict.fromkeys(("listeners", "joined", "waiting", "messages", "bytes"), 0)
    return {"name": name, "status": "Active", "requests": {}, **zeros, **numbers}


def test_relays_have_rates_and_those_that_nobody_serves_stand_first_on_the_screen() -> None:
    before = reading(0)._replace(relays=[relay("b/served", requests={"200": 3}, bytes=100)])
    now = reading(2_000)._replace(
        relays=[relay("b/served", listeners=2, requests={"200": 5, "502": 2}, bytes=4_196), relay("c/alone")]
    )
    found = view(before, now)
    rates = [(row["requestsPerSecond"], row["bytesPerSecond"]) for row in found["relays"]]
    assert rates == [(2.0, 2048.0), (0.0, 0.0)]
    text = shown(found)
    assert text.index("c/alone") < text.index("b/served")
    assert re.search(r"b/served +Active +2 +0 +0 +2.0 +0 +2.0K", text)
    # A server without relays has no table of them.
    assert "requests/s" not in shown(view(None, reading(0)))


def test_only_relays_with_the_prefix_are_read_and_a_server_without_relays_is_no_error() -> None:
    doors = Doors(relays=[relay("shop/web"), relay("other")])
    assert [row["name"] for row in read(doors, "SHOP/").relays or ()] == ["shop/web"]
    old = read(Doors(relays=click.ClickException("unknown")), "")
    assert (old.relays, old.notes, view(None, old)["relays"]) == (None, (), None)
