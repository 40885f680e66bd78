"""Tokens, the ``$cbs`` node and attaches as upstream's live tests have them."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest
from sharding_kit import sharded_entities
from test_proxied_links import router

from duobus.amqp import Link, LinkAttached, LinkDetached, Source, Target, Transfers
from duobus.auth import sign_token
from duobus.codec import Described, Int, Symbol, ULong, application_properties, build_message, scan
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.server.settings import EMULATOR_KEY
from kits.gateway import RULE, Client, TcpStream, in_loop, serving

ENTITY_TYPE = "com.microsoft:entity-type"
SELECTOR = "apache.org:selector-filter:string"


class Cbs:
    """The pair of links with ``$cbs``."""

    def __init__(self, client: Client, requests: Link, replies: Link) -> None:
        self.client = client
        self.requests = requests
        self.replies = replies

    @classmethod
    async def of(cls, client: Client) -> Cbs:
        replies = await client.receiver("$cbs", credit=100)
        return cls(client, await client.sender("$cbs"), replies)

    async def put(self, name: str, token: str) -> tuple[int, str, str]:
        """Status, condition and description of the answer to a put-token."""
        properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": name}
        fields = [uuid.uuid4().hex, None, None, None, self.replies.name]
        self.requests.send_one(uuid.uuid4().bytes, build_message(fields, properties, body_value=token), True)
        event = await self.client.wait(Transfers, lambda event: event.link is self.replies)
        payload = event.payloads[0]
        found: dict[str, Any] = application_properties(payload[scan(payload).bare :])
        return found["status-code"], str(found.get("error-condition", "")), found["status-description"]


async def connect(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


def token(path: str = "", key: str = EMULATOR_KEY, life_s: int = 60) -> str:
    return sign_token(f"sb://localhost/{path}", RULE, key, int(time.time()) + life_s)


async def attached(client: Client, link: Link) -> dict[str, Any]:
    """Properties of the answer to an attach."""
    await client.wait(LinkAttached, lambda event: event.link is link)
    assert link.remote is not None
    return {str(key): value for key, value in (link.remote.properties or {}).items()}


async def refusal(client: Client, link: Link) -> tuple[str, str]:
    event = await client.wait(LinkDetached, lambda event: event.link is link)
    assert event.error is not None
    return str(event.error.condition), str(event.error.description)


async def with_topic(server: Server) -> None:
    await server.unit.topics.create_topic("ns", TopicDescription(name="Topic.1"))
    await server.unit.topics.create_subscription("ns", "Topic.1", SubscriptionDescription(name="One"))


#: Audiences, and whether what they name is there.
AUDIENCES = (
    ("q", True),
    ("Q", True),
    ("q/$management", True),
    ("q/$DeadLetterQueue", True),
    ("q/$Transfer/$DeadLetterQueue/$management", True),
    ("topic.1", True),
    ("topic.1/$management", True),
    ("topic.1/Subscriptions/one", True),
    ("topic.1/subscriptions/ONE/$deadletterqueue/$management", True),
    ("", True),
    ("$cbs", True),
    ("coordinator", True),
    ("missing", False),
    ("missing/$management", False),
    ("missing/$DeadLetterQueue", False),
    ("topic.1/Subscriptions/two", False),
    ("missing/Subscriptions/one", False),
    ("q/Subscriptions/one", False),
    ("q/below", False),
    ("no name", False),
    ("no\\name", False),
)


@in_loop
async def test_put_token_for_what_does_not_exist_is_not_found() -> None:
    async with serving() as server:
        await with_topic(server)
        cbs = await Cbs.of(await connect(server))
        for name, is_there in AUDIENCES:
            status, condition, text = await cbs.put(f"sb://localhost:5672/{name}", token())
            if is_there:
                assert (status, condition) == (202, ""), name
            else:
                assert (status, condition) == (404, "amqp:not-found"), name
                assert text.startswith("The messaging entity 'sb://ns/")
                assert "' could not be found." in text
                assert "TrackingId:" in text


@pytest.mark.parametrize(
    "text", [token(key="wrong"), token("another"), token(life_s=-10), "nonsense"], ids=["key", "scope", "time", "form"]
)
def test_who_has_no_good_token_is_not_told_whether_an_entity_exists(text: str) -> None:
    async def test() -> None:
        async with serving() as server:
            cbs = await Cbs.of(await connect(server))
            for name in ("q", "missing"):
                assert (await cbs.put(f"sb://localhost/{name}", text))[:2] == (401, "amqp:unauthorized-access")

    in_loop(test)()


@in_loop
async def test_a_client_that_puts_its_token_again_gets_an_entity_that_was_created_meanwhile() -> None:
    async with serving() as server:
        client = await connect(server)
        cbs = await Cbs.of(client)
        assert (await cbs.put("sb://localhost/later", token("later")))[0] == 404
        await server.unit.create_queue("ns", QueueDescription(name="later"))
        assert (await cbs.put("sb://localhost/later", token("later")))[0] == 202
        assert (await client.sender("later")).sendable()


@in_loop
async def test_nothing_is_kept_of_a_token_for_what_does_not_exist() -> None:
    async with serving() as server:
        client = await connect(server)
        cbs = await Cbs.of(client)
        for number in range(50):
            assert (await cbs.put(f"sb://localhost/missing-{number}", token()))[0] == 404
        (peer,) = server.amqp.peers
        assert len(peer.grants._by_audience) == 0
        assert peer.grants.has_login


@in_loop
async def test_an_expired_token_is_told_in_the_service_s_words() -> None:
    async with serving() as server:
        cbs = await Cbs.of(await connect(server))
        status, _, text = await cbs.put("sb://localhost/q", token(life_s=-10))
        assert status == 401
        assert text.startswith("ExpiredToken: The token is expired. Expiration time: '20")
        assert "Z'." in text


@in_loop
async def test_a_token_for_an_entity_of_another_server_is_taken_and_one_that_nobody_has_is_looked_for_once() -> None:
    async with router() as room:
        cbs = await Cbs.of(room.client)
        assert (await cbs.put("sb://localhost/q", token()))[0] == 202
        assert room.elsewhere.looked == 0
        room.elsewhere.answer = "unknown"
        assert (await cbs.put("sb://localhost/missing", token()))[0] == 404
        assert room.elsewhere.looked == 1
        # Another server has created it, and the catalog says so.
        room.elsewhere.after = f"127.0.0.1:{room.owner.port('amqp')}"
        assert (await cbs.put("sb://localhost/q", token()))[0] == 202
        assert room.elsewhere.looked == 2


@in_loop
async def test_a_token_for_a_queue_that_is_spread_is_taken() -> None:
    async with sharded_entities() as room:
        cbs = await Cbs.of(room.client)
        assert (await cbs.put("sb://localhost/q", token("q")))[0] == 202
        link = await room.client.sender("q")
        assert link.remote is not None
        assert {str(key): value for key, value in (link.remote.properties or {}).items()}[ENTITY_TYPE] == 0


# -- links to $cbs ----------------------------------------------------------------------------------------------------


@in_loop
async def test_a_second_sender_to_cbs_is_refused_until_the_first_is_closed() -> None:
    async with serving() as server:
        client = await connect(server)
        cbs = await Cbs.of(client)
        other = client.engine.begin()
        second = other.attach_sender("second", Source(address="$cbs"), Target(address="$cbs"))
        condition, text = await refusal(client, second)
        assert condition == "amqp:not-allowed"
        assert "$cbs" in text
        # Further links for replies do no harm, and the first goes on.
        assert (await client.receiver("$cbs")).is_attached
        assert (await cbs.put("sb://localhost/q", token()))[0] == 202
        cbs.requests.detach()
        third = other.attach_sender("third", Source(address="$cbs"), Target(address="$cbs"))
        await attached(client, third)
        # Each connection has its own.
        assert (await (await connect(server)).sender("$cbs")).is_attached


# -- attach -----------------------------------------------------------------------------------------------------------


#: Addresses, whether the client sends there, and the kind of the entity.
ADDRESSES = (
    ("q", True, 0),
    ("q", False, 0),
    ("q/$DeadLetterQueue", False, 0),
    ("q/$management", True, 0),
    ("q/$management", False, 0),
    ("sessions", False, 0),
    ("topic.1", True, 1),
    ("topic.1/$management", False, 1),
    ("topic.1/Subscriptions/One", False, 2),
    ("topic.1/Subscriptions/One/$management", True, 2),
)


@in_loop
async def test_the_answer_to_an_attach_says_what_kind_of_entity_it_is() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="sessions", requires_session=True)) as server:
        await with_topic(server)
        client = await connect(server)
        for number, (address, is_sender, kind) in enumerate(ADDRESSES):
            filters = {Symbol("com.microsoft:session-filter"): "s"} if address == "sessions" else None
            here, there = Source(address="c"), Target(address="c")
            link = (
                client.session.attach_sender(f"link-{number}", here, Target(address=address))
                if is_sender
                else client.session.attach_receiver(f"link-{number}", Source(address=address, filter=filters), there)
            )
            found = (await attached(client, link))[ENTITY_TYPE]
            assert (type(found), found) == (Int, kind), address


@pytest.mark.parametrize(
    "filters",
    [
        {Symbol(SELECTOR): "color = 'red'"},
        {Symbol("jms-selector"): Described(ULong(0x0000_468C_0000_0004), "color = 'red'")},
        {Symbol("any"): Described(Symbol(SELECTOR), "color = 'red'")},
    ],
    ids=["key", "code", "name"],
)
def test_a_receiver_with_a_jms_selector_is_refused_and_gets_nothing(filters: dict[Any, Any]) -> None:
    async def test() -> None:
        async with serving() as server:
            client = await connect(server)
            link = client.session.attach_receiver("link", Source(address="q", filter=filters), Target(address="c"))
            condition, text = await refusal(client, link)
            assert condition == "amqp:not-implemented"
            assert "Selectors" in text

    in_loop(test)()


@in_loop
async def test_a_selector_on_an_entity_of_several_servers_is_refused_too() -> None:
    async with sharded_entities() as room:
        filters = {Symbol("jms-selector"): Described(ULong(0x0000_468C_0000_0004), "1 = 1")}
        link = room.client.session.attach_receiver("link", Source(address="q", filter=filters), Target(address="c"))
        assert (await refusal(room.client, link))[0] == "amqp:not-implemented"
