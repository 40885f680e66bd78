"""Work of a transaction on a link that the server has ended a moment ago: nothing is done without it (I34)."""

from __future__ import annotations

from transaction_kit import bodies, condition, coordinator, declare, discharge_message, keyed, outcome, put, send

from duobus.amqp import ACCEPTED, TransactionalState
from duobus.errors import DetachForced
from duobus.gateway.amqp.peer import Peer
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving

ROLLBACK = "amqp:transaction:rollback"


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


def end_links(server: Server, name: str) -> None:
    """End the links of this name; their client does not know it yet."""
    for peer in server.amqp.peers:
        assert isinstance(peer, Peer)
        for link, _ in peer.endpoints():
            if link.name == name:
                peer.detach(link, DetachForced("It moves."), "q")


@in_loop
async def test_what_is_sent_on_a_link_that_was_ended_is_not_left_out_of_a_commit() -> None:
    async with serving() as server:
        client = await connected(server)
        first, second = await client.sender(), await client.sender()
        controller = await coordinator(client)
        txn = await declare(client, controller)
        await send(client, first, txn, b"kept")
        end_links(server, second.name)
        # In one write, before the detach is read.
        put(second, keyed(b"dropped"), TransactionalState(txn), settled=True)
        end = put(controller, discharge_message(txn))
        assert condition(await outcome(client, end)) == ROLLBACK
        assert await bodies(client) == []


@in_loop
async def test_what_is_settled_after_its_link_was_ended_is_not_left_out_of_a_commit() -> None:
    async with serving() as server:
        client = await connected(server)
        sender = await client.sender()
        await client.send(sender, b"input")
        receiver = await client.receiver(credit=1)
        controller = await coordinator(client)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, controller)
        await send(client, sender, txn, b"output")
        end_links(server, receiver.name)
        client.session.disposition(True, delivery, delivery, TransactionalState(txn, ACCEPTED), False)
        end = put(controller, discharge_message(txn))
        assert condition(await outcome(client, end)) == ROLLBACK
