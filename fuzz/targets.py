"""Fuzz targets: each takes bytes and raises when an oracle is broken.

Oracles of all: only declared errors, at most 50 ms per 64 KiB of input, memory within a bound.
"""

from __future__ import annotations

import base64
import hmac
import resource
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from duobus.amqp import AttachReceived, Connection, ConnectionSettings, OpenReceived, SaslInitReceived
from duobus.amqp.frames import AMQP_HEADER, SASL_HEADER, TYPE_SASL, frame
from duobus.amqp.performatives import Attach, Begin, Flow, Open, Source, Target, Transfer
from duobus.amqp.performatives import SaslInit as SaslInitFrame
from duobus.auth.authorizer import Authorizer, Grants, NamespaceRules
from duobus.broker.entities.purge import PurgeResult
from duobus.codec import (
    DecodeError,
    Described,
    PassedOver,
    application_properties,
    build_message,
    decode,
    decode_outline,
    encode,
    scan,
    skip,
    split_batch,
)
from duobus.codec.sections import find_section
from duobus.errors import MessageLockLost, MessageNotFound, ServiceBusError
from duobus.gateway.amqp.management.node import _OPERATIONS, ManagementNode
from duobus.gateway.amqp.management.request_node import Request
from duobus.gateway.amqp.mapping import take_apart
from duobus.gateway.amqp.transactions.coordinator import request_of
from duobus.model.address import parse_address
from duobus.model.descriptions import ALL_RIGHTS, AccessRule
from fuzz.bearer import bearer
from fuzz.heads import heads
from fuzz.journals import journals
from fuzz.relay import relay
from fuzz.rule_texts import rules

SECONDS_PER_64K = 0.05
#: How much the process may grow at its highest; what it did before is not counted.
RSS_GROWTH_MAX_KIB = 200 * 1024
_before_kib = 0
#: Unfinished deliveries of the engine under test.
PARTIAL_MAX = 100_000
#: What one call of the engine may cost in frames that are taken one at a time; the rest waits for the next call.
WORK_MAX = 30
_NOTHING: frozenset[object] = frozenset()

KEY = "fuzz key"
NOW_MS = 1_700_000_000_000


class OracleBroken(Exception):
    """A target took too long, or too much."""


# -- codec ------------------------------------------------------------------------------------------------------------


def codec(data: bytes) -> None:
    """Everything that the codec does with bytes of a stranger."""
    try:
        value, end = decode(data)
    except DecodeError:
        pass
    else:
        # What can be read can be written, and is skipped to where decoding ended.
        if skip(data) != end:
            raise OracleBroken("skip and decode end at different places")
        decode(encode(value))
        _compare_outline(data, value, end)
    for function in (skip, scan, split_batch, application_properties, _sections, _outline):
        try:
            function(data)
        except DecodeError:
            continue
    try:
        take_apart(data)
    except ServiceBusError:
        pass


def _outline(data: bytes) -> None:
    decode_outline(data, 0, len(data), _NOTHING)


def _compare_outline(data: bytes, value: Any, end: int) -> None:
    """What the outline reads is what decoding reads, but for what it passes over."""
    try:
        outlined, outline_end = decode_outline(data, 0, len(data), _NOTHING)
    except DecodeError:
        return
    if outline_end != end:
        raise OracleBroken("outline and decode end at different places")
    if not _is_outline(outlined, value):
        raise OracleBroken("outline and decode read different values")


def _is_outline(outlined: Any, value: Any) -> bool:
    if isinstance(outlined, PassedOver):
        return encode(decode(outlined.raw)[0]) == encode(value)
    if isinstance(outlined, Described) and isinstance(value, Described):
        return _is_outline(outlined.descriptor, value.descriptor) and _is_outline(outlined.value, value.value)
    if type(outlined) is list and type(value) is list:
        return len(outlined) == len(value) and all(map(_is_outline, outlined, value))
    return encode(outlined) == encode(value)


def _sections(data: bytes) -> None:
    for code in range(0x70, 0x79):
        find_section(data, code)


# -- frames and SASL --------------------------------------------------------------------------------------------------


def _engine() -> Connection:
    settings = ConnectionSettings(
        "fuzz",
        partial_bytes_max=PARTIAL_MAX,
        channel_max=20,
        handle_max=20,
        links_max=40,
        incoming_window=50,
        work_max=WORK_MAX,
    )
    return Connection(settings, acceptor=True)


def _answer(engine: Connection, event: Any) -> None:
    if isinstance(event, SaslInitReceived):
        engine.sasl_outcome(True)
    elif isinstance(event, OpenReceived):
        engine.open(0)
    elif isinstance(event, AttachReceived):
        link = event.link
        if len(link.name) % 5 == 4:
            link.refuse("amqp:not-found", "no")
        else:
            link.accept(max_message_size=5_000)
            link.grant(100)


