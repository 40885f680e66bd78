"""The handles of a test for its broker: namespaces, queues, messages, and time.

The broker is in a thread of this process or, for tests that must not share their interpreter with the broker, in a
process of its own, which executes the same calls for lines of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

import msgspec

from duobus import errors
from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import (
    QueueDescription,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    check_queue,
    check_subscription,
    check_topic,
    to_json,
)

_STOP_TIMEOUT_S = 15.0


class Remote(Protocol):
    """Where the broker is: BrokerThread or BrokerProcess."""

    def start(self) -> None:
        """Start; on return clients can connect."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a coroutine of BrokerHost; raise the ServiceBusError that the coroutine raises."""

    def renew(self) -> None:
        """Replace the broker by a fresh one in present time."""

    def stop(self) -> None:
        """Stop."""


class BrokerProcess:
    """A BrokerThread in a process of its own, told what to do over its standard input."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start; on return clients can connect."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "duobus.testing.broker_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            # Ctrl-C is for pytest, which then closes the input.
            start_new_session=True,
        )
        self._answer()

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a coroutine of the host in the other process and return its result.

        Raises:
            ServiceBusError: The error of the broker.
        """
        return self._ask({"call": name, "arguments": arguments})

    def renew(self) -> None:
        """Replace the broker by a fresh one in present time."""
        self._ask({"call": None})

    def stop(self) -> None:
        """Stop; the process ends when its input does."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process is not None
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise errors.InternalError("The broker process ended. What it wrote to its standard error says why.")
        answer = json.loads(line)
        if "error" in answer:
            kind = getattr(errors, answer["error"], errors.InternalError)
            raise kind(answer["text"])
        return answer["result"]


class FoundMessage:
    """A message as it lies in a queue.

    Attributes:
        sequence_number: The sequence number that clients see.
        state: ``active``, ``scheduled``, ``deferred`` or ``dead-letter``.
        is_locked: Whether a receiver holds the message now.
        delivery_count: Number of earlier deliveries that counted.
        body: The bytes of the body; for a body that is a value or a sequence, its text.
        message_id: Id of the message as text; None for a message that an earlier version stored without an id.
        subject: Subject of the message, or None.
        application_properties: Values by name; values that JSON does not know are text.
        dead_letter_reason: The dead-letter reason, or None.
    """

    __slots__ = (
        "application_properties",
        "body",
        "dead_letter_reason",
        "delivery_count",
        "is_locked",
        "message_id",
        "sequence_number",
        "state",
        "subject",
    )

    def __init__(self, members: dict[str, Any]) -> None:
        self.sequence_number: int = members["sequence_number"]
        self.state: str = members["state"]
        self.is_locked: bool = members["is_locked"]
        self.delivery_count: int = members["delivery_count"]
        self.body = bytes.fromhex(members["body"])
        self.message_id: str | None = members["message_id"]
        self.subject: str | None = members["subject"]
        self.application_properties: dict[str, Any] = members["application_properties"]
        self.dead_letter_reason: str | None = members["dead_letter_reason"]

    def __repr__(self) -> str:
        return f"<message {self.sequence_number} {self.state} {self.body[:40]!r}>"


class Broker:
    """The broker of a test session."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._is_ahead = False

    def start(self) -> None:
        """Start; on return clients can connect."""
        self._remote.start()

    def stop(self) -> None:
        """Stop; every namespace is gone."""
        self._remote.stop()

    @contextmanager
    def namespace(self) -> Iterator[Namespace]:
        """A namespace of its own, with its own key and port; removed with all that is in it at the end.

        Broker time cannot go back. When it was moved, the broker is replaced at the end by a fresh one in present
        time; other namespaces that exist then are lost.
        """
        made = self._remote.call("add_namespace")
        try:
            yield Namespace(self, made["name"], made["connection_string"])
        finally:
            if self._is_ahead:
                self._is_ahead = False
                self._remote.renew()
            else:
                self._remote.call("remove_namespace", made["name"])

    def advance(self, seconds: float) -> None:
        """Move broker time ahead; on return everything that is due by then has happened.

        Locks end, messages expire, and scheduled messages become active. Connections, tokens and the client's own clock
        are not moved.

        Raises:
            ArgumentInvalid: ``seconds`` is negative: broker time never goes back.
        """
        if seconds < 0:
            raise ArgumentInvalid(f"Broker time cannot go back by {-seconds:g} s. Give a positive number of seconds.")
        self._is_ahead = True
        self._remote.call("advance", round(seconds * 1000))

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a call of the broker's host; for ``Namespace``."""
        return self._remote.call(name, *arguments)


