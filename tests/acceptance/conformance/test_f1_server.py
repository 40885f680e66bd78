"""Items 15, 20 and 21 of docs/reference/http-coverage.md: HTTP beside AMQP, the emulator's sample, rules."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from kit_admin import Admin
from kit_bus import Bus
from kit_f1 import ask
from kit_sdk import Sdk, within_the_limit

from duobus.codec import build_message
from duobus.errors import ConfigurationError
from duobus.gateway.rest.server import RestServer
from duobus.model.descriptions import RuleDescription
from duobus.model.topology.config_file import parse_config
from duobus.rules import RuleSet, compile_rule
from duobus.telemetry.metrics import Metrics
from duobus.testing.server import ServerProcess

FIELDS = {
    "message_id": ("MessageId", "m/1"),
    "subject": ("Label", "a label ü"),
    "correlation_id": ("CorrelationId", "c"),
    "to": ("To", "t"),
    "reply_to": ("ReplyTo", "r"),
    "session_id": ("SessionId", "s"),
    "reply_to_session_id": ("ReplyToSessionId", "rs"),
}
PROPERTIES: dict[str, Any] = {"Text": "x ü", "Number": 1 << 30, "Real": 1.5, "Flag": True}


@pytest.fixture(params=["sync", "asyncio"])
def admin(request: pytest.FixtureRequest, bus: Bus) -> Admin:
    return Admin(request.param, bus)


@within_the_limit
async def test_f1_15_every_mapped_field_is_the_same_over_http_and_amqp(admin: Admin, sdk: Sdk) -> None:
    queue = admin.bus.queue()
    async with sdk.client(admin.bus.connection_string) as client:
        async with client.sender(queue) as sender:
            given = {name: value for name, (_, value) in FIELDS.items()}
            message = ServiceBusMessage(b"\x00body", content_type="text/x", application_properties=PROPERTIES, **given)
            await sender.send_messages(message)
        status, headers, body = ask(admin, "DELETE", f"/{queue}/messages/head?timeout=5")
        found = dict(headers)
        about = json.loads(found["BrokerProperties"])
        assert (status, body, found["Content-Type"]) == (200, b"\x00body", "text/x")
        assert {name: about[name] for name, _ in FIELDS.values()} == dict(FIELDS.values())
        assert {name: found[name] for name in PROPERTIES} == {
            "Text": '"x \\u00fc"',
            "Number": str(1 << 30),
            "Real": "1.5",
            "Flag": "true",
        }
        sent = {
            "BrokerProperties": json.dumps({**dict(FIELDS.values()), "TimeToLive": 30}),
            "Content-Type": "text/x",
            **{name: found[name] for name in PROPERTIES},
        }
        assert ask(admin, "POST", f"/{queue}/messages", b"\x00back", sent)[0] == 201
        async with client.receiver(queue) as receiver:
            (got,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
            assert b"".join(got.body) == b"\x00back"
            assert {name: getattr(got, name) for name in FIELDS} == given
            assert (got.content_type, got.time_to_live.total_seconds()) == ("text/x", 30)
            properties = {key.decode(): value for key, value in got.application_properties.items()}
            plain = {key: value.decode() if isinstance(value, bytes) else value for key, value in properties.items()}
            assert plain == PROPERTIES
            await receiver.complete_message(got)


#: The shape of what the emulator's installer ships, comments and all.
SAMPLE = """
{
  "UserConfig": {
    "Namespaces": [
      {
        "Name": "sbemulatorns", // the only one
        "Queues": [
          {
            "Name": "queue.1",
            "Properties": {
              "DeadLetteringOnMessageExpiration": false, "DefaultMessageTimeToLive": "PT1H",
              "DuplicateDetectionHistoryTimeWindow": "PT20S", "ForwardDeadLetteredMessagesTo": "", "ForwardTo": "",
              "LockDuration": "PT1M", "MaxDeliveryCount": 3, "RequiresDuplicateDetection": false,
              "RequiresSession": false
            }
          }
        ],
        "Topics": [
          {
            "Name": "topic.1",
            "Properties": {
              "DefaultMessageTimeToLive": "PT1H", "DuplicateDetectionHistoryTimeWindow": "PT20S",
              "RequiresDuplicateDetection": false
            },
            /* four of them */
            "Subscriptions": [
              {"Name": "subscription.1", "Properties": {"LockDuration": "PT1M", "MaxDeliveryCount": 3}, "Rules": [
                {"Name": "app-prop-filter-1", "Properties": {"FilterType": "Correlation",
                  "CorrelationFilter": {"ContentType": "application/json"}}}]},
              {"Name": "subscription.2", "Rules": [
                {"Name": "user-prop-filter-1", "Properties": {"FilterType": "Correlation",
                  "CorrelationFilter": {"Properties": {"prop1": "value1"}}}}]},
              {"Name": "subscription.3"},
              {"Name": "subscription.4", "Rules": [
                {"Name": "sql-filter-1", "Properties": {"FilterType": "Sql",
                  "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
                  "Action": {"SqlExpression": "SET sys.To = 'Entity'"}}}]},
            ]
          }
        ]
      }
    ],
    "Logging": {"Type": "File"}
  }
}
"""


@pytest.mark.slow
def test_f1_20_the_sample_of_the_emulator_starts_and_its_rules_hold(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(SAMPLE)
    with ServerProcess(tmp_path / "server", config=config, arguments=("--emulator",)) as process:
        admin = Admin("sync", SimpleNamespace(process=process))  # type: ignore[arg-type]
        status, _, body = ask(admin, "GET", "/health", b"", {"Authorization": ""})
        told = json.loads(body)
        assert (status, told["status"], told["message"]) == (200, "healthy", "Service is healthy.")
        for headers in (
            {"Content-Type": "application/json"},
            {"prop1": '"value1"'},
            {"BrokerProperties": '{"MessageId":"123456"}', "userProp1": '"value1"'},
        ):
            assert ask(admin, "POST", "/topic.1/messages", b"x", {"Content-Type": "text/x", **headers})[0] == 201
        counts = []
        for number in range(1, 5):
            received = []
            while True:
                where = f"/topic.1/subscriptions/subscription.{number}/messages/head?timeout=0"
                status, headers, _ = ask(admin, "DELETE", where)
                if status == 204:
                    break
                received.append(json.loads(dict(headers)["BrokerProperties"]).get("To"))
            counts.append(received)
        assert counts == [[None], [None], [None, None, None], ["Entity"]]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        (
            '"PT1M", "MaxDeliveryCount": 3, "Req',
            '"soon", "MaxDeliveryCount": 3, "Req',
            "Queues[0].Properties.LockDuration",
        ),
        ('"MaxDeliveryCount": 3, "Req', '"MaxDeliveryCount": "x", "Req', "Queues[0].Properties.MaxDeliveryCount"),
        ('"Name": "queue.1"', '"Name": "a b"', "Queues[0]"),
        ('"FilterType": "Sql"', '"FilterType": "Other"', "Topics[0].Subscriptions[3].Rules[0]"),
    ],
)
def test_f1_20_a_mistake_in_the_sample_is_told_with_its_path(old: str, new: str, path: str) -> None:
    assert old in SAMPLE
    with pytest.raises(ConfigurationError) as caught:
        parse_config(SAMPLE.replace(old, new))
    assert path in str(caught.value)


def test_f1_20_health_is_503_before_the_server_is_ready() -> None:
    unit: Any = SimpleNamespace(brokers={0: SimpleNamespace(state="open", is_late=False, is_stalled=False)})

    async def scenario() -> tuple[int, dict[str, str]]:
        rest_server = RestServer(unit, Metrics(tuple), lambda: False)
        server = await asyncio.get_running_loop().create_server(await rest_server.open(), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        try:
            writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            return int(head.split()[1]), json.loads(body)
        finally:
            writer.close()
            server.close()
            await rest_server.close()

    status, told = asyncio.run(scenario())
    assert (status, told["status"]) == (503, "unhealthy")
    assert told["message"] == "Service not available. Please try after some time."


def test_f1_21_the_vectors_of_the_contract_hold() -> None:
    from duobus.errors import ArgumentInvalid
    from kits.rules import PARAMETERS, VECTOR_MESSAGE, VECTORS, verdict

    assert len(VECTORS) == 44
    for sql, expected in VECTORS:
        if expected == "refused":
            with pytest.raises(ArgumentInvalid):
                verdict(sql, VECTOR_MESSAGE, PARAMETERS)
        else:
            assert verdict(sql, VECTOR_MESSAGE, PARAMETERS) == expected, sql


@pytest.mark.slow
def test_f1_21_two_thousand_sql_and_a_hundred_thousand_correlation_rules_can_be_published_to() -> None:
    def correlation(number: int) -> RuleDescription:
        members = {"Properties": {"colour": f"c{number}"}}
        return RuleDescription(name=f"c{number}", filter_type="Correlation", correlation_filter=members)

    found = RuleSet({}, new_id=lambda: None)  # type: ignore[arg-type,return-value]
    for source in range(1, 101):
        texts = [f"size = {source * 20 + number}" for number in range(20)]
        rules = [
            compile_rule(RuleDescription(name=f"s{n}", filter_type="Sql", sql_filter=text))
            for n, text in enumerate(texts)
        ]
        rules += [compile_rule(correlation(source * 1000 + number)) for number in range(1000)]
        found.put(source, rules)
    messages = [build_message([f"m{n}"], {"colour": f"c{50_000 + n}", "size": n}, data=b"x") for n in range(200)]
    started = time.process_time()
    taken = [len(found.match_payload(payload, None, None, None).sources) for payload in messages]
    seconds = time.process_time() - started
    assert min(taken) >= 1
    # A SQL filter takes a microsecond or less; correlation filters are looked up, however many there are.
    assert seconds / len(messages) < 0.02
