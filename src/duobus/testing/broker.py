"""A broker inside the process of the tests: in a thread of its own, in memory, with namespaces made at run time.

Every namespace has a port, a key and an AMQP server of its own, so that a connection string leads to this namespace
alone, and removing the namespace closes its connections. Tests can move broker time ahead, which locks, times to live
and scheduled messages follow; connections and tokens follow real time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Final

import msgspec

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.broker.entities.queue import COUNT_BITS, Queue
from duobus.clock import Clock, Entropy
from duobus.codec import application_properties, decode, scan
from duobus.codec.sections import DATA, SEQUENCE, VALUE, find_section
from duobus.errors import EntityNotFound
from duobus.fragment.message import ACTIVE, DEAD_LETTER, DEFERRED, MAIN, QueuedMessage, kind_of, sub_queue_of
from duobus.gateway.amqp.server import AmqpServer
from duobus.gateway.listener import Listener
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription, from_json
from duobus.server.composition import Server
from duobus.server.settings import Settings, load_settings
from duobus.storage.catalog.interface import new_namespace
from duobus.telemetry.logs import Log

#: How long connections that a test left open are given to close when its namespace goes.
CLOSE_S = 0.2
#: A call into the broker that takes longer has hung.
CALL_TIMEOUT_S = 30.0
#: Messaging stores of a test's broker, unless it is told another number.
STORES: Final = 2
#: How long a store of a test's broker may hang before it is taken out.
DRILL_TIMEOUT_S = 1.0
#: Messages that ``messages`` returns at most.
MESSAGES_MAX = 1000


class MovableClock(Clock):
    """The operating system's clocks, moved ahead as far as a test wants."""

    def __init__(self) -> None:
        self.moved_ms = 0

    def now_ms(self) -> int:
        """Return wall clock time, moved."""
        return super().now_ms() + self.moved_ms

    def monotonic_ms(self) -> int:
        """Return monotonic time, moved by the same amount."""
        return super().monotonic_ms() + self.moved_ms


class _Place:
    """A namespace: the server and the listener that lead to it."""

    __slots__ = ("amqp_server", "key", "listener", "name", "rule")

    def __init__(self, name: str, rule: str, key: str, amqp_server: AmqpServer, listener: Listener) -> None:
        self.name = name
        self.rule = rule
        self.key = key
        self.amqp_server = amqp_server
        self.listener = listener


