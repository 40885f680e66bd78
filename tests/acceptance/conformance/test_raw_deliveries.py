"""Deliveries and their settlement, credit, drain, sessions and pings, at the level of frames."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from azure.servicebus._pyamqp._decode import decode_frame, decode_payload
from kit_bus import Bus, until

from duobus.amqp import ACCEPTED, RELEASED, Dispositions, Link, LinkFlow, Modified, Rejected, Source, Transfers
from duobus.codec import Array, Int, Symbol, Timestamp, UInt, build_message, scan
from kits.raw_client import RawClient, Refused, frames, tags, token


def message(body: bytes, **properties: Any) -> bytes:
    """An ordinary message."""
    return build_message(data=body, application_properties=properties or None)


def body(payload: bytes) -> bytes:
    """The content of a delivered message's data section."""
    return b"".join(decode_payload(memoryview(payload)).data)


def said(raw: RawClient) -> Dispositions:
    """The next dispositions of the client's main session."""
    return raw.wait(Dispositions, where=lambda event: event.session is raw.session)


def filled(raw: RawClient, queue: str, number: int) -> None:
    """Send ``number`` messages and wait for their acceptance."""
    link = raw.sender(queue)
    for index in range(number):
        raw.send(link, message(b"%d" % index))
    accepted = 0
    while accepted < number:
        for first, last, settled, state in said(raw).ranges:
            assert (state, settled) == (ACCEPTED, True)
            accepted += last - first + 1


def outcome(raw: RawClient, delivery_id: int) -> Any:
    """The broker's state for one delivery; it has to settle it."""
    while True:
        for first, last, settled, state in said(raw).ranges:
            if first <= delivery_id <= last:
                assert settled
                return state


def locked(raw: RawClient, queue: str, **options: Any) -> tuple[Link, int, bytes]:
    """Send one message and receive it: (link, delivery id, payload)."""
    filled(raw, queue, 1)
    link = raw.receiver(queue, **options)
    link.grant(1)
    ((delivery_id, payload),) = raw.receive(link, 1)
    return link, delivery_id, payload


def management(raw: RawClient, queue: str, operation: str, request: Any) -> tuple[int, dict[str, Any], Any]:
    """Ask an entity's management node: (status, application properties, body)."""
    properties, answer, _ = raw.request(f"{queue}/$management", {"operation": f"com.microsoft:{operation}"}, request)
    return int(properties["statusCode"]), properties, answer


@pytest.mark.parametrize("form", ["amqps://localhost:5672/{}", "{}", "/{}", "{upper}", "sb://elsewhere/{}/"])
def test_an_address_form_is_echoed_byte_for_byte(bus: Bus, raw: RawClient, form: str) -> None:
    address = form.format("queue.1", upper="QUEUE.1")
    sender, receiver = raw.sender(address), raw.receiver(address)
    assert sender.remote is not None
    assert receiver.remote is not None
    assert sender.remote.target.address == address
    assert receiver.remote.source.address == address
    assert sender.remote.max_message_size == 256 * 1024


