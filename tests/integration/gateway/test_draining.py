"""A drain of more credit than a link asks for at a time."""

from __future__ import annotations

from duobus.amqp import LinkFlow, Transfers
from duobus.gateway.amqp.pacing import ASKED_MAX
from kits.gateway import Client, TcpStream, in_loop, message, serving, settled

MORE = ASKED_MAX + 400


@in_loop
async def test_a_drain_is_answered_after_the_last_message_that_the_credit_brings() -> None:
    async with serving() as server:
        client = Client(await TcpStream.connect(server.port("amqp")))
        link = await client.sender()
        assert link.sendable() >= MORE
        link.send_run(b"prefix..", 1, [b""] * MORE, [message(b"x")] * MORE, True)
        await client.flush()
        fragment = server.unit.namespace("ns").queues["q"].fragments[0].fragment
        assert fragment is not None
        await settled(lambda: fragment.available(0, 0) == MORE)
        receiver = await client.receiver()
        receiver.grant(MORE + 100, drain=True)
        await client.wait(LinkFlow, lambda event: event.link is receiver)
        found = [event for event in client.events if isinstance(event, Transfers) and event.link is receiver]
        assert sum(len(event.payloads) for event in found) == MORE
        assert receiver.credit == 0
