"""Tiers: what Basic, Standard and Premium namespaces of the cloud have, and their limits (Azure: partitioned entities).

A server has all of it, under the rules of none, unless it is told to be one of them: for tests of what a program would
meet in the cloud. What a tier refuses is refused by the checks in ``descriptions.py``.
"""

from __future__ import annotations

from typing import Final

import msgspec

_DAY_MS: Final = 86_400_000
_MINUTE_MS: Final = 60_000

#: Sizes that an entity may be given, in MiB: Standard's and Premium's (Azure: quotas).
SIZES_MIB: Final = tuple(1024 * factor for factor in (1, 2, 3, 4, 5, 10, 20, 40, 80))


class Profile(msgspec.Struct, frozen=True):
    """Defaults and limits of one kind of service; attributes ending in ``_default``, ``_min`` and ``_max``.

    Lock and delivery-count limits are the cloud's in both profiles: files of the emulator may hold more than the
    emulator allows (the emulator's documentation), only its defaults differ.
    """

    lock_duration_ms_default: int = _MINUTE_MS
    lock_duration_ms_min: int = 5000
    lock_duration_ms_max: int = 5 * _MINUTE_MS
    time_to_live_ms_default: int | None = None
    time_to_live_ms_min: int = 1000
    duplicate_window_ms_default: int = 10 * _MINUTE_MS
    duplicate_window_ms_min: int = 20_000
    duplicate_window_ms_max: int = 7 * _DAY_MS
    delivery_count_default: int = 10
    delivery_count_max: int = 2_147_483_647
    auto_delete_ms_min: int = 5 * _MINUTE_MS


CLOUD = Profile()
EMULATOR = Profile(
    time_to_live_ms_default=60 * _MINUTE_MS,
    duplicate_window_ms_default=20_000,
    duplicate_window_ms_min=5000,
    delivery_count_default=3,
)


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
