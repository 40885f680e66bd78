"""Fills a server with everything that a store can hold, and says what a client finds in it.

The official SDK, HTTP and frames alone: nothing here depends on how the server is written, so that it runs beside the
package of any commit. ``program_formats.py`` writes data folders with it, ``test_formats_of_commits.py`` reads them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from xml.etree import ElementTree

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusReceivedMessage,
    ServiceBusReceiver,
    ServiceBusSubQueue,
)
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

RULE: Final = "RootManageSharedAccessKey"
KEY: Final = "SAS_KEY_VALUE"
SENDS: Final = ("sends", "a key of the tests that may send")
QUEUE_RULE: Final = ("listens", base64.b64encode(b"a key of one queue of the tests ").decode())
ATOM: Final = "{http://www.w3.org/2005/Atom}"
SERVICE_BUS: Final = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"

QUEUES: Final[dict[str, dict[str, Any]]] = {
    "plain": {"LockDuration": "PT5M", "UserMetadata": "told by Zoë", "MaxDeliveryCount": 7},
    "parted": {"EnablePartitioning": True},
    "expiring": {"DefaultMessageTimeToLive": "PT2H", "DeadLetteringOnMessageExpiration": True},
    "steps": {"RequiresSession": True},
    "parted-steps": {"RequiresSession": True, "EnablePartitioning": True},
    "once": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"},
    "parted-once": {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "P1D",
        "EnablePartitioning": True,
    },
    "large": {"MaxMessageSizeInKilobytes": 102400},
    "idle": {"AutoDeleteOnIdle": "PT6H"},
    "backing-off": {"RedeliveryDelay": "PT5M", "DelayedAbandon": True},
    "closed": {"Status": "ReceiveDisabled"},
    "graves": {"EnablePartitioning": True},
    "end": {"ForwardDeadLetteredMessagesTo": "graves"},
    "middle": {"ForwardTo": "end", "EnablePartitioning": True},
    "way": {"ForwardTo": "middle"},
    "circle": {"ForwardTo": "circle"},
    "copies": {},
    "bought": {},
}
SESSION_QUEUES: Final = {"steps": ("one", "two", "three"), "parted-steps": tuple("abcdef")}


#: What a receiver may be opened on, by what the place is called here.
SUB_QUEUES: Final = {
    "": None,
    "/dead letters": ServiceBusSubQueue.DEAD_LETTER,
    "/transfers": ServiceBusSubQueue.TRANSFER_DEAD_LETTER,
}


def rule_of(name: str, kind: str, action: str | None = None, **filter_: Any) -> dict[str, Any]:
    """A rule, as the configuration has it."""
    properties: dict[str, Any] = {"FilterType": kind, f"{kind}Filter": filter_}
    if action is not None:
        properties["Action"] = {"SqlExpression": action}
    return {"Name": name, "Properties": properties}


TOPICS: Final[list[dict[str, Any]]] = [
    {
        "Name": "news",
        "Properties": {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": "P1D"},
        "Subscriptions": [
            {"Name": "all", "Properties": {"MaxDeliveryCount": 3, "UserMetadata": "everything"}},
            {
                "Name": "acted",
                "Properties": {},
                "Rules": [
                    rule_of(
                        "even",
                        "Sql",
                        "SET sys.Label = 'changed'; SET added = number * 2 + 1; REMOVE color",
                        SqlExpression="number % 2 = 0 AND color LIKE 'r%'",
                    ),
                    rule_of("label", "Correlation", Label="topic 3", Properties={"number": 3}),
                ],
            },
            {"Name": "sessions", "Properties": {"RequiresSession": True}},
            {"Name": "sent-on", "Properties": {"ForwardTo": "copies"}},
            {"Name": "failing", "Properties": {}, "Rules": [rule_of("bad", "Sql", SqlExpression="1 / zero = 1")]},
        ],
    },
    {
        "Name": "parted-news",
        "Properties": {"EnablePartitioning": True},
        "Subscriptions": [{"Name": "first", "Properties": {}}, {"Name": "second", "Properties": {}}],
    },
]
SUBSCRIPTIONS: Final = [
    (topic["Name"], subscription["Name"])
    for topic in TOPICS
    for subscription in topic["Subscriptions"]
    if subscription["Name"] not in ("sessions", "sent-on")
]


def configuration() -> dict[str, Any]:
    """The file for ``duobus serve --config``."""
    rules = [{"KeyName": SENDS[0], "PrimaryKey": SENDS[1], "Rights": ["Send"]}]
    queues = [{"Name": name, "Properties": properties} for name, properties in reversed(QUEUES.items())]
    queues.sort(key=lambda queue: "ForwardTo" in queue["Properties"])
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": TOPICS, "AuthorizationRules": rules}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


class AdminEndpoint:
    """The HTTP side of a server.

    Args:
        url: Such as ``http://localhost:5300``.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def call(self, method: str, path: str, body: bytes | None = None, **headers: str) -> bytes:
        address = f"{self._url}/{path}{'&' if '?' in path else '?'}api-version=2021-05"
        request = urllib.request.Request(address, body, headers, method=method)
        request.add_header("Authorization", token(self._url))
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: bytes = answer.read()
            return found

    def put(self, path: str, kind: str, inner: str) -> None:
        """Create an entity, or a rule."""
        text = (
            f'<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml"><{kind} xmlns="{SERVICE_BUS}"'
            f' xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inner}</{kind}></content></entry>'
        )
        self.call("PUT", path, text.encode(), **{"Content-Type": "application/atom+xml"})

    def entries(self, path: str) -> dict[str, dict[str, str]]:
        """What a feed says of each of its entities: path of the element to its text."""
        feed = ElementTree.fromstring(self.call("GET", f"{path}?$top=100"))
        found: dict[str, dict[str, str]] = {}
        for entry in feed.iter(f"{ATOM}entry"):
            content = entry.find(f"{ATOM}content")
            assert content is not None
            found[str(entry.findtext(f"{ATOM}title"))] = dict(flat(content[0], ""))
        return found