class Namespace:
    """One namespace, for one test.

    Attributes:
        name: Name of the namespace.
        connection_string: Connection string for any client, with all rights.
    """

    def __init__(self, broker: Broker, name: str, connection_string: str) -> None:
        self.name = name
        self.connection_string = connection_string
        self._broker = broker

    def create_queue(self, name: str, **properties: Any) -> str:
        """Create a queue and return its name.

        Args:
            name: Path of the queue.
            properties: As ``ServiceBusAdministrationClient.create_queue`` names them (``lock_duration``,
                ``max_delivery_count``, ``default_message_time_to_live``, ``enable_partitioning``, ...); durations
                are ``timedelta``.

        Raises:
            ArgumentInvalid: There is no such property, its value is not allowed, or a target of forwarding is missing.
            EntityAlreadyExists: The name is taken.
        """
        self._broker.call("create_queue", self.name, to_json(_description(name, properties)).decode())
        return name

    def update_queue(self, name: str, **properties: Any) -> None:
        """Change properties of a queue; links that the queue no longer allows are detached.

        Args:
            name: Path of the queue.
            properties: As for ``create_queue``; properties that are not named stay.

        Raises:
            EntityNotFound: There is no such queue.
            ArgumentInvalid: There is no such property, its value is not allowed, or it cannot be changed.
        """
        self._broker.call("update_queue", self.name, name, _values(properties))

    def create_topic(self, name: str, *, subscriptions: Sequence[str] = (), **properties: Any) -> str:
        """Create a topic with subscriptions that get every message, and return its name.

        Args:
            name: Name of the topic.
            subscriptions: Names of its subscriptions.
            properties: As ``ServiceBusAdministrationClient.create_topic`` names them; durations are ``timedelta``.

        Raises:
            EntityAlreadyExists: The name is taken.
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong.
        """
        parts = tuple(SubscriptionDescription(name=one) for one in subscriptions)
        about = TopicDescription(name=name, subscriptions=parts, **_values(properties, TopicDescription))
        self._broker.call("create_topic", self.name, to_json(check_topic(about)).decode())
        return name

    def create_subscription(self, topic: str, name: str, *, filter: str | None = None, **properties: Any) -> str:
        """Create a subscription of a topic and return its name.

        Args:
            topic: Name of the topic.
            name: Name of the subscription.
            filter: SQL expression of its one rule; None for a subscription that gets every message.
            properties: As ``ServiceBusAdministrationClient.create_subscription`` names them.

        Raises:
            EntityNotFound: There is no such topic.
            EntityAlreadyExists: The name is taken.
            ArgumentInvalid, ArgumentOutOfRange: A property or the expression is wrong.
        """
        values = _values(properties, SubscriptionDescription)
        if filter is not None:
            values["rules"] = (RuleDescription(name="$Default", filter_type="Sql", sql_filter=filter),)
        about = check_subscription(SubscriptionDescription(name=name, **values))
        self._broker.call("create_subscription", self.name, topic, to_json(about).decode())
        return name

    def messages(self, queue: str) -> list[FoundMessage]:
        """Return all messages of a queue, then those of its dead-letter queue, by sequence number; at most 1,000 each.

        The call changes neither locks nor delivery counts.

        Raises:
            EntityNotFound: There is no such queue.
        """
        return [FoundMessage(members) for members in self._broker.call("messages", self.name, queue)]

    def advance(self, seconds: float) -> None:
        """See ``Broker.advance``; time moves for every namespace of the broker."""
        self._broker.advance(seconds)

    def reset(self) -> None:
        """Delete all queues and messages and close all connections; the connection string stays good."""
        self._broker.call("reset_namespace", self.name)


def _description(name: str, properties: dict[str, Any]) -> QueueDescription:
    return check_queue(QueueDescription(name=name, **_values(properties)))


def _values(properties: dict[str, Any], kind: type[msgspec.Struct] = QueueDescription) -> dict[str, Any]:
    """Properties under the names of a description, with its units."""
    known = set(kind.__struct_fields__) - {"name", "subscriptions", "rules"}
    values: dict[str, Any] = {}
    for key, given in properties.items():
        if key == "max_message_size_in_kilobytes":
            values["max_message_size_bytes"] = given * 1024
        elif f"{key}_ms" in known and isinstance(given, timedelta):
            values[f"{key}_ms"] = given // timedelta(milliseconds=1)
        elif f"{key}_ms" in known and given is not None:
            raise ArgumentInvalid(f"The property '{key}' is a duration. Give a timedelta.")
        elif key in known or f"{key}_ms" in known:
            values[key if key in known else f"{key}_ms"] = given
        else:
            entity = kind.__name__.removesuffix("Description")
            raise ArgumentInvalid(f"A {entity.lower()} has no property '{key}'. Use the names of {entity}Properties.")
    return values
