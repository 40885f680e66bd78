"""Descriptions of entities, rules and access rules: their properties, defaults and limits.

Plain data, kept as JSON in the catalog and never with a default left out: a later version may have other
defaults, and an entity keeps what it was created with. Durations are ms, None meaning "for ever". Runtime
numbers (sizes, counts) are not properties and live elsewhere (Azure: Service Bus REST API).
"""

from __future__ import annotations

from enum import IntFlag
from typing import Any, TypeVar

import msgspec

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange, InternalError
from duobus.model.address import check_entity_name, check_subscription_name
from duobus.model.properties import QUEUE as QUEUE
from duobus.model.properties import SUBSCRIPTION as SUBSCRIPTION
from duobus.model.properties import TOPIC as TOPIC
from duobus.model.properties import Form, Property, properties_of
from duobus.model.tiers import CLOUD, SIZES_MIB, Profile, Tier

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

ACTIVE = "Active"
DISABLED = "Disabled"
SEND_DISABLED = "SendDisabled"
RECEIVE_DISABLED = "ReceiveDisabled"

#: What a client may set; the other values of the wire are read-only (Azure: Service Bus REST API).
STATUSES = {
    QUEUE: (ACTIVE, DISABLED, SEND_DISABLED, RECEIVE_DISABLED),
    TOPIC: (ACTIVE, DISABLED, SEND_DISABLED),
    SUBSCRIPTION: (ACTIVE, DISABLED, RECEIVE_DISABLED),
}

_KIB = 1024
_MINUTE_MS = 60_000
_DAY_MS = 86_400_000

#: Azure: quotas.
USER_METADATA_LENGTH_MAX = 1024
ACCESS_RULES_MAX = 12
ACCESS_RULE_NAME_LENGTH_MAX = 256
SUBSCRIPTIONS_PER_TOPIC_MAX = 2000
RULES_PER_SUBSCRIPTION_MAX = 2000
SQL_LENGTH_MAX = 1024


class Right(IntFlag):
    """What a claim allows (Azure: shared access signatures). Manage is stored with both others or not at all."""

    LISTEN = 1
    SEND = 2
    MANAGE = 4


ALL_RIGHTS = Right.LISTEN | Right.SEND | Right.MANAGE


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """A name with two keys and the rights that a signature with either key gives (Azure: Service Bus REST API).

    Attributes:
        name: Told in tokens as ``skn``; compared exactly.
        primary_key: Key text; its UTF-8 bytes are the key, whatever it looks like.
        secondary_key: The other key text, so that keys can be changed without a gap.
        rights: Right values added up; an ``int`` in JSON.
        created_at_ms: When it was made, as a client has said with the description of an entity; 0 when none has.
        modified_at_ms: When it was changed last, likewise.
    """

    name: str
    primary_key: str
    secondary_key: str
    rights: int
    created_at_ms: int = 0
    modified_at_ms: int = 0

    def __repr__(self) -> str:
        # Keys stay out of tracebacks and logs (I66).
        return f"AccessRule({self.name!r}, rights={self.rights})"