def flat(element: ElementTree.Element, path: str) -> Iterator[tuple[str, str]]:
    """Every text and type of an element, with where it stands."""
    for number, child in enumerate(element):
        name = child.tag.rpartition("}")[2]
        # Of a list, one after the other; of properties, by name.
        inner = f"{path}/{name}" + (f"[{number}]" if path else "")
        for attribute, value in child.attrib.items():
            yield f"{inner}@{attribute.rpartition('}')[2]}", value
        if len(child):
            yield from flat(child, inner)
        else:
            # The server is at another port each time.
            yield inner, re.sub(r"//localhost:\d+", "//localhost", child.text or "")


def token(url: str, rule: str = RULE, key: str = KEY) -> str:
    """A SAS token of an hour."""
    resource = urllib.parse.quote(url, safe="").lower()
    expiry = int(time.time()) + 3600
    signature = hmac.new(key.encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256).digest()
    signed = urllib.parse.quote(base64.b64encode(signature), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signed}&se={expiry}&skn={rule}"


# -- filling ----------------------------------------------------------------------------------------------------------


def fill(client: ServiceBusClient, admin: AdminEndpoint) -> dict[str, Any]:
    """Put everything in; returns what a survey cannot see."""
    numbers = fill_plain(client)
    with client.get_queue_sender("parted") as sender:
        for number in range(12):
            sender.send_messages(ServiceBusMessage(f"parted {number}", partition_key=f"key-{number % 5}"))
    with client.get_queue_sender("expiring") as sender:
        sender.send_messages([text("expiring 0"), text("expiring 1", time_to_live=timedelta(minutes=30))])
    fill_sessions(client)
    for queue in ("once", "parted-once"):
        with client.get_queue_sender(queue) as sender:
            for number in range(6):
                sender.send_messages(ServiceBusMessage(f"{queue} {number}", message_id=f"id-{number}"))
        with client.get_queue_receiver(queue) as receiver:
            # Gone, and still a duplicate when it comes again.
            receiver.complete_message(one(receiver))
    with client.get_queue_sender("large") as sender:
        sender.send_messages(ServiceBusMessage(b"large " * 400_000, message_id="large"))
    with client.get_queue_sender("backing-off") as sender:
        sender.send_messages([text("backing off"), text("behind it")])
    with client.get_queue_receiver("backing-off") as receiver:
        receiver.abandon_message(one(receiver))
    for queue in ("closed", "idle"):
        with client.get_queue_sender(queue) as sender:
            sender.send_messages(text(queue))
    fill_ways(client)
    fill_topics(client, admin)
    return numbers


