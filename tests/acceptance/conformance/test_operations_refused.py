"""What each operation of ``$management`` refuses alike: no right, no body, no entity, no time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kit_bus import KEY, LISTEN_ONLY, SEND_ONLY, Bus
from kit_place import Place, ask, send

from duobus.amqp import LinkDetached
from duobus.broker import Queue
from duobus.codec import UInt
from kits.raw_client import RawClient, Refused, token

#: The operations with the right that each needs.
RIGHTS = {
    "renew-lock": "Listen",
    "peek-message": "Listen",
    "receive-by-sequence-number": "Listen",
    "update-disposition": "Listen",
    "schedule-message": "Send",
    "cancel-scheduled-message": "Send",
    "renew-session-lock": "Listen",
    "get-session-state": "Listen",
    "set-session-state": "Listen",
    "get-message-sessions": "Listen",
    "batch-delete-messages": "Listen",
}
#: They belong to subscriptions, which have no node of their own yet.
OF_RULES = ("add-rule", "remove-rule", "enumerate-rules")

every_operation = pytest.mark.parametrize("operation", RIGHTS)


@every_operation
def test_an_operation_needs_its_right(bus: Bus, operation: str) -> None:
    other_rule = SEND_ONLY if RIGHTS[operation] == "Listen" else LISTEN_ONLY
    with RawClient(bus.port) as client:
        assert client.put_token("", token("", rule=other_rule, key=KEY))[0] == 202
        reply = ask(client, operation, {}, queue="queue.1")
    assert (reply.status, reply.condition, reply.body) == (401, "amqp:unauthorized-access", None)
    assert f"'{RIGHTS[operation]}'" in reply.properties["statusDescription"]


@every_operation
def test_an_operation_needs_a_map_as_its_body(place: Place, operation: str) -> None:
    place.create()
    with place.client() as client:
        send(client, b"m")
        for body in (None, "text", [1, 2], b"bytes"):
            assert ask(client, operation, body)[:3] == (400, "com.microsoft:argument-error", None)
        assert place.bodies() == [b"m"]


@pytest.mark.parametrize("operation", OF_RULES)
def test_an_operation_on_rules_is_not_implemented_on_a_queue(place: Place, operation: str) -> None:
    place.create()
    with place.client() as client:
        assert ask(client, operation, {"rule-name": "r"})[:3] == (501, "amqp:not-implemented", None)


def test_a_queue_that_does_not_exist_has_no_management_node(place: Place) -> None:
    with place.client() as client:
        with pytest.raises(Refused) as refused:
            ask(client, "peek-message", {}, queue="nowhere")
        assert refused.value.error.condition == "amqp:not-found"
        # JavaScript and Java know by these words that trying again is useless.
        assert "could not be found" in refused.value.error.description


def test_the_management_node_of_a_queue_that_is_deleted_ends(place: Place) -> None:
    place.create()
    with place.client() as client:
        link = client.receiver("q/$management")
        place.delete()
        assert client.wait(LinkDetached, where=lambda event: event.link is link).error.condition == "amqp:not-found"


def test_an_operation_that_does_not_end_in_the_time_given_is_a_timeout(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def endless(*_arguments: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Queue, "peek", endless)
    place.create()
    with place.client() as client:
        reply = ask(client, "peek-message", {}, **{"com.microsoft:server-timeout": UInt(50)})
        assert (reply.status, reply.condition) == (408, "com.microsoft:timeout")
