"""What the part ``sessions`` notices: order, state, and how its result is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from test_demo_command import RUN_LIMIT_S, rows_of, run_demo

from duobus_demo.corpus import Outgoing
from duobus_demo.expectations.sessions import Applied, SessionExpectations, decode_state
from duobus_demo.scenarios.sessions import SESSION_MESSAGES_MAX, failures_of, sessions_of

BODIES = (b"a", b"b", b"c")


def book() -> SessionExpectations:
    return SessionExpectations({"s": [Outgoing(f"s/{index}", body=body) for index, body in enumerate(BODIES)]})


def apply_all(found: SessionExpectations) -> Applied:
    state = found.accepted("s", None)
    for position, body in enumerate(BODIES):
        state = state.after(position, body)
        found.setting("s", state)
        found.was_set("s")
    return state


def test_a_session_that_was_applied_in_order_has_the_state_that_is_expected() -> None:
    found = book()
    assert not found.is_done
    state = apply_all(found)
    assert found.is_done
    assert state == found.expected("s")
    found.read_back("s", state.encode())
    assert found.report()["states_right"] == 1
    assert found.faults() == []


@pytest.mark.parametrize("state", [None, b"{", b"[]", b'{"messages": 2, "digest": "?"}'])
def test_a_session_that_tells_anything_else_in_the_end_is_not_right(state: bytes | None) -> None:
    found = book()
    apply_all(found)
    found.read_back("s", state)
    assert found.report()["states_right"] == 0


def test_a_state_is_written_and_read() -> None:
    assert decode_state(None) == Applied()
    state = Applied().after(0, b"a")
    assert decode_state(state.encode()) == state
    assert decode_state(b"not ours") is None


@pytest.mark.parametrize(
    ("message_id", "number", "applied", "is_fault"),
    [
        ("s/1", 6, 1, False),
        # Applied before: its completion got lost, or it was stored twice.
        ("s/0", 6, 1, False),
        ("s/2", 6, 1, True),
        ("s/1", 5, 1, True),
        ("t/0", 6, 1, True),
    ],
)
def test_a_message_is_the_next_of_its_session_or_one_of_before(
    message_id: str, number: int, applied: int, is_fault: bool
) -> None:
    found = book()
    found.accepted("s", None)
    found.position("s/0", "s", 5, 0)
    found.position(message_id, "s", number, applied)
    assert found.report()["out_of_order"] == int(is_fault)
    assert len(found.faults()) == int(is_fault)


def test_a_session_accepted_anew_may_begin_with_numbers_of_before() -> None:
    found = book()
    found.accepted("s", None)
    found.position("s/0", "s", 5, 0)
    found.accepted("s", None)
    found.position("s/0", "s", 5, 0)
    assert found.report()["out_of_order"] == 0


def test_the_state_that_was_set_last_is_read_whoever_has_the_session() -> None:
    found = book()
    state = found.accepted("s", None).after(0, b"a")
    found.setting("s", state)
    found.was_set("s")
    found.left("s")
    assert found.locked == 0
    assert found.accepted("s", state.encode()) == state
    assert found.locked == 1
    found.accepted("s", None)
    assert found.report()["states_lost"] == 1


@pytest.mark.parametrize("was_done", [False, True])
def test_a_state_whose_setting_has_no_known_outcome_is_the_one_or_the_other(was_done: bool) -> None:
    found = book()
    state = found.accepted("s", None).after(0, b"a")
    found.setting("s", state)
    read = state.encode() if was_done else None
    found.accepted("s", read)
    assert found.report()["states_lost"] == 0
    # Once it was read it is known.
    found.accepted("s", None if was_done else state.encode())
    assert found.report()["states_lost"] == 1


def test_packages_become_sessions_in_the_order_of_their_files() -> None:
    files = [f"pack/{index:03}.py" for index in range(SESSION_MESSAGES_MAX + 5)]
    files += ["z.py", "a.py", "m.py", "small/one.py"]
    sessions = sessions_of(Outgoing(name, body=b"x") for name in reversed(files))
    assert [message.message_id for message in sessions["modules"]] == ["a.py", "m.py", "z.py"]
    assert [message.message_id for message in sessions["pack"]] == files[:SESSION_MESSAGES_MAX]
    assert "small" not in sessions


def result(**changes: Any) -> dict[str, Any]:
    kill = {"unsettled_sends": 1, "locks_held": 5, "restart_seconds": 0.5}
    names = ("lost", "altered", "revived", "out_of_order", "states_lost", "left")
    good = {**dict.fromkeys(names, 0), "missing": [], "altered_how": {}, "disorder": []}
    return {**good, "sessions": 9, "states_right": 9, "kills": [kill] * 3, **changes}


def test_a_run_of_sessions_with_nothing_wrong_is_no_failure() -> None:
    assert failures_of(result()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 2, "missing": ["a.py"]}, "2 acknowledged messages never came out: ['a.py']"),
        ({"out_of_order": 1, "disorder": ["that one"]}, "1 messages came out of their order: ['that one']"),
        ({"states_lost": 1, "disorder": ["the state of 's'"]}, "another state than was set: [\"the state of 's'\"]"),
        ({"states_right": 8}, "8 of 9 sessions tell in the end"),
        ({"left": 3}, "3 sessions have messages"),
        ({"kills": []}, "0 kills instead of 3"),
        ({"kills": [{"unsettled_sends": 0, "locks_held": 9}] * 3}, "Kill 1 did not meet its conditions"),
    ],
)
def test_whatever_went_wrong_with_sessions_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in failures_of(result(**changes))[0]


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_sessions_survive_three_kills_in_order_and_with_their_state() -> None:
    done = run_demo("--json", "--part", "sessions")

    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    counts = json.loads(line)
    assert counts["part"] == "sessions"
    assert counts["lost"] == counts["altered"] == counts["out_of_order"] == counts["states_lost"] == 0
    assert counts["received"] == counts["acknowledged"] == counts["sent"] > 300
    assert counts["states_right"] == counts["sessions"] >= 20
    assert counts["accepted"] > counts["sessions"]
    assert len(counts["kills"]) == 3
    assert all(kill["unsettled_sends"] >= 1 and kill["locks_held"] >= 2 for kill in counts["kills"])
    assert [label for label, _ in rows_of(counts) if label.startswith("Kill")] == ["Kill 1", "Kill 2", "Kill 3"]
    # No bound on speed: a phase that hangs ends the demo by itself.
    assert counts["seconds"] > 0
