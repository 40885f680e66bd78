"""Tiers: what Basic, Standard and Premium namespaces of the cloud have and refuse (Azure: partitioned entities).

A server has all of it, under the rules of none, unless it is told to be one of them: for tests of what a program would
meet in the cloud.
"""

from __future__ import annotations

from typing import Final

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.model.descriptions import (
    CLOUD,
    SIZES_MIB,
    Profile,
    QueueDescription,
    SubscriptionDescription,
    TopicDescription,
)
from duobus.model.properties import QUEUE, SUBSCRIPTION, TOPIC, properties_of

_DAY_MS: Final = 86_400_000
_KIB: Final = 1024


class Tier(msgspec.Struct, frozen=True, kw_only=True):
    """One tier.

    Attributes:
        name: As the setting has it.
        sku: As clients are told.
        has_topics: Whether there are topics.
        has_features: Sessions, duplicate detection, forwarding, deletion of idle entities.
        offers_enable_express: Whether an entity may be express.
        sizes_mib: Sizes that an entity may be given.
        message_kib_default: Largest message, unless the entity says otherwise.
        message_kib_min: Least value that it may say.
        message_kib_max: Greatest.
        time_to_live_ms_max: Longest default time to live; None for no limit.
        partitions: Fragments of a partitioned entity.
        is_partitioned: Whether every new entity is partitioned: there it is a property of the namespace.
        partitions_by_default: Whether a new entity is partitioned of which its creator does not say (PE3).
        profile: Other defaults and limits.
    """

    name: str
    sku: str
    has_topics: bool = True
    has_features: bool = True
    offers_enable_express: bool = True
    sizes_mib: tuple[int, ...] = SIZES_MIB
    message_kib_default: int = 256
    message_kib_min: int = 1
    message_kib_max: int = 102_400
    time_to_live_ms_max: int | None = None
    partitions: int = 16
    is_partitioned: bool = False
    partitions_by_default: bool = False
    profile: Profile = CLOUD


ALL: Final = Tier(name="all", sku="Premium")
BASIC: Final = Tier(
    name="basic",
    sku="Basic",
    has_topics=False,
    has_features=False,
    offers_enable_express=False,
    sizes_mib=SIZES_MIB[:5],
    message_kib_min=256,
    message_kib_max=256,
    time_to_live_ms_max=14 * _DAY_MS,
    profile=msgspec.structs.replace(CLOUD, time_to_live_ms_default=14 * _DAY_MS),
)
STANDARD: Final = Tier(
    name="standard", sku="Standard", sizes_mib=SIZES_MIB[:5], message_kib_min=256, message_kib_max=256
)
PREMIUM: Final = Tier(
    name="premium",
    sku="Premium",
    offers_enable_express=False,
    message_kib_default=1024,
    message_kib_min=1024,
    partitions=2,
)
PREMIUM_PARTITIONED: Final = msgspec.structs.replace(
    PREMIUM, name="premium-partitioned", is_partitioned=True, partitions_by_default=True
)
TIERS: Final = {tier.name: tier for tier in (ALL, BASIC, STANDARD, PREMIUM, PREMIUM_PARTITIONED)}


def tier_named(name: str, *, partition_by_default: bool = False) -> Tier:
    """The tier of a name; ``partition_by_default`` partitions new entities of which nobody says, in every tier."""
    tier = TIERS[name]
    return msgspec.structs.replace(tier, partitions_by_default=tier.partitions_by_default or partition_by_default)


_Described = QueueDescription | TopicDescription | SubscriptionDescription
_KINDS: Final = {QueueDescription: QUEUE, TopicDescription: TOPIC, SubscriptionDescription: SUBSCRIPTION}


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
