"""What a key may do is found by asking, for a namespace and for a single entity, and changes nothing there."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from azure.servicebus import ServiceBusMessage

from duobus.clock import Clock
from duobus.console.namespace.address import NamespaceAddress
from duobus.console.namespace.client import NamespaceClient, open_namespace
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.rights import Rights
from duobus.model.descriptions import AccessRule, QueueDescription, Right, TopicDescription
from duobus.model.relay.description import HybridConnectionDescription
from kits.console import RULES, broker, connection_string, console_at
from kits.gateway import in_loop

KEY = "own" * 9
CASES = (
    (Right.SEND, Rights(send=True, listen=False, manage=False)),
    (Right.LISTEN, Rights(send=False, listen=True, manage=False)),
    (Right.SEND | Right.LISTEN, Rights(send=True, listen=True, manage=False)),
    (Right.SEND | Right.LISTEN | Right.MANAGE, Rights(send=True, listen=True, manage=True)),
)


def scoped(server: Any, path: str) -> NamespaceAddress:
    port = server.port("amqp")
    return NamespaceAddress(
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=own;SharedAccessKey={KEY};EntityPath={path};"
        "UseDevelopmentEmulator=true;"
    )


async def learned(address: NamespaceAddress) -> NamespaceClient:
    client = await open_namespace(address, None, Clock())
    await client.close()
    return client


@in_loop
@pytest.mark.parametrize(("right", "expected"), CASES)
async def test_a_key_of_one_entity_has_the_rights_of_its_rule(right: int, expected: Rights) -> None:
    rule = AccessRule(name="own", primary_key=KEY, secondary_key=KEY[::-1], rights=int(right))
    queue = QueueDescription(name="shop/orders", authorization_rules=(rule,))
    topic = TopicDescription(name="news", authorization_rules=(rule,))
    async with broker(queue, topics=[topic]) as server:
        for path in ("shop/orders", "news"):
            client = await learned(scoped(server, path))
            assert client.rights == expected
            assert client.entity == path
            assert client.is_duobus


@in_loop
async def test_the_rights_at_a_relay_are_found_without_a_word_to_the_service_behind() -> None:
    keys = [(Right.LISTEN, CASES[1][1]), (Right.SEND | Right.LISTEN | Right.MANAGE, CASES[3][1])]
    async with broker() as server:
        for number, (right, expected) in enumerate(keys):
            rule = AccessRule(name="own", primary_key=KEY, secondary_key=KEY, rights=int(right))
            path = f"relay/{number}"
            relay = HybridConnectionDescription(name=path, authorization_rules=(rule,))
            made = server.unit.relays.create("ns", relay)
            client = await learned(scoped(server, path))
            assert (client.rights, client.is_duobus) == (expected, True)
            assert not server.relays.hub.totals_of(made).statuses
            async with console_at(scoped(server, path).text, right=None) as person:
                assert (await person.sign_in_with_code(scoped(server, path).text)).status == 303
                for page in ("/", "/relays", f"/relay/{path}"):
                    found = await person.get(page)
                    assert found.status in (200, 303), (page, found)
                assert [one["name"] for one in (await person.data("/relays"))["relays"]] == [path]
            assert not server.relays.hub.totals_of(made).statuses


@in_loop
async def test_asking_for_rights_leaves_the_entity_as_it_was() -> None:
    rule = AccessRule(name="own", primary_key=KEY, secondary_key=KEY, rights=int(Right.SEND | Right.LISTEN))
    async with broker(QueueDescription(name="orders", authorization_rules=(rule,))) as server:
        await learned(scoped(server, "orders"))
        manager = await open_namespace(NamespaceAddress(connection_string(server)), None, Clock())
        async with manager.telling("queue orders"):
            found = await manager.administration.get_queue_runtime_properties("orders")
        await manager.close()
        assert (found.total_message_count, found.active_message_count) == (0, 0)


@in_loop
async def test_a_good_key_without_any_right_there_is_told_apart_from_a_wrong_key() -> None:
    rule = AccessRule(name="own", primary_key=KEY, secondary_key=KEY, rights=int(Right.LISTEN))
    async with broker(
        QueueDescription(name="orders", authorization_rules=(rule,)), QueueDescription(name="other")
    ) as server:
        with pytest.raises(NamespaceError) as wrong:
            await learned(scoped(server, "other"))
        assert wrong.value.status in (401, 403)
        assert KEY not in wrong.value.text
        assert wrong.value.tracking_id


@in_loop
async def test_a_namespace_that_does_not_answer_is_told_with_its_address_and_without_the_key() -> None:
    address = NamespaceAddress(
        "Endpoint=sb://127.0.0.1:9;SharedAccessKeyName=a;SharedAccessKey=secret;UseDevelopmentEmulator=true"
    )
    with pytest.raises(NamespaceError) as error:
        await learned(address)
    assert error.value.status == 502
    assert "http://127.0.0.1:9 does not answer" in error.value.text
    assert "secret" not in error.value.text


@in_loop
async def test_a_namespace_with_nothing_but_what_azure_offers_is_no_duobus() -> None:
    """What Azure answers for a path that it does not know: a feed without entries."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(f"{request.method} {request.path}")
        if request.path.endswith("/messages"):
            return web.Response(status=404)
        return web.Response(text="<feed xmlns='http://www.w3.org/2005/Atom'/>", content_type="application/atom+xml")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as served:
        text = (
            f"Endpoint=sb://localhost:{served.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        client = await learned(NamespaceAddress(text))
    assert client.rights.manage
    assert not client.is_duobus
    assert "GET /$duobus/server" in asked


@in_loop
async def test_an_answer_without_an_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duobus.console.namespace.operations.ANSWER_BYTES_MAX", 1_000)

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=b"x" * 5_000)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as served:
        text = (
            f"Endpoint=sb://localhost:{served.port};SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true"
        )
        with pytest.raises(NamespaceError, match="MiB"):
            await learned(NamespaceAddress(text))


@in_loop
async def test_over_tls_the_console_trusts_the_authority_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    async with broker(QueueDescription(name="orders"), data=tmp_path, ephemeral=False, tls_self_signed=True) as server:
        name, key = RULES["manage"]
        text = f"Endpoint=sb://localhost:{server.port('tls')};SharedAccessKeyName={name};SharedAccessKey={key}"
        address = NamespaceAddress(text)
        assert address.url.startswith("https://")
        client = await open_namespace(address, server.authority, Clock())
        assert client.rights.manage
        async with client.telling("queue orders"):
            await client.administration.get_queue("orders")
            async with client.messaging.get_queue_sender("orders") as sender:
                await sender.send_messages(ServiceBusMessage("x"))
        await client.close()
        with pytest.raises(NamespaceError) as error:
            await open_namespace(address, None, Clock())
        assert error.value.status == 502
        assert "certificate" in error.value.text.lower()


@in_loop
async def test_a_request_is_signed_for_no_more_than_the_key_is_for() -> None:
    tokens: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        tokens.append(unquote(request.headers.get("Authorization", "").partition("sr=")[2].partition("&")[0]))
        return web.Response(text="{}")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(application) as served:
        for entity, resource in (("", "/"), ("EntityPath=shop/orders;", "/shop/orders")):
            tokens.clear()
            text = f"Endpoint=sb://localhost:{served.port};SharedAccessKeyName=a;SharedAccessKey=b;{entity}"
            await learned(NamespaceAddress(text + "UseDevelopmentEmulator=true"))
            assert set(tokens) == {f"http://localhost:{served.port}{resource}"}
