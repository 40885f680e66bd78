"""A key that was taken away ends links that another server carries, and connections between servers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from test_proxied_links import router

from duobus.amqp import ACCEPTED, LinkDetached
from duobus.cluster.directory import Directory
from duobus.server.cluster_server import ClusterServer
from duobus.server.composition import Server
from duobus.storage.catalog_rows import CatalogContents, NamespaceRow
from kits.gateway import Client, in_loop, settled

UNAUTHORIZED = "amqp:unauthorized-access"


def _change_key(server: Server) -> None:
    """Give the namespace's rule other keys, as a server does that reads them in the catalog."""
    namespace = server.amqp.authorizer.namespace_of("localhost")
    name, rule = next(iter(namespace.rules.items()))
    namespace.rules = {name: msgspec.structs.replace(rule, primary_key="K" * 44, secondary_key="L" * 44)}
    server.amqp.rules_changed(namespace.name)


async def _ended(client: Client) -> str:
    event = await client.wait(LinkDetached, lambda event: True)
    assert event.error is not None
    return str(event.error.condition)


@in_loop
async def test_the_owner_ends_what_it_was_passed() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"x") is ACCEPTED
        _change_key(room.owner)
        assert await _ended(room.client) == UNAUTHORIZED
        await settled(lambda: not room.owner.amqp.peers)


@in_loop
async def test_so_does_the_server_that_passes_it_on() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"x") is ACCEPTED
        _change_key(room.first)
        assert await _ended(room.client) == UNAUTHORIZED


@in_loop
async def test_rules_that_another_server_has_written_count_here_as_soon_as_the_catalog_is_read() -> None:
    async with router() as room:
        sender = await room.client.sender("q")
        assert await room.client.send(sender, b"x") is ACCEPTED
        namespace = room.owner.amqp.authorizer.namespace_of("localhost")
        rules = tuple(
            msgspec.structs.replace(rule, primary_key="K" * 44, secondary_key="L" * 44)
            for rule in namespace.rules.values()
        )

        def read(*namespaces: NamespaceRow, revision: int = 5) -> None:
            directory = Directory(CatalogContents(namespaces, (), (), revision=revision))
            catalog = SimpleNamespace(mark=SimpleNamespace(revision=5))
            server: Any = SimpleNamespace(_rules_changed=room.owner.amqp.rules_changed, _catalog=catalog)
            ClusterServer._see_rules(server, room.owner.amqp.authorizer, directory)

        read(NamespaceRow("ns", tuple(namespace.rules.values())), NamespaceRow("unknown", rules))
        assert await room.client.send(sender, b"x") is ACCEPTED
        # This server has changed something since that was read.
        before = dict(namespace.rules)
        read(NamespaceRow("ns", rules), revision=4)
        assert namespace.rules == before
        read(NamespaceRow("ns", rules))
        assert await _ended(room.client) == UNAUTHORIZED
