"""A server with ``--no-operations`` has over HTTP what Azure has, and nothing else."""

from __future__ import annotations

import re

import pytest

from duobus.model.descriptions import QueueDescription
from duobus.model.options import HttpOptions
from kits.gateway import in_loop, serving
from kits.http_client import Http, entry

OPERATIONS = [
    ("GET", "/$duobus/server"),
    ("GET", "/$duobus/entities"),
    ("GET", "/$duobus/keys"),
    ("GET", "/$duobus/locks?entity=q"),
    ("DELETE", "/$duobus/connections/x"),
    ("POST", "/$duobus/backup"),
    ("POST", "/$duobus/try-rule"),
    ("POST", "/q/$DeadLetterQueue/$desk"),
]


def without_names(text: str) -> str:
    """An error without what differs from one request to the other."""
    return re.sub(r"TrackingId:.*", "", text).replace("$duobus", "$nothing").replace("$desk", "$nothing")


@pytest.mark.parametrize("has_operations", [True, False])
def test_what_azure_does_not_have_is_there_unless_it_is_switched_off(has_operations: bool) -> None:
    @in_loop
    async def scenario() -> None:
        async with serving(QueueDescription(name="q"), http=HttpOptions(operations=has_operations)) as server:
            http = await Http.connect(server.port("http") or 0)
            for method, target in OPERATIONS:
                body = b"{}" if method == "POST" else b""
                reply = await http.ask(method, target, body)
                # An address that means nothing to either.
                strange = target.replace("$duobus", "$nothing").replace("$desk", "$nothing")
                expected = await http.ask(method, strange, body)
                found, strange_text = without_names(reply.text), without_names(expected.text)
                is_as_strange = (reply.status, found) == (expected.status, strange_text)
                assert is_as_strange is not has_operations, (target, reply, expected)
            # Everything else is as before.
            assert (await http.ask("PUT", "/made", entry())).status == 201
            assert (await http.ask("POST", "/made/messages", b"x")).status == 201
            assert (await http.ask("GET", "/health/ready")).status == 200
            assert (await http.ask("GET", "/$namespaceinfo")).status == 200

    scenario()
