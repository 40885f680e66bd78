"""Trace contexts pass through unchanged, and the broker's own spans are children of them, where they are asked for."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import requests
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceiveMode
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from duobus.amqp import ACCEPTED, RELEASED, Dispositions, Error, Modified, Rejected, Transfers
from duobus.cli.remote import Remote, operate
from duobus.codec import application_properties, build_message
from duobus.errors import ConfigurationError
from duobus.gateway.amqp.links import traced_links
from duobus.gateway.amqp.links.link_kinds import PLAIN
from duobus.gateway.amqp.links.traced_links import traced
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.drill import FAILING
from duobus.telemetry.spans import SpanRecorder
from duobus.testing.server import ServerProcess, queues_config
from kits.gateway import Client, TcpStream, in_loop, serving, settled
from kits.http_client import Http, token

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"
CONTEXT = {"traceparent": PARENT, "tracestate": "vendor=1", "Diagnostic-Id": PARENT, "other": 7}


def message(properties: dict[str, Any] | None = None, message_id: str = "m") -> bytes:
    return build_message([message_id], properties, data=b"body")


# -- passing through ------------------------------------------------------------------------------------------------


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


async def sent(client: Client, queue: str, *payloads: bytes) -> None:
    link = await client.sender(queue)
    for payload in payloads:
        link.send_one(uuid.uuid4().bytes, payload, False)
    done = 0
    while done < len(payloads):
        event = await client.wait(Dispositions)
        done += sum(last - first + 1 for first, last, _, _ in event.ranges)


async def received(client: Client, queue: str, number: int = 1) -> tuple[Any, list[tuple[int, bytes]]]:
    link = await client.receiver(queue, credit=number)
    found: list[tuple[int, bytes]] = []
    while len(found) < number:
        event = await client.wait(Transfers, lambda event: event.link is link)
        found += [(event.first_delivery_id + index, payload) for index, payload in enumerate(event.payloads)]
    return link, found


@pytest.mark.parametrize("is_traced", [False, True])
@in_loop
async def test_a_plain_client_gets_every_property_of_a_context_as_it_was_sent(is_traced: bool) -> None:
    names = {"queue": "plain", "topic": "topic"}
    async with serving(QueueDescription(name="plain"), QueueDescription(name="end")) as server:
        topic = TopicDescription(name="topic", subscriptions=(SubscriptionDescription(name="s"),))
        await server.unit.topics.create_topic("ns", topic)
        if is_traced:
            recorded(server)
        client = await connected(server)
        await sent(client, names["queue"], message(CONTEXT))
        await sent(client, names["topic"], message(CONTEXT))
        for place in ("plain", "topic/subscriptions/s"):
            link, ((delivery_id, payload),) = await received(client, place)
            assert application_properties(payload[payload.index(message(CONTEXT)) :]) == CONTEXT
            # ... and as a dead letter, with what is added to it.
            link.settle(
                delivery_id, delivery_id, Rejected(Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "r"}))
            )
            await client.flush()
            _, ((_, dead),) = await received(client, f"{place}/$DeadLetterQueue")
            assert all(f"{name}".encode() in dead for name in CONTEXT)
            assert dead.count(PARENT.encode()) == 2


def test_a_context_of_the_sdk_passes_through_unchanged(tmp_path: Any) -> None:
    config = queues_config({"q": {}, "first": {"ForwardTo": "q"}, "sessions": {"RequiresSession": True}})
    with (
        ServerProcess(tmp_path, config=config, arguments=("--emulator", "--stores", "1")) as process,
        ServiceBusClient.from_connection_string(process.connection_string) as client,
    ):
        properties = {"traceparent": PARENT, "Diagnostic-Id": PARENT}
        for queue in ("q", "first", "sessions"):
            made = ServiceBusMessage("x", application_properties=dict(properties), session_id="s")
            with client.get_queue_sender(queue) as sender:
                sender.send_messages(made)
        for queue, session, number in (("q", None, 2), ("sessions", "s", 1)):
            options: dict[str, Any] = {"receive_mode": ServiceBusReceiveMode.RECEIVE_AND_DELETE, "session_id": session}
            found: list[Any] = []
            with client.get_queue_receiver(queue, **options) as receiver:
                while len(found) < number:
                    found += receiver.receive_messages(number, max_wait_time=10)
            for one in found:
                text = {_text(name): _text(value) for name, value in one.application_properties.items()}
                assert text == properties


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@in_loop
async def test_a_context_that_comes_over_http_is_where_the_sdks_look_for_it() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        headers = {"Authorization": token(), "traceparent": PARENT}
        assert (await http.ask("POST", "/q/messages", b"x", headers)).status == 201
        _, ((_, payload),) = await received(await connected(server), "q")
        assert b"Diagnostic-Id" in payload
        assert PARENT.encode() in payload


# -- spans ----------------------------------------------------------------------------------------------------------


def recorded(server: Server) -> InMemorySpanExporter:
    """Have a server record spans, in memory."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    server.amqp.link_kinds = traced(SpanRecorder(provider))
    return exporter


