"""Namespaces, entities, message brokers: what the gateway may know of the broker."""

from duobus.broker.admission import Throttle
from duobus.broker.commit_loop import COMMIT_BOUNDS_S
from duobus.broker.delivery.credit_scheduler import Receiver
from duobus.broker.delivery.session_acceptor import SessionHolder, SessionReceiver
from duobus.broker.delivery.session_groups import SessionDeliveryBatch, SessionGroup
from duobus.broker.entities.bulk_creation import create_queues
from duobus.broker.entities.claims import Claimed, ClaimPart, ClaimWatcher
from duobus.broker.entities.destination import address
from duobus.broker.entities.idle_tracking import last_access_ms
from duobus.broker.entities.namespace import Namespace
from duobus.broker.entities.placement import slot_of, string_key
from duobus.broker.entities.queue import COUNT_BITS, COUNT_MASK, SOURCE, Queue
from duobus.broker.entities.topic import Subscription, Topic, subscription_path, without_subscriptions
from duobus.broker.forwarding.service import transfer_message_count
from duobus.broker.fragment_handle import FragmentHandle
from duobus.broker.message_broker import MessageBroker
from duobus.broker.scale_unit import ScaleUnit
from duobus.broker.transaction import Transaction
from duobus.fragment.commands import Group
from duobus.fragment.message import (
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    TRANSFER_DEAD_LETTER,
    QueuedCopy,
    QueuedMessage,
    kind_of,
    sub_queue_of,
)
from duobus.fragment.purge import CancelScheduled
from duobus.fragment.receive import TakeDeferred
from duobus.fragment.send import Reserve, Run
from duobus.fragment.sessions.sessions import SessionLock, session_lock_lost
from duobus.fragment.settlement import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER_OUTCOME,
    DEFER,
    SettleBatch,
    SettleDetail,
    lock_lost,
)

__all__ = [
    "ABANDON",
    "COMMIT_BOUNDS_S",
    "COMPLETE",
    "COUNT_BITS",
    "COUNT_MASK",
    "CancelScheduled",
    "ClaimPart",
    "ClaimWatcher",
    "Claimed",
    "QueuedCopy",
    "DEAD_LETTER",
    "DEFERRED",
    "DEAD_LETTER_OUTCOME",
    "DEFER",
    "FragmentHandle",
    "Group",
    "SessionHolder",
    "MAIN",
    "MessageBroker",
    "Namespace",
    "SessionGroup",
    "Queue",
    "Receiver",
    "Reserve",
    "Run",
    "SOURCE",
    "ScaleUnit",
    "SessionLock",
    "SessionReceiver",
    "SettleBatch",
    "SettleDetail",
    "QueuedMessage",
    "Subscription",
    "TRANSFER_DEAD_LETTER",
    "TakeDeferred",
    "Throttle",
    "Topic",
    "SessionDeliveryBatch",
    "Transaction",
    "address",
    "create_queues",
    "kind_of",
    "last_access_ms",
    "lock_lost",
    "session_lock_lost",
    "slot_of",
    "subscription_path",
    "string_key",
    "sub_queue_of",
    "transfer_message_count",
    "without_subscriptions",
]