class BrokerHost:
    """The broker as its own event loop sees it; every coroutine runs there.

    Args:
        stores: Number of its messaging stores.

    Attributes:
        clock: The clock of connections and tokens.
        broker_clock: The clock of broker time.
    """

    def __init__(self, stores: int = STORES) -> None:
        self.clock = MovableClock()
        self.broker_clock = MovableClock()
        self._entropy = Entropy()
        self._settings = load_settings(
            Settings(
                data=None,
                ephemeral=True,
                port=0,
                tls_port=0,
                http_port=0,
                stores=stores,
                emulator=True,
                # For the fixture duobus_drill; a store that hangs is taken out sooner than a server does it.
                allow_drills=True,
                store_timeout_s=DRILL_TIMEOUT_S,
            )
        )
        self._places: dict[str, _Place] = {}

    async def start(self) -> None:
        """Start a broker without any namespace for tests."""
        self._server = Server(self._settings, self.clock, self._entropy, broker_clock=self.broker_clock)
        await self._server.start()

    async def stop(self) -> None:
        """Remove the remaining namespaces and stop."""
        for name in list(self._places):
            await self.remove_namespace(name)
        await self._server.stop()

    async def add_namespace(self) -> dict[str, str]:
        """Make an empty namespace; returns its name and connection string."""
        name = f"test-{self._entropy.token(6).hex()}"
        row = new_namespace(name, self._entropy)
        rule = row.rules[0]
        amqp_server = AmqpServer(
            self._server.unit,
            Authorizer([NamespaceRules(name, row.rules)]),
            clock=self.clock,
            entropy=self._entropy,
            log=Log("amqp"),
            metering=self._server.metering,
        )
        listener = Listener(name, amqp_server, None, Log("listener"))
        await listener.open("127.0.0.1", 0)
        self._server.unit.namespace(name)
        self._places[name] = _Place(name, rule.name, rule.primary_key, amqp_server, listener)
        text = (
            f"Endpoint=sb://localhost:{listener.port};SharedAccessKeyName={rule.name};"
            f"SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true;"
        )
        return {"name": name, "connection_string": text}

    async def remove_namespace(self, name: str) -> None:
        """Close the connections of a namespace and delete the namespace; a namespace that is gone is no error."""
        place = self._places.pop(name, None)
        if place is None:
            return
        await place.listener.close()
        if place.amqp_server.peers:
            for peer in list(place.amqp_server.peers):
                peer.abort()
        await place.amqp_server.close(CLOSE_S)
        await self._server.unit.drop_namespace(name)

    async def reset_namespace(self, name: str) -> None:
        """Close the connections of a namespace and delete all that is in it; name, port and key stay."""
        for peer in list(self._places[name].amqp_server.peers):
            peer.abort()
        await self._server.unit.drop_namespace(name)
        self._server.unit.namespace(name)

    async def create_queue(self, namespace: str, description: str) -> None:
        """Create a queue from the JSON of its description.

        Raises:
            EntityAlreadyExists: The name is taken.
            ArgumentInvalid: The entity to which the queue forwards does not exist.
        """
        await self._server.unit.create_queue(namespace, from_json(description.encode(), QueueDescription))

    async def create_topic(self, namespace: str, description: str) -> None:
        """Create a topic with its subscriptions from the JSON of its description; it may raise EntityAlreadyExists."""
        about = from_json(description.encode(), TopicDescription)
        await self._server.unit.topics.create_topic(namespace, about)

    async def create_subscription(self, namespace: str, topic: str, description: str) -> None:
        """Create a subscription from the JSON of its description.

        Raises:
            EntityNotFound: There is no such topic.
            EntityAlreadyExists: The name is taken.
        """
        about = from_json(description.encode(), SubscriptionDescription)
        await self._server.unit.topics.create_subscription(namespace, topic, about)

    async def update_queue(self, namespace: str, path: str, changes: dict[str, Any]) -> None:
        """Change properties of a queue, by the names of its description.

        Raises:
            EntityNotFound: There is no such queue.
            ArgumentInvalid, ArgumentOutOfRange: A property is wrong, or cannot be changed.
        """
        queue = self._found(namespace, path)
        await self._server.unit.update_queue(namespace, msgspec.structs.replace(queue.description, **changes))

    async def delete_queue(self, namespace: str, path: str) -> None:
        """Delete a queue with all that is in it; raise EntityNotFound when there is no such queue."""
        await self._server.unit.delete_queue(namespace, self._found(namespace, path).path)

    def _found(self, namespace: str, path: str) -> Queue:
        home = self._server.unit.namespace(namespace)
        topic, is_subscription, name = path.lower().rpartition("/subscriptions/")
        queue = home.queues.get(path.lower())
        if is_subscription and topic in home.topics:
            queue = home.topics[topic].subscriptions.get(name)
        if queue is None:
            raise EntityNotFound(f"The queue '{path}' does not exist. Create it with create_queue.")
        return queue

    async def messages(self, namespace: str, path: str) -> list[dict[str, Any]]:
        """Everything in a queue and its dead-letter queue, by sequence number, as members of ``FoundMessage``."""
        queue = self._found(namespace, path)
        found: list[dict[str, Any]] = []
        for sub_queue in (MAIN, DEAD_LETTER):
            found += await self._of_sub_queue(queue, sub_queue)
        return found

    async def stores(self) -> dict[str, str]:
        """State of each messaging store by its number."""
        return {str(number): broker.state for number, broker in self._server.unit.brokers.items()}

    async def drill(self, store: int, mode: str) -> None:
        """Make a store fail, stall or work again; raise EntityNotFound when there is no such store."""
        found = self._server.drills.get(store)
        if found is None:
            raise EntityNotFound(f"There is no messaging store {store}; there are {sorted(self._server.drills)}.")
        found.set_mode(mode)

    async def fragments(self, namespace: str, path: str) -> dict[str, int]:
        """Store of each fragment of a queue or topic by the fragment's number; it may raise EntityNotFound."""
        home = self._server.unit.namespace(namespace)
        entity = home.topics.get(path.lower()) or self._found(namespace, path)
        return {str(handle.number): handle.store.store_id for handle in entity.fragments}

    async def advance(self, milliseconds: int) -> None:
        """Move broker time ahead; on return everything that is due by then has happened."""
        self.broker_clock.moved_ms += milliseconds
        await self._server.unit.time_moved()

    @staticmethod
    async def _of_sub_queue(queue: Queue, sub_queue: int) -> list[dict[str, Any]]:
        messages = await queue.peek(sub_queue, 1, MESSAGES_MAX)
        return [_members(message, handle.number << COUNT_BITS | message.count) for handle, message in messages]


