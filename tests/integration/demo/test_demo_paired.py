"""What the part ``paired`` notices: properties, the way over the backlog, and how its result is judged."""

from __future__ import annotations

import json
from typing import Any

import pytest
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp._decode import decode_payload
from azure.servicebus._pyamqp._encode import encode_payload
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from test_demo_command import RUN_LIMIT_S, rows_of, run_demo

from duobus.ha.transfer import from_backlog, to_backlog
from duobus_demo.corpus import Outgoing, standard_library
from duobus_demo.expectations.pairs import (
    CARTS,
    ORDERS,
    VISITS,
    PairExpectations,
    differences,
    digest_in,
    divide,
    key_of,
    message_of,
    queue_of,
)
from duobus_demo.scenarios.paired import MESSAGE_BYTES_MAX, MESSAGES, PairScenario, failures_of
from kits.manual_clock import ManualClock

OUTGOING = [Outgoing(f"pack/{index}.py", body=b"x = %d" % index) for index in range(200)]
divide(OUTGOING[100:], with_carts=True)
#: Of a scenario that is not played.
NO_SERVER: Any = None
NO_WATCHER: Any = None


def received(message: Any) -> ServiceBusReceivedMessage:
    """The same as a receiver has it."""
    raw = getattr(message, "raw_amqp_message", message)
    payload = encode_payload(bytearray(), PyamqpTransport.to_outgoing_amqp_message(raw))
    decoded = decode_payload(memoryview(bytes(payload)))
    return ServiceBusReceivedMessage(decoded, receiver=None)


def test_messages_go_to_all_queues_and_those_of_one_have_sessions() -> None:
    assert {queue_of(outgoing) for outgoing in OUTGOING[:100]} == {ORDERS, VISITS}
    for outgoing in OUTGOING:
        assert (message_of(outgoing).session_id is not None) == (queue_of(outgoing) == VISITS)


def test_every_second_message_of_the_drill_is_for_the_partitioned_queue_and_about_half_of_these_have_keys() -> None:
    drilled = OUTGOING[100:]
    carts = [outgoing for outgoing in drilled if queue_of(outgoing) == CARTS]
    assert len(carts) == 50
    keyed = [outgoing for outgoing in carts if key_of(outgoing)]
    assert 10 < len(keyed) < 40
    assert all(message_of(outgoing).partition_key == key_of(outgoing) for outgoing in drilled)
    divide(drilled_copy := [Outgoing(one.message_id, body=b"") for one in drilled], with_carts=False)
    assert {queue_of(outgoing) for outgoing in drilled_copy} == {ORDERS, VISITS}


@pytest.mark.parametrize("number", [100, 102, 104])
def test_messages_behind_the_last_fifth_are_none_of_the_partitioned_queue_and_come_out_as_they_were_sent(
    number: int,
) -> None:
    # As they come from the corpus: every second one has the name of its package as its key.
    messages = [Outgoing(f"pack/{index}.py", body=b"x", partition_key="pack" * (index & 1)) for index in range(number)]
    clock = ManualClock()
    PairScenario(NO_SERVER, NO_SERVER, messages, NO_WATCHER, clock, limit_s=1.0)
    assert [index for index, one in enumerate(messages) if queue_of(one) == CARTS] == list(range(60, 80, 2))
    for one in messages:
        assert differences(received(message_of(one)), queue_of(one)) == []


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
    book = PairExpectations(ManualClock())
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
    assert book.diverted_of([whole, broken, direct]) == 2
    assert report["properties_lost_how"] == {broken.message_id: "differs in subject"}


def test_the_timeline_has_the_first_of_its_kind_once() -> None:
    book = PairExpectations(ManualClock())
    book.note("paired")
    book.note_once("first message diverted")
    book.note_once("first message diverted")
    assert [step["what"] for step in book.timeline] == ["paired", "first message diverted"]


def result(**changes: Any) -> dict[str, Any]:
    names = ("lost", "altered", "properties_lost", "revived", "left")
    good = {**dict.fromkeys(names, 0), "missing": [], "altered_how": {}, "properties_lost_how": {}}
    kill = {"unsettled_sends": 1, "locks_held": 0, "restart_seconds": 0.5}
    counts = {"diverted": 5, "diverted_ids": 5, "restored": 5, "kills": [kill], "drills": [drill()]}
    return {**good, **counts, **changes}


def drill(**changes: Any) -> dict[str, Any]:
    good = {"drill": "fail", "store": 1, "failed_over": ["carts 2/16", "orders"], "diverted": 3, "direct": 4}
    return {**good, "sends": 7, "keyless": 2, "keyless_diverted": 0, "back_seconds": 1.5, **changes}


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
        ({"drills": []}, "0 drills instead of 1"),
        ({"drills": [drill(failed_over=["carts 2/16"])]}, "orders has not failed over when its store was away"),
        ({"drills": [drill(failed_over=["carts", "orders"])]}, "No key of the queue carts has failed over"),
        ({"drills": [drill(diverted=0)]}, "0 messages were diverted and 4 were not while a store was away"),
        ({"drills": [drill(direct=0)]}, "3 messages were diverted and 0 were not while a store was away"),
        ({"drills": [drill(keyless_diverted=1)]}, "1 messages without a key were diverted"),
    ],
)
def test_whatever_went_wrong_with_a_pair_is_named(changes: dict[str, Any], text: str) -> None:
    assert text in failures_of(result(**changes))[0]


@pytest.mark.slow
@pytest.mark.timeout(RUN_LIMIT_S + 20)
def test_a_pair_survives_the_kill_of_its_primary_and_the_loss_of_a_store_and_restores_every_message() -> None:
    done = run_demo("--json", "--part", "paired")

    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    counts = json.loads(line)
    assert counts["part"] == "paired"
    assert counts["lost"] == counts["altered"] == counts["properties_lost"] == counts["left"] == 0
    # A distribution may leave the tests out of the standard library, more than half of it.
    small = sum(len(outgoing.read()) <= MESSAGE_BYTES_MAX for outgoing in standard_library())
    assert counts["received"] == counts["acknowledged"] == counts["sent"] == min(MESSAGES, small) > 500
    assert counts["restored"] == counts["diverted_ids"] >= 180
    assert counts["syphoned"] >= counts["diverted"]
    steps = [step["what"] for step in counts["timeline"]]
    assert steps.index("primary killed") < steps.index("first message diverted") < steps.index("primary started again")
    (lost,) = counts["drills"]
    assert "orders" in lost["failed_over"]
    assert lost["keyless"] > lost["keyless_diverted"] == 0
    fails, healed = (f"store {lost['store']} of the primary {what}" for what in ("fails", "healed"))
    assert steps.index("primary started again") < steps.index(fails) < steps.index(healed)
    assert steps.index(healed) < len(steps) - 1 - steps[::-1].index("orders healthy by ping")
    assert steps.index(healed) < steps.index("all messages received")
    assert {"orders healthy by ping", "visits healthy by ping"} <= set(steps)
    assert [step["at"] for step in counts["timeline"]] == sorted(step["at"] for step in counts["timeline"])
    (told,) = [value for label, value in rows_of(counts) if label == f"Store {lost['store']}, fail"]
    assert f"{lost['sends']} sends meanwhile, {lost['diverted']} of them diverted, back" in told
    # No bound on speed: a phase that hangs ends the demo by itself.
    assert counts["seconds"] > 0
