"""What breaks clients early, with the Go SDK; each test runs one program of ``programs/``."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from kit_go import BUILD_LIMIT_S, PROGRAMS, Go, GoBus

from kits.programs import LIMIT_S, LISTEN_ONLY, PROMPT_S, SEND_ONLY
from kits.store_away import MARK, broker_without_its_store

# The first test of a run builds the programs; a program has its own limit.
pytestmark = pytest.mark.timeout(2 * BUILD_LIMIT_S + LIMIT_S)

ACTIVE, DEFERRED, SCHEDULED = range(3)


def test_the_programs_have_the_form_that_gofmt_gives_them(go: Go) -> None:
    gofmt = shutil.which("gofmt")
    if gofmt is None:
        pytest.skip("gofmt is not on PATH")
    assert subprocess.run([gofmt, "-l", PROGRAMS], capture_output=True, text=True, check=True).stdout == ""


def test_one_message_and_a_batch_of_100_arrive_as_101(go: Go, go_bus: GoBus, route: dict[str, Any]) -> None:
    found = go.run("sending", queue=go_bus.queue(), **route)
    assert found["bodies"] == ["alone", *map(str, range(100))]


def test_a_partitioned_queue_takes_and_gives_the_same_messages(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("sending", queue=go_bus.queue("partitioned"), **tcp)
    assert sorted(found["bodies"]) == sorted(["alone", *map(str, range(100))])


def test_sizes_up_to_the_announced_limit_pass_and_more_is_refused(go: Go, go_bus: GoBus, route: dict[str, Any]) -> None:
    found = go.run("sizes", queue=go_bus.queue(), large=go_bus.queue("large"), **route)
    assert found["added"] == found["arrived"] == 26
    assert found["tooLarge"]["code"] == "too large", found
    assert found["tooLarge"]["seconds"] < PROMPT_S
    assert found["afterwards"]["code"] == "none", found
    assert found["same"] is True


def test_a_send_to_a_queue_whose_store_is_away_says_so_and_is_retried_until_it_is_back(go: Go, tmp_path: Path) -> None:
    with broker_without_its_store(tmp_path) as there:
        found = go.run("away", **there)
    assert "com.microsoft:server-busy" in found["refused"]["text"], found
    assert MARK in found["refused"]["text"]
    assert found["bodies"] == ["waits"]
    assert found["took"] > 0.5


def test_what_a_message_carries_arrives_with_its_types(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("properties", queue=go_bus.queue(), **tcp)
    texts = ["body", "an id", "text/plain", "correlated", "key", "reply", "reply session", "subject", "to", "nil"]
    assert found["texts"] == texts
    assert all(found["own"]), found
    assert (found["ttl"], found["expires"], found["deliveries"], found["state"]) == (90, 90, 1, ACTIVE), found
    assert -1 < found["age"] < PROMPT_S, found
    assert 30 < found["locked"] < 61, found


def test_a_missing_entity_or_right_is_told_within_two_seconds(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run(
        "refusals",
        queue=go_bus.queue(),
        listen_only=go_bus.connection(LISTEN_ONLY),
        send_only=go_bus.connection(SEND_ONLY),
        wrong=go_bus.connection(SEND_ONLY, "another key"),
        **tcp,
    )
    codes = {name: error["code"] for name, error in found.items()}
    assert codes == {
        "missingSender": "notfound",
        "missingReceiver": "notfound",
        "noSend": "unauthorized",
        "noListen": "unauthorized",
        "wrongKey": "unauthorized",
    }
    assert max(error["seconds"] for error in found.values()) < PROMPT_S, found


def test_what_comes_between_two_receives_is_given_back_uncounted(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("short", queue=go_bus.queue(), **tcp)
    assert found["nothing"] > 0.28, found
    assert sorted(found["bodies"]) == ["0", "1", "2"]
    assert found["counts"] == [1, 1, 1]
    assert found["rest"] == 0


def test_receive_and_delete_leaves_the_queue_empty_at_once(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("removing", queue=go_bus.queue(), **tcp)
    assert (found["bodies"], found["rest"]) == (list("012345"), 0)
    assert "not settleable" in found["settling"]


def test_each_of_the_four_settlements_is_confirmed_and_works(go: Go, go_bus: GoBus, route: dict[str, Any]) -> None:
    found = go.run("settlements", queue=go_bus.queue(), **route)
    # The SDK tries again what is not confirmed, after four seconds.
    assert max(found["took"].values()) < 3, found
    # The SDK counts from one: this is the second delivery.
    assert found["again"] == [["abandon", 2, "one"]]
    assert found["peeked"] == [["defer"], DEFERRED]
    assert found["deferred"] == ["defer", DEFERRED, "blue"]
    assert found["twice"]["code"] == "locklost", found
    assert found["rest"] == 0


def test_the_dead_letter_queue_is_received_from_and_settled(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("letters", queue=go_bus.queue(), **tcp)
    assert found["peeked"] == ["plain", "deferred", "bare"]
    why = ["why", "because"]
    # Without a reason the SDK sends empty texts.
    assert found["reasons"] == [["plain", *why], ["deferred", *why], ["bare", "", ""]]
    assert found["again"] == ["bare"]
    assert found["back"] == ["deferred"]
    assert found["rest"] == 0


def test_settling_after_the_lock_has_expired_is_lock_lost(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("expiry", queue=go_bus.queue("impatient"), **tcp)
    assert found["moved"] >= 90, found
    for how in ("onLink", "byManagement", "renewal"):
        assert found[how]["code"] == "locklost", (how, found)
    assert sorted(found["again"]) == ["linked", "managed"]


def test_another_client_settles_by_the_lock_token_alone(go: Go, go_bus: GoBus, tcp: dict[str, Any]) -> None:
    found = go.run("handed", queue=go_bus.queue(), **tcp)
    assert found == {"renewed": True, "again": ["abandon"], "deferred": ["defer"], "dead": [["dead"], "why"]}


def test_messages_are_peeked_scheduled_cancelled_and_received_by_number(
    go: Go, go_bus: GoBus, tcp: dict[str, Any]
) -> None:
    found = go.run("numbers", queue=go_bus.queue(), **tcp)
    assert found["nothing"] == 0
    assert found["waiting"] == [[body, SCHEDULED, True] for body in ("cancelled", "one", "two")]
    assert found["distinct"] is True
    assert found["cancelledTwice"]["code"] == "notfound", found
    assert found["early"] == 0
    assert found["late"] > -0.05, found
    assert found["bodies"] == ["one", "two"]
    assert found["unknown"]["code"] == "notfound", found
    assert found["pages"] == [["0", "1"], ["2", "3"], ["4"]]
    assert found["over"] == list("01234")


def test_five_thousand_messages_pass_five_senders_and_five_receivers(
    go: Go, go_bus: GoBus, tcp: dict[str, Any]
) -> None:
    found = go.run("many_links", queue=go_bus.queue(), number=5_000, **tcp)
    assert found == {"distinct": 5_000, "twice": 0, "problems": []}


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_client_goes_on_by_itself_when_the_broker_is_started_again(go: Go, tmp_path: Path, how: str) -> None:
    bus = GoBus(tmp_path)

    def start_again() -> None:
        bus.until_sent(50)
        getattr(bus.process, how)()
        bus.process.start()

    with bus.process:
        again = threading.Thread(target=start_again)
        again.start()
        try:
            found = go.run("restarted", queue=bus.queue(), seconds=4, **bus.route("tcp"))
        finally:
            again.join()
    assert found["refused"] == [], found
    assert found["afterwards"] >= 20, found
