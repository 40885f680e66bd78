"""What the part ``fanout`` publishes, and which copies have to come out where and how they look.

The rules are written twice: in SQL for the broker, and in Python beside it. The verdict uses the Python only, so that
a mistake in the broker's evaluation shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from duobus_demo.corpus import DIGEST_PROPERTY, Outgoing, digest_of

TOPIC = "library"
#: The queue at the end of the hop.
END = "end"

#: The user property by which a changed copy names its rule (Azure: SQL rule action syntax).
RULE_NAME = "RuleName"

#: Messages, and bytes of one: the part is to take seconds.
MESSAGES_MAX = 480
MESSAGE_BYTES_MAX = 20_000

#: Divides the files into small and large ones.
_LARGE = 5_000
_COLOURS = ("red", "green", "blue", "grey")

#: A receiver that breaks may leave locks behind; kills must not send copies to the dead-letter queue.
_PROPERTIES = {"LockDuration": "PT10S", "MaxDeliveryCount": 1000, "DefaultMessageTimeToLive": "PT1H"}


class ExpectedCopy(NamedTuple):
    """All of a message that the verdict compares.

    Attributes:
        digest: Of the body.
        subject: The label.
        partition_key: None where the placement is left to the broker.
        properties: Application properties.
    """

    digest: str
    subject: str | None
    partition_key: str | None
    properties: Mapping[str, Any]

    def difference(self, other: ExpectedCopy) -> str:
        """Name what differs, empty when nothing does; 1 and 1.0 and True are not the same here."""
        if self.digest != other.digest:
            return "its body differs"
        if (self.subject, self.partition_key) != (other.subject, other.partition_key):
            return "its subject or partition key differs"
        mine, others = (
            {(name, type(value), value) for name, value in look.properties.items()} for look in (self, other)
        )
        differing = sorted({name for name, *_ in mine ^ others})
        return f"its application properties differ: {', '.join(differing)}" if differing else ""


class Copy(NamedTuple):
    """One copy of a message at one receive path.

    Attributes:
        message_id: Of the message.
        rule: The rule whose action made it; empty for the copy that is as published.
    """

    message_id: str
    rule: str = ""


class Rule(NamedTuple):
    """A rule for the broker, and what it means.

    Attributes:
        name: Of the rule.
        condition: The properties of the configuration that are its filter.
        takes: Whether it takes a message that looks so.
        action: SQL, or empty.
        changes: What the action makes of a message, apart from RULE_NAME.
    """

    name: str
    condition: Mapping[str, Any]
    takes: Callable[[ExpectedCopy], bool]
    action: str = ""
    changes: Callable[[ExpectedCopy], ExpectedCopy] | None = None

    def configured(self) -> dict[str, Any]:
        """As the configuration has it (the emulator's documentation)."""
        action = {"Action": {"SqlExpression": self.action}} if self.action else {}
        return {"Name": self.name, "Properties": {**self.condition, **action}}


class Subscription(NamedTuple):
    """A subscription; without rules it takes everything.

    Attributes:
        name: Of the subscription.
        rules: Its rules.
        forward_to: Queue to which its copies go on, or empty.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    forward_to: str = ""

    @property
    def receive_path(self) -> str:
        """Where its copies come out."""
        return self.forward_to or self.name

    def copies(self, message_id: str, look: ExpectedCopy) -> dict[Copy, ExpectedCopy]:
        """The copies that it has to get: one for all rules without action, one of its own for each other."""
        taking = [rule for rule in self.rules if rule.takes(look)]
        found: dict[Copy, ExpectedCopy] = {}
        if not self.rules or any(rule.changes is None for rule in taking):
            found[Copy(message_id)] = look
        for rule in taking:
            if rule.changes is not None:
                changed = rule.changes(look)
                named = {**changed.properties, RULE_NAME: rule.name}
                found[Copy(message_id, rule.name)] = changed._replace(properties=named)
        return found

    def configured(self) -> dict[str, Any]:
        """As the configuration has it."""
        forward = {"ForwardTo": self.forward_to} if self.forward_to else {}
        rules = [rule.configured() for rule in self.rules]
        return {"Name": self.name, "Properties": {**_PROPERTIES, **forward}, **({"Rules": rules} if rules else {})}


def _sql(expression: str) -> dict[str, Any]:
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}


def _third(look: ExpectedCopy) -> bool:
    return bool(look.properties["number"] % 3 == 0)


def _marked(look: ExpectedCopy) -> ExpectedCopy:
    changed = {**look.properties, "colour": "marked", "number": look.properties["number"] + 1000}
    del changed["size"]
    return look._replace(subject="marked", properties=changed)


def _hopped(look: ExpectedCopy) -> ExpectedCopy:
    weight = look.properties["weight"] * 2
    return look._replace(properties={**look.properties, "weight": weight, "way": look.properties["colour"] + "-hop"})


SUBSCRIPTIONS = (
    Subscription("everything"),
    # Two rules that overlap, and give one copy.
    Subscription(
        "red-or-large",
        (
            Rule("red", _sql("colour = 'red'"), lambda look: look.properties["colour"] == "red"),
            Rule("large", _sql(f"size >= {_LARGE}"), lambda look: look.properties["size"] >= _LARGE),
        ),
    ),
    # A property that not every message has, and one of the system's.
    Subscription(
        "packaged",
        (
            Rule(
                "packaged",
                _sql("EXISTS(package) AND package NOT LIKE 'test%' AND sys.Label IN ('even', 'odd')"),
                lambda look: not look.properties.get("package", "test").startswith("test"),
            ),
        ),
    ),
    Subscription(
        "odd-grey",
        (
            Rule(
                "odd-grey",
                {"FilterType": "Correlation", "CorrelationFilter": {"Label": "odd", "Properties": {"colour": "grey"}}},
                lambda look: look.subject == "odd" and look.properties["colour"] == "grey",
            ),
        ),
    ),
    # A message that both rules take comes twice: as it was, and changed.
    Subscription(
        "marked",
        (
            Rule("green", _sql("colour = 'green'"), lambda look: look.properties["colour"] == "green"),
            Rule(
                "mark",
                _sql("number % 3 = 0"),
                _third,
                "SET colour = 'marked'; SET number = number + 1000; SET sys.Label = 'marked'; REMOVE size",
                _marked,
            ),
        ),
    ),
    Subscription(
        "hop",
        (
            Rule(
                "small",
                _sql(f"size < {_LARGE}"),
                lambda look: look.properties["size"] < _LARGE,
                "SET weight = weight * 2; SET way = colour + '-hop'",
                _hopped,
            ),
        ),
        forward_to=END,
    ),
)

RECEIVE_PATHS = tuple(subscription.receive_path for subscription in SUBSCRIPTIONS)


def fanout_config() -> dict[str, Any]:
    """Return the contents of the broker's configuration file."""
    topic = {
        "Name": TOPIC,
        "Properties": {"EnablePartitioning": True, "DefaultMessageTimeToLive": "PT1H"},
        "Subscriptions": [subscription.configured() for subscription in SUBSCRIPTIONS],
    }
    queue = {"Name": END, "Properties": {**_PROPERTIES, "EnablePartitioning": True}}
    namespace = {"Name": "sbemulatorns", "Queues": [queue], "Topics": [topic]}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def chosen(messages: Iterable[Outgoing]) -> list[Outgoing]:
    """Take as many of the library's files as the part publishes."""
    found: list[Outgoing] = []
    for message in messages:
        body = message.read()
        if len(body) <= MESSAGE_BYTES_MAX:
            found.append(Outgoing(message.message_id, partition_key=message.partition_key, body=body))
            if len(found) == MESSAGES_MAX:
                break
    return found


def looks_of(messages: Iterable[Outgoing]) -> dict[str, ExpectedCopy]:
    """Return how each message is published, by message id."""
    looks: dict[str, ExpectedCopy] = {}
    for number, message in enumerate(messages):
        body = message.read()
        digest = digest_of(body)
        properties: dict[str, Any] = {
            DIGEST_PROPERTY: digest,
            "number": number,
            "size": len(body),
            # Not in step with odd and even.
            "colour": _COLOURS[number // 2 % len(_COLOURS)],
            "weight": number + 0.5,
        }
        package, slash, _ = message.message_id.partition("/")
        if slash:
            properties["package"] = package
        looks[message.message_id] = ExpectedCopy(
            digest, "odd" if number % 2 else "even", message.partition_key, properties
        )
    return looks


def expected_of(looks: Mapping[str, ExpectedCopy]) -> dict[str, dict[Copy, ExpectedCopy]]:
    """Return the copies that each receive path has to hand out, with their looks."""
    expected: dict[str, dict[Copy, ExpectedCopy]] = {}
    for subscription in SUBSCRIPTIONS:
        copies = expected.setdefault(subscription.receive_path, {})
        for message_id, look in looks.items():
            copies.update(subscription.copies(message_id, look))
    return expected