@asynccontextmanager
async def recording(*queues: QueueDescription) -> AsyncIterator[tuple[Server, InMemorySpanExporter]]:
    async with serving(*queues) as server:
        yield server, recorded(server)


def traced_endpoint(server: Server) -> Any:
    """The link on which the one client receives."""
    (peer,) = server.amqp.peers
    (endpoint,) = [one for _, one in peer.endpoints() if isinstance(one, PLAIN.outgoing)]
    return endpoint


def names(exporter: InMemorySpanExporter) -> list[tuple[str, str]]:
    return [
        (one.name, str((one.attributes or {})["messaging.operation.name"])) for one in exporter.get_finished_spans()
    ]


@in_loop
async def test_send_deliver_and_settle_are_children_of_the_senders_span() -> None:
    async with recording() as (server, exporter):
        client = await connected(server)
        await sent(client, "q", message(CONTEXT, "the-id"))
        link, ((delivery_id, _),) = await received(client, "q")
        link.settle(delivery_id, delivery_id, ACCEPTED)
        await client.flush()
        await settled(lambda: len(exporter.get_finished_spans()) == 3)
        assert names(exporter) == [
            ("duobus.send", "send"),
            ("duobus.deliver", "deliver"),
            ("duobus.settle", "complete"),
        ]
        for span in exporter.get_finished_spans():
            assert span.parent is not None
            assert (f"{span.parent.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
            assert span.parent.trace_state.get("vendor") == "1"
            assert span.status.is_ok
            assert span.attributes is not None
            assert span.attributes["messaging.message.id"] == "the-id"
            assert span.attributes["messaging.destination.name"] == "q"
            assert (span.start_time or 0) <= (span.end_time or 0)
        # Nothing is added to the message: its spans are nobody's parents.
        assert server.unit.namespace("ns").queues["q"].numbers()[0][0] == 0


@pytest.mark.parametrize(
    "properties", [None, {"other": "traceparent"}, {"traceparent": "nonsense"}, {"traceparent": 7}]
)
@in_loop
async def test_messages_without_a_context_have_no_spans(properties: dict[str, Any] | None) -> None:
    async with recording() as (server, exporter):
        client = await connected(server)
        await sent(client, "q", message(properties))
        link, ((delivery_id, _),) = await received(client, "q")
        link.settle(delivery_id, delivery_id, ACCEPTED)
        await client.flush()
        await settled(lambda: server.unit.namespace("ns").queues["q"].numbers()[0][0] == 0)
        assert names(exporter) == []


@in_loop
async def test_what_the_sender_does_not_record_the_broker_does_not_record() -> None:
    async with recording() as (server, exporter):
        client = await connected(server)
        await sent(client, "q", message({"traceparent": NOT_SAMPLED}), message({"Diagnostic-Id": PARENT}))
        await received(client, "q", 2)
        # Only that of the older name, which is sampled.
        assert names(exporter) == [("duobus.send", "send"), ("duobus.deliver", "deliver")]


@pytest.mark.parametrize(
    ("state", "word"),
    [
        (RELEASED, "release"),
        (Modified(None, None, None), "abandon"),
        (Modified(None, True, None), "defer"),
        (Rejected(None), "dead-letter"),
    ],
)
@in_loop
async def test_each_kind_of_settlement_has_its_name(state: Any, word: str) -> None:
    async with recording() as (server, exporter):
        client = await connected(server)
        await sent(client, "q", message(CONTEXT))
        link, ((delivery_id, _),) = await received(client, "q")
        link.settle(delivery_id, delivery_id, state)
        await client.flush()
        await settled(lambda: ("duobus.settle", word) in names(exporter))


@in_loop
async def test_a_settlement_whose_lock_is_lost_is_an_error() -> None:
    async with recording() as (server, exporter):
        client = await connected(server)
        await sent(client, "q", message(CONTEXT))
        link, ((delivery_id, _),) = await received(client, "q")
        (handle,) = server.unit.namespace("ns").queues["q"].fragments
        ((prefix, lock),) = traced_endpoint(server)._kept
        assert list(handle.unlock(0, prefix, [(lock, 1)], counted=False)) == []
        await settled(lambda: server.unit.namespace("ns").queues["q"].locked() == 0)
        # The client wants to know: only then does the broker tell, and learn in time, what became of it.
        link.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)
        await client.flush()
        await settled(lambda: ("duobus.settle", "complete") in names(exporter))
        (span,) = [one for one in exporter.get_finished_spans() if one.name == "duobus.settle"]
        assert not span.status.is_ok
        assert "lock" in (span.status.description or "")


