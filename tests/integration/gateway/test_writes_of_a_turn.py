"""How often a connection is written: once for each message, when there is something to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from duobus.amqp import ACCEPTED, Dispositions
from duobus.gateway.amqp.peer import Peer
from duobus.server.composition import Server
from tests.kits.gateway import Client, TcpStream, in_loop, serving


def only_peer(server: Server) -> Peer:
    (peer,) = server.amqp.peers
    assert isinstance(peer, Peer)
    return peer


@contextmanager
def counted_turns(peer: Peer) -> Iterator[list[None]]:
    """Note each time that the connection asks for the end of a turn."""
    asked: list[None] = []
    write_soon = Peer.write_soon

    def counting(self: Peer) -> None:
        if self is peer:
            asked.append(None)
        write_soon(self)

    with mock.patch.object(Peer, "write_soon", counting):
        yield asked


async def connected(server: Server) -> Client:
    port = server.port("amqp")
    assert port is not None
    return Client(await TcpStream.connect(port))


@in_loop
async def test_a_message_is_written_about_when_it_is_stored_and_not_when_it_is_read() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await client.sender()
        with counted_turns(only_peer(server)) as asked:
            assert await client.send(link, b"one") is ACCEPTED
        assert len(asked) == 1


@in_loop
async def test_a_settlement_is_written_about_when_it_is_stored_and_not_when_it_is_read() -> None:
    async with serving() as server:
        client = await connected(server)
        sender, receiver = await client.sender(), await client.receiver(credit=2)
        await client.send(sender, b"one")
        delivery_id, _ = await client.receive(receiver)
        with counted_turns(only_peer(server)) as asked:
            client.session.disposition(True, delivery_id, delivery_id, ACCEPTED, False)
            await client.wait(Dispositions, lambda event: not event.role)
        assert len(asked) == 1


@in_loop
async def test_what_is_answered_at_once_is_written_in_the_same_turn() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await client.sender()
        # Twice a second a connection writes what was left lying.
        with mock.patch.object(Peer, "tick", return_value=None):
            link.detach()
            while client.engine.link_count:
                await client.pump()
