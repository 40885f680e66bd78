"""A namespace whose every text tries to be more than text: no page runs any of it, and nothing leaves the machine."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlencode

from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.aio import ServiceBusClient

from duobus.ha.sdk import prompt_client
from duobus.model.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
)
from kits.browser import in_browser
from kits.console import address_of, connection_string, console, page_addresses, routes
from kits.hostile_texts import HOSTILE

#: Names of parameters that screens have, and some that they may get.
PARAMETERS = (
    "q",
    "search",
    "filter",
    "sql",
    "json",
    "text",
    "place",
    "number",
    "sort",
    "prefix",
    "session",
    "next",
    "kind",
)
#: Whether a text has left its mark, and the number of headings of the page, which no text may make more.
MARK = "() => [Boolean(window.pwned) || document.cookie.includes('pwned=1'), document.querySelectorAll('h1').length]"


def metadata(number: int) -> str:
    return HOSTILE[number % len(HOSTILE)][:1_000]


def sql_of(text: str) -> str:
    """A filter with a text in it."""
    return "a = '" + "".join(sign for sign in text if sign.isprintable())[:800].replace("'", "''") + "'"


def entities() -> tuple[list[QueueDescription], list[TopicDescription]]:
    queues = [QueueDescription(name="orders", user_metadata=metadata(0))]
    queues += [QueueDescription(name=f"q{number}", user_metadata=metadata(number)) for number in range(len(HOSTILE))]
    subscriptions = tuple(
        SubscriptionDescription(
            name=f"s{number}",
            user_metadata=metadata(number),
            rules=(RuleDescription(name="hostile", filter_type="Sql", sql_filter=sql_of(HOSTILE[number])),),
        )
        for number in range(0, 40)
    )
    return queues, [TopicDescription(name="news", user_metadata=metadata(1), subscriptions=subscriptions)]


async def fill(text: str) -> None:
    """Send every hostile text as body, properties and names of properties, and make dead letters of half of them."""
    async with prompt_client(ServiceBusClient.from_connection_string(text)) as sdk:
        sender = sdk.get_queue_sender("orders")
        async with sender:
            for number, hostile in enumerate(HOSTILE):
                is_json = number % 3 == 0
                await sender.send_messages(
                    ServiceBusMessage(
                        json.dumps({hostile: hostile}) if is_json else hostile,
                        subject=hostile,
                        message_id=hostile[:128],
                        correlation_id=hostile[:100],
                        content_type="application/json" if is_json else ("text/html", "application/xml")[number % 2],
                        reply_to=hostile[:100],
                        to=hostile[:100],
                        application_properties={hostile[:200]: hostile},
                    )
                )
        receiver = sdk.get_queue_receiver("orders", receive_mode=ServiceBusReceiveMode.PEEK_LOCK)
        async with receiver:
            for message in await receiver.receive_messages(max_message_count=60, max_wait_time=5):
                hostile = (message.subject or "")[:1_000]
                await receiver.dead_letter_message(message, reason=hostile, error_description=hostile)


@in_browser
async def test_nothing_in_a_namespace_is_ever_run_and_no_request_leaves_the_machine(page: Any) -> None:
    assert len(set(HOSTILE)) == 200
    queues, topics = entities()
    page.on("dialog", lambda dialog: dialog.dismiss())
    async with console(*queues, topics=topics, right=None) as client:
        await fill(connection_string(client.server))
        await page.goto(f"{client.url}/sign-in#code={client.console.access_code}")
        await page.wait_for_url(f"{client.url}/")
        await client.sign_in()
        addresses = await page_addresses(client, "orders")
        names = [quote(hostile, safe="") for hostile in HOSTILE]
        varying = [route for route in routes(client, "GET") if ":.+}" in route.path]
        named = [address_of(route, names[number]) for number, route in enumerate(varying[::4])]
        asked = [f"{path}?{urlencode(dict.fromkeys(PARAMETERS, HOSTILE[n]))}" for n, path in enumerate(addresses[::3])]
        for address in (*addresses, *named, *asked, f"/{names[0]}", f"/sign-in?next={names[0]}"):
            await page.goto(client.url + address)
            assert await page.evaluate(MARK) == [False, 1], address
