"""What the part ``paired`` notices: properties, the way over the backlog, and how its result is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from manual_clock import ManualClock
from test_demo_command import run_demo

from duobus.demo.corpus import Outgoing
from duobus.demo.paired_book import ORDERS, VISITS, PairedBook, differences, digest_in, message_of, queue_of
from duobus.demo.paired_part import failures_of
from duobus.ha.transfer import from_backlog, to_backlog

OUTGOING = [Outgoing(f"pack/{index}.py", body=b"x = %d" % index) for index in range(200)]


def received(message: Any) -> ServiceBusReceivedMessage:
    """The same as a receiver has it."""
    raw = getattr(message, "raw_amqp_message", message)
    payload = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
    decoded = decode_payload(memoryview(bytes(payload)))
    return ServiceBusReceivedMessage(decoded, receiver=None)


def test_messages_go_to_both_queues_and_those_of_one_have_sessions() -> None:
    assert {queue_of(outgoing) for outgoing in OUTGOING} == {ORDERS, VISITS}
    for outgoing in OUTGOING:
        assert (message_of(outgoing).session_id is None) == (queue_of(outgoing) == ORDERS)


def test_a_message_that_comes_out_as_it_was_sent_differs_in_nothing_over_the_backlog_too() -> None:
    for outgoing in OUTGOING:
        queue = queue_of(outgoing)
        assert differences(received(message_of(outgoing)), queue) == []
        restored = from_backlog(received(to_backlog(message_of(outgoing), queue, 0)).raw_amqp_message).message
        assert differences(received(restored), queue) == []
        assert digest_in(received(restored))


@pytest.mark.parametrize("name", ["correlation_id", "subject", "content_type", "reply_to", "to", "time_to_live"])
def test_every_property_that_is_lost_is_named(name: str) -> None:
    message = message_of(OUTGOING[0])
    setattr(message, name, None)
    assert name in differences(received(message), queue_of(OUTGOING[0]))


def test_application_properties_that_differ_or_are_added_are_named() -> None:
    message = message_of(OUTGOING[0])
    properties = dict(message.application_properties or {})
    del properties["half"]
    message.application_properties = {**properties, "number": "5", "added": 1}
    assert differences(received(message), queue_of(OUTGOING[0])) == ["added", "half", "number"]


def test_the_book_tells_which_messages_were_diverted_and_came_back_whole() -> None:
    book = PairedBook(ManualClock())
    whole, broken, direct = OUTGOING[:3]
    for outgoing in (whole, broken):
        book.diverting(outgoing.message_id)
    bad = message_of(broken)
    bad.subject = "other"
    book.received(received(message_of(whole)), queue_of(whole))
    book.received(received(bad), queue_of(broken))
    book.received(received(message_of(direct)), queue_of(direct))
    report = book.report()
    assert (report["diverted_ids"], report["restored"], report["properties_lost"]) == (2, 1, 1)
    assert report["properties_lost_how"] == {broken.message_id: "differs in subject"}


def test_the_timeline_has_the_first_of_its_kind_once() -> None:
    book = PairedBook(ManualClock())
    book.note("paired")
    book.note_once("first message diverted")
    book.note_once("first message diverted")
    assert [step["what"] for step in book.timeline] == ["paired", "first message diverted"]


def result(**changes: Any) -> dict[str, Any]:
    names = ("lost", "altered", "properties_lost", "revived", "left")
    good = {**dict.fromkeys(names, 0), "missing": [], "altered_how": {}, "properties_lost_how": {}}
    kill = {"unsettled_sends": 1, "locks_held": 0, "restart_seconds": 0.5}
    return {**good, "diverted": 5, "diverted_ids": 5, "restored": 5, "kills": [kill], **changes}


def test_a_run_of_a_pair_with_nothing_wrong_is_no_failure() -> None:
    assert failures_of(result()) == []


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"lost": 2, "missing": ["a.py"]}, "2 acknowledged messages never came out: ['a.py']"),
        (
            {"properties_lost": 1, "properties_lost_how": {"a": "differs in to"}},
            "other properties: {'a': 'differs in to'}",
        ),
        ({"left": 3}, "3 messages are left in backlog queues"),
        ({"diverted": 0}, "No message was diverted"),
        ({"restored": 4}, "4 of 5 diverted messages"),
        ({"kills": []}, "0 kills instead of 1"),
        ({"kills": [{"unsettled_sends": 0, "locks_held": 0}]}, "Kill 1 did not meet its conditions"),
    ],
)
def test_whatever_went_wrong_with_a_pair_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in failures_of(result(**changes))[0]


@pytest.mark.slow
def test_a_pair_survives_the_kill_of_its_primary_and_restores_every_message() -> None:
    done = run_demo("--json", "--part", "paired")

    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    counts = json.loads(line)
    assert counts["part"] == "paired"
    assert counts["lost"] == counts["altered"] == counts["properties_lost"] == counts["left"] == 0
    assert counts["received"] == counts["acknowledged"] == counts["sent"] == 900
    assert counts["restored"] == counts["diverted_ids"] >= 300
    assert counts["syphoned"] >= counts["diverted"]
    steps = [step["what"] for step in counts["timeline"]]
    assert steps.index("primary killed") < steps.index("first message diverted") < steps.index("primary started again")
    assert steps.index("primary started again") < steps.index("all messages received")
    assert {"orders healthy by ping", "visits healthy by ping"} <= set(steps)
    assert [step["at"] for step in counts["timeline"]] == sorted(step["at"] for step in counts["timeline"])
    assert counts["seconds"] < 60