def _feed(engine: Connection, data: bytes, step: int) -> None:
    for start in range(0, len(data), step):
        for event in engine.receive(data[start : start + step], start):
            _answer(engine, event)
        # A frame has eight bytes at least, and each call takes one at least.
        for _ in range(len(data) // 8 + 2):
            if not engine.is_cut:
                break
            for event in engine.receive(b"", start):
                _answer(engine, event)
        else:
            raise OracleBroken("the engine says without end that there is more")
        if engine.partial_bytes > PARTIAL_MAX + 66_000 or engine.partial_bytes < 0:
            raise OracleBroken(f"{engine.partial_bytes} bytes of unfinished deliveries")
        if engine.output_size > 64 * 1024 + 100 * len(data):
            raise OracleBroken(f"{len(data)} bytes made {engine.output_size} bytes of output")
        engine.take_output()
    engine.tick(10**9)
    engine.take_output()


def _handshake() -> bytes:
    init = SaslInitFrame(mechanism="ANONYMOUS", initial_response=b"", hostname="h")
    opening = Open(container_id="c", hostname="h", max_frame_size=65_536)
    return SASL_HEADER + frame(0, init.to_bytes(), TYPE_SASL) + AMQP_HEADER + frame(0, opening.to_bytes())


def _attached() -> bytes:
    begin = Begin(next_outgoing_id=0, incoming_window=5, outgoing_window=5)
    attaches = [
        Attach(
            name=f"l{handle}",
            handle=handle,
            role=bool(handle),
            source=Source(address="q"),
            target=Target(address="q"),
            initial_delivery_count=0,
        )
        for handle in (0, 1)
    ]
    return frame(0, begin.to_bytes()) + b"".join(frame(0, attach.to_bytes()) for attach in attaches)


HANDSHAKE, ATTACHED = _handshake(), _attached()


def sasl(data: bytes) -> None:
    """The first bytes of a connection; the first one says into what pieces the others are cut."""
    if data:
        _feed(_engine(), data[1:], 1 + data[0])


def frames(data: bytes) -> None:
    """Frames on a connection with a session and two links; the first byte as in ``sasl``."""
    if data:
        engine = _engine()
        _feed_quietly(engine)
        _feed(engine, data[1:], 1 + 16 * data[0])


def _feed_quietly(engine: Connection) -> None:
    for event in engine.receive(HANDSHAKE + ATTACHED, 0):
        _answer(engine, event)
    while engine.is_cut:
        for event in engine.receive(b"", 0):
            _answer(engine, event)
    engine.take_output()


# -- nodes ------------------------------------------------------------------------------------------------------------

_RULES = NamespaceRules(
    "ns", (AccessRule(name="rule", primary_key=KEY, secondary_key=KEY, rights=int(ALL_RIGHTS)),), ("ns.example",)
)
_AUTHORIZER = Authorizer([_RULES])
#: A request keeps its link for the reply only, and nobody replies here.
_NO_LINK: Any = None


def cbs(data: bytes) -> None:
    """A put-token message: from raw bytes, and with the bytes as audience and token."""
    try:
        request = Request(_NO_LINK, data)
        _put(request.text("name") or "", request.body if isinstance(request.body, str) else "")
    except ServiceBusError:
        pass
    audience, _, token = data.decode("utf-8", "replace").partition("\n")
    if _put(audience, token) and not _is_signed(token):
        raise OracleBroken("a token was taken that was not signed with the key")


def _is_signed(token: str) -> bool:
    """The same question, answered in the plainest way."""
    scheme, _, rest = token.strip().partition(" ")
    if scheme.lower() == "bearer":
        rest = rest.lstrip().partition(" ")[2]
    fields = dict(part.partition("=")[::2] for part in rest.strip().split("&"))
    mac = hmac.new(KEY.encode(), f"{fields['sr']}\n{fields['se']}".encode(), "sha256").digest()
    return base64.b64encode(mac).decode() == unquote(fields["sig"]).replace(" ", "+")


def _put(audience: str, token: str) -> bool:
    grants = Grants()
    try:
        grants.add(audience, _AUTHORIZER.authorize_token(token, _RULES, NOW_MS))
    except ServiceBusError:
        return False
    return True


class _Queue:
    """Answers as a queue without messages."""

    path = "q"
    kind = "queue"
    source_no = 0
    is_partitioned = True

    class description:  # noqa: N801 - stands in for an attribute
        default_message_time_to_live_ms = None
        max_message_size_bytes = 10_000
        requires_session = False
        status = "Active"

    def find_lock(self, token: bytes) -> Any:
        raise MessageLockLost("no")

    def lock_deferred(self, sub_queue: int, numbers: list[int], holder: Any) -> list[Any]:
        if numbers:
            raise MessageNotFound("no")
        return []

    async def peek(self, *args: Any) -> list[Any]:
        return []

    def remove_deferred(self, sub_queue: int, numbers: list[int], waiting: Any, holder: Any) -> int:
        if numbers:
            raise MessageNotFound("no")
        return 0

    def cancel_scheduled(self, numbers: list[int], waiting: Any) -> int:
        return 0

    def send(self, batch: Any) -> None:
        raise MessageLockLost("no")

    async def batch_delete(self, *args: Any) -> int:
        return 0

    async def purge(self, *args: Any) -> PurgeResult:
        return PurgeResult()

    def demand_session(self, metadata: Any, *, is_ping: bool) -> None:
        return None


class _SessionQueue(_Queue):
    """The same for a queue with sessions."""

    class description(_Queue.description):  # noqa: N801 - stands in for an attribute
        requires_session = True

    def set_session_state(self, handle: Any, lock: Any, state: bytes | None, waiting: Any) -> None:
        raise MessageLockLost("no")

    def lists_of_sessions(self, since_ms: int | None) -> Iterator[list[str]]:
        return iter([["a"], ["b"]] if since_ms is None else [])


class _Holder:
    """A link with a session, its receiver, and whatever the receiver leads to."""

    lock = None

    def __init__(self) -> None:
        self.receiver = self.handle = self.broker = self.sessions = self

    def renew(self, handle: Any, lock: Any) -> int:
        return NOW_MS

    async def state(self, handle: Any, lock: Any) -> bytes | None:
        return None


class _Peer:
    throttle = None

    class server:  # noqa: N801 - stands in for an attribute
        class clock:  # noqa: N801
            @staticmethod
            def monotonic_ms() -> int:
                return NOW_MS

        class log:  # noqa: N801
            @staticmethod
            def error(text: str, **about: object) -> None:
                # The node answers a fault of ours with an internal error; here it is a finding.
                raise AssertionError(f"{text}: {about}")

    def session_link(self, queue: Any, session_id: str) -> Any:
        return _Holder() if session_id == "a" else None

    def session_link_named(self, queue: Any, name: str | None) -> Any:
        return None

    def allows(self, segments: tuple[str, ...], right: int) -> bool:
        return True

    def meter(self, *about: object) -> None:
        return None


_NODES = [
    ManagementNode(_Peer(), "q/$management", queue, parse_address("q/$management"))  # type: ignore[arg-type]
    for queue in (_Queue(), _SessionQueue())
]
_NAMES = [None, *_OPERATIONS]


def management(data: bytes) -> None:
    """A request: the first byte chooses the operation, the rest is the encoded body; or it is the whole message.

    Beyond 127 the queue has sessions.
    """
    if not data:
        return
    name = _NAMES[data[0] % len(_NAMES)]
    message = data[1:]
    if name is not None:
        message = build_message([], {"operation": name})
        message = message + b"\x00\x53\x77" + data[1:]
    try:
        request = Request(_NO_LINK, message)
        _run(_NODES[data[0] > 127]._do(request))
    except (ServiceBusError, KeyError) as error:
        # A number that is not deferred: the real queue says so before the table is asked.
        if isinstance(error, KeyError) and name != "com.microsoft:receive-by-sequence-number":
            raise


def _run(work: Coroutine[Any, Any, Any]) -> None:
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()


# -- coordinator ------------------------------------------------------------------------------------------------------


def coordinator(data: bytes) -> None:
    """A declare or a discharge, or what pretends to be one."""
    try:
        request_of(data)
    except ServiceBusError:
        pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    "bearer": bearer,
    "heads": heads,
    "journals": journals,
    "relay": relay,
    "frames": frames,
    "codec": codec,
    "sasl": sasl,
    "cbs": cbs,
    "management": management,
    "coordinator": coordinator,
    "rules": rules,
}


