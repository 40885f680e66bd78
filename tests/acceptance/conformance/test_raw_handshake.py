"""The handshake, SASL, tokens and TLS, at the level of frames and bytes."""

from __future__ import annotations

import socket
import ssl
import time
import uuid

import pytest
from kit_bus import KEY, LISTEN_ONLY, SEND_ONLY, Bus

from duobus.amqp import Closed, Error, LinkDetached, Source, Target, plain_response
from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Attach, Begin, Open, SaslInit
from duobus.codec import build_message, decode
from kits.raw_client import HANG_S, RULE, RawClient, Refused, frames, token

#: Idle time-out of a client that wants to hear something often.
IDLE_MS = 600

#: The answer to a pipelined handshake: type of each frame, and its descriptor.
EXPECTED = [
    (-1, SASL_HEADER),
    (1, 0x40),
    (1, 0x44),
    (-1, AMQP_HEADER),
    (0, 0x10),
    (0, 0x11),
    (0, 0x12),
    (0, 0x12),
    # The credit for the sender of tokens comes at once, and nothing else.
    (0, 0x13),
]


def pipelined() -> bytes:
    """Everything up to two ``$cbs`` attaches, as one write: begin on channel 1, handles 1 and 2, as Python does."""
    attaches = [
        Attach(
            name=f"cbs-{role}",
            handle=handle,
            role=role,
            snd_settle_mode=2,
            rcv_settle_mode=0,
            source=Source(address="$cbs"),
            target=Target(address="$cbs"),
            initial_delivery_count=None if role else 0,
        )
        for handle, role in ((2, True), (1, False))
    ]
    opening = Open(container_id="raw", hostname="localhost", max_frame_size=65536, idle_time_out=IDLE_MS)
    begin = Begin(next_outgoing_id=0, incoming_window=65536, outgoing_window=65536)
    init = SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="localhost")
    return b"".join(
        [
            SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL) + AMQP_HEADER + frame(0, opening.to_bytes()),
            frame(1, begin.to_bytes()),
            *(frame(1, attach.to_bytes()) for attach in attaches),
        ]
    )


def read_frames(sock: socket.socket, number: int, pause_s: float) -> bytes:
    """So many frames and protocol headers, and what comes behind them until nothing comes for a pause."""
    found = b""
    while True:
        sock.settimeout(HANG_S if len(frames(found)) < number else pause_s)
        try:
            data = sock.recv(65536)
        except TimeoutError:
            return found
        if not data:
            return found
        found += data


