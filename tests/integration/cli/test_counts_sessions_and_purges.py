"""Counts in lists, sessions and purges at the command line, against a real server process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient
from azure.servicebus.exceptions import ServiceBusConnectionError
from kit_shell import Shell

from duobus.cli import purge_command
from duobus.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("counts")) as process:
        yield process


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    return Shell(server)


def by_name(records: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {record["name"]: record for record in records}


def bury(shell: Shell, queue: str) -> None:
    """Make a dead letter."""
    shell.run("message", "send", queue, "late", "--time-to-live", "PT0.05S")
    shell.run("message", "peek", queue, "--dead-letter")
    while not shell.records("message", "peek", queue, "--dead-letter"):
        shell.run("message", "receive", queue, "--wait", "PT0.1S")


# Counts.


def test_an_empty_list_says_so(shell: Shell) -> None:
    shell.run("topic", "create", "bare")
    listed = shell.run("subscription", "list", "bare", "-o", "table")
    assert (listed.stdout, listed.stderr) == ("", "There are no subscriptions of bare.\n")
    assert json.loads(shell.run("subscription", "list", "bare", "-o", "json").stdout) == []


def test_a_list_of_what_is_in_a_parent_that_is_missing_ends_with_status_3(shell: Shell) -> None:
    assert "There is no topic gone" in shell.run("subscription", "list", "gone", status=3).stderr
    shell.run("topic", "create", "half")
    shell.run("queue", "create", "other-kind")
    assert "of another kind" in shell.run("subscription", "list", "other-kind", status=3).stderr
    assert "There is no subscription half/gone" in shell.run("rule", "list", "half", "gone", status=3).stderr


def test_a_list_tells_what_show_tells_of_each(shell: Shell) -> None:
    shell.run("queue", "create", "counted", "--enable-dead-lettering-on-message-expiration", "true")
    shell.run("message", "send", "counted", "hello", "--count", "3")
    bury(shell, "counted")
    found = by_name(shell.records("queue", "list"))["counted"]
    assert (found["activeMessageCount"], found["deadLetterMessageCount"], found["scheduledMessageCount"]) == (3, 1, 0)
    assert found["sizeInBytes"] > 0
    shown = shell.record("queue", "show", "counted")
    assert found.keys() == shown.keys()
    row = next(line for line in shell.run("queue", "list", "-o", "table").stdout.splitlines() if "counted" in line)
    assert row.split()[1:5] == ["Active", "3", "1", "0"]
    rows = [line.split("\t") for line in shell.run("queue", "list", "-o", "tsv").stdout.splitlines()]
    (tsv,) = [row for row in rows if row[0] == "counted"]
    assert tsv[:9] == ["counted", "Active", "true", "false", "PT1M", "10", "3", "1", "0"]


def test_counts_of_topics_and_subscriptions_are_listed(shell: Shell) -> None:
    shell.run("topic", "create", "counted-t")
    for name in ("one", "two"):
        shell.run("subscription", "create", "counted-t", name)
    shell.run("message", "send", "counted-t", "hello")
    assert by_name(shell.records("topic", "list"))["counted-t"]["subscriptionCount"] == 2
    counts = [found["activeMessageCount"] for found in shell.records("subscription", "list", "counted-t")]
    assert counts == [1, 1]


def test_counts_are_listed_of_more_entities_than_a_page_has(shell: Shell, server: ServerProcess) -> None:
    names = [f"many-{number:03}" for number in range(130)]
    for name in names:
        shell.run("queue", "create", name, "--no-partitioned")
    shell.run("message", "send", names[-1], "hello")
    found = by_name(shell.records("queue", "list"))
    assert [found[name]["activeMessageCount"] for name in names] == [0] * 129 + [1]
    assert shell.run("queue", "list", "-o", "table").stdout.count("active") == 1


# Sessions.


def with_sessions(shell: Shell, queue: str, *sessions: str) -> None:
    shell.run("queue", "create", queue, "--requires-session", "true")
    for session in sessions:
        shell.run("message", "send", queue, f"of {session}", "--session-id", session)


def test_sessions_are_listed_and_the_next_one_is_received(shell: Shell) -> None:
    with_sessions(shell, "sessions", "a", "b")
    assert {found["sessionId"] for found in shell.records("session", "list", "sessions")} == {"a", "b"}
    received = []
    for _ in range(2):
        got = shell.run("message", "receive", "sessions", "--next-session", "--wait", "PT0.2S", "--count", "9")
        message = json.loads(got.stdout)
        assert f"Session: {message['sessionId']}." in got.stderr
        received.append(message["body"])
    assert sorted(received) == ["of a", "of b"]


def test_no_session_is_no_failure(shell: Shell) -> None:
    with_sessions(shell, "no-sessions")
    listed = shell.run("session", "list", "no-sessions")
    assert (listed.stdout, listed.stderr) == ("", "Sessions: 0.\n")
    got = shell.run("message", "receive", "no-sessions", "--next-session", "--wait", "PT0.2S")
    assert (got.stdout, got.stderr) == ("", "No session has messages that nobody holds.\nReceived: 0.\n")


def test_a_receiver_without_a_session_is_told_which_option_is_missing(shell: Shell) -> None:
    with_sessions(shell, "asks", "a")
    for verb in ("receive", "peek"):
        told = shell.run("message", verb, "asks", status=1).stderr
        assert "--next-session" in told
        assert "duobus session list asks" in told
    both = ("--next-session", "--session", "a")
    assert "goes with neither" in shell.run("message", "receive", "asks", *both, status=2).stderr
    assert shell.record("message", "receive", "asks", "--session", "a")["body"] == "of a"


def test_an_entity_without_sessions_has_none_to_list_or_show(shell: Shell) -> None:
    shell.run("queue", "create", "plain")
    listed = shell.run("session", "list", "plain", status=1).stderr
    assert listed.startswith(
        "Error: List sessions failed. 'plain/$management' has no sessions: the entity does not require"
    )
    assert "does not require" in shell.run("session", "show", "plain", "a", status=1).stderr
    shell.run("session", "list", "nowhere", status=3)


def test_the_state_of_a_session_is_set_shown_and_cleared(shell: Shell) -> None:
    with_sessions(shell, "states")
    assert shell.record("session", "show", "states", "a") == {"sessionId": "a", "state": None}
    assert shell.record("session", "set-state", "states", "a", "step 2") == {"sessionId": "a", "state": "step 2"}
    assert shell.record("session", "show", "states", "a")["state"] == "step 2"
    assert shell.record("session", "list", "states") == {"sessionId": "a"}
    (bytes_set,) = shell.records("session", "set-state", "states", "a", given=b"\xff\x00")
    assert bytes_set == {"sessionId": "a", "stateBase64": "/wA="}
    assert shell.record("session", "set-state", "states", "a", "--clear")["state"] is None
    assert shell.records("session", "list", "states") == []
    assert "not both" in shell.run("session", "set-state", "states", "a", "b", "--clear", status=2).stderr


def test_the_session_of_a_subscription_is_listed_and_shown(shell: Shell) -> None:
    shell.run("topic", "create", "state-t")
    shell.run("subscription", "create", "state-t", "s", "--requires-session", "true")
    shell.run("message", "send", "state-t", "hello", "--session-id", "a")
    where = ("--subscription", "s")
    assert shell.record("session", "list", "state-t", *where) == {"sessionId": "a"}
    assert shell.record("session", "set-state", "state-t", "a", "x", *where)["state"] == "x"
    assert shell.record("session", "show", "state-t", "a", *where)["state"] == "x"


def test_a_session_that_another_client_holds_is_refused(shell: Shell, server: ServerProcess) -> None:
    with_sessions(shell, "held", "a")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("held", session_id="a"),
    ):
        shell.run("session", "show", "held", "a", status=1)


# Purges.


def test_an_empty_queue_is_purged_of_nothing(shell: Shell) -> None:
    shell.run("queue", "create", "nothing")
    purged = shell.run("queue", "purge", "nothing", "--yes")
    assert (json.loads(purged.stdout), purged.stderr) == ({"name": "nothing", "removed": 0}, "Removed: 0.\n")


def test_a_purge_takes_more_messages_than_a_request_does_and_counts_them(shell: Shell) -> None:
    shell.run("queue", "create", "full")
    shell.run("message", "send", "full", "x", "--count", "4100")
    assert shell.record("queue", "purge", "full", "--dry-run") == {"name": "full", "removed": 4100}
    assert shell.record("queue", "show", "full")["activeMessageCount"] == 4100
    assert shell.record("queue", "purge", "full", "--yes")["removed"] == 4100
    assert shell.record("queue", "show", "full")["totalMessageCount"] == 0


def test_dead_letters_are_purged_when_that_is_asked_for(shell: Shell) -> None:
    shell.run("queue", "create", "dead", "--enable-dead-lettering-on-message-expiration", "true")
    bury(shell, "dead")
    assert shell.record("queue", "purge", "dead", "--yes") == {"name": "dead", "removed": 0}
    purged = shell.record("queue", "purge", "dead", "--yes", "--dead-letters")
    assert purged == {"name": "dead", "removed": 0, "deadLettersRemoved": 1}


def test_what_was_enqueued_later_stays(shell: Shell) -> None:
    shell.run("queue", "create", "young")
    shell.run("message", "send", "young", "x")
    assert shell.record("queue", "purge", "young", "--before", "2020-01-01", "--yes")["removed"] == 0
    assert shell.record("queue", "purge", "young", "--before", "2999-01-01T00:00:00Z", "--yes")["removed"] == 1


def test_all_takes_deferred_messages_too_and_tells_what_a_receiver_holds(shell: Shell, server: ServerProcess) -> None:
    shell.run("queue", "create", "all-of-it")
    shell.run("message", "send", "all-of-it", "x", "--count", "3")
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver("all-of-it") as receiver,
    ):
        deferred, _held = receiver.receive_messages(2)
        receiver.defer_message(deferred)
        purged = shell.run("queue", "purge", "all-of-it", "--all", "--yes", status=7)
    assert json.loads(purged.stdout) == {"name": "all-of-it", "removed": 2, "locked": 1}
    assert "Held by receivers: 1." in purged.stderr


def test_messages_of_sessions_and_of_subscriptions_are_purged(shell: Shell) -> None:
    with_sessions(shell, "purged-sessions", "a", "b")
    assert shell.record("queue", "purge", "purged-sessions", "--yes")["removed"] == 2
    shell.run("topic", "create", "purged-t")
    for name in ("one", "two"):
        shell.run("subscription", "create", "purged-t", name)
    shell.run("message", "send", "purged-t", "hello")
    assert shell.record("subscription", "purge", "purged-t", "one", "--yes")["removed"] == 1
    assert shell.record("subscription", "purge", "purged-t", "two", "--dry-run")["removed"] == 1


def test_two_purges_at_once_remove_each_message_once(shell: Shell) -> None:
    shell.run("queue", "create", "both")
    shell.run("message", "send", "both", "x", "--count", "3000")
    with ThreadPoolExecutor(2) as pool:
        client = purge_client(shell)
        purges = [purge_command._Purge(("both",)) for _ in range(2)]
        with client:
            list(pool.map(lambda purge: purge.take_active(client, None, takes_dead=False), purges))
    assert sum(purge.counts["removed"] for purge in purges) == 3000


def purge_client(shell: Shell) -> ServiceBusClient:
    return ServiceBusClient.from_connection_string(shell.environment["DUOBUS_CONNECTION_STRING"] or "")


def test_what_a_purge_removed_before_a_failure_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run("queue", "create", "cut-purge")
    shell.run("message", "send", "cut-purge", "x", "--count", "5000")
    whole, calls = purge_command._answer_of, []

    def second_breaks(*given: Any, **named: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise ServiceBusConnectionError(message="the connection broke")
        return whole(*given, **named)

    monkeypatch.setattr(purge_command, "_answer_of", second_breaks)
    told = shell.run("queue", "purge", "cut-purge", "--yes", status=6).stderr
    assert told.startswith("Before the failure: Removed: 4000. The last request may have removed more.\n")
    assert "the connection broke" in told


def test_a_purge_asks_and_refuses_what_it_cannot_do(shell: Shell) -> None:
    shell.run("queue", "create", "asked")
    assert "Give --yes to purge the queue asked" in shell.run("queue", "purge", "asked", status=2).stderr
    assert (
        "leave --before out" in shell.run("queue", "purge", "asked", "--all", "--before", "2020-01-01", status=2).stderr
    )
    assert "is no time" in shell.run("queue", "purge", "asked", "--before", "soon", status=2).stderr
    shell.run("queue", "purge", "none", "--yes", status=3)
    shell.run("queue", "purge", "none", "--dry-run", status=3)
    shell.run("topic", "create", "no-queue")
    assert "no operation of the topic" in shell.run("queue", "purge", "no-queue", "--yes", status=1).stderr