def _resident_kib() -> int:
    """Memory of this process now; its highest so far where /proc does not tell."""
    try:
        with Path("/proc/self/statm").open() as numbers:
            return int(numbers.read().split()[1]) * resource.getpagesize() >> 10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def begin() -> None:
    """From here on the memory oracle counts: whatever ran in this process before is not the targets' growth."""
    global _before_kib
    _before_kib = _resident_kib()


begin()


def check(target: Callable[[bytes], None], data: bytes, slack: float = 1.0) -> None:
    """Run a target and apply the oracles of time and memory.

    Raises:
        OracleBroken: It took too long three times in a row, or the process has grown too large.
    """
    limit = SECONDS_PER_64K * max(1.0, len(data) / 65_536) * slack
    taken = 0.0
    for _ in range(3):
        # Processor time: a machine that does something else beside must not look like slow input.
        start = time.thread_time()
        target(data)
        taken = time.thread_time() - start
        if taken <= limit:
            break
    else:
        raise OracleBroken(f"{len(data)} bytes took {taken * 1000:.0f} ms, {limit * 1000:.0f} are allowed")
    if _resident_kib() > _before_kib + RSS_GROWTH_MAX_KIB:
        raise OracleBroken("the process has grown beyond its bound")


def transfer_of(payload: bytes) -> bytes:
    """A transfer frame, for seeds."""
    transfer = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", message_format=0)
    return frame(0, transfer.to_bytes() + payload)


def flow_of(credit: int) -> bytes:
    """A flow frame of the second link, for seeds."""
    flow = Flow(
        next_incoming_id=0, incoming_window=5, next_outgoing_id=0, outgoing_window=5, handle=1, link_credit=credit
    )
    return frame(0, flow.to_bytes())
