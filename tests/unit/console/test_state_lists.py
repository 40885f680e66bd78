"""Lists of the console: connections, stores with their fragments, and lines of the audit log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from duobus.console.observation.audit_lines import wanted_of
from duobus.console.observation.connections import entity_of, matching, received_from, summary_of, with_end
from duobus.console.observation.stores import heat_rows, level_of, skew_of, store_rows


def link(role: str, address: str, credit: int = 0) -> dict[str, Any]:
    return {"role": role, "address": address, "credit": credit}


ONE = {
    "connection": "duobus-1-1",
    "from": "127.0.0.1:4000",
    "client": "billing",
    "product": "azsdk-python 7",
    "seconds": 3,
    "rules": ["sender"],
    "linkCount": 3,
    "links": [link("receiver", "Orders", 10), link("receiver", "orders/$DeadLetterQueue", 5), link("sender", "x", 900)],
}


def test_a_connection_is_found_by_words_of_its_client_rule_and_entities_in_any_case() -> None:
    for words in ("BILLING", "127.0.0.1", "azsdk sender", "orders/$dead", ""):
        assert matching([ONE], words) == [ONE]
    assert matching([ONE], "billing nothing") == []


def test_the_credit_of_a_connection_is_that_of_its_receivers() -> None:
    row = summary_of(ONE)
    assert (row["credit"], row["receivers"], row["senders"], row["unsettled"]) == (15, 2, 1, None)


def test_locks_are_looked_for_once_in_each_entity_that_is_received_from() -> None:
    assert received_from(ONE) == ["Orders"]
    assert entity_of("t/Subscriptions/s/$Transfer/$DeadLetterQueue") == "t/Subscriptions/s"
    assert with_end({"untilMs": 0})["until"] == "1970-01-01T00:00:00+00:00"
    assert with_end({"untilMs": None})["until"] is None


def fragment(entity: str, number: int, store: int, messages: int | None) -> dict[str, Any]:
    size = None if messages is None else messages * 10
    return {
        "entity": entity, "kind": "queue", "fragment": number, "store": store, "messages": messages, "bytes": size,
    }  # fmt: skip


def store(number: int, state: str = "open", commits: int = 0) -> dict[str, Any]:
    return {
        "store": number, "state": state, "reason": "gone", "drill": None, "commits": commits, "commitSeconds": 0.5,
    }  # fmt: skip


def test_a_store_has_the_depth_of_its_fragments_and_one_that_is_away_has_none() -> None:
    fragments = [fragment("q", 0, 1, 30), fragment("q", 1, 2, 10), fragment("q", 2, 3, None)]
    rows = store_rows([store(1, commits=100), store(2), store(3, "failed")], fragments)
    assert [row["depth"] for row in rows] == [30, 10, None]
    assert [row["commit_ms"] for row in rows] == [5.0, None, None]
    assert [row["reason"] for row in rows] == ["", "", "gone."]
    assert skew_of(rows) == 1.5
    assert skew_of(rows[:1]) is None


def test_colours_go_from_nothing_to_the_most() -> None:
    assert [level_of(value, 100) for value in (None, 0, 1, 20, 21, 99, 100)] == [0, 0, 1, 1, 2, 5, 5]
    assert level_of(5, 0) == 0


def test_the_deepest_entities_are_told_by_store_and_those_with_something_away_first() -> None:
    deep = [fragment("deep", 0, 1, 100), fragment("deep", 1, 1, 20)]
    fragments = [*deep, fragment("flat", 0, 2, 1), fragment("lost", 0, 3, None)]
    rows = heat_rows(fragments, [1, 2, 3], 2)
    assert [row["entity"] for row in rows] == ["lost", "deep"]
    assert rows[1]["cells"] == [{"fragments": 2, "messages": 120, "away": 0, "level": 5}, None, None]
    assert rows[0]["cells"][2]["away"] == 1


LINE = {"at": "2026-01-31T10:00:00.000Z", "operation": "delete", "path": "orders/a", "who": "Root", "from": "10.0.0.1"}


def test_lines_of_the_audit_log_are_chosen_by_who_what_entity_time_and_outcome() -> None:
    for query in ({"who": "root"}, {"who": "10.0"}, {"operation": "delete"}, {"path": "Orders"}, {"path": "orders/A/"}):
        assert wanted_of(query).takes(LINE | {"outcome": "done"}), query
    for query in ({"who": "x"}, {"operation": "create"}, {"path": "order"}, {"failed": "true"}):
        assert not wanted_of(query).takes(LINE | {"outcome": "done"}), query
    assert wanted_of({"since": "2026-01-31T10:00", "until": "2026-01-31T10:01"}).takes(LINE)
    assert not wanted_of({"until": "2026-01-31T10:00"}).takes(LINE)
    assert wanted_of({"since": "no time"}).since is None


def test_reading_of_the_log_ends_at_the_first_line_before_the_wanted_time() -> None:
    wanted = wanted_of({"since": "2026-02-01T00:00"})
    assert wanted.since == datetime(2026, 2, 1, tzinfo=UTC)
    assert wanted.is_before(LINE)
    assert not wanted_of({}).is_before(LINE)