def text(body: str, **about: Any) -> ServiceBusMessage:
    return ServiceBusMessage(body, message_id=f"id of {body}"[:100], **about)


def one(receiver: ServiceBusReceiver) -> ServiceBusReceivedMessage:
    """The next message."""
    (message,) = receiver.receive_messages(1, max_wait_time=10)
    return message


def fill_plain(client: ServiceBusClient) -> dict[str, Any]:
    rich = ServiceBusMessage(
        b"rich",
        message_id="rich",
        correlation_id="correlation",
        subject="subject",
        to="to",
        reply_to="reply-to",
        reply_to_session_id="reply-session",
        content_type="text/plain",
        partition_key="key",
        time_to_live=timedelta(hours=5),
        application_properties={
            "text": "Zoë 🚌",
            "int": 7,
            "float": 2.5,
            "bool": True,
            "bytes": b"bytes",
            "uuid": uuid.UUID(int=5),
            "time": datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC),
            "none": None,
        },
    )
    sequence = AmqpAnnotatedMessage(
        sequence_body=[[1, "two", b"three"], ["four"]],
        header=AmqpMessageHeader(durable=True, priority=3),
        properties=AmqpMessageProperties(message_id="sequence", user_id=b"somebody", group_sequence=4),
        footer={"foot": "er"},
        annotations={"x-own": 5},
        delivery_annotations={"gone": 1},
    )
    value = AmqpAnnotatedMessage(
        value_body={"key": [1, 2.5, None, "text"]}, properties=AmqpMessageProperties(message_id="value")
    )
    with client.get_queue_sender("plain") as sender:
        sender.send_messages([text(f"plain {number}") for number in range(10)])
        sender.send_messages(rich)
        sender.send_messages(sequence)
        sender.send_messages(value)
        now = datetime.now(UTC)
        soon = sender.schedule_messages([text("soon"), text("called off")], now + timedelta(hours=1))
        later = sender.schedule_messages(text("later"), now + timedelta(days=30))
    with client.get_queue_receiver("plain") as receiver:
        first = receiver.receive_messages(6, max_wait_time=10)
        while len(first) < 6:
            first += receiver.receive_messages(6 - len(first), max_wait_time=10)
        receiver.complete_message(first[0])
        receiver.defer_message(first[1])
        receiver.defer_message(first[2])
        receiver.dead_letter_message(first[3], reason="a reason", error_description="and why")
        receiver.dead_letter_message(first[4])
        receiver.abandon_message(first[5])
        # Locked when the server ends.
        one(receiver)
    return {"deferred": [first[1].sequence_number, first[2].sequence_number], "soon": soon, "later": later}


def fill_sessions(client: ServiceBusClient) -> None:
    for queue, sessions in SESSION_QUEUES.items():
        with client.get_queue_sender(queue) as sender:
            for number in range(3):
                for name in sessions:
                    sender.send_messages(text(f"{queue} {name} {number}", session_id=name))
        for name in sessions[1:]:
            with client.get_queue_receiver(queue, session_id=name) as receiver:
                receiver.session.set_state(f"state of {name}".encode())
                if name == sessions[1]:
                    receiver.defer_message(one(receiver))
                    receiver.complete_message(one(receiver))
        # A state alone, without any message.
        with client.get_queue_receiver(queue, session_id="empty") as receiver:
            receiver.session.set_state(b"state alone")