@pytest.mark.parametrize("cut", [0, 1, 7, 100])
def test_a_pipelined_handshake_is_answered_in_order_however_it_is_cut(bus: Bus, cut: int) -> None:
    text = pipelined()
    with socket.create_connection(("127.0.0.1", bus.port), timeout=HANG_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for start in range(0, len(text), cut or len(text)):
            sock.sendall(text[start : start + (cut or len(text))])
        answer = read_frames(sock, len(EXPECTED), 0.2)
    kinds = [
        (kind, body[:8] if kind < 0 else (body[2] if body[:2] == b"\x00\x53" else None))
        for kind, _, body in frames(answer)
        if body
    ]
    assert kinds == EXPECTED
    begins = [decode(body, 3)[0] for _, _, body in frames(answer) if body[:3] == b"\x00\x53\x11"]
    assert begins[0][0] == 1


def test_heartbeats_come_within_half_of_the_client_s_idle_time_out(bus: Bus) -> None:
    with RawClient(bus.port, idle_time_out_ms=IDLE_MS * 5) as raw:
        raw.put_token("", token(""))
        seen = len(raw.bytes_read)
        gaps: list[float] = []
        last = time.monotonic()
        # A busy machine lets a heartbeat come late now and then; not each of ten.
        while len(gaps) < 10 and not (len(gaps) >= 2 and min(gaps[1:]) <= IDLE_MS * 5 / 2000 + 0.1):
            raw.pump(0.5)
            if len(raw.bytes_read) > seen:
                gaps.append(time.monotonic() - last)
                last, seen = time.monotonic(), len(raw.bytes_read)
    assert min(gaps[1:]) <= IDLE_MS * 5 / 2000 + 0.1, gaps


@pytest.mark.parametrize("start", [b"\x00nonsense", b"AMQP\x00\x00\x09\x01", b"AMQP\x00\x01\x00\x00"])
def test_another_protocol_gets_our_header_and_the_end(bus: Bus, start: bytes) -> None:
    with socket.create_connection(("127.0.0.1", bus.port), timeout=HANG_S) as sock:
        sock.sendall(start)
        answer = b""
        while data := sock.recv(100):
            answer += data
    assert answer[:8] == SASL_HEADER


def test_a_token_labelled_jwt_is_taken_and_correlated_with_its_type(bus: Bus) -> None:
    with RawClient(bus.port) as raw:
        message_id = uuid.uuid4()
        assert raw.put_token("queue.1", token("queue.1"), message_id) == (202, message_id)


def test_a_token_with_the_official_label_and_a_text_id_is_taken(bus: Bus) -> None:
    with RawClient(bus.port) as raw:
        properties = {
            "operation": "put-token",
            "type": "servicebus.windows.net:sastoken",
            "name": "sb://localhost/queue.1",
        }
        reply = raw.request("$cbs", properties, token("queue.1"), message_id="text")
        assert (reply[0]["status-code"], reply[2]) == (202, "text")


@pytest.mark.parametrize(
    "text",
    [
        token("q", key="wrong"),
        token("q", rule="nobody"),
        token("q", life_s=-10),
        token("another"),
        "SharedAccessSignature sr=x",
        "nonsense",
    ],
    ids=["wrong-key", "unknown-rule", "expired", "another-entity", "incomplete", "no-token"],
)
def test_a_token_that_is_no_good_gets_401_and_no_right(bus: Bus, text: str) -> None:
    with RawClient(bus.port) as raw:
        properties = {"operation": "put-token", "type": "jwt", "name": "sb://localhost/q"}
        answer, _, _ = raw.request("$cbs", properties, text)
        assert answer["status-code"] == 401
        assert answer["error-condition"] == "amqp:unauthorized-access"
        assert "TrackingId:" in answer["status-description"]
        assert "sig=" not in answer["status-description"]
        with pytest.raises(Refused, match="unauthorized-access"):
            raw.sender("queue.1")


def test_a_reply_link_without_a_target_is_found_by_its_name(bus: Bus) -> None:
    """JavaScript leaves the target of the receiver empty and names the link in reply-to."""
    with RawClient(bus.port) as raw:
        replies = raw.receiver("$cbs", name="cbs-reply", target=Target())
        others = raw.receiver("$cbs", name="cbs-other", target=Target())
        requests = raw.sender("$cbs")
        replies.grant(1)
        others.grant(1)
        properties = {"operation": "put-token", "type": "x", "name": "sb://localhost/queue.1"}
        fields = ["id", None, None, None, "cbs-reply"]
        raw.send(requests, build_message(fields, properties, body_value=token("queue.1")))
        assert len(raw.receive(replies, 1)) == 1
        assert others.credit == 1


def test_anonymous_gets_nothing_before_its_token(bus: Bus) -> None:
    with RawClient(bus.port) as raw:
        for attach in (raw.sender, raw.receiver):
            for address in ("queue.1", "queue.1/$management", "missing"):
                with pytest.raises(Refused) as caught:
                    attach(address)
                assert caught.value.error.condition == "amqp:unauthorized-access"
        assert raw.put_token("queue.1", token("queue.1"))[0] == 202
        assert raw.sender("queue.1").is_attached


def test_a_token_for_one_queue_opens_no_other(bus: Bus) -> None:
    with RawClient(bus.port) as raw:
        raw.put_token("queue.1", token("queue.1"))
        assert raw.receiver("queue.1/$DeadLetterQueue").is_attached
        with pytest.raises(Refused, match="unauthorized-access"):
            raw.sender("queue.10")


@pytest.mark.parametrize(("rule", "sends"), [(SEND_ONLY, True), (LISTEN_ONLY, False)])
def test_a_plain_login_has_the_rights_of_its_rule(bus: Bus, rule: str, sends: bool) -> None:
    with RawClient(bus.port, mechanism="PLAIN", response=plain_response(rule, KEY)) as raw:
        allowed, refused = (raw.sender, raw.receiver) if sends else (raw.receiver, raw.sender)
        assert allowed("queue.1").is_attached
        with pytest.raises(Refused, match="unauthorized-access"):
            refused("queue.1")


@pytest.mark.parametrize(
    "response", [plain_response(RULE, "wrong"), plain_response("nobody", KEY), b"", b"\xff\x00\x00"]
)
def test_a_wrong_plain_login_ends_at_sasl(bus: Bus, response: bytes) -> None:
    with RawClient(bus.port, mechanism="PLAIN", response=response) as raw:
        assert raw.wait(Closed).error is not None
        raw.until_eof()
        assert frames(bytes(raw.bytes_read))[-1][2] == b"\x00\x53\x44\xc0\x05\x02\x50\x01\x40" or (
            b"\x00\x53\x44" in raw.bytes_read and b"AMQP\x00\x01" not in raw.bytes_read
        )


def test_an_expired_token_takes_its_links_away_within_a_second_or_so(bus: Bus) -> None:
    queue, another = bus.queue(), bus.queue()
    with RawClient(bus.port) as raw:
        raw.put_token(queue, token(queue, life_s=2))
        raw.put_token(another, token(another))
        mine = [raw.sender(queue), raw.receiver(queue)]
        other = raw.sender(another)
        for _ in mine:
            gone = raw.wait(LinkDetached, HANG_S)
            assert gone.link in mine
            assert isinstance(gone.error, Error)
            assert gone.error.condition == "amqp:unauthorized-access"
            assert "TrackingId:" in str(gone.error.description)
        # The connection lives on, and so does what another token allows.
        raw.send(other, build_message(data=b"m"))
        with pytest.raises(Refused):
            raw.sender(queue)
        raw.put_token(queue, token(queue))
        assert raw.sender(queue).is_attached


def test_a_renewed_token_keeps_its_links(bus: Bus) -> None:
    queue = bus.queue()
    with RawClient(bus.port) as raw:
        raw.put_token(queue, token(queue, life_s=1))
        raw.sender(queue)
        raw.put_token(queue, token(queue))
        assert raw.nothing_more(LinkDetached, 2.5)


@pytest.mark.parametrize("port", ["port", "tls_port"])
def test_tls_is_told_apart_by_the_first_byte_on_any_port(bus: Bus, port: str) -> None:
    context = ssl.create_default_context(cafile=bus.process.ca)
    with RawClient(getattr(bus, port), tls=context) as raw:
        assert raw.put_token("queue.1", token("queue.1"))[0] == 202
    with RawClient(getattr(bus, port)) as raw:
        assert raw.put_token("queue.1", token("queue.1"))[0] == 202


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_the_certificate_names_the_hosts_by_which_clients_call(bus: Bus, host: str) -> None:
    context = ssl.create_default_context(cafile=bus.process.ca)
    with (
        socket.create_connection(("127.0.0.1", bus.tls_port), timeout=HANG_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        assert secure.version() in ("TLSv1.2", "TLSv1.3")


def test_a_stranger_s_authority_does_not_verify_our_certificate(bus: Bus) -> None:
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", bus.tls_port), timeout=HANG_S) as plain,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(plain, server_hostname="localhost")
