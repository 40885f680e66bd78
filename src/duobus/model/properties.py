"""The table of the properties that queues, topics and subscriptions have.

Whatever lists properties reads this table: checks of descriptions, XML, configuration files, options of commands and
the topology document. A new property is a row here and an attribute of the same name in ``model/descriptions.py``;
one that has an element in XML stands in ``XML_ORDER`` as well. What a row cannot say is a function in one place: the
size of partitioned entities and SupportOrdering in XML, and properties that exclude each other in the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Flag, IntEnum, auto
from functools import cache
from typing import Any, Final, NamedTuple

from duobus.model.tiers import SIZES_MIB, Profile, Tier

QUEUE: Final = "queue"
TOPIC: Final = "topic"
SUBSCRIPTION: Final = "subscription"

_SENT_TO: Final = (QUEUE, TOPIC)
_RECEIVED: Final = (QUEUE, SUBSCRIPTION)
_ALL: Final = (QUEUE, TOPIC, SUBSCRIPTION)

_KIB: Final = 1024
_MINUTE_MS: Final = 60_000

#: Largest message that may be configured: Premium's (Azure: Service Bus REST API).
MESSAGE_SIZE_BYTES_MAX: Final = 102_400 * _KIB

#: Longest that an abandoned message may be put off: a day. For longer there is scheduling.
REDELIVERY_DELAY_MS_MAX: Final = 24 * 60 * _MINUTE_MS


class Form(IntEnum):
    """What the value of a property is, inside and outside."""

    FLAG = auto()  # bool
    NUMBER = auto()  # int
    SIZE = auto()  # int, MiB of one partition; XML tells that of all partitions together
    MESSAGE_SIZE = auto()  # int, bytes; KiB outside
    DURATION = auto()  # int, ms, or None for one without end; ISO 8601 outside
    FINITE = auto()  # int, ms
    TEXT = auto()  # str or None
    STATUS = auto()  # str
    TARGET = auto()  # str or None: the name of an entity; XML may have its address


class Surface(Flag):
    """Where a property can be given. XML tells what is in ``XML_ORDER``, whether or not it may be given there."""

    NOWHERE = 0
    XML = auto()
    CONFIG = auto()
    SDK = auto()  # of Azure: options of commands, topology documents
    ANYWHERE = XML | CONFIG | SDK


@cache
def _sdk_name(field: str) -> str:
    return field.removesuffix("_ms").replace("_bytes", "_in_kilobytes")


@cache
def _element(field: str) -> str:
    return "".join(word.title() for word in _sdk_name(field).split("_"))


class Property(NamedTuple):
    """One property.

    Attributes:
        field: Its attribute in a description. All other spellings of its name are made of this one.
        kinds: Which entities have it.
        form: What its value is.
        default: Its value unless one is given; a function of the tier where tiers differ.
        place: Among the options of the commands that create and change entities.
        help: What these commands say of it; empty for no option.
        flags: Of the option, where ``az servicebus`` has other ones than the SDK's name.
        limits: Least and greatest value, the latter None for no limit.
        is_fixed: Whether it stays as it was when the entity was created.
        in_basic: Whether the tier Basic has it.
        given: Where it can be given.
    """

    field: str
    kinds: tuple[str, ...]
    form: Form
    default: Any = None
    place: int = 0
    help: str = ""
    flags: str = ""
    limits: Callable[[Profile], tuple[int, int | None]] | None = None
    is_fixed: bool = False
    in_basic: bool = True
    given: Surface = Surface.ANYWHERE

    def default_in(self, tier: Tier) -> Any:
        """Its value unless one is given."""
        return self.default(tier) if callable(self.default) else self.default

    @property
    def sdk_name(self) -> str:
        """Its name in the SDK: ``lock_duration``."""
        return _sdk_name(self.field)

    @property
    def element(self) -> str:
        """Its name in XML and in a configuration file: ``LockDuration``."""
        return _element(self.field)

    @property
    def json_name(self) -> str:
        """Its name in the output of commands: ``lockDuration``."""
        return self.element[0].lower() + self.element[1:]


# fmt: off
#: Rows in the order of the topology document: of all kinds, of what is received from, of what is sent to, the rest.
PROPERTIES: Final = (
    Property("default_message_time_to_live_ms", _ALL, Form.DURATION, lambda tier: tier.profile.time_to_live_ms_default,
             9, "Longest that a message lives.", limits=lambda profile: (profile.time_to_live_ms_min, None)),
    Property("status", _ALL, Form.STATUS, "Active", 17, "What is allowed now."),
    Property("user_metadata", _ALL, Form.TEXT, None, 16, "Text of your own."),
    Property("auto_delete_on_idle_ms", _ALL, Form.DURATION, None, 12, "Delete it when it was not used for this time.",
             limits=lambda profile: (profile.auto_delete_ms_min, None), in_basic=False),
    Property("enable_batched_operations", _ALL, Form.FLAG, True, 15, "Let the server combine writes."),

    Property("lock_duration_ms", _RECEIVED, Form.FINITE, lambda tier: tier.profile.lock_duration_ms_default,
             7, "How long a receiver holds a message.",
             limits=lambda profile: (profile.lock_duration_ms_min, profile.lock_duration_ms_max)),
    Property("requires_session", _RECEIVED, Form.FLAG, False, 2, "Require sessions.",
             "--enable-session --requires-session", is_fixed=True, in_basic=False),
    Property("dead_lettering_on_message_expiration", _RECEIVED, Form.FLAG, False, 10, "Dead-letter what expires.",
             "--enable-dead-lettering-on-message-expiration"),
    Property("max_delivery_count", _RECEIVED, Form.NUMBER, lambda tier: tier.profile.delivery_count_default,
             8, "Deliveries before a message is dead-lettered.",
             limits=lambda profile: (1, profile.delivery_count_max)),
    Property("forward_to", _RECEIVED, Form.TARGET, None, 13, "Hand every message on to this queue or topic.",
             in_basic=False),
    Property("forward_dead_lettered_messages_to", _RECEIVED, Form.TARGET, None,
             14, "Hand dead letters on to this queue or topic.", in_basic=False),

    Property("max_size_in_megabytes", _SENT_TO, Form.SIZE, SIZES_MIB[0], 5, "Size quota in MB.", "--max-size"),
    Property("max_message_size_bytes", _SENT_TO, Form.MESSAGE_SIZE, lambda tier: tier.message_kib_default * _KIB,
             6, "Largest message in KB.", "--max-message-size", limits=lambda profile: (_KIB, MESSAGE_SIZE_BYTES_MAX)),
    Property("requires_duplicate_detection", _SENT_TO, Form.FLAG, False, 3, "Drop messages whose id came before.",
             "--enable-duplicate-detection --requires-duplicate-detection", is_fixed=True, in_basic=False),
    Property("duplicate_detection_history_time_window_ms", _SENT_TO, Form.FINITE,
             lambda tier: tier.profile.duplicate_window_ms_default, 4, "How long ids are remembered.",
             limits=lambda profile: (profile.duplicate_window_ms_min, profile.duplicate_window_ms_max)),
    Property("enable_partitioning", _SENT_TO, Form.FLAG, lambda tier: tier.partitions_by_default,
             1, "Over several fragments, 16 in most namespaces; true unless --no-partitioned is given.", is_fixed=True),
    Property("enable_express", _SENT_TO, Form.FLAG, False),

    # The SDK has SupportOrdering for topics only.
    Property("support_ordering", (QUEUE,), Form.FLAG, given=Surface.XML | Surface.CONFIG),
    Property("support_ordering", (TOPIC,), Form.FLAG),
    Property("filtering_messages_before_publishing", (TOPIC,), Form.FLAG, False),
    Property("dead_lettering_on_filter_evaluation_exceptions", (SUBSCRIPTION,), Form.FLAG, True,
             11, "Dead-letter messages for which a filter fails.", "--dead-letter-on-filter-exceptions"),
    Property("enable_subscription_partitioning", (TOPIC,), Form.FLAG, False, is_fixed=True, given=Surface.XML),
    Property("is_anonymous_accessible", _SENT_TO, Form.FLAG, False, given=Surface.NOWHERE),

    # Extensions of this broker, which neither XML nor the SDK has a place for.
    Property("redelivery_delay_ms", (QUEUE,), Form.FINITE, given=Surface.CONFIG),
    Property("redelivery_delay_maximum_ms", (QUEUE,), Form.FINITE, 5 * _MINUTE_MS, given=Surface.CONFIG,
             limits=lambda profile: (1, REDELIVERY_DELAY_MS_MAX)),
    Property("delayed_abandon", (QUEUE,), Form.FLAG, False, given=Surface.CONFIG),
)
# fmt: on

#: The elements of a kind in the cloud's order, those among them that are no properties, but numbers, times and rules.
XML_ORDER: Final[dict[str, tuple[str, ...]]] = {
    kind: tuple(elements.split())
    for kind, elements in {
        QUEUE: """
            LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive
            DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount
            EnableBatchedOperations SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status ForwardTo
            UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails AutoDeleteOnIdle
            EnablePartitioning ForwardDeadLetteredMessagesTo EntityAvailabilityStatus EnableExpress
            MaxMessageSizeInKilobytes""",
        TOPIC: """
            DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow
            EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible
            AuthorizationRules Status UserMetadata CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails
            SubscriptionCount SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning
            EntityAvailabilityStatus EnableSubscriptionPartitioning EnableExpress MaxMessageSizeInKilobytes""",
        SUBSCRIPTION: """
            LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration
            DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status
            ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle
            EntityAvailabilityStatus UserMetadata""",
    }.items()
}


@cache
def properties_of(kind: str, given: Surface = Surface.NOWHERE) -> tuple[Property, ...]:
    """The rows of a kind; with ``given``, of what can be given there."""
    return tuple(item for item in PROPERTIES if kind in item.kinds and given in item.given)