@in_loop
async def test_a_send_that_is_refused_is_an_error() -> None:
    async with serving(allow_drills=True) as server:
        exporter = recorded(server)
        client = await connected(server)
        await sent(client, "q", message(CONTEXT))
        server.drills[1].set_mode(FAILING)
        await sent(client, "q", message(CONTEXT))
        good, bad = exporter.get_finished_spans()
        assert good.status.is_ok
        assert not bad.status.is_ok
        assert bad.status.description


@in_loop
async def test_sessions_and_partitions_have_spans_for_each_message() -> None:
    queues = (QueueDescription(name="parted", enable_partitioning=True), QueueDescription(name="gone"))
    async with recording(*queues) as (server, exporter):
        client = await connected(server)
        await sent(client, "parted", *(message(CONTEXT, f"m{number}") for number in range(20)))
        assert len(names(exporter)) == 20
        link, found = await received(client, "parted", 20)
        for delivery_id, _ in found:
            link.settle(delivery_id, delivery_id, ACCEPTED)
        await client.flush()
        await settled(lambda: len(names(exporter)) == 60)
        ids = [str((one.attributes or {})["messaging.message.id"]) for one in exporter.get_finished_spans()]
        assert {one: ids.count(one) for one in ids} == {f"m{number}": 3 for number in range(20)}


@in_loop
async def test_a_link_keeps_the_contexts_of_so_many_deliveries_and_none_of_those_that_are_settled() -> None:
    async with recording() as (server, exporter):
        before, traced_links.KEPT_MAX = traced_links.KEPT_MAX, 3  # type: ignore[misc]
        try:
            client = await connected(server)
            await sent(client, "q", *(message(CONTEXT, f"m{number}") for number in range(5)))
            link, found = await received(client, "q", 5)
            link.settle(found[0][0], found[-1][0], ACCEPTED)
            await client.flush()
            await settled(lambda: server.unit.namespace("ns").queues["q"].numbers()[0][0] == 0)
            assert [word for _, word in names(exporter)].count("complete") == 3
            endpoint = traced_endpoint(server)
            assert (endpoint._kept, endpoint._unanswered) == ({}, {})
        finally:
            traced_links.KEPT_MAX = before  # type: ignore[misc]


@in_loop
async def test_without_the_option_links_are_the_plain_ones() -> None:
    async with serving() as server:
        assert server.amqp.link_kinds is PLAIN
        assert server.spans is None


