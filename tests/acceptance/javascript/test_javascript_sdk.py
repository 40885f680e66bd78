"""What breaks clients early, with the JavaScript SDK; each test runs one program of ``programs/``."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from kit_node import INSTALL_LIMIT_S, Node, NodeBus

from duobus.testing.server import ServerProcess
from kits.programs import LIMIT_S, LISTEN_ONLY, PROMPT_S, SEND_ONLY
from kits.store_away import MARK, broker_without_its_store

# The first test of a run installs the packages; a program has its own limit.
pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)


def test_a_token_is_taken_and_one_of_a_wrong_key_refused(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    found = node.run("tokens", queue=node_bus.queue(), wrong=node_bus.connection(SEND_ONLY, "another key"), **tcp)
    assert found["bodies"] == ["in"]
    assert found["refused"]["code"] == "UnauthorizedAccess", found
    assert found["refused"]["seconds"] < PROMPT_S


def test_every_form_of_an_address_reaches_the_same_queue(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    queue = node_bus.queue()
    forms = [queue, f"/{queue}", queue.upper()]
    found, trace = node.run_traced("addresses", debug="rhea:frames", queue=queue, forms=forms, **tcp)
    assert found["bodies"] == forms
    answers = [line for line in trace.splitlines() if "<- attach#12" in line]
    for form in forms:
        # The answer has the address as it was sent.
        assert any(f'"{form}"' in line for line in answers), (form, answers)


def test_one_message_and_a_batch_of_100_arrive_as_101(node: Node, node_bus: NodeBus, route: dict[str, Any]) -> None:
    found = node.run("sending", queue=node_bus.queue(), **route)
    assert found["bodies"] == ["alone", *range(100)]


def test_messages_without_an_id_are_sent_received_and_settled(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    """Service Bus gives a message without an id one; so does this broker."""
    found = node.run("nameless", queue=node_bus.queue(), **tcp)
    one, other = found["peeked"]
    assert one != other
    assert all(re.fullmatch("[0-9a-f]{32}", text) for text in (one, other))
    assert [sorted(ids) for ids in found["received"]] == [sorted((one, other))] * 2
    assert found["left"] == 0


def test_sizes_up_to_the_announced_limit_pass_and_more_is_refused(
    node: Node, node_bus: NodeBus, route: dict[str, Any]
) -> None:
    found = node.run("sizes", queue=node_bus.queue(), large=node_bus.queue("large"), **route)
    assert found["limit"] == 256 * 1024
    assert found["added"] == found["arrived"] == 26
    assert found["tooLarge"]["code"] == "MessageSizeExceeded", found
    assert found["tooLarge"]["seconds"] < PROMPT_S
    assert found["same"] is True


def test_a_missing_entity_or_right_is_told_within_two_seconds(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run(
        "refusals",
        queue=node_bus.queue(),
        listenOnly=node_bus.connection(LISTEN_ONLY),
        sendOnly=node_bus.connection(SEND_ONLY),
        **tcp,
    )
    codes = {name: error["code"] for name, error in found.items()}
    assert codes == {
        "missingSender": "MessagingEntityNotFound",
        "missingReceiver": "MessagingEntityNotFound",
        "noSend": "UnauthorizedAccess",
        "noListen": "UnauthorizedAccess",
    }
    assert max(error["seconds"] for error in found.values()) < PROMPT_S, found


def frames_of_the_receiver(trace: str, queue: str) -> list[tuple[str, str]]:
    """The frames on the channel of the receiver of a queue, up to its detach, as the trace of rhea has them."""
    lines = [line.partition("rhea:frames [connection-1]:")[2] for line in trace.splitlines()]
    (attach,) = (line for line in lines if " -> attach#12 " in line and f'"{queue}"' in line)
    channel = attach.partition(" ")[0]
    ours = [line.partition(" ")[2] for line in lines if line.startswith(f"{channel} ")]
    end = next(index for index, line in enumerate(ours) if line.startswith("-> detach#16"))
    return [(line[:2], line[3:]) for line in ours[:end]]


def test_an_empty_queue_is_read_three_times_on_the_same_link(
    node: Node, node_bus: NodeBus, route: dict[str, Any]
) -> None:
    queue = node_bus.queue()
    found, trace = node.run_traced("empty", debug="rhea:frames", queue=queue, **route)
    assert found["counts"] == [0, 0, 0]
    # No read ends before its time. How much longer one takes is the machine's; the frames show that none was let down.
    assert all(took > 0.45 for took in found["took"]), found
    drains = [way for way, frame in frames_of_the_receiver(trace, queue) if '"drain":true' in frame]
    assert drains == ["->", "<-"] * 3, trace


@pytest.mark.parametrize("mode", ["peekLock", "receiveAndDelete"])
def test_drains_that_race_with_arrivals_lose_and_repeat_nothing(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any], mode: str
) -> None:
    found, trace = node.run_traced(
        "racing", debug="rhea:frames", queue=(queue := node_bus.queue()), mode=mode, number=150, **tcp
    )
    assert (found["received"], found["distinct"], found["counted"], found["rest"]) == (150, 150, 0, 0), found
    attaches = [line for line in trace.splitlines() if "-> attach#12" in line and f'"{queue}"' in line]
    # One of the sender and one of the receiver: no drain went unanswered.
    assert len(attaches) == 2, attaches
    assert sum("<- flow#13" in line and '"drain":true' in line for line in trace.splitlines()) > 20


def test_twenty_five_messages_come_as_ten_ten_and_five(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    found = node.run("counted", queue=node_bus.queue(), **tcp)
    assert found["sizes"] == [10, 10, 5]
    assert found["bodies"] == list(range(25))


def test_each_of_the_four_settlements_is_confirmed_and_works(
    node: Node, node_bus: NodeBus, route: dict[str, Any]
) -> None:
    found = node.run("settlements", queue=node_bus.queue(), **route)
    assert max(found["took"].values()) < PROMPT_S, found
    assert found["again"] == [["abandon", 1, "one"]]
    assert found["back"] == ["defer", "blue"]
    assert found["rest"] == 0
    assert found["letter"] == ["dead", "broken", "beyond repair"]
    assert found["properties"] == ["broken", "beyond repair", 7]


def test_settling_after_the_lock_has_expired_is_lock_lost(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    found = node.run("expiry", queue=node_bus.queue("impatient"), **tcp)
    assert found["moved"] >= 90, found
    for how in ("onLink", "byManagement", "renewal"):
        assert found[how]["code"] == "MessageLockLost", (how, found)
    assert sorted(found["again"]) == ["linked", "managed"]


def test_a_message_of_a_closed_link_is_settled_by_management(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run("managed", queue=node_bus.queue(), **tcp)
    assert found == {"first": "none", "second": "MessageLockLost", "rest": 0}


def test_what_a_client_that_died_had_is_receivable_at_once(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    queue = node_bus.queue()
    assert node.run("dying", queue=queue, **tcp) == {"had": 10}
    found = node.run("heir", queue=queue, **tcp)
    # The application had them in its hands, so their delivery counts.
    assert found["rest"] == [[index, 1] for index in range(3, 10)]
    assert found["took"] < PROMPT_S


def test_receive_and_delete_leaves_the_queue_empty_at_once(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    found = node.run("removing", queue=node_bus.queue(), **tcp)
    assert found == {"bodies": list(range(6)), "rest": 0}


def test_an_abandoned_message_stays_away_by_policy_or_by_word(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run("delayed", queue=node_bus.queue("backing-off"), **tcp)
    # The policy says one second; a word that asks for more shows that the word counts.
    assert found["byPolicy"] > 0.9, found
    assert found["byWord"] > 1.4, found
    assert found["properties"] == {"why": "busy"}


def test_messages_are_peeked_scheduled_cancelled_and_received_by_number(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run("numbers", queue=node_bus.queue(), **tcp)
    assert found["nothing"] == 0
    assert found["waiting"] == [["cancelled", "scheduled"], ["one", "scheduled"], ["two", "scheduled"]]
    assert found["distinct"] == 3
    assert found["cancelledTwice"] == "MessageNotFound"
    assert found["early"] == 0
    assert found["late"] > -0.05, found
    assert found["bodies"] == ["one", "two"]
    assert found["unknown"]["code"] == "MessageNotFound", found
    assert found["rest"] == 0


def test_a_namespace_past_its_rate_is_busy_and_a_client_that_retries_gets_through(node: Node, tmp_path: Path) -> None:
    namespace = {"Name": "sbemulatorns", "MessagesPerSecond": 10, "Queues": [{"Name": "q"}]}
    configuration = {"UserConfig": {"Namespaces": [namespace]}}
    with ServerProcess(tmp_path, config=configuration, arguments=("--emulator",)) as process:
        found = node.run("throttled", queue="q", connection=process.connection_string)
    assert found["refused"]["code"] == "ServiceBusy", found
    assert found["refused"]["retryable"] is True
    assert "50009" in found["refused"]["text"]
    assert found["last"] == list(range(10))
    assert found["took"] > 0.5


def test_a_send_to_a_queue_whose_store_is_away_says_so_and_is_retried_until_it_is_back(
    node: Node, tmp_path: Path
) -> None:
    with broker_without_its_store(tmp_path) as there:
        found = node.run("away", **there)
    assert found["refused"]["code"] == "ServiceBusy", found
    assert found["refused"]["retryable"] is True
    assert MARK in found["refused"]["text"]
    assert found["bodies"] == ["waits"]
    assert found["took"] > 0.5


def test_ten_thousand_messages_pass_five_senders_and_five_receivers(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run("many_links", queue=node_bus.queue(), number=10_000, **tcp)
    assert found == {"distinct": 10_000, "twice": 0, "errors": []}


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_client_goes_on_by_itself_when_the_broker_is_started_again(node: Node, tmp_path: Path, how: str) -> None:
    bus = NodeBus(tmp_path)

    def start_again() -> None:
        # Node takes its time to start, the more so on a busy machine.
        bus.until_sent(50)
        getattr(bus.process, how)()
        bus.process.start()

    with bus.process:
        again = threading.Thread(target=start_again)
        again.start()
        try:
            found = node.run("restarted", queue=bus.queue(), **bus.route("tcp"))
        finally:
            again.join()
    assert found["interruptions"], found
    assert found["before"] > 3, found
    assert found["afterwards"] > 20, found


@pytest.mark.parametrize("kind", ["sessions", "parted-sessions"])
def test_sessions_by_name_and_next_available(node: Node, node_bus: NodeBus, tcp: dict[str, Any], kind: str) -> None:
    found = node.run("sessions", queue=node_bus.queue(kind), plain=node_bus.queue(), **tcp)
    assert found["held"]["code"] == "SessionCannotBeLocked", found
    assert found["held"]["seconds"] < PROMPT_S
    assert 30 < found["left"] < 61
    assert found["nextId"] == "b"
    assert (found["before"], found["state"], found["cleared"], found["renewed"]) == (None, {"step": 1}, None, True)
    assert (found["order"], found["counts"]) == (["a1", "a1"], [0, 1])
    assert found["peeked"] == ["a1", "a2", "a3"]
    assert (found["bodies"], found["deferred"]) == (["a2", "a3"], "a1")
    assert found["closing"] < PROMPT_S
    assert (found["otherId"], found["lateId"], found["lateBodies"]) == ("b", "late", ["late"])
    assert found["waited"] < PROMPT_S
    for name in ("sessionless", "plain", "notRequired"):
        assert found[name]["code"] != "none", (name, found)
        assert "session" in found[name]["text"], (name, found)
        assert found[name]["seconds"] < PROMPT_S, (name, found)


def test_a_session_whose_lock_ran_out_is_lost_to_its_holder(node: Node, node_bus: NodeBus, tcp: dict[str, Any]) -> None:
    found = node.run("session_expiry", queue=node_bus.queue("impatient-sessions"), **tcp)
    assert found["settled"]["code"] == "SessionLockLost", found
    assert found["settled"]["seconds"] < PROMPT_S
    assert found["state"]["code"] == "SessionLockLost", found
    assert found["bodies"] == [[1, 1], [2, 0]]
    assert found["rest"] == [2]


def test_handlers_and_iterators_receive_from_queues_and_sessions(
    node: Node, node_bus: NodeBus, tcp: dict[str, Any]
) -> None:
    found = node.run("subscribing", queue=node_bus.queue(), sessions=node_bus.queue("sessions"), **tcp)
    all_three = ["one", "two", "three"]
    assert found["plain"] == [all_three, all_three, []], found
    assert found["session"] == [all_three, all_three, []], found
