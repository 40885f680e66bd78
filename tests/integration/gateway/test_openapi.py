"""The description of the HTTP side holds: whatever is sent to an operation, its answer is one that it names.

Requests are drawn from the description itself, from a fixed seed: values that it allows, and values that mean harm.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from test_token_endpoint import SECRET, token_file

from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from kits.gateway import in_loop, serving
from kits.http_client import Http, entry, token

SPEC = json.loads((Path(__file__).parents[3] / "docs" / "reference" / "openapi.json").read_text())
OPERATIONS = [
    (method.upper(), path, operation)
    for path, methods in SPEC["paths"].items()
    for method, operation in methods.items()
]
#: Those with an answer that has an end.
FINITE = [one for one in OPERATIONS if "text/event-stream" not in one[2]["responses"].get("200", {}).get("content", {})]
#: So many requests are drawn that every kind of answer comes.
REQUESTS_PER_OPERATION = 30
LOGIN = urlencode({"grant_type": "client_credentials", "client_id": "owner", "client_secret": SECRET})
QUEUES = ("q", "a/b", "parted", "off", "sessions")
ODD = [
    "",
    " ",
    "..",
    "%2e%2e",
    "a%00b",
    "%ff",
    "a//b",
    "*",
    "é",
    "$cbs",
    "'",
    '"',
    "<x>",
    "&",
    "9" * 400,
    "-1",
    "NaN",
    "{}",
]
BODIES = [
    b"",
    b"x",
    b"\xff\x00",
    entry().encode(),
    entry("<LockDuration>PT0S</LockDuration>").encode(),
    entry("<EnablePartitioning>true</EnablePartitioning>").encode(),
    entry("<MaxDeliveryCount>99999999999999999999</MaxDeliveryCount>").encode(),
    entry(kind="RuleDescription").encode(),
    entry('<Filter i:type="SqlFilter"><SqlExpression>a = (</SqlExpression></Filter>', "RuleDescription").encode(),
    entry(kind="SubscriptionDescription").encode(),
    entry(kind="TopicDescription").encode(),
    b"<entry><content><a/></content></entry>",
    b"<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
    b"[]",
    b'{"operation":"read","kind":"key","path":"q"}',
    b'{"message":{},"filter":{"sql":"a = 1"}}',
    b'[{"Body":"a"}]',
    b'[{"Body":"a","BrokerProperties":{"SessionId":"s"}},{"UserProperties":{"a":null}}]',
    b"[" * 5_000,
    b"grant_type=client_credentials&client_id=owner&client_secret=x&scope=y",
    f"{LOGIN}&scope=https%3A%2F%2Fservicebus.azure.net%2F.default".encode(),
]
HEADERS = [
    {},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"If-Match": "*"},
    {"Content-Type": "application/vnd.microsoft.servicebus.json"},
    {"BrokerProperties": '{"SessionId":"s"}'},
    {"BrokerProperties": "[1"},
    {"BrokerProperties": '{"TimeToLive":"x"}'},
    {"Custom": '"open'},
    {"Custom": "1e400"},
    {"x-ms-client-request-id": "1"},
    {"Expect": "100-continue"},
    {"Expect": "the worst"},
]


def drawn(chance: random.Random, parameter: dict[str, Any]) -> str:
    """A value of a parameter: mostly one that it may have."""
    name = parameter["name"]
    if chance.random() < 0.15:
        # Without a number the wait would be a minute.
        return chance.choice(ODD[2:] if name == "timeout" else ODD)
    values = {
        "entity": [*QUEUES, "none", "q/$DeadLetterQueue", "t", "t/subscriptions/s", "made", "made/too"],
        "subscription": ["s", "none", "$Default"],
        "rule": ["$Default", "r"],
        "id": ["1", "2", "a/b", "x"],
        "token": ["00000000-0000-0000-0000-000000000001", "none"],
        "timeout": ["0", "0.001"],
        "$filter": ["startswith(path,'q')", "startswith(path, '') eq true", "MessageCount gt 1"],
        "api-version": ["2013-10", "2021-05"],
        "tenant": ["duobus"],
        "resource": ["https://servicebus.azure.net/", "https://storage.azure.com"],
    }
    return chance.choice(values.get(name, ["0", "1", "100"]))


def request_for(chance: random.Random, path: str, operation: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """A target, and headers."""
    query, headers = [], {} if "security" in operation else dict(chance.choice(HEADERS))
    for parameter in operation.get("parameters", []):
        value = drawn(chance, parameter)
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(value, safe="/$%~."))
        elif parameter["in"] == "query" and (chance.random() < 0.5 or parameter["name"] == "timeout"):
            query.append(f"{quote(parameter['name'])}={quote(value, safe='%')}")
        elif parameter["name"] == "X-IDENTITY-HEADER":
            headers["X-IDENTITY-HEADER"] = chance.choice(["", "owner", f"owner:{SECRET}", f"nobody:{SECRET}"])
    if chance.random() < 0.05:
        headers["Authorization"] = chance.choice(["", "x", token(key="wrong"), token("q")])
    return path + ("?" + "&".join(query) if query else ""), headers


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_every_answer_to_any_request_is_one_that_the_description_names(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    queues = [
        QueueDescription(name="q"),
        QueueDescription(name="a/b"),
        QueueDescription(name="parted", enable_partitioning=True),
        QueueDescription(name="off", status="Disabled"),
        QueueDescription(name="sessions", requires_session=True),
    ]
    topic = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="s"),))

    @in_loop
    async def scenario() -> None:
        async with serving(*queues, bearer_tokens=token_file(tmp_path)) as server:
            await server.unit.topics.create_topic("ns", topic)
            http = await Http.connect(server.port("http") or 0)
            seen = set()
            for _ in range(REQUESTS_PER_OPERATION * len(FINITE)):
                method, path, operation = chance.choice(FINITE)
                target, headers = request_for(chance, path, operation)
                body = chance.choice(BODIES) if method in {"PUT", "POST"} else b""
                try:
                    reply = await http.ask(method, target, body, headers)
                except ConnectionError:
                    http = await Http.connect(server.port("http") or 0)
                    continue
                if reply.status == 100:
                    reply = await http.reply()
                # What was drawn may be another address, one without this method.
                named = {int(status) for status in operation["responses"]} | {404, 405, 410}
                if "{tenant}" in path:
                    # Another tenant's address is that of an entity.
                    named |= {400, 401, 403}
                assert reply.status in named - {500}, (method, target, headers, body[:200], reply)
                if reply.status >= 400 and "getEntity" not in operation["operationId"] and "{tenant}" not in path:
                    assert re.match(r"<Error><Code>\d+</Code><Detail>SubCode=\d{5}\. ", reply.text) or reply.status in (
                        400,
                        503,
                    ), reply
                seen.add(reply.status)
                if reply.header("Connection") == "close":
                    http = await Http.connect(server.port("http") or 0)
            assert {200, 201, 204, 400, 401, 404, 410} <= seen

    scenario()


def test_the_description_names_every_operation_of_the_page_about_it() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "http-api.md").read_text()
    rows = re.findall(r"^\| `(GET|PUT|POST|DELETE) (/\S*?)[?` ]", page, re.MULTILINE)
    names = {"{queue}": "{entity}", "{topic}": "{entity}", "{e}": "{entity}", "{lock": "{token}"}
    found = {
        (method, re.sub("{queue}|{topic}|{e}|{lock", lambda match: names[match[0]], path)) for method, path in rows
    }
    described = {(method, path) for method, path, _ in OPERATIONS}
    assert found
    assert found <= described, found - described
