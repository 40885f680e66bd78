"""Quotas: what a server allows of each kind. The defaults are the cloud's (Azure: quotas); every one can be set."""

from __future__ import annotations

from typing import Final

import msgspec

from duobus.errors import ConfigurationError

#: How long a messaging store may take for one call, in seconds, unless the operator says otherwise. The slowest send
#: has to succeed elsewhere within 5 s of a fault (PE4), and no healthy disk that synced for this long has been seen.
STORE_TIMEOUT_S: Final = 3.0


class Quotas(msgspec.Struct, frozen=True, kw_only=True):
    """How many there may be.

    Attributes:
        connections: AMQP connections of one namespace that have shown a good token or login.
        receivers: Receiving links of one entity, its sub-queues included.
        entities: Entities of one namespace.
        partitioned_entities: Partitioned ones among them.
        history_ids: Message ids that the duplicate detection of one messaging store remembers.
    """

    connections: int = 5_000
    receivers: int = 5_000
    entities: int = 10_000
    partitioned_entities: int = 100
    #: In memory, 126 to 320 bytes each (measured).
    history_ids: int = 2_000_000


def quota_names() -> tuple[str, ...]:
    """The names under which quotas are set, in order."""
    return tuple(name.replace("_", "-") for name in Quotas.__struct_fields__)


def parse_quotas(texts: tuple[str, ...]) -> Quotas:
    """Return the defaults changed by texts such as ``connections=20000``.

    Raises:
        ConfigurationError: A text is none of these; it says which names there are.
    """
    values: dict[str, int] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in quota_names() or not number.isdecimal() or not 0 < int(number) <= 1 << 40:
            raise ConfigurationError(
                f"--quota {text!r} is no quota. Give NAME=NUMBER with a number of 1 and up; "
                f"the names are {', '.join(quota_names())}."
            )
        values[name.replace("-", "_")] = int(number)
    return Quotas(**values)
