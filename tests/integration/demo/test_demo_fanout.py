"""What the part ``fanout`` expects and notices: copies by rule, changes, the hop, and how its result is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_demo_command import RUN_LIMIT_S, rows_of, run_demo

from duobus.model.topology.config_file import parse_config
from duobus_demo.corpus import Outgoing
from duobus_demo.expectations.fanout import FanoutExpectations, ReceivedCopy
from duobus_demo.expectations.fanout_plan import (
    END,
    RULE_NAME,
    Copy,
    ExpectedCopy,
    chosen,
    expected_of,
    fanout_config,
    looks_of,
)
from duobus_demo.result_table import table_of
from duobus_demo.scenarios.fanout import failures_of

LOOK = ExpectedCopy("digest", "odd", None, {"n": 1})
CHANGED = ExpectedCopy("digest", "odd", None, {"n": 2, RULE_NAME: "r"})
PLAIN, BY_RULE = Copy("m"), Copy("m", "r")


def book() -> FanoutExpectations:
    return FanoutExpectations({"all": {PLAIN: LOOK}, "some": {PLAIN: LOOK, BY_RULE: CHANGED}, "none": {}})


def take(
    found: FanoutExpectations, receive_path: str, copy: Copy, look: ExpectedCopy, number: int = 1, publication: int = 7
) -> None:
    delivery = ReceivedCopy(copy, look, number, publication)
    found.hold(1)
    found.received(receive_path, delivery)
    found.completed(receive_path, delivery, "tcp")


def take_all(found: FanoutExpectations, publication: int = 7, first_number: int = 1) -> None:
    take(found, "all", PLAIN, LOOK, first_number, publication)
    take(found, "some", PLAIN, LOOK, first_number, publication)
    take(found, "some", BY_RULE, CHANGED, first_number + 1, publication)


def counts_of(found: FanoutExpectations) -> dict[str, int]:
    report = found.report()
    return {name: report[name] for name in ("received", "duplicates", "lost", "altered", "wrong", "revived")}


def only(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(("received", "duplicates", "lost", "altered", "wrong", "revived"), 0), **counts}


def test_each_copy_once_and_as_expected_is_what_has_to_be() -> None:
    found = book()
    assert counts_of(found) == only(lost=3)
    take_all(found)
    assert counts_of(found) == only(received=3)
    assert (found.unsettled, found.settled, found.total) == (0, 3, 3)
    assert not any(found.missing().values())
    assert found.completions_over("tcp") == 3


def test_a_message_that_was_published_twice_has_duplicates_everywhere() -> None:
    found = book()
    take_all(found)
    take_all(found, publication=8, first_number=11)
    assert counts_of(found) == only(received=3, duplicates=3)


def test_a_publication_with_some_of_its_copies_only_has_lost_the_others() -> None:
    found = book()
    take_all(found)
    take(found, "some", PLAIN, LOOK, 11, publication=8)
    assert counts_of(found) == only(received=3, duplicates=1, lost=2)
    assert found.examples()["missing"] == ["all: m", "some: m by rule r"]


def test_a_copy_that_comes_twice_of_one_publication_should_not_be_there() -> None:
    found = book()
    take_all(found)
    take(found, "some", BY_RULE, CHANGED, 12)
    assert counts_of(found) == only(received=3, wrong=1)
    assert found.examples()["wrong_which"] == ["some: m by rule r"]


@pytest.mark.parametrize("copy", [PLAIN, Copy("stranger"), Copy("m", "another")])
def test_a_copy_at_a_receive_path_that_must_not_get_it_is_wrong(copy: Copy) -> None:
    found = book()
    take_all(found)
    take(found, "none", copy, LOOK)
    assert counts_of(found) == only(received=3, wrong=1)


@pytest.mark.parametrize(
    ("look", "how"),
    [
        (LOOK._replace(digest="other"), "its body differs"),
        (LOOK._replace(subject="even"), "its subject or partition key differs"),
        (LOOK._replace(partition_key="k"), "its subject or partition key differs"),
        (LOOK._replace(properties={"n": 1.0}), "its application properties differ: n"),
        (LOOK._replace(properties={}), "its application properties differ: n"),
        (LOOK._replace(properties={"n": 1, "more": 2}), "its application properties differ: more"),
    ],
)
def test_a_copy_that_does_not_look_as_it_has_to_is_altered(look: ExpectedCopy, how: str) -> None:
    found = book()
    take_all(found)
    take(found, "all", PLAIN, look)
    assert counts_of(found)["altered"] == 1
    assert found.examples()["altered_how"] == [f"all: m: {how}"]


def test_a_completed_copy_that_comes_again_is_revived() -> None:
    found = book()
    take_all(found)
    take(found, "all", PLAIN, LOOK)
    assert counts_of(found) == only(received=3, revived=1)


def test_a_copy_whose_completion_has_no_known_outcome_may_come_again_or_not() -> None:
    found = book()
    take_all(found)
    delivery = ReceivedCopy(PLAIN, LOOK, 11, 8)
    found.hold(1)
    found.received("all", delivery)
    found.completion_unknown("all", delivery)
    found.received("all", delivery)
    assert counts_of(found)["wrong"] == counts_of(found)["revived"] == 0
    assert found.missing()["all"] == []


def published(count: int = 48) -> list[Outgoing]:
    names = [f"{'test' if index % 3 else 'json'}/{index}.py" if index % 5 else f"{index}.py" for index in range(count)]
    return [Outgoing(name, body=b"x" * (index * 200)) for index, name in enumerate(names)]


def test_expected_copies_are_those_that_the_rules_say() -> None:
    messages = published()
    looks = looks_of(messages)
    expected = expected_of(looks)
    number = {message.message_id: index for index, message in enumerate(messages)}

    def plain(receive_path: str) -> set[int]:
        return {number[copy.message_id] for copy in expected[receive_path] if not copy.rule}

    assert plain("everything") == set(range(48))
    assert plain("red-or-large") == {index for index in range(48) if index // 2 % 4 == 0 or index >= 25}
    assert plain("odd-grey") == {index for index in range(48) if index % 2 and index // 2 % 4 == 3}
    assert plain("packaged") == {index for index in range(48) if index % 5 and index % 3 == 0}
    assert plain("marked") == {index for index in range(48) if index // 2 % 4 == 1}
    assert plain(END) == set()
    marked = expected["marked"][Copy(messages[3].message_id, "mark")]
    assert (marked.subject, marked.properties["number"], marked.properties["colour"]) == ("marked", 1003, "marked")
    assert "size" not in marked.properties
    hopped = expected[END][Copy(messages[2].message_id, "small")]
    assert (hopped.properties["weight"], hopped.properties["way"], hopped.properties[RULE_NAME]) == (
        5.0,
        "green-hop",
        "small",
    )


def test_broker_reads_the_configuration_without_a_warning() -> None:
    contents = parse_config(json.dumps(fanout_config()))
    assert contents.warnings == ()
    (topic,) = contents.namespaces[0].topics
    assert topic.enable_partitioning
    assert [found.forward_to for found in topic.subscriptions if found.forward_to] == [END]


def test_no_large_file_is_published() -> None:
    messages = [Outgoing("large", body=b"x" * 100_000), Outgoing("small", body=b"x", partition_key="k")]
    assert [(found.message_id, found.partition_key) for found in chosen(messages)] == [("small", "k")]


def result(**changes: Any) -> dict[str, Any]:
    kill = {"unsettled_sends": 1, "locks_held": 5, "restart_seconds": 0.5}
    names = ("lost", "altered", "wrong", "revived", "left", "duplicates")
    good = {**dict.fromkeys(names, 0), "missing": [], "altered_how": [], "wrong_which": []}
    receive_paths = {"odd": {"expected": 1500, "received": 1499, "duplicates": 2, "lost": 1, "altered": 0, "wrong": 0}}
    return {**good, "kills": [kill] * 3, "receive_paths": receive_paths, "seconds": 9.0, **changes}


def test_a_fan_out_with_nothing_wrong_is_no_failure_and_duplicates_are_none() -> None:
    assert failures_of(result()) == []
    assert failures_of(result(duplicates=4)) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 2, "missing": ["all: m"]}, "2 copies never came out: ['all: m']"),
        ({"altered": 1, "altered_how": ["all: m: so"]}, "1 copies came out altered: ['all: m: so']"),
        ({"wrong": 1, "wrong_which": ["all: m"]}, "1 copies came out that should not be there: ['all: m']"),
        ({"revived": 1}, "1 deliveries of copies whose completion had been acknowledged"),
        ({"left": 3}, "3 messages are left"),
        ({"kills": []}, "0 kills instead of 3"),
        ({"kills": [{"unsettled_sends": 1, "locks_held": 0}] * 3}, "Kill 1 did not meet its conditions"),
    ],
)
def test_whatever_went_wrong_with_a_fan_out_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in failures_of(result(**changes))[0]


def test_table_has_a_row_for_each_receive_path() -> None:
    cells = [cell for column in table_of("t", result()).columns for cell in column.cells]
    assert "From odd" in cells
    assert "1,499 of 1,500 copies, 2 duplicates, 1 lost, 0 altered, 0 wrong" in cells


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_every_copy_survives_three_kills_where_the_rules_want_it_and_as_they_change_it() -> None:
    done = run_demo("--json", "--part", "fanout")

    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    counts = json.loads(line)
    assert counts["part"] == "fanout"
    assert counts["lost"] == counts["altered"] == counts["wrong"] == counts["revived"] == counts["left"] == 0
    assert counts["received"] == counts["expected"] > counts["acknowledged"] == counts["sent"] > 300
    assert all(
        min(receive_path["expected"], receive_path["received"]) > 0 for receive_path in counts["receive_paths"].values()
    )
    assert END in counts["receive_paths"]
    assert list(counts["transports"]) == ["tcp", "tls", "websocket"]
    assert len(counts["kills"]) == 3
    assert all(kill["unsettled_sends"] >= 1 and kill["locks_held"] >= 1 for kill in counts["kills"])
    assert [label for label, _ in rows_of(counts) if label.startswith("Kill")] == ["Kill 1", "Kill 2", "Kill 3"]
    # No bound on speed: a phase that hangs ends the demo by itself.
    assert counts["seconds"] > 0