class QueueDescription(msgspec.Struct, frozen=True, kw_only=True):
    """All properties of a queue (Azure: Service Bus REST API), in snake case with the unit last.

    The times ``created_at_ms``, ``updated_at_ms`` and ``accessed_at_ms`` are kept by the broker; 0 is never.
    ``redelivery_delay_ms``, ``redelivery_delay_maximum_ms`` and ``delayed_abandon`` are extensions of this broker, off
    by default: what the first abandon of a message puts it off by, the most that further ones do, and whether an
    abandon may say itself by how much. ``forward_to_sent`` is ``forward_to`` as a client wrote it, perhaps as an
    address, and is told to clients as long as it names the same entity; likewise for dead letters.
    """

    name: str
    lock_duration_ms: int = CLOUD.lock_duration_ms_default
    max_size_in_megabytes: int = SIZES_MIB[0]
    requires_duplicate_detection: bool = False
    requires_session: bool = False
    default_message_time_to_live_ms: int | None = None
    dead_lettering_on_message_expiration: bool = False
    duplicate_detection_history_time_window_ms: int = CLOUD.duplicate_window_ms_default
    max_delivery_count: int = CLOUD.delivery_count_default
    enable_batched_operations: bool = True
    is_anonymous_accessible: bool = False
    authorization_rules: tuple[AccessRule, ...] = ()
    status: str = ACTIVE
    forward_to: str | None = None
    user_metadata: str | None = None
    support_ordering: bool | None = None
    auto_delete_on_idle_ms: int | None = None
    enable_partitioning: bool = False
    forward_dead_lettered_messages_to: str | None = None
    enable_express: bool = False
    max_message_size_bytes: int = 256 * _KIB
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0
    redelivery_delay_ms: int | None = None
    redelivery_delay_maximum_ms: int = 5 * _MINUTE_MS
    delayed_abandon: bool = False
    forward_to_sent: str | None = None
    forward_dead_lettered_messages_to_sent: str | None = None


class TypedValue(msgspec.Struct, frozen=True):
    """A value whose declared type has to survive: a parameter, or a property of a correlation filter.

    Attributes:
        type: Local name of its XML schema type: ``string``, ``int``, ``long``, ``double``, ``dateTime`` and so on.
        value: Its text in that type's lexical form.
    """

    type: str
    value: str


class RuleDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription's rule: which messages it takes and what it changes on them (Azure: Service Bus REST API).

    Attributes:
        filter_type: ``Sql``, ``Correlation``, ``True`` or ``False``.
        sql_filter: Expression of an SQL filter, else None.
        correlation_filter: Members of a correlation filter as the file names them, else None: texts, and under
            ``Properties`` a mapping of names to plain JSON values or to ``{"type": ..., "value": ...}``.
        sql_action: Expression of the action, or None for no action.
        sql_parameters: Values of the ``@names`` of the filter, keys with or without the ``@``; None for none.
        action_parameters: The same for the action.
    """

    name: str
    filter_type: str = "True"
    sql_filter: str | None = None
    correlation_filter: dict[str, Any] | None = None
    sql_action: str | None = None
    created_at_ms: int = 0
    sql_parameters: dict[str, TypedValue] | None = None
    action_parameters: dict[str, TypedValue] | None = None


#: What a subscription without rules of its own gets (Azure: Service Bus REST API).
DEFAULT_RULE = RuleDescription(name="$Default")


class SubscriptionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """All properties of a subscription (Azure: Service Bus REST API) and its rules."""

    name: str
    lock_duration_ms: int = CLOUD.lock_duration_ms_default
    requires_session: bool = False
    default_message_time_to_live_ms: int | None = None
    dead_lettering_on_message_expiration: bool = False
    dead_lettering_on_filter_evaluation_exceptions: bool = True
    max_delivery_count: int = CLOUD.delivery_count_default
    enable_batched_operations: bool = True
    status: str = ACTIVE
    forward_to: str | None = None
    forward_dead_lettered_messages_to: str | None = None
    auto_delete_on_idle_ms: int | None = None
    user_metadata: str | None = None
    rules: tuple[RuleDescription, ...] = (DEFAULT_RULE,)
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0
    forward_to_sent: str | None = None
    forward_dead_lettered_messages_to_sent: str | None = None


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """All properties of a topic (Azure: Service Bus REST API) and its subscriptions."""

    name: str
    default_message_time_to_live_ms: int | None = None
    max_size_in_megabytes: int = SIZES_MIB[0]
    requires_duplicate_detection: bool = False
    duplicate_detection_history_time_window_ms: int = CLOUD.duplicate_window_ms_default
    enable_batched_operations: bool = True
    filtering_messages_before_publishing: bool = False
    is_anonymous_accessible: bool = False
    authorization_rules: tuple[AccessRule, ...] = ()
    status: str = ACTIVE
    user_metadata: str | None = None
    support_ordering: bool | None = None
    auto_delete_on_idle_ms: int | None = None
    enable_partitioning: bool = False
    enable_subscription_partitioning: bool = False
    enable_express: bool = False
    max_message_size_bytes: int = 256 * _KIB
    subscriptions: tuple[SubscriptionDescription, ...] = ()
    created_at_ms: int = 0
    updated_at_ms: int = 0
    accessed_at_ms: int = 0


def to_json(description: msgspec.Struct) -> bytes:
    """Return a description as UTF-8 JSON with every member, defaults included."""
    return msgspec.json.encode(description)


def from_json(data: bytes, kind: type[_Struct]) -> _Struct:
    """Return the description that ``to_json`` was given. Members unknown to this version are left out.

    Raises:
        InternalError: The stored text is damaged.
    """
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InternalError(f"The stored {kind.__name__} cannot be read: {error}") from None


def check_queue(queue: QueueDescription, profile: Profile = CLOUD) -> QueueDescription:
    """Return ``queue`` if it may be created.

    Raises:
        ArgumentOutOfRange: A number is outside its limits.
        ArgumentInvalid: A name or status is illegal, or two properties exclude each other.

    Both texts name the property, its value and what is allowed (Azure: Service Bus REST API; Azure: quotas).
    """
    check_entity_name(queue.name)
    _check_properties(QUEUE, queue, profile)
    _check_sent_to(queue)
    _check_redelivery(queue)
    return queue


def check_queue_update(kept: QueueDescription, wanted: QueueDescription, profile: Profile = CLOUD) -> QueueDescription:
    """Return what a queue becomes when its properties are changed to ``wanted``; raises as ``check_queue``.

    Name and time of creation stay; what cannot be changed must be as it was.
    """
    return check_queue(_check_fixed(QUEUE, kept, wanted), profile)


def check_topic_update(kept: TopicDescription, wanted: TopicDescription, profile: Profile = CLOUD) -> TopicDescription:
    """Return what a topic becomes, its subscriptions apart; see ``check_queue_update``."""
    wanted = _check_fixed(TOPIC, kept, wanted)
    return check_topic(msgspec.structs.replace(wanted, subscriptions=()), profile)


def check_subscription_update(
    kept: SubscriptionDescription, wanted: SubscriptionDescription, profile: Profile = CLOUD
) -> SubscriptionDescription:
    """Return what a subscription becomes; its rules stay, they have operations of their own."""
    wanted = _check_fixed(SUBSCRIPTION, kept, wanted)
    return check_subscription(msgspec.structs.replace(wanted, rules=kept.rules), profile)


_Updated = TypeVar("_Updated", QueueDescription, TopicDescription, SubscriptionDescription)


def _check_fixed(kind: str, kept: _Updated, wanted: _Updated) -> _Updated:
    if wanted.name.lower() != kept.name.lower():
        raise ArgumentInvalid(f"The name of the {kind} '{kept.name}' can't be changed; create another {kind}.")
    for item in properties_of(kind):
        if item.is_fixed and getattr(wanted, item.field) != getattr(kept, item.field):
            if (kind, item.element) == (TOPIC, "EnablePartitioning"):
                # The service has other words for this one.
                raise ArgumentInvalid("Partitioning cannot be changed for Topic. It is chosen when a topic is created.")
            raise ArgumentInvalid(
                f"The value for the {item.element} property of an existing {kind.title()} cannot be changed."
            )
    return msgspec.structs.replace(
        wanted, name=kept.name, created_at_ms=kept.created_at_ms, accessed_at_ms=kept.accessed_at_ms
    )


def check_topic(topic: TopicDescription, profile: Profile = CLOUD) -> TopicDescription:
    """Return ``topic`` if it may be created with all its subscriptions and rules; raises as ``check_queue``."""
    check_entity_name(topic.name)
    _check_properties(TOPIC, topic, profile)
    _check_sent_to(topic)
    if len(topic.subscriptions) > SUBSCRIPTIONS_PER_TOPIC_MAX:
        raise ArgumentOutOfRange(
            f"The topic has {len(topic.subscriptions)} subscriptions; "
            f"at most {SUBSCRIPTIONS_PER_TOPIC_MAX} are allowed."
        )
    for subscription in topic.subscriptions:
        check_subscription(subscription, profile)
    return topic


def check_subscription(subscription: SubscriptionDescription, profile: Profile = CLOUD) -> SubscriptionDescription:
    """Return ``subscription`` if it may be created with its rules; raises as ``check_queue``."""
    check_subscription_name(subscription.name)
    _check_properties(SUBSCRIPTION, subscription, profile)
    if len(subscription.rules) > RULES_PER_SUBSCRIPTION_MAX:
        raise ArgumentOutOfRange(f"A subscription has at most {RULES_PER_SUBSCRIPTION_MAX} rules.")
    for rule in subscription.rules:
        check_subscription_name(rule.name, kind="rule")
        for expression in (rule.sql_filter, rule.sql_action):
            if expression is not None and len(expression) > SQL_LENGTH_MAX:
                raise ArgumentOutOfRange(
                    f"The expression of rule {rule.name!r} has {len(expression)} characters; "
                    f"at most {SQL_LENGTH_MAX} are allowed."
                )
    return subscription


def check_access_rule(rule: AccessRule) -> AccessRule:
    """Return ``rule`` if it may be used; raises ArgumentInvalid otherwise."""
    if not 0 < len(rule.name) <= ACCESS_RULE_NAME_LENGTH_MAX:
        raise ArgumentInvalid(f"The name of an access rule has 1 to {ACCESS_RULE_NAME_LENGTH_MAX} characters.")
    if not rule.primary_key or not rule.secondary_key:
        # An empty key would let everybody sign.
        raise ArgumentInvalid(f"The access rule {rule.name!r} needs two keys that are not empty.")
    if not 0 < rule.rights <= ALL_RIGHTS:
        raise ArgumentInvalid(f"The access rule {rule.name!r} needs rights out of Listen, Send and Manage.")
    if rule.rights & Right.MANAGE and rule.rights != ALL_RIGHTS:
        raise ArgumentInvalid(f"The access rule {rule.name!r} has Manage, which needs Send and Listen beside it.")
    return rule


def _check_properties(kind: str, entity: msgspec.Struct, profile: Profile) -> None:
    """Check each property by itself, as its row says."""
    for item in properties_of(kind):
        value = getattr(entity, item.field)
        if value is None:
            continue
        if item.limits is not None:
            low, high = item.limits(profile)
            if value < low or (high is not None and value > high):
                raise _out_of_range(_label(item), value, low, high)
        elif item.form is Form.STATUS:
            _check_one_of(item.element, value, STATUSES[kind])
        elif item.form is Form.SIZE:
            _check_one_of(item.element, value, SIZES_MIB)
        elif item.form is Form.TARGET:
            check_entity_name(value)
        elif item.form is Form.TEXT and len(value) > USER_METADATA_LENGTH_MAX:
            raise ArgumentOutOfRange(
                f"{item.element} has {len(value)} characters; at most {USER_METADATA_LENGTH_MAX} are allowed."
            )


def _label(item: Property) -> str:
    """The name of a property with the unit in which its value is kept."""
    if item.form is Form.MESSAGE_SIZE:
        return item.element.replace("Kilobytes", "Bytes")
    return f"{item.element} (ms)" if item.form in {Form.DURATION, Form.FINITE} else item.element


def _check_redelivery(queue: QueueDescription) -> None:
    delay_ms, longest_ms = queue.redelivery_delay_ms, queue.redelivery_delay_maximum_ms
    if delay_ms is not None and not 1 <= delay_ms <= longest_ms:
        raise _out_of_range("RedeliveryDelay (ms)", delay_ms, 1, longest_ms)
    if queue.requires_session and (queue.redelivery_delay_ms is not None or queue.delayed_abandon):
        # Whatever came behind the delayed message would have to wait as well.
        raise ArgumentInvalid("RequiresSession excludes RedeliveryDelay and DelayedAbandon: a session keeps its order.")


def _check_sent_to(entity: QueueDescription | TopicDescription) -> None:
    if entity.enable_express and entity.requires_duplicate_detection:
        raise ArgumentInvalid("EnableExpress and RequiresDuplicateDetection exclude each other.")
    check_access_rules(entity.authorization_rules)


def check_access_rules(rules: tuple[AccessRule, ...]) -> None:
    """Check the access rules of one entity or namespace together: their number and names; raises ArgumentInvalid."""
    if len(rules) > ACCESS_RULES_MAX:
        raise ArgumentInvalid(f"{len(rules)} AuthorizationRules are given; at most {ACCESS_RULES_MAX} are allowed.")
    if len({rule.name for rule in rules}) != len(rules):
        raise ArgumentInvalid("Two AuthorizationRules have the same name.")
    for rule in rules:
        check_access_rule(rule)


def _out_of_range(name: str, value: int, low: int, high: int | None) -> ArgumentOutOfRange:
    allowed = f"at least {low} is allowed" if high is None else f"it must be from {low} to {high}"
    return ArgumentOutOfRange(f"{name} is {value}; {allowed}.")


def _check_one_of(name: str, value: object, allowed: tuple[object, ...]) -> None:
    if value not in allowed:
        raise ArgumentInvalid(f"{name} is {value!r}; it must be one of {', '.join(map(str, allowed))}.")


# What the tiers of the cloud have and refuse.

_Described = QueueDescription | TopicDescription | SubscriptionDescription
_KINDS = {QueueDescription: QUEUE, TopicDescription: TOPIC, SubscriptionDescription: SUBSCRIPTION}


def check_tier(description: _Described, tier: Tier) -> None:
    """Raise ArgumentInvalid when a tier does not have what a description asks for."""
    if isinstance(description, TopicDescription | SubscriptionDescription) and not tier.has_topics:
        raise ArgumentInvalid(f"The {tier.name} tier has no topics and no subscriptions. Use a queue.")
    if not tier.has_features:
        for item in properties_of(_KINDS[type(description)]):
            if not item.in_basic and getattr(description, item.field) not in (None, False):
                raise ArgumentInvalid(f"The {tier.name} tier does not have {item.element}. Leave it out.")
    limit = tier.time_to_live_ms_max
    life = description.default_message_time_to_live_ms
    if limit is not None and (life is None or life > limit):
        raise ArgumentInvalid(f"DefaultMessageTimeToLive is at most {limit // _DAY_MS} days in the {tier.name} tier.")
    if isinstance(description, SubscriptionDescription):
        return
    if description.enable_express and not tier.offers_enable_express:
        raise ArgumentInvalid(f"The {tier.name} tier does not have EnableExpress. Leave it out.")
    if description.max_size_in_megabytes not in tier.sizes_mib:
        raise ArgumentInvalid(
            f"MaxSizeInMegabytes is {description.max_size_in_megabytes}; the {tier.name} tier has "
            f"{', '.join(map(str, tier.sizes_mib))}."
        )
    low, high = tier.message_kib_min, tier.message_kib_max
    if not low * _KIB <= description.max_message_size_bytes <= high * _KIB:
        raise ArgumentInvalid(
            f"MaxMessageSizeInKilobytes is {description.max_message_size_bytes // _KIB}; it is from {low} to {high} in "
            f"the {tier.name} tier."
        )


def check_new(description: QueueDescription | TopicDescription, tier: Tier) -> None:
    """Raise ArgumentInvalid when a tier would not make a new entity as it is described."""
    if tier.is_partitioned and not description.enable_partitioning:
        raise ArgumentInvalid(f"Every entity of the {tier.name} tier is partitioned. Leave EnablePartitioning out.")