def _members(message: QueuedMessage, sequence_number: int) -> dict[str, Any]:
    metadata = message.metadata
    if sub_queue_of(message.state) == DEAD_LETTER:
        state = "dead-letter"
    else:
        state = {ACTIVE: "active", DEFERRED: "deferred"}.get(kind_of(message.state), "scheduled")
    properties = scan(message.payload)
    return {
        "sequence_number": sequence_number,
        "state": state,
        "is_locked": message.lock > 0,
        "delivery_count": message.deliveries,
        "body": _body(message.payload).hex(),
        "message_id": None if properties.message_id is None else str(properties.message_id),
        "subject": properties.subject,
        "application_properties": {
            key: value if isinstance(value, str | int | float | bool | None) else str(value)
            for key, value in application_properties(message.payload).items()
        },
        "dead_letter_reason": None if metadata is None else metadata.reason,
    }


def _body(bare: bytes) -> bytes:
    """Return the joined data sections; for another kind of body, its text."""
    parts: list[bytes] = []
    rest = bare
    while True:
        start, value, end = find_section(rest, DATA)
        if start == value:
            break
        parts.append(bytes(decode(rest, value)[0]))
        rest = rest[end:]
    if parts:
        return b"".join(parts)
    for section in (VALUE, SEQUENCE):
        start, value, _ = find_section(bare, section)
        if start != value:
            return str(decode(bare, value)[0]).encode()
    return b""


class BrokerThread:
    """A BrokerHost in a thread and an event loop of its own.

    Args:
        stores: Number of its messaging stores.

    Attributes:
        host: The broker in the thread; only ``call`` runs its coroutines.
    """

    def __init__(self, stores: int = STORES) -> None:
        self._stores = stores
        self.host = BrokerHost(stores)
        self._loop = asyncio.new_event_loop()
        # A daemon: a test run that is interrupted must not wait for it.
        self._thread = threading.Thread(target=self._loop.run_forever, name="duobus-broker", daemon=True)

    def start(self) -> None:
        """Start the broker; on return clients can connect."""
        self._thread.start()
        self._await(self.host.start())

    def call(self, name: str, *arguments: Any) -> Any:
        """Run a coroutine of the host and return its result.

        Raises:
            ServiceBusError: The error of the broker.
        """
        return self._await(getattr(self.host, name)(*arguments))

    def renew(self) -> None:
        """Replace a broker whose time was moved by a fresh one in present time; the old one's messages are gone."""
        self._await(self.host.stop())
        self.host = BrokerHost(self._stores)
        self._await(self.host.start())

    def stop(self) -> None:
        """Stop the broker, and end the thread."""
        self._await(self.host.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_TIMEOUT_S)
        self._loop.close()

    def _await(self, work: Coroutine[Any, Any, Any]) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(CALL_TIMEOUT_S)
