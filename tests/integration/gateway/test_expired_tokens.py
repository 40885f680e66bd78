"""A token that has run out ends the links that live on it: those that wait for their answer, too."""

from __future__ import annotations

import uuid

from duobus.amqp import Link, LinkDetached, Source, Target
from duobus.auth.authorizer import Grant
from duobus.codec import Symbol
from duobus.model.descriptions import QueueDescription, Right
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, serving, settled

MINUTE_MS = 60_000
QUEUES = (QueueDescription(name="q"), QueueDescription(name="s", requires_session=True))


class Guest:
    """A client whose rights end in a minute."""

    def __init__(self, server: Server, client: Client) -> None:
        self.server = server
        self.client = client
        (self.peer,) = server.amqp.peers

    @classmethod
    async def arrive(cls, server: Server) -> Guest:
        client = Client(await TcpStream.connect(server.port("amqp") or 0))
        await client.sender("q")
        guest = cls(server, client)
        ends_ms = server.amqp.clock.now_ms() + MINUTE_MS
        # Its login gives nothing any more, so that it lives on its tokens.
        guest.peer.grants.set_login(Grant((), 0, None, "nothing"))
        for name in ("q", "s"):
            grant = Grant((name,), Right.SEND | Right.LISTEN, ends_ms, "guest")
            guest.peer.grants.add(f"sb://localhost/{name}", grant)
        return guest

    def look_after(self, ms: int) -> None:
        """What the server's timer does so much later."""
        clock = self.server.amqp.clock
        self.peer.tick(clock.now_ms() + ms, clock.monotonic_ms())

    async def end_of(self, link: Link) -> str:
        event = await self.client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        return str(event.error.condition)


@in_loop
async def test_a_token_that_has_run_out_ends_senders_and_receivers() -> None:
    async with serving(*QUEUES) as server:
        guest = await Guest.arrive(server)
        links = [await guest.client.sender(), await guest.client.receiver()]
        guest.look_after(MINUTE_MS - 5_000)
        assert len(guest.peer.endpoints()) == 3
        guest.look_after(MINUTE_MS + 5_000)
        assert guest.peer.endpoints() == []
        assert [await guest.end_of(link) for link in links] == ["amqp:unauthorized-access"] * 2


@in_loop
async def test_a_token_that_has_run_out_ends_the_wait_for_a_session() -> None:
    async with serving(*QUEUES) as server:
        guest = await Guest.arrive(server)
        queue = server.amqp.unit.namespace("ns").queues["s"]
        source = Source(address="s", filter={Symbol("com.microsoft:session-filter"): None})
        link = guest.client.session.attach_receiver(uuid.uuid4().hex, source, Target(address="c"))
        await guest.client.flush()
        # Its attach is not answered as long as no session has messages.
        await settled(lambda: queue.acceptor is not None and len(queue.acceptor) == 1)
        guest.look_after(MINUTE_MS + 5_000)
        assert queue.acceptor is not None
        assert len(queue.acceptor) == 0
        assert await guest.end_of(link) == "amqp:unauthorized-access"
