"""Namespaces, entities, message brokers: what the doors may know of the broker."""

from duobus.broker.accepting import Holder, SessionReceiver
from duobus.broker.forwarding import transfer_message_count
from duobus.broker.founding import create_queues
from duobus.broker.fragment.commands import (
    ABANDON,
    COMPLETE,
    DEAD_LETTER_OUTCOME,
    DEFER,
    CancelScheduled,
    Group,
    Run,
    SettleBatch,
    SettleDetail,
    TakeDeferred,
)
from duobus.broker.fragment.reserving import Reserve
from duobus.broker.fragment.sessions import SessionLock, session_lock_lost
from duobus.broker.fragment.settling import lock_lost
from duobus.broker.fragment.slot import (
    DEAD_LETTER,
    DEFERRED,
    MAIN,
    TRANSFER_DEAD_LETTER,
    CopySlot,
    Slot,
    kind_of,
    sub_queue_of,
)
from duobus.broker.handle import FragmentHandle
from duobus.broker.idle import last_access_ms
from duobus.broker.lending import Receiver
from duobus.broker.message_broker import COMMIT_BOUNDS_S, MessageBroker
from duobus.broker.namespace import Namespace
from duobus.broker.outlets import Outlet, TurnBatch
from duobus.broker.placement import slot_of, string_key
from duobus.broker.queue import COUNT_BITS, COUNT_MASK, SOURCE, Queue
from duobus.broker.scale_unit import ScaleUnit
from duobus.broker.throttle import Throttle
from duobus.broker.topic import Subscription, Topic, subscription_path, without_subscriptions
from duobus.broker.transaction import Transaction
from duobus.broker.via import address

__all__ = [
    "ABANDON",
    "COMMIT_BOUNDS_S",
    "COMPLETE",
    "COUNT_BITS",
    "COUNT_MASK",
    "CancelScheduled",
    "CopySlot",
    "DEAD_LETTER",
    "DEFERRED",
    "DEAD_LETTER_OUTCOME",
    "DEFER",
    "FragmentHandle",
    "Group",
    "Holder",
    "MAIN",
    "MessageBroker",
    "Namespace",
    "Outlet",
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
    "Slot",
    "Subscription",
    "TRANSFER_DEAD_LETTER",
    "TakeDeferred",
    "Throttle",
    "Topic",
    "TurnBatch",
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