def test_there_is_no_transfer_without_credit_and_credit_is_a_set(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    filled(raw, queue, 25)
    link = raw.receiver(queue)
    assert raw.nothing_more(Transfers, 0.2)
    # Each flow replaces the one before: ten wanted, not twenty.
    link.grant(4)
    link.grant(10)
    assert [body(payload) for _, payload in raw.receive(link, 10)] == [b"%d" % index for index in range(10)]
    assert raw.nothing_more(Transfers, 0.2)
    link.grant(0)
    assert raw.nothing_more(Transfers, 0.1)
    link.grant(100)
    assert len(raw.receive(link, 15)) == 15


def released_until_credit_is_used_up(raw: RawClient, queue: str) -> Link:
    """Have one message handed out a hundred times, as Python's SDK does while nobody receives."""
    filled(raw, queue, 1)
    link = raw.receiver(queue)
    link.grant(100)
    for _ in range(100):
        ((delivery_id, _),) = raw.receive(link, 1)
        link.settle(delivery_id, delivery_id, RELEASED)
    assert link.credit == 0
    assert raw.nothing_more(Transfers, 0.2)
    return link


def test_a_receiver_that_released_until_its_credit_was_used_up_gets_the_message_with_more(
    bus: Bus, raw: RawClient
) -> None:
    link = released_until_credit_is_used_up(raw, bus.queue())
    link.grant(100)
    assert len(raw.receive(link, 1)) == 1


def test_a_receiver_without_credit_keeps_nothing_from_others(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    released_until_credit_is_used_up(raw, queue)
    other = raw.receiver(queue)
    other.grant(1)
    assert len(raw.receive(other, 1)) == 1


def test_a_drain_is_answered_at_once_with_all_credit_used(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    filled(raw, queue, 3)
    link = raw.receiver(queue)
    link.grant(10, drain=True)
    assert len(raw.receive(link, 3)) == 3
    raw.wait(LinkFlow, 1, where=lambda event: event.link is link)
    assert (link.credit, link.delivery_count) == (0, 10)
    link.grant(5, drain=True)
    raw.wait(LinkFlow, 1, where=lambda event: event.link is link)
    assert (link.credit, link.delivery_count) == (0, 15)


def test_delivery_tags_are_lock_tokens_that_management_takes(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    link, delivery_id, payload = locked(raw, queue)
    until_ms = scan(payload).annotations[Symbol("x-opt-locked-until")]  # type: ignore[index]
    (tag,) = tags(raw)
    lock_token = uuid.UUID(bytes_le=tag)
    time.sleep(0.02)
    status, _, answer = management(raw, queue, "renew-lock", {"lock-tokens": Array(uuid.UUID, [lock_token])})
    assert status == 200
    (renewed,) = answer["expirations"].items
    assert isinstance(renewed, Timestamp)
    assert renewed > until_ms
    link.settle(delivery_id, delivery_id, ACCEPTED)
    raw.flush()
    until(lambda: management(raw, queue, "renew-lock", {"lock-tokens": Array(uuid.UUID, [lock_token])})[0] == 410)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        (ACCEPTED, ACCEPTED),
        (Modified(True, None, None), Modified),
        (Modified(None, False, None), Modified),
        (Modified(None, True, None), Modified),
        (Rejected(None), Rejected),
        (RELEASED, RELEASED),
    ],
)
def test_an_unsettled_outcome_is_answered_with_its_own_type(
    bus: Bus, raw: RawClient, asked: Any, answered: Any
) -> None:
    link, delivery_id, _ = locked(raw, bus.queue())
    link.session.disposition(True, delivery_id, delivery_id, asked, False)
    state = outcome(raw, delivery_id)
    assert state is answered or isinstance(state, answered if isinstance(answered, type) else type(answered))
    if isinstance(state, Rejected):
        assert state.error is None


def test_a_settlement_without_a_lock_is_rejected_as_lock_lost(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    link, delivery_id, _ = locked(raw, queue)
    (tag,) = tags(raw)
    request = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [uuid.UUID(bytes_le=tag)])}
    assert management(raw, queue, "update-disposition", request)[0] == 200
    link.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)
    state = outcome(raw, delivery_id)
    assert isinstance(state, Rejected)
    assert state.error.condition == "com.microsoft:message-lock-lost"
    status, properties, _ = management(raw, queue, "update-disposition", request)
    assert (status, properties["errorCondition"]) == (410, "com.microsoft:message-lock-lost")


def test_a_late_settlement_is_lock_lost_by_link_and_by_management(bus: Bus, raw: RawClient) -> None:
    """TL11."""
    queue = bus.queue("impatient")
    link, delivery_id, _ = locked(raw, queue)
    (tag,) = tags(raw)
    link.grant(1)
    # The message comes again by itself when its lock ends, one delivery older.
    ((again, payload),) = raw.receive(link, 1, limit_s=7)
    assert decode_payload(memoryview(payload)).header.delivery_count == 1
    link.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)
    state = outcome(raw, delivery_id)
    assert isinstance(state, Rejected)
    assert state.error.condition == "com.microsoft:message-lock-lost"
    request = {"disposition-status": "completed", "lock-tokens": Array(uuid.UUID, [uuid.UUID(bytes_le=tag)])}
    assert management(raw, queue, "update-disposition", request)[0] == 410
    link.session.disposition(True, again, again, ACCEPTED, False)
    assert outcome(raw, again) is ACCEPTED


def test_a_lost_connection_frees_its_locks_at_once_and_counts(bus: Bus, raw: RawClient) -> None:
    """TL11."""
    queue = bus.queue()
    link, _, _ = locked(raw, queue)
    raw.socket.close()
    with RawClient(bus.port) as second:
        second.put_token("", token(""))
        link = second.receiver(queue)
        link.grant(1)
        ((_, payload),) = second.receive(link, 1, limit_s=2)
        assert decode_payload(memoryview(payload)).header.delivery_count == 1


def test_receive_and_delete_sends_settled_and_ignores_later_words(bus: Bus, raw: RawClient) -> None:
    """TL7."""
    queue = bus.queue()
    filled(raw, queue, 3)
    link = raw.receiver(queue, snd_settle_mode=1)
    link.grant(3)
    event = raw.wait(Transfers)
    assert event.settled
    assert len(event.payloads) == 3
    link.session.disposition(True, event.first_delivery_id, event.first_delivery_id + 2, ACCEPTED, True)
    assert management(raw, queue, "peek-message", {"from-sequence-number": 0, "message-count": Int(10)})[0] == 204
    assert link.is_attached


