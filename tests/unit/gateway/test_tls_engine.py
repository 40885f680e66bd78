"""TlsEngine: one TLS connection in memory, against a client of the ``ssl`` module."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned, server_context
from duobus.gateway.tls_engine import OWN_OUTPUT_MAX, READ_BYTES, TlsBuffers, TlsEngine

RECORD_HEAD = 5
ALERT = 0x15
#: A record with a ClientHello that has no content.
EMPTY_GREETING = b"\x16\x03\x01\x00\x04\x01\x00\x00\x00"


class Client:
    """The other side of an engine.

    Attributes:
        tls: The connection as the client sees it.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")

    def shake_hands(self, data: bytes) -> bytes:
        """Take what the server says and return the answer."""
        self._incoming.write(data)
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        """The records of some bytes."""
        self.tls.write(data)
        return self._outgoing.read()

    def end(self) -> bytes:
        """The record that says that nothing follows."""
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._outgoing.read()

    def receive(self, data: bytes) -> bytes:
        """What some bytes of the server say."""
        self._incoming.write(data)
        found = []
        try:
            while part := self.tls.read(READ_BYTES):
                found.append(part)
        except (ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            pass
        return b"".join(found)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of a client that trusts it."""
    folder: Path = tmp_path_factory.mktemp("tls")
    files = SelfSigned(folder, Clock(), Entropy()).ensure(["localhost"])
    return server_context(files.certificate, files.key), ssl.create_default_context(cafile=str(files.authority))


def connected(contexts: tuple[ssl.SSLContext, ssl.SSLContext], *, step: int = READ_BYTES) -> tuple[TlsEngine, Client]:
    """An engine and a client after their handshake, in which the engine gets ``step`` bytes at a time."""
    engine, client = TlsEngine(contexts[0], TlsBuffers()), Client(contexts[1])
    to_server = client.shake_hands(b"")
    while not engine.is_open:
        answer = b""
        for pos in range(0, len(to_server), step):
            answer += engine.shake_hands(memoryview(to_server[pos : pos + step]))
        to_server = client.shake_hands(answer)
    assert client.receive(engine.take_output()) == b""
    return engine, client


def record_sizes(data: bytes) -> list[int]:
    """The sizes of the records in some bytes."""
    found = []
    while data:
        size = int.from_bytes(data[3:RECORD_HEAD], "big")
        found.append(size)
        data = data[RECORD_HEAD + size :]
    return found


@pytest.fixture(scope="module", params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def pair(
    request: pytest.FixtureRequest, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> tuple[TlsEngine, Client, ssl.TLSVersion]:
    """A connection of each version."""
    client = contexts[1]
    client.maximum_version = request.param
    try:
        return *connected(contexts), request.param
    finally:
        client.maximum_version = ssl.TLSVersion.MAXIMUM_SUPPORTED


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 40_000), min_size=1, max_size=6), cuts=st.lists(st.integers(1, 30_000), max_size=12)
)
def test_bytes_arrive_whole_and_in_order_wherever_reads_end(
    pair: tuple[TlsEngine, Client, ssl.TLSVersion], sizes: list[int], cuts: list[int]
) -> None:
    engine, client, _ = pair
    sent = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    records = b"".join(client.encrypt(data) for data in sent)
    received = b""
    for cut in cuts:
        received += engine.receive(records[:cut])
        records = records[cut:]
    received += engine.receive(records[: READ_BYTES // 2])
    received += engine.receive(records[READ_BYTES // 2 :])
    assert received == b"".join(sent)
    assert client.receive(b"".join(b"".join(engine.encrypt(data)) for data in sent)) == b"".join(sent)
    assert engine.take_output() == b""


def test_the_version_of_the_client_is_taken(pair: tuple[TlsEngine, Client, ssl.TLSVersion]) -> None:
    engine, _, version = pair
    assert engine.ssl_object.version() == {0x303: "TLSv1.2", 0x304: "TLSv1.3"}[version]


def test_the_largest_read_is_decrypted_at_once(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = connected(contexts)
    plain = bytes(range(256)) * 1200
    records = client.encrypt(plain)
    assert len(records) > READ_BYTES
    first = engine.receive(memoryview(records)[:READ_BYTES])
    assert READ_BYTES - len(first) < 20_000
    assert first + engine.receive(records[READ_BYTES:]) == plain


def test_a_handshake_may_come_byte_by_byte(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = connected(contexts, step=1)
    assert engine.receive(client.encrypt(b"hello")) == b"hello"


def test_what_comes_with_the_end_of_the_handshake_is_read(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = TlsEngine(contexts[0], TlsBuffers()), Client(contexts[1])
    end = client.shake_hands(engine.shake_hands(memoryview(client.shake_hands(b""))))
    engine.shake_hands(memoryview(end + client.encrypt(b"hello")))
    assert engine.is_open
    assert engine.receive(b"") == b"hello"


def test_output_takes_as_few_records_as_can_be(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = connected(contexts)
    plain = b"x" * (300 << 10)
    records = b"".join(engine.encrypt(plain))
    assert len(record_sizes(records)) == -(-len(plain) // 16_384)
    assert client.receive(records) == plain


def test_a_changed_byte_ends_the_connection_with_an_alert(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = connected(contexts)
    record = bytearray(client.encrypt(b"hello"))
    record[-1] ^= 1
    with pytest.raises(ssl.SSLError, match=r"(?i)mac"):
        engine.receive(record)
    with pytest.raises(ssl.SSLError, match=r"(?i)mac"):
        client.receive(engine.take_output())


def test_what_is_no_tls_fails_the_handshake(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine = TlsEngine(contexts[0], TlsBuffers())
    with pytest.raises(ssl.SSLError):
        engine.shake_hands(memoryview(b"\x16nonsense" * 100))
    assert not engine.is_open


def test_an_empty_greeting_is_answered_with_an_alert(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine = TlsEngine(contexts[0], TlsBuffers())
    with pytest.raises(ssl.SSLError):
        engine.shake_hands(memoryview(EMPTY_GREETING))
    assert engine.take_output()[0] == ALERT


def test_a_goodbye_is_noticed_behind_the_bytes_before_it(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    engine, client = connected(contexts)
    assert engine.receive(client.encrypt(b"last") + client.end()) == b"last"
    assert engine.has_ended


def test_after_its_own_goodbye_an_engine_hears_that_of_the_client(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    engine, client = connected(contexts)
    goodbye = engine.end()
    assert not engine.has_ended
    # The client was still sending.
    assert engine.receive(client.encrypt(b"late")) == b"late"
    assert not engine.has_ended
    assert client.receive(goodbye) == b""
    client.tls.unwrap()
    assert engine.receive(client._outgoing.read()) == b""
    assert engine.has_ended


def test_a_goodbye_that_answers_the_clients_leaves_nothing_to_wait_for(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    engine, client = connected(contexts)
    engine.receive(client.end())
    assert client.receive(engine.end()) == b""
    client.tls.unwrap()


def test_whoever_makes_the_server_answer_without_end_is_refused(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    engine, _ = connected(contexts)
    refusal = b"x" * 31
    for _ in range(OWN_OUTPUT_MAX // len(refusal)):
        engine._outgoing.write(refusal)
        assert engine.take_output() == refusal
    engine._outgoing.write(refusal)
    with pytest.raises(ssl.SSLError, match="without end"):
        engine.take_output()
