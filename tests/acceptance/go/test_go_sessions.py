"""Message sessions with the Go SDK; each test runs one program of ``programs/``."""

from __future__ import annotations

from typing import Any

import pytest
from kit_go import BUILD_LIMIT_S, Go, GoBus

from kits.programs import LIMIT_S, PROMPT_S

pytestmark = pytest.mark.timeout(2 * BUILD_LIMIT_S + LIMIT_S)


@pytest.mark.parametrize("kind", ["session", "parted-session"])
def test_a_named_session_is_received_in_order_settled_and_keeps_a_state(
    go: Go, go_bus: GoBus, tcp: dict[str, Any], kind: str
) -> None:
    found = go.run("sessions", queue=go_bus.queue(kind), **tcp)
    names = ["complete", "defer", "dead", "abandon"]
    assert found["bodies"] == names
    assert found["ids"] == ["a"] * 5
    assert found["locked"] is True
    assert found["renewed"] >= 40, found
    assert found["peeked"] == ["defer", "abandon"]
    assert found["again"] == ["abandon"]
    assert found["deferred"] == ["defer"]
    assert found["states"] == ["", "half way", ""]
    assert found["other"] == [f"other {name}" for name in names]
    assert found["dead"] == ["dead"]


def test_the_next_session_is_one_that_waits_and_none_is_told_in_time(
    go: Go, go_bus: GoBus, tcp: dict[str, Any]
) -> None:
    found = go.run("anonymous", queue=go_bus.queue("session"), **tcp)
    assert found["accepted"] == [["a", "1", "3"], ["b", "2"]]
    # The broker's answer comes before the client's own timer ends.
    assert found["none"]["code"] == "timeout", found
    assert found["none"]["seconds"] > 1.5, found
    assert found["late"] < PROMPT_S, found


def test_a_session_has_one_receiver_until_it_closes_or_its_lock_ends(
    go: Go, go_bus: GoBus, tcp: dict[str, Any]
) -> None:
    found = go.run("held", queue=go_bus.queue("session"), **tcp)
    assert found["refused"]["code"] == "com.microsoft:session-cannot-be-locked", found
    assert found["refused"]["seconds"] < PROMPT_S
    assert found["free"]["code"] == "none", found
    assert found["heir"] == ["2", "3"]
    assert found["renewal"]["code"] == "locklost", found
    assert found["settlement"]["code"] != "none", found
    assert "com.microsoft:session-lock-lost" in found["closing"]["text"], found
    assert found["again"] == ["2", "3"]


@pytest.mark.parametrize("kind", ["session", "parted-session"])
def test_sessions_are_listed_by_the_hundred(go: Go, go_bus: GoBus, tcp: dict[str, Any], kind: str) -> None:
    found = go.run("listed", queue=go_bus.queue(kind), **tcp)
    assert found == {"nothing": 0, "all": True, "stated": ["ab"]}
