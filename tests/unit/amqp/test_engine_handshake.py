from __future__ import annotations

import pytest
from engine_pair import Pair, frames

from duobus.amqp import (
    AttachReceived,
    Closed,
    Connection,
    ConnectionSettings,
    EngineMisuse,
    OpenReceived,
    SaslInitReceived,
    SessionBegun,
    Source,
    Target,
    parse_plain,
    plain_response,
)
from duobus.codec import Array, DecodeError, Symbol

_SASL = b"AMQP\x03\x01\x00\x00"
_AMQP = b"AMQP\x00\x01\x00\x00"


def _acceptor(**settings: object) -> Connection:
    return Connection(ConnectionSettings("server", **settings), acceptor=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
def test_both_sides_open_whatever_way_the_bytes_are_cut(seed: int) -> None:
    pair = Pair(seed).open()
    opened = pair.take(OpenReceived)[0]
    assert (opened.container_id, opened.hostname, opened.max_frame_size) == ("client", "namespace", 65536)
    assert pair.take(OpenReceived, "client")[0].container_id == "server"
    assert pair.take(SaslInitReceived)[0].mechanism == "ANONYMOUS"


def test_a_handshake_in_one_write_is_answered_in_order() -> None:
    client = Connection(ConnectionSettings("c", mechanisms=("ANONYMOUS",)), acceptor=False)
    client.open(0, "ns")
    session = client.begin()
    session.attach_receiver("cbs-in", Source(address="$cbs"), Target(address="$cbs"))
    session.attach_sender("cbs-out", Source(address="$cbs"), Target(address="$cbs"))
    pair = Pair()
    events = pair.to_server(client.take_output())
    assert [type(event) for event in events] == [
        SaslInitReceived,
        OpenReceived,
        SessionBegun,
        AttachReceived,
        AttachReceived,
    ]
    for event in events[3:]:
        assert isinstance(event, AttachReceived)
        event.link.accept()
    written = frames(pair.server.take_output())
    assert [frame[2] for frame in written] == [3, 0x40, 0x44, 0, 0x10, 0x11, 0x12, 0x12]


def test_mechanisms_are_offered_as_a_symbol_array_even_if_there_is_one() -> None:
    server = _acceptor(mechanisms=("PLAIN",))
    server.receive(_SASL, 0)
    fields = frames(server.take_output())[1][3]
    assert fields == [Array(Symbol, [Symbol("PLAIN")])]


@pytest.mark.parametrize("mechanism", ["MSSBCBS", "ANONYMOUS", "PLAIN", "EXTERNAL"])
def test_each_offered_mechanism_reaches_the_owner_with_its_response(mechanism: str) -> None:
    pair = Pair(client={"mechanisms": (mechanism,), "sasl_response": plain_response("rule", "key")}).open()
    init = pair.take(SaslInitReceived)[0]
    assert init.mechanism == mechanism
    assert init.hostname == "namespace"
    assert parse_plain(init.response) == ("", "rule", "key")


def test_a_mechanism_that_is_not_offered_is_refused_by_the_engine() -> None:
    pair = Pair(server={"mechanisms": ("PLAIN",)})
    pair.client.open(0)
    pair.pump()
    assert pair.server.is_closed
    assert pair.client.is_closed
    assert pair.take(SaslInitReceived) == []
    assert pair.take(Closed, "client")[0].error.condition == "amqp:unauthorized-access"


def test_a_refused_login_closes_both_sides() -> None:
    pair = Pair()
    pair.sasl_ok = False
    pair.client.open(0)
    pair.pump()
    assert pair.server.is_closed
    assert pair.take(Closed, "client")[0].by_peer is False


def test_nothing_behind_the_sasl_init_is_read_before_its_outcome() -> None:
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    server = _acceptor()
    assert [type(event) for event in server.receive(client.take_output(), 0)] == [SaslInitReceived]
    assert server.receive(b"", 0) == []
    server.sasl_outcome(True)
    assert [type(event) for event in server.receive(b"", 0)] == [OpenReceived]
    with pytest.raises(EngineMisuse):
        server.sasl_outcome(True)


def test_an_unknown_protocol_header_is_answered_with_the_supported_one() -> None:
    server = _acceptor()
    events = server.receive(b"GET / HTTP/1.1\r\n", 0)
    assert [type(event) for event in events] == [Closed]
    assert server.take_output() == _SASL
    assert server.is_closed
    assert server.receive(b"more", 0) == []


def test_a_connection_without_sasl_is_refused_unless_allowed() -> None:
    strict = _acceptor()
    assert type(strict.receive(_AMQP, 0)[0]) is Closed
    assert strict.take_output() == _SASL
    lenient = Pair(server={"require_sasl": False}, client={"mechanisms": ()}).open()
    assert lenient.take(SaslInitReceived) == []


def test_a_second_sasl_header_behind_sasl_is_refused() -> None:
    server = _acceptor()
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    head = client.take_output()
    init_end = head.index(_AMQP)
    server.receive(head[:init_end], 0)
    server.sasl_outcome(True)
    server.take_output()
    assert type(server.receive(_SASL, 0)[0]) is Closed
    assert server.take_output() == _AMQP


def test_a_frame_before_open_is_limited_to_eight_kibibytes() -> None:
    server = _acceptor(require_sasl=False)
    server.receive(_AMQP, 0)
    events = server.receive(b"\x00\x00\x20\x01\x02\x00\x00\x00", 0)
    assert isinstance(events[0], Closed)
    assert events[0].error is not None
    assert events[0].error.condition == "amqp:connection:framing-error"
    assert [frame[2] for frame in frames(server.take_output())] == [0, 0x10, 0x18]


def test_refusing_an_open_sends_open_and_then_close() -> None:
    pair = Pair()
    pair.answers_open = False
    pair.client.open(0)
    pair.pump()
    assert pair.take(OpenReceived)[0].container_id == "client"
    pair.server.open(0)
    pair.server.close("amqp:not-found", "no such namespace")
    pair.pump()
    closed = pair.take(Closed, "client")[0]
    assert closed.by_peer
    assert closed.error.condition == "amqp:not-found"
    assert pair.server.is_closed
    assert pair.client.is_closed


def test_a_close_without_an_open_of_ours_brings_the_open_along() -> None:
    pair = Pair()
    pair.answers_open = False
    pair.client.open(0)
    pair.pump()
    pair.server.close("amqp:connection:forced", "draining")
    assert [frame[2] for frame in frames(pair.server.take_output())] == [0x10, 0x18]


@pytest.mark.parametrize("response", [b"", b"a\x00b", b"\x00\xff\x00", b"a\x00b\x00c\x00d"])
def test_a_malformed_plain_response_is_refused(response: bytes) -> None:
    with pytest.raises(DecodeError):
        parse_plain(response)


def test_opening_twice_is_a_misuse_of_the_engine() -> None:
    pair = Pair().open()
    with pytest.raises(EngineMisuse):
        pair.client.open(0)
    with pytest.raises(EngineMisuse):
        pair.server.open(0)


def test_too_much_input_while_an_answer_is_awaited_closes_the_connection() -> None:
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    server = _acceptor()
    server.receive(client.take_output(), 0)
    server.receive(b"x" * (1 << 20), 0)
    assert server.is_closed


def test_a_close_is_answered_and_reported_by_both_sides() -> None:
    pair = Pair().open()
    pair.client.close()
    assert pair.client.is_closing
    pair.pump()
    assert pair.take(Closed)[0].error is None
    assert pair.take(Closed, "client")[0].error is None
    assert pair.server.is_closed
    assert pair.client.is_closed


def test_closes_that_cross_end_without_further_answers() -> None:
    pair = Pair().open()
    pair.client.close()
    pair.server.close("amqp:connection:forced", "bye")
    pair.pump()
    assert pair.take(Closed)[0].by_peer
    assert pair.take(Closed, "client")[0].error.description == "bye"
    assert [frame[2] for frame in frames(pair.sent_by_client)].count(0x18) == 1
    assert [frame[2] for frame in frames(pair.sent_by_server)].count(0x18) == 1


@pytest.mark.parametrize("answer", [b"HTTP/1.1", _AMQP, _SASL + b"\x00\x00\x00\x08\x02\x01\x00\x00"])
def test_a_client_gives_up_a_server_that_answers_something_else(answer: bytes) -> None:
    client = Connection(ConnectionSettings("c", mechanisms=("PLAIN",)), acceptor=False)
    client.open(0)
    events = client.receive(answer, 0)
    assert [type(event) for event in events] == [Closed]
    assert client.is_closed


@pytest.mark.parametrize(
    "sasl_frame",
    [
        b"\x00\x00\x00\x07\x02\x01\x00\x00",
        b"\x00\x00\x20\x01\x02\x01\x00\x00",
        b"\x00\x00\x00\x0a\x02\x01\x00\x00\x00\x53",
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x41\x45",
        b"\x00\x00\x00\x0d\x02\x01\x00\x00\x00\x53\x41\x45\x00",
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x43\x45",
        b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x41\x45",
    ],
)
def test_a_malformed_sasl_frame_closes_without_an_amqp_close(sasl_frame: bytes) -> None:
    server = _acceptor()
    server.receive(_SASL, 0)
    server.take_output()
    events = server.receive(sasl_frame, 0)
    assert [type(event) for event in events] == [Closed]
    assert server.take_output() == b""


def test_closing_before_amqp_has_started_says_nothing() -> None:
    server = _acceptor()
    server.close("amqp:connection:forced", "too slow")
    assert server.is_closed
    assert server.take_output() == b""
    server.close()


def test_an_event_tells_its_fields_compiled_or_not() -> None:
    event = SaslInitReceived("PLAIN", b"secret", None)

    text = repr(event)
    assert text.startswith("SaslInitReceived(")
    assert all(part in text for part in ("mechanism='PLAIN'", "hostname=None"))
