"""Every scenario of the SDK's documentation about queues and sessions, by a program of our own and its effect."""

from __future__ import annotations

import re
import subprocess
from datetime import timedelta

import pytest
from test_examples import EXAMPLES, run_example

from duobus.testing.namespace import Namespace
from duobus.testing.server import ServerProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]


def played(namespace: Namespace, name: str, **properties: object) -> list[str]:
    """Run a program on a queue of its own; its lines."""
    namespace.create_queue("q", **properties)
    return lines_of(run_example(name, namespace.connection_string, "q"))


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def both(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [f"{name}.py", f"{name}_async.py"])


@both("iterate")
def test_a_loop_over_the_receiver_ends_when_no_more_come(namespace: Namespace, name: str) -> None:
    lines = played(namespace, name)
    assert lines == ["received north", "received east", "received south", "nothing more"]
    assert namespace.messages("q") == []


@both("peek")
def test_peeking_pages_through_a_queue_and_takes_nothing(namespace: Namespace, name: str) -> None:
    assert played(namespace, name) == ["peeked page 1, page 2", "peeked page 3, page 4", "peeked page 5"]
    assert [(found.state, found.is_locked) for found in namespace.messages("q")] == [("active", False)] * 5


@both("settle")
def test_each_settlement_has_its_effect(namespace: Namespace, name: str) -> None:
    assert played(namespace, name) == [
        "again: abandon (delivery 1)",
        "by its number: defer",
        "dead letter: dead-letter (an example of a dead letter)",
    ]
    assert namespace.messages("q") == []


@both("resubmit")
def test_dead_letters_are_corrected_and_sent_again(namespace: Namespace, name: str) -> None:
    assert played(namespace, name) == ["took 3 apples", "took 5 pears", "corrected apples (no number)", "took 1 apples"]
    assert namespace.messages("q") == []


@both("schedule")
def test_scheduled_messages_arrive_in_time_but_for_the_cancelled_one(namespace: Namespace, name: str) -> None:
    lines = played(namespace, name)
    assert lines == ["scheduled 4, cancelled 1", *(f"{text} came in time" for text in ("first", "fourth", "third"))]
    assert namespace.messages("q") == []


@both("renew_locks")
def test_locks_of_a_message_and_of_a_session_are_renewed_while_work_goes_on(namespace: Namespace, name: str) -> None:
    namespace.create_queue("plain", lock_duration=timedelta(seconds=5))
    namespace.create_queue("sessions", lock_duration=timedelta(seconds=5), requires_session=True)
    done = run_example(name, namespace.connection_string, "plain/sessions")
    assert lines_of(done) == ["completed slow work and slow session work after 7 seconds"]
    assert namespace.messages("plain") + namespace.messages("sessions") == []


@both("sessions")
def test_a_session_is_handed_over_with_its_order_and_state(namespace: Namespace, name: str) -> None:
    assert played(namespace, name, requires_session=True) == [
        "chair so far: []",
        "chair now: ['cut', 'glue'], lock renewed: True",
        "chair so far: ['cut', 'glue']",
        "chair now: ['cut', 'glue', 'paint', 'dry'], lock renewed: True",
    ]
    assert [found.body for found in namespace.messages("q")] == [b"cut", b"glue", b"paint", b"dry"]


@both("session_pool")
def test_workers_share_the_sessions_and_each_is_whole(namespace: Namespace, name: str) -> None:
    lines = played(namespace, name, requires_session=True, enable_partitioning=True)
    assert lines == [f"room {number}: 0 1 2" for number in range(6)]
    assert namespace.messages("q") == []


@both("list_sessions")
def test_sessions_are_listed_by_messages_and_by_new_state(namespace: Namespace, name: str) -> None:
    lines = played(namespace, name, requires_session=True)
    assert lines == ["with messages: ['green', 'red']", "with new state: ['blue']"]
    assert len(namespace.messages("q")) == 2


@both("annotated_message")
def test_every_kind_of_body_and_section_comes_back_as_it_went(namespace: Namespace, name: str) -> None:
    assert played(namespace, name) == [
        "data b'two parts' {b'kind': b'data'}",
        "sequence [[1, b'one'], [2, b'two']] {b'note': b'at the end'}",
        "value {b'answer': 42} mark b'ours' priority 7",
    ]
    assert namespace.messages("q") == []


def test_errors_are_told_apart_and_recovered_from(namespace: Namespace) -> None:
    lines = played(namespace, "recover.py")
    assert lines == [
        "too large for the queue: 300000",
        "completed 10",
        "once is enough",
        "completed 20",
        "once is enough",
        "no such deferred message",
        "no such queue, or a wrong key",
    ]
    assert namespace.messages("q") == []


@both("authenticate")
def test_every_way_to_log_in_sends_over_verified_tls(server: ServerProcess, name: str) -> None:
    members = dict(part.split("=", 1) for part in server.connection_string.rstrip(";").split(";"))
    lines = lines_of(
        run_example(
            name,
            "",
            "plain",
            SERVICEBUS_ENDPOINT=server.tls_endpoint,
            SERVICEBUS_CA=server.ca,
            SERVICEBUS_KEY_NAME=members["SharedAccessKeyName"],
            SERVICEBUS_KEY=members["SharedAccessKey"],
        )
    )
    assert lines == [f"sent with a {way}" for way in ("connection string", "named key", "signature")]


def test_the_table_of_scenarios_names_every_program_and_no_other() -> None:
    table = (EXAMPLES / "README.md").read_text()
    named = set(re.findall(r"\]\((\w+\.py)\)", table))
    assert named == {path.name for path in EXAMPLES.glob("*.py")}
