"""Rates, histories and findings from what two looks at a namespace have found."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.console.observation.differences import busiest, rates_between
from duobus.console.observation.drills import Drill, is_over, told
from duobus.console.observation.failovers import PairState, reporting_primaries
from duobus.console.observation.findings import errors_between, findings, most_grown, of_failovers
from duobus.console.observation.history import (
    DAY_POINTS_MAX,
    HOUR_POINTS_MAX,
    History,
    Point,
    chart,
    mean_of,
    points_of,
)
from duobus.console.observation.readings import EntityCounts, Reading, entities_of

NOTHING = EntityCounts("queue", True, 0, 0, 0, 0, 0, 0, 0, 0)


def reading(at_s: float, started_ms: int = 1, stores: Any = None, server: Any = None, **entities: Any) -> Reading:
    about = {"startedMs": started_ms, "uptimeMs": 3_600_000, **(server or {})}
    counts = {path: NOTHING._replace(**found) for path, found in entities.items()}
    return Reading(round(at_s * 1000), round(at_s * 1000), about, counts, stores, False)


def test_rates_are_differences_of_counts_by_the_time_between() -> None:
    before = reading(0, orders={"sent": 100, "received": 10, "active": 90})
    rates = rates_between(before, reading(10, orders={"sent": 150, "received": 30, "active": 120}))
    assert (rates.sent, rates.received, rates.growth) == (5.0, 2.0, 3.0)


def test_after_a_restart_of_the_server_there_is_no_rate_until_the_next_look() -> None:
    before = reading(0, orders={"sent": 100})
    assert rates_between(before, reading(10, started_ms=2, orders={"sent": 5})).sent is None


def test_a_deleted_entity_makes_no_rate_negative_and_a_new_one_counts_from_nothing() -> None:
    before = reading(0, old={"sent": 1_000})
    assert rates_between(before, reading(10, new={"sent": 20})).sent == 2.0
    made_again = rates_between(reading(0, old={"sent": 1_000}), reading(10, old={"sent": 3}))
    assert made_again.sent == 0.0


def test_azure_counts_no_operations_so_that_only_the_growth_is_known() -> None:
    nobody = {"sent": None, "received": None, "settled": None}
    rates = rates_between(reading(0, q={"active": 60, **nobody}), reading(60, q={"active": 0, **nobody}))
    assert (rates.sent, rates.received, rates.growth) == (None, None, -1.0)


def test_the_busiest_entities_come_first_and_idle_ones_not_at_all() -> None:
    before = reading(0, a={}, b={"sent": 0}, c={}, full={"active": 9})
    after = reading(10, a={"sent": 10}, b={"sent": 90}, c={}, full={"active": 9})
    assert [one.path for one in busiest(before, after, 10)] == ["b", "a", "full"]
    assert [one.path for one in busiest(before, after, 1)] == ["b"]
    assert busiest(None, after, 10)[0].rates.sent is None


def test_a_history_keeps_an_hour_in_steps_of_looks_and_a_day_in_steps_of_five_minutes() -> None:
    history = History()
    for index in range(9_000):
        history.add(Point(index * 10.0, 1.0, 2.0, float(index), 0.0))
    assert len(history.points("hour")) == HOUR_POINTS_MAX
    assert len(history.points("day")) <= DAY_POINTS_MAX + 1
    assert history.points("day")[-1].active == 8_999.0
    assert history.points("day")[0].at_s % 300 == 0


def test_a_time_without_looks_is_a_gap_and_a_clock_set_back_adds_nothing() -> None:
    history = History()
    for at_s in (0.0, 10.0, 1_000.0, 500.0):
        history.add(Point(at_s, 1.0, 1.0, 1.0, 1.0))
    assert [point.active for point in history.points("hour")] == [1.0, 1.0, None, 1.0]


def test_the_mean_of_points_leaves_out_what_is_unknown() -> None:
    points = [Point(0, None, 4.0, 1.0, None), Point(10, 2.0, 2.0, 9.0, None)]
    assert mean_of(points, 0) == Point(0, 2.0, 3.0, 9.0, None)
    drawn = chart(points, [("sent", "In")], "/s")
    assert drawn == {"x": [0, 10], "series": [{"label": "In", "values": [None, 2.0]}], "unit": "/s"}


def test_a_history_begins_with_what_the_server_has_kept() -> None:
    answer = {
        "fields": ["atMs", "sent", "received", "settled", "active", "deadLetter", "locked", "connections"],
        "points": [[10_000, 1.5, 0.5, 0.5, 7, 2, 1, 3], [20_000, 2.5, 0.5, 0.5, 8, 2, 1, 3]],
    }
    history = History()
    history.add(Point(5.0, None, None, 1.0, 1.0))
    history.begin_with(points_of(answer), points_of(answer)[:1])
    assert history.points("hour") == [Point(10.0, 1.5, 0.5, 7, 2), Point(20.0, 2.5, 0.5, 8, 2)]
    history.add(Point(30.0, 1.0, 1.0, 9.0, 3.0))
    assert [point.active for point in history.points("hour")] == [7, 8, 9.0]
    assert [point.active for point in history.points("day")] == [7]


def store(number: int, state: str = "open", **more: Any) -> dict[str, Any]:
    return {"store": number, "state": state, "reason": None, "drill": None, "quarantined": 0, "fragments": 1, **more}


def test_what_is_unwell_is_told_worst_first() -> None:
    unwell = reading(
        0,
        stores=(store(1), store(2, "failed", reason="disk away")),
        server={"clockAheadMs": 3_600_000, "incomingBytes": 95, "incomingLimitBytes": 100, "uptimeMs": 5_000},
        orders={"is_available": False, "dead": 12},
        **{"contoso/x-servicebus-transfer/3": {"active": 7}},
    )
    told_of = findings(unwell, {"amqp:not-found": 2}, 2, "orders")
    assert [finding.kind for finding in told_of] == ["bad"] * 3 + ["warning"] * 3 + ["info"] * 2
    titles = [finding.title for finding in told_of]
    assert titles[:3] == ["Store 2 is failed", "1 entity is partly away", "Dead letters are growing"]
    assert told_of[0].text == "disk away."
    assert "10 more" in told_of[2].text
    assert told_of[2].url == "/messages/orders?place=deadletter"
    assert any("7 messages wait here for the namespace contoso" in finding.text for finding in told_of)


def test_a_clock_of_the_server_that_is_far_from_that_of_the_console_is_told() -> None:
    (found,) = findings(reading(0)._replace(apart_ms=-3 * 60_000), {}, None, "")
    assert (found.kind, found.text.split(":")[0]) == (
        "warning",
        "The clock of the server is 3 m behind that of the console",
    )
    assert findings(reading(0)._replace(apart_ms=59_000), {}, None, "") == []


def test_nothing_is_told_of_a_namespace_that_is_well() -> None:
    well = reading(0, stores=(store(1, drill="healthy"),), orders={"dead": 5, "active": 100})
    assert findings(well, {}, 5, "") == []
    assert findings(well, {}, None, "") == []


def test_errors_are_counted_from_the_look_before_and_after_a_restart_from_its_start() -> None:
    before = reading(0, server={"errors": {"a": 3}})
    assert errors_between(before, reading(1, server={"errors": {"a": 5, "b": 1}})) == {"a": 2, "b": 1}
    assert errors_between(before, reading(1, started_ms=2, server={"errors": {"a": 1}})) == {"a": 1}
    assert errors_between(None, before) == {}


def test_the_entity_whose_dead_letters_grew_most_is_named() -> None:
    assert most_grown({"a": 10}, reading(0, a={"dead": 11}, b={"dead": 5})) == "b"
    assert most_grown({"a": 10}, reading(0, a={"dead": 3})) == ""


def test_a_drill_tells_what_was_sent_and_which_errors_clients_got_meanwhile() -> None:
    begin = reading(0, orders={"sent": 10, "received": 5}, server={"errors": {}})
    now = reading(20, orders={"sent": 50, "received": 5}, server={"errors": {"com.microsoft:server-busy": 4}})
    drill = Drill(1, "failing", begin)
    seen = told(drill, now)
    assert (seen["sent"], seen["sent_rate"], seen["received"], seen["is_over"]) == (40, 2.0, 0, False)
    assert seen["errors"] == {"com.microsoft:server-busy": 4}
    assert told(drill, reading(20, started_ms=9))["sent"] is None
    assert not is_over(drill, {1: "failing"})
    assert is_over(drill, {1: "healthy"})
    assert not is_over(drill._replace(end=now), {1: "healthy"})


def test_the_rows_of_a_server_become_counts() -> None:
    row = {"entity": "q", "kind": "queue", "available": True, "active": 1, "deadLetter": 2, "transferDeadLetter": 3}
    row |= {"scheduled": 4, "deferred": 5, "locked": 6, "sent": 7, "received": 8, "settled": 9}
    assert entities_of([row]) == {"q": EntityCounts("queue", True, 1, 5, 4, 5, 6, 7, 8, 9)}


@pytest.mark.parametrize(
    ("days", "kind", "title"),
    [
        (14, None, ""),
        (13.5, "warning", "The certificate ends in 13 days"),
        (1, "warning", "The certificate ends in 1 day"),
        (0.5, "warning", "The certificate ends today"),
        (-0.5, "bad", "The certificate has ended"),
    ],
)
def test_a_certificate_that_ends_within_two_weeks_is_told_first_as_a_warning(
    days: float, kind: str | None, title: str
) -> None:
    certificate = {"subject": "CN=bus", "issuer": "CN=us", "names": ["bus"], "beginMs": 0}
    at_s = 1_000_000.0
    certificate["endMs"] = round((at_s + days * 86_400) * 1000)
    found = findings(reading(at_s, server={"certificate": certificate}), {}, None, "")
    assert [(one.kind, one.title, one.url) for one in found] == ([] if kind is None else [(kind, title, "/access")])


def test_failovers_of_a_pair_are_unwell_suspects_are_a_warning_and_healthy_clients_are_nothing() -> None:
    entities = [
        {"entity": "orders", "fragment": "", "failed_over": 3, "suspect": 1},
        {"entity": "stock", "fragment": "13/16", "failed_over": 1, "suspect": 0},
        {"entity": "prices", "fragment": "", "failed_over": 0, "suspect": 2},
    ]
    states = {"clients": 4, "entities": entities, "left_out": 0, "latest_ms": 1}
    look = reading(0)._replace(failovers=(PairState("contoso", states), PairState("fabrikam", None)))
    found = findings(look, {}, None, "")
    assert [(one.kind, one.title) for one in found] == [
        ("bad", "Entities of contoso have failed over"),
        ("warning", "Entities of contoso are suspect"),
    ]
    assert "orders (3 of 4 clients), stock, keys of fragment 13/16 (1 of 4 clients)." in found[0].text
    assert "prices (2 of 4 clients)" in found[1].text
    healthy = look._replace(failovers=(PairState("contoso", states | {"entities": []}),))
    assert findings(healthy, {}, None, "") == []


def test_a_secondary_that_does_not_answer_is_a_warning_and_no_failover() -> None:
    (found,) = of_failovers(PairState("contoso", None, "sb2 does not answer."))
    assert (found.kind, found.title) == ("warning", "Nobody knows the failovers of contoso")
    assert "sb2 does not answer." in found.text


def test_only_queues_of_reports_that_hold_some_are_looked_at() -> None:
    queue = NOTHING._replace(kind="queue", active=1)
    entities = {
        "contoso/x-duobus-pair-state": queue,
        "fabrikam/x-duobus-pair-state": queue._replace(active=0),
        "/x-duobus-pair-state": queue,
        "orders": queue,
    }
    assert reporting_primaries(entities) == ["contoso"]


def _cluster(**states: Any) -> dict[str, Any]:
    """A cluster of two servers with two stores, in which something is otherwise."""
    servers = [
        {"server": name, "state": "serving", "stores": [store], "version": "0.1.0"}
        for name, store in (("a:1", 1), ("b:1", 2))
    ]
    stores = [{"store": store, "state": "held", "isDisplaced": False} for store in (1, 2)]
    servers[1] |= states.get("server", {})
    stores[1] |= states.get("store", {})
    return {"servers": servers, "stores": stores, "drainedAndAway": states.get("away", [])}


@pytest.mark.parametrize(
    ("states", "kind", "title"),
    [
        ({"store": {"state": "free"}}, "bad", "No server has store 2"),
        ({"store": {"isDisplaced": True}}, "warning", "Store 2 is not where asked for"),
        ({"server": {"state": "drained"}}, "warning", "b:1 is not empty yet"),
        ({"server": {"state": "drained", "stores": []}}, "info", "b:1 is drained"),
        ({"server": {"state": "stopping"}}, "info", "b:1 is stopping"),
        ({"server": {"version": None}}, "info", "An upgrade is under way"),
        ({"away": ["c:1"]}, "info", "A drained server is away"),
    ],
)
def test_what_is_unwell_in_a_cluster_is_named(states: dict[str, Any], kind: str, title: str) -> None:
    found = findings(reading(0)._replace(cluster=_cluster(**states)), {}, 0, "")
    assert [(one.kind, one.title, one.url) for one in found if one.url == "/cluster"] == [(kind, title, "/cluster")]


def test_a_cluster_that_is_well_and_a_lone_server_are_not_worth_a_line() -> None:
    for cluster in (None, _cluster()):
        assert findings(reading(0)._replace(cluster=cluster), {}, 0, "") == []