def fill_ways(client: ServiceBusClient) -> None:
    with client.get_queue_sender("way") as sender:
        for number in range(4):
            sender.send_messages(text(f"way {number}", application_properties={"number": number}))
    with client.get_queue_receiver("end") as receiver:
        found: list[ServiceBusReceivedMessage] = []
        while len(found) < 4:
            found += receiver.receive_messages(4 - len(found), max_wait_time=10)
        receiver.dead_letter_message(found[0], reason="buried")
        for message in found[1:]:
            receiver.abandon_message(message)
    with client.get_queue_sender("circle") as sender:
        sender.send_messages(text("round and round"))
    with client.get_queue_receiver("graves") as receiver:
        receiver.abandon_message(one(receiver))
    with client.get_queue_receiver("circle", sub_queue=ServiceBusSubQueue.TRANSFER_DEAD_LETTER) as receiver:
        receiver.abandon_message(one(receiver))


def fill_topics(client: ServiceBusClient, admin: AdminEndpoint) -> None:
    listens = (
        f'<AuthorizationRules><AuthorizationRule i:type="SharedAccessAuthorizationRule"><ClaimType>SharedAccessKey'
        f"</ClaimType><ClaimValue>None</ClaimValue><Rights><AccessRights>Listen</AccessRights></Rights><KeyName>"
        f"{QUEUE_RULE[0]}</KeyName><PrimaryKey>{QUEUE_RULE[1]}</PrimaryKey>"
        f"</AuthorizationRule></AuthorizationRules>"
    )
    admin.put("made", "QueueDescription", f"<LockDuration>PT2M</LockDuration>{listens}")
    admin.put("news/subscriptions/made", "SubscriptionDescription", "<MaxDeliveryCount>4</MaxDeliveryCount>")
    admin.put(
        "news/subscriptions/made/rules/typed",
        "RuleDescription",
        '<Filter i:type="CorrelationFilter"><Label>topic 4</Label><Properties><KeyValueOfstringanyType>'
        '<Key>number</Key><Value xmlns:d="http://www.w3.org/2001/XMLSchema" i:type="d:int">4</Value>'
        "</KeyValueOfstringanyType></Properties></Filter>",
    )
    admin.call("DELETE", "news/subscriptions/made/rules/$Default")
    with client.get_topic_sender("news") as sender:
        for number in range(6):
            about = {"number": number, "color": "red" if number < 4 else "blue", "zero": 0}
            sender.send_messages(
                text(
                    f"news {number}",
                    subject=f"topic {number}",
                    session_id=f"s{number % 2}",
                    application_properties=about,
                )
            )
        # The copies share one body.
        sender.send_messages(text("b" * 9000, session_id="s0", application_properties={"number": 100, "zero": 0}))
    with client.get_subscription_receiver("news", "all") as receiver:
        receiver.dead_letter_message(one(receiver), reason="from a subscription")
        receiver.defer_message(one(receiver))
    with client.get_topic_sender("parted-news") as sender:
        for number in range(8):
            sender.send_messages(text(f"parted news {number}", partition_key=f"key-{number % 3}"))
        sender.schedule_messages(text("parted news later"), datetime.now(UTC) + timedelta(days=1))
    with client.get_queue_receiver("copies") as receiver:
        found: list[ServiceBusReceivedMessage] = []
        while len(found) < 7:
            found += receiver.receive_messages(7 - len(found), max_wait_time=10)
        for message in found:
            receiver.abandon_message(message)
    with client.get_queue_sender("made") as sender:
        sender.send_messages(text("made"))


# -- looking ----------------------------------------------------------------------------------------------------------


