"""What an operator can choose about the HTTP doors."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.model.tiers import ALL, Tier

#: From this version on clients know partitioned entities.
_PARTITIONING = "2013-10"


class HttpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Choices.

    Attributes:
        tier: Whose defaults and limits hold for descriptions.
        strict_api_version: Demand ``api-version`` 2013-10 or later for partitioned entities (PE7).
    """

    tier: Tier = ALL
    strict_api_version: bool = False

    def demand_version(self, query: Mapping[str, str], is_partitioned: bool) -> None:
        """Raise ArgumentInvalid when the request's api-version is too old for what it is about."""
        if self.strict_api_version and is_partitioned and query.get("api-version", "") < _PARTITIONING:
            raise ArgumentInvalid(f"Partitioned entities need the parameter api-version={_PARTITIONING} or later.")
