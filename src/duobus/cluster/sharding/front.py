"""What every server knows of an entity that lies in several stores: its name, its properties and its rules.

What is in it, its shards know, each at its owner. These objects stand in a namespace beside what a server has itself,
so that names, access rules, limits and lists are answered at any server; whoever sends, receives or looks is led to the
shards before it comes here (decisions 0029 and 0069).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from duobus.broker.delivery.credit_scheduler import Receiver
from duobus.broker.entities.queue import Queue
from duobus.broker.entities.topic import Subscription, Topic
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import NotImplementedYet
from duobus.fragment.message import NEVER, QueuedMessage
from duobus.model.batches import Mailbox, Refusal, SendBatch
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription


class _Sharded(Queue):
    """A sharded entity; ``partitions`` is how many fragments its shards have together."""

    __slots__ = ()

    is_sharded = True

    @property
    def is_partitioned(self) -> bool:
        """See Queue."""
        return True

    def send(self, batch: SendBatch) -> None:
        """Refuse: messages go to the shards."""
        batch.reply.ready.append(Refusal(batch, None, self._elsewhere()))
        batch.reply.wake()

    def open_receiver(self, sub_queue: int, mailbox: Mailbox, *, removing: bool) -> Receiver:
        """Refuse: the shards have what there is."""
        raise self._elsewhere()

    async def peek(
        self,
        sub_queue: int,
        first_number: int,
        limit: int,
        size: int = NEVER,
        session_id: str | None = None,
        partition_key: str | None = None,
    ) -> list[tuple[FragmentHandle, QueuedMessage]]:
        """Refuse likewise."""
        raise self._elsewhere()

    def find_lock(self, token: bytes) -> tuple[FragmentHandle, bytes, int]:
        """Refuse likewise."""
        raise self._elsewhere()

    def _elsewhere(self) -> NotImplementedYet:
        return NotImplementedYet(
            f"'{self.path}' is spread over several servers: send to it, receive and look over AMQP."
        )


class ShardedQueue(_Sharded):
    """A sharded queue.

    Attributes:
        slots: How many fragments its shards have together.
    """

    __slots__ = ("slots",)

    def __init__(self, entity_id: int, namespace: str, description: QueueDescription, slots: int) -> None:
        super().__init__(entity_id, namespace, description, ())
        self.slots = slots

    @property
    def partitions(self) -> int:
        """See Queue."""
        return self.slots


class ShardedTopic(_Sharded, Topic):
    """A sharded topic; its subscriptions and their rules are those that every shard has.

    Attributes:
        slots: As of a queue.
    """

    __slots__ = ("slots",)

    def __init__(
        self, entity_id: int, namespace: str, about: TopicDescription, slots: int, new_id: Callable[[], uuid.UUID]
    ) -> None:
        self.slots = slots
        Topic.__init__(self, entity_id, namespace, about, (), new_id)

    @property
    def partitions(self) -> int:
        """See Queue."""
        return self.slots


class ShardedSubscription(_Sharded, Subscription):
    """A subscription of a sharded topic."""

    __slots__ = ()

    def __init__(self, topic: ShardedTopic, entity_id: int, about: SubscriptionDescription) -> None:
        Subscription.__init__(self, topic, entity_id, about)

    @property
    def partitions(self) -> int:
        """See Queue."""
        return self.topic.partitions