def test_a_server_without_the_option_loads_nothing_of_opentelemetry() -> None:
    program = (
        "import sys, duobus.server.composition, duobus.server.process, duobus.gateway.amqp.server\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


# -- the collector --------------------------------------------------------------------------------------------------


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP on the loopback interface."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.tokens: list[str | None] = []
        self.is_refusing = False
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.tokens.append(self.headers.get("X-Token"))
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.path == "/v1/traces" and not collector.is_refusing:
                    collector.requests.append(json.loads(body))
                self.send_response(503 if collector.is_refusing else 200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def spans(self) -> list[dict[str, Any]]:
        return [
            span
            for request in self.requests
            for resource in request["resourceSpans"]
            for scope in resource["scopeSpans"]
            for span in scope["spans"]
        ]


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield found
        found.shutdown()
        thread.join()


def used(process: ServerProcess, queue: str = "q", **options: Any) -> None:
    """Send, receive and complete one message with a context, by the SDK."""
    with ServiceBusClient.from_connection_string(process.connection_string) as client:
        with client.get_queue_sender(queue) as sender:
            made = ServiceBusMessage(
                "x", application_properties={"traceparent": PARENT}, message_id="m", session_id="s"
            )
            sender.send_messages([made])
        with client.get_queue_receiver(queue, **options) as receiver:
            (found,) = receiver.receive_messages(1, max_wait_time=10)
            receiver.complete_message(found)


def test_spans_go_to_a_collector_before_a_stop_and_again_after_the_next_start(
    tmp_path: Any, collector: Collector
) -> None:
    arguments = ("--emulator", "--stores", "1", "--otlp-endpoint", collector.url + "/")
    config = queues_config({"q": {}, "sessions": {"RequiresSession": True}})
    process = ServerProcess(tmp_path, config=config, arguments=arguments)
    for queue, options in (("q", {}), ("sessions", {"session_id": "s"})):
        process.start()
        used(process, queue, **options)
        assert process.terminate() == 0
        spans = collector.spans()
        assert sorted(span["name"] for span in spans) == ["duobus.deliver", "duobus.send", "duobus.settle"]
        for span in spans:
            assert (span["traceId"], span["parentSpanId"], span["kind"]) == (TRACE, SPAN, 2)
            assert int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"])
            told = {one["key"]: one["value"] for one in span["attributes"]}
            assert told["messaging.destination.name"] == {"stringValue": queue}
            assert told["messaging.message.id"] == {"stringValue": "m"}
        about = {
            one["key"]: one["value"]["stringValue"]
            for one in collector.requests[0]["resourceSpans"][0]["resource"]["attributes"]
        }
        assert about["service.name"] == "duobus"
        assert "service.version" in about
        collector.requests.clear()


def test_sends_over_http_have_spans_whichever_way_they_come(tmp_path: Any, collector: Collector) -> None:
    arguments = ("--emulator", "--stores", "1", "--allow-drills", "--otlp-endpoint", collector.url)
    with ServerProcess(tmp_path, config=queues_config({"q": {}}), arguments=arguments) as process:
        base = f"http://localhost:{process.ready['http_port']}"
        headers = {"Authorization": token(host=f"localhost:{process.ready['http_port']}"), "traceparent": PARENT}

        def post(body: Any, **more: str) -> int:
            return requests.post(f"{base}/q/messages", body, headers=headers | more, timeout=60).status_code

        assert post(b"plain") == 201
        # In pieces, which the general server reads.
        assert post(iter([b"in ", b"pieces"])) == 201
        batch = json.dumps([{"Body": "a", "UserProperties": {"traceparent": PARENT}}, {"Body": "b"}])
        assert post(batch, **{"Content-Type": "application/vnd.microsoft.servicebus.json"}) == 201
        operate(Remote(process.connection_string, None, None), "POST", "stores/1/fail")
        # 500 where nobody can tell yet whether it is stored.
        assert post(b"refused") in {500, 503}
    codes = [span["status"]["code"] for span in collector.spans()]
    assert sorted(codes) == [0, 0, 0, 2]
    assert {(span["name"], span["parentSpanId"]) for span in collector.spans()} == {("duobus.send", SPAN)}


def test_two_servers_hand_their_spans_to_one_collector(
    tmp_path: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As for every exporter, what the collector asks for beside the spans stands in the environment.
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-token=a%20b, x-other=c")
    arguments = ("--emulator", "--stores", "1", "--otlp-endpoint", collector.url)
    config = queues_config({"q": {}})
    first = ServerProcess(tmp_path / "first", config=config, arguments=arguments)
    second = ServerProcess(tmp_path / "second", config=config, arguments=arguments)
    with first, second:
        used(first)
        used(second)
    assert sorted(span["name"] for span in collector.spans()) == sorted(
        2 * ["duobus.deliver", "duobus.send", "duobus.settle"]
    )
    assert len({span["spanId"] for span in collector.spans()}) == 6
    assert set(collector.tokens) == {"a b"}


def test_a_collector_that_is_away_costs_its_spans_and_nothing_else(tmp_path: Any, collector: Collector) -> None:
    arguments = ("--emulator", "--stores", "1", "--otlp-endpoint", collector.url)
    process = ServerProcess(tmp_path, config=queues_config({"q": {}}), arguments=arguments)
    collector.is_refusing = True
    process.start()
    used(process)
    assert process.terminate() == 0
    assert collector.spans() == []
    assert "spans not delivered" in process.log_tail()


@pytest.mark.parametrize(
    "endpoint", ["collector:1234", "ftp://x", "http://:17", "http://x:99999", "http://me:secret@x:1", ""]
)
def test_an_address_that_is_none_is_refused_without_being_repeated(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="--otlp-endpoint is no address") as caught:
        load_settings(Settings(data=None, ephemeral=True, otlp_endpoint=endpoint))
    assert not endpoint or endpoint not in str(caught.value)
