"""MaxSizeInMegabytes and its factor of 16, MaxMessageSizeInKilobytes (HTTP contract A.6)."""

from __future__ import annotations

from typing import Final

from duobus.gateway.rest.atom.fields import Fields
from duobus.model.description import SIZES_MIB

#: What a partitioned entity's size is multiplied by when it is told, however many fragments it has.
PARTITIONS_TOLD: Final = 16
_KIB: Final = 1024


def written_size(size_mib: int, is_partitioned: bool) -> int:
    """Return the value that is told."""
    return size_mib * PARTITIONS_TOLD if is_partitioned else size_mib


def read_size(fields: Fields, is_partitioned: bool, kept_mib: int | None) -> int:
    """Return the size that a request asks for, per partition.

    A client that changes something else sends back what it has read, which is 16 times the size: taken for what it is.
    """
    asked = fields.number("MaxSizeInMegabytes", SIZES_MIB[0])
    if not is_partitioned:
        return asked
    if kept_mib is not None and asked == kept_mib * PARTITIONS_TOLD:
        return kept_mib
    if asked not in SIZES_MIB and asked % PARTITIONS_TOLD == 0 and asked // PARTITIONS_TOLD in SIZES_MIB:
        return asked // PARTITIONS_TOLD
    return asked


def message_bytes(fields: Fields, default_kib: int) -> int:
    """Return the largest message that a request asks for, in bytes."""
    return fields.number("MaxMessageSizeInKilobytes", default_kib) * _KIB