def survey(client: ServiceBusClient, admin: AdminEndpoint) -> dict[str, Any]:
    """Everything that a client finds, without changing any of it."""
    found: dict[str, Any] = {"entities": entities(admin), "messages": {}, "states": {}}
    places = found["messages"]
    for queue in (*QUEUES, "made"):
        if queue in ("idle", "closed"):
            continue
        for place, sub_queue in SUB_QUEUES.items():
            # A session has to be accepted, and what is sent on cannot be received.
            if sub_queue is None and (queue in SESSION_QUEUES or "ForwardTo" in QUEUES.get(queue, {})):
                continue
            with client.get_queue_receiver(queue, sub_queue=sub_queue) as receiver:
                places[f"{queue}{place}"] = peeked(receiver)
    for queue, sessions in SESSION_QUEUES.items():
        for name in (*sessions, "empty"):
            with client.get_queue_receiver(queue, session_id=name) as receiver:
                places[f"{queue}/{name}"] = peeked(receiver)
                found["states"][f"{queue}/{name}"] = repr(receiver.session.get_state())
    for topic, name in [*SUBSCRIPTIONS, ("news", "made")]:
        for place, sub_queue in SUB_QUEUES.items():
            with client.get_subscription_receiver(topic, name, sub_queue=sub_queue) as receiver:
                places[f"{topic}/{name}{place}"] = peeked(receiver)
    for name in ("s0", "s1"):
        with client.get_subscription_receiver("news", "sessions", session_id=name) as receiver:
            places[f"news/sessions/{name}"] = peeked(receiver)
    return found


def entities(admin: AdminEndpoint) -> dict[str, dict[str, str]]:
    """Descriptions and counts of everything, without what changes by itself."""
    found = {f"queue {name}": about for name, about in admin.entries("$Resources/Queues").items()}
    for topic, about in admin.entries("$Resources/Topics").items():
        found[f"topic {topic}"] = about
        for subscription, inner in admin.entries(f"{topic}/subscriptions").items():
            found[f"subscription {topic}/{subscription}"] = inner
            for rule, most in admin.entries(f"{topic}/subscriptions/{subscription}/rules").items():
                found[f"rule {topic}/{subscription}/{rule}"] = most
    for about in found.values():
        about.pop("/AccessedAt", None)
    return found


def peeked(receiver: ServiceBusReceiver) -> list[dict[str, Any]]:
    """Every message of a place."""
    found = []
    while batch := receiver.peek_messages(100, sequence_number=found[-1].sequence_number + 1 if found else 1):
        found += batch
        if len({message.sequence_number >> 48 for message in found}) > 1:
            break
    return [described(message) for message in found]


def described(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """What there is to know of a message."""
    raw = message.raw_amqp_message
    header = raw.header
    body = [bytes(part) if isinstance(part, memoryview) else part for part in raw.body] if raw.body else raw.body
    written = repr(body)
    if len(written) > 10_000:
        written = f"{len(written)} characters, {hashlib.sha256(written.encode()).hexdigest()}"
    members = {
        name: repr(getattr(message, name))
        for name in (
            "sequence_number",
            "enqueued_time_utc",
            "expires_at_utc",
            "scheduled_enqueue_time_utc",
            "time_to_live",
            "message_id",
            "correlation_id",
            "session_id",
            "partition_key",
            "reply_to",
            "reply_to_session_id",
            "to",
            "subject",
            "content_type",
            "delivery_count",
            "state",
            "dead_letter_source",
            "dead_letter_reason",
            "dead_letter_error_description",
            "application_properties",
        )
    }
    members["body"] = written
    # Of a message that was not sent on, versions said so or left it out; and so with what a header says by default.
    members["enqueued_sequence_number"] = repr(message.enqueued_sequence_number or message.sequence_number)
    members["priority"] = repr(header and header.priority)
    properties = raw.properties
    members["more"] = repr(properties and (properties.user_id, properties.group_sequence, properties.content_encoding))
    annotations = {str(key): value for key, value in (raw.annotations or {}).items()}
    annotations.pop("b'x-opt-enqueue-sequence-number'", None)
    members["annotations"] = repr(sorted(annotations.items()))
    members["footer"] = repr(raw.footer)
    return members


@contextmanager
def client_of(connection_string: str) -> Iterator[ServiceBusClient]:
    with ServiceBusClient.from_connection_string(connection_string, retry_total=0) as client:
        yield client