def test_a_pre_settled_send_is_stored_without_an_answer(bus: Bus, raw: RawClient) -> None:
    """TL6."""
    queue = bus.queue()
    sender = raw.sender(queue)
    raw.send(sender, message(b"unheard"), settled=True)
    link = raw.receiver(queue)
    link.grant(1)
    ((_, payload),) = raw.receive(link, 1)
    assert body(payload) == b"unheard"
    assert not any(isinstance(event, Dispositions) and event.session is raw.session for event in raw.events)


def test_a_ping_is_accepted_and_metered_and_never_seen(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    sender = raw.sender(queue)
    fields = [None, None, None, None, None, None, Symbol("application/vnd.ms-servicebus-ping")]
    ping = build_message(fields, data=b"")
    first = raw.send(sender, ping)
    assert outcome(raw, first) is ACCEPTED
    real = raw.send(sender, message(b"real"))
    assert outcome(raw, real) is ACCEPTED
    assert management(raw, queue, "peek-message", {"from-sequence-number": 0, "message-count": Int(10)})[0] == 200
    link = raw.receiver(queue)
    link.grant(10)
    assert [body(payload) for _, payload in raw.receive(link, 1)] == [b"real"]
    assert raw.nothing_more(Transfers, 0.2)
    assert bus.metric("duobus_operations", queue, "send") == 1
    assert bus.metric("duobus_operations", queue, "ping") == 1


def test_an_unknown_management_operation_is_501_and_not_implemented(bus: Bus, raw: RawClient) -> None:
    status, properties, _ = management(raw, "queue.1", "make-coffee", {})
    assert (status, properties["errorCondition"]) == (501, "amqp:not-implemented")
    assert "TrackingId:" in properties["statusDescription"]


@pytest.mark.parametrize(
    ("operation", "request_body", "condition"),
    [
        ("renew-lock", {}, "com.microsoft:argument-error"),
        ("renew-lock", {"lock-tokens": Array(uuid.UUID, [uuid.uuid4()])}, "com.microsoft:message-lock-lost"),
        ("update-disposition", {"disposition-status": "eaten"}, "com.microsoft:argument-error"),
        ("peek-message", {"message-count": "many"}, "com.microsoft:argument-error"),
        ("receive-by-sequence-number", {"sequence-numbers": [1.5]}, "com.microsoft:argument-error"),
        ("receive-by-sequence-number", {"sequence-numbers": [77]}, "com.microsoft:message-not-found"),
        ("cancel-scheduled-message", {"sequence-numbers": [77]}, "com.microsoft:message-not-found"),
        ("schedule-message", {"messages": [{"message": b"\xff\xff"}]}, "amqp:decode-error"),
        ("schedule-message", {"messages": []}, "com.microsoft:argument-error"),
        ("peek-message", None, "com.microsoft:argument-error"),
    ],
)
def test_a_management_request_that_cannot_be_meant_is_refused_by_name(
    bus: Bus, raw: RawClient, operation: str, request_body: Any, condition: str
) -> None:
    status, properties, answer = management(raw, "queue.1", operation, request_body)
    assert status >= 400
    assert answer is None
    assert properties["errorCondition"] == condition
    found = properties["statusDescription"].partition("TrackingId:")[2][:36]
    assert [line["condition"] for line in bus.log_lines() if line.get("tracking_id") == found] == [condition]


def test_numbers_of_scheduled_messages_are_an_array_of_longs(bus: Bus, raw: RawClient) -> None:
    due = Timestamp(int(time.time() * 1000) + 3_600_000)
    scheduled = build_message(data=b"m", annotations={"x-opt-scheduled-enqueue-time": due})
    request = {"messages": [{"message-id": "1", "message": scheduled}, {"message-id": "2", "message": scheduled}]}
    status, _, answer = management(raw, bus.queue(), "schedule-message", request)
    assert status == 200
    assert isinstance(answer["sequence-numbers"], Array)
    assert len(answer["sequence-numbers"].items) == 2
    # long or smalllong inside an array constructor.
    assert any(code in bytes(raw.bytes_read) for code in (b"\x02\x55", b"\x02\x81"))


@pytest.mark.parametrize("mode", [0, 1])
def test_a_message_got_by_its_number_carries_its_lock_token_too(bus: Bus, raw: RawClient, mode: int) -> None:
    queue = bus.queue()
    link, delivery_id, payload = locked(raw, queue)
    link.session.disposition(True, delivery_id, delivery_id, Modified(None, True, None), False)
    outcome(raw, delivery_id)
    number = scan(payload).annotations[Symbol("x-opt-sequence-number")]  # type: ignore[index]
    request = {"sequence-numbers": Array(int, [number]), "receiver-settle-mode": UInt(mode)}
    status, _, answer = management(raw, queue, "receive-by-sequence-number", request)
    assert status == 200
    (entry,) = answer["messages"]
    carried = decode_payload(memoryview(entry["message"])).delivery_annotations or {}
    # The Go SDK reads nothing but the message.
    assert carried.get(b"x-opt-lock-token") == entry.get("lock-token")
    assert ("lock-token" in entry) == (mode == 1)


def test_ten_links_in_one_session_keep_one_contiguous_count(bus: Bus, raw: RawClient) -> None:
    queues = [bus.queue() for _ in range(5)]
    senders = [raw.sender(queue) for queue in queues]
    receivers = [raw.receiver(queue) for queue in queues]
    number = 1000
    for link in receivers:
        link.grant(number)
    for index in range(number):
        for link in senders:
            raw.send(link, message(b"%d" % index))
        if index % 20 == 0:
            raw.pump(0)
    got: list[int] = []
    found: dict[Link, list[bytes]] = {link: [] for link in receivers}
    accepted = 0
    while len(got) < number * 5 or accepted < number * 5:
        raw.pump(0.5)
        for event in raw.events:
            if isinstance(event, Transfers):
                got += [event.first_delivery_id + index for index in range(len(event.payloads))]
                found[event.link] += [body(payload) for payload in event.payloads]
            elif isinstance(event, Dispositions):
                accepted += sum(last - first + 1 for first, last, _, state in event.ranges if state is ACCEPTED)
        raw.events.clear()
        assert not raw.is_eof
    assert got == list(range(number * 5))
    for bodies in found.values():
        assert bodies == [b"%d" % index for index in range(number)]


def test_every_error_has_three_elements_that_pyamqp_decodes(bus: Bus, raw: RawClient) -> None:
    """TL2."""
    queue = bus.queue()
    with pytest.raises(Refused):
        raw.sender("missing")
    sender = raw.sender(queue)
    refused = raw.send(sender, build_message(["i" * 129], data=b"m"))
    assert isinstance(outcome(raw, refused), Rejected)
    undecodable = raw.send(sender, b"\x00\x53\x99\x40")
    state = outcome(raw, undecodable)
    assert isinstance(state, Rejected)
    assert state.error.condition == "amqp:decode-error"
    raw.session.end()
    raw.pump(0.2)
    errors = 0
    for kind, _, content in frames(bytes(raw.bytes_read)):
        if kind != 0 or not content:
            continue
        assert content[:2] == b"\x00\x53"
        code, fields = decode_frame(memoryview(content))
        assert len(fields) >= {0x10: 10, 0x11: 8, 0x12: 14, 0x13: 11, 0x14: 11, 0x15: 6, 0x16: 3, 0x17: 1}[code]
        error = fields[2] if code == 0x16 else None
        if code == 0x15:
            (parts,) = fields[4].values()
            error = parts[0] if parts else None
        if error is not None:
            errors += 1
            assert len(error) == 3
            assert error[0].startswith((b"amqp:", b"com.microsoft:"))
            assert b"TrackingId:" in error[1]
    assert errors == 3


@pytest.mark.parametrize(
    ("source", "condition"),
    [
        ({"dynamic": True}, "amqp:not-implemented"),
        ({"address": "queue.1", "distribution_mode": "copy"}, "amqp:not-implemented"),
        ({"address": "queue.1", "filter": {Symbol("com.microsoft:session-filter"): None}}, "amqp:not-allowed"),
        ({"address": ""}, "amqp:not-implemented"),
        ({"address": "missing"}, "amqp:not-found"),
    ],
)
def test_a_source_that_is_not_offered_is_refused_after_an_attach(
    bus: Bus, raw: RawClient, source: dict[str, Any], condition: str
) -> None:
    with pytest.raises(Refused) as caught:
        raw.receiver("", source=Source(**source))
    assert caught.value.error.condition == condition
    # The session and the connection live on.
    assert raw.receiver("queue.1").is_attached


def test_peek_leaves_the_bodies_out_when_asked(bus: Bus, raw: RawClient) -> None:
    queue = bus.queue()
    filled(raw, queue, 1)
    request = {"from-sequence-number": 0, "message-count": Int(1), "omit-message-body": True}
    status, _, answer = management(raw, queue, "peek-message", request)
    assert status == 200
    (entry,) = answer["messages"]
    found = scan(entry["message"])
    assert entry["message"][found.bare :].find(b"\x00\x53\x75") == -1
    assert decode_payload(memoryview(entry["message"])).message_annotations[b"x-opt-sequence-number"] == 1
