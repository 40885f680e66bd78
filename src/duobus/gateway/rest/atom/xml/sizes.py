"""MaxSizeInMegabytes and its factor, MaxMessageSizeInKilobytes (HTTP contract A.6)."""

from __future__ import annotations

from typing import Final

from duobus.gateway.rest.atom.xml.fields import Fields
from duobus.model.descriptions import SIZES_MIB

_KIB: Final = 1024


def written_size(size_mib: int, partitions: int) -> int:
    """Return the value that is told: of all partitions together (PE8); an entity that has none counts as one."""
    return size_mib * partitions


def read_size(fields: Fields, partitions: int, kept_mib: int | None) -> int:
    """Return the size that a request asks for, per partition.

    A client that changes something else sends back what it has read, which is the size of all partitions together:
    taken for what it is.
    """
    asked = fields.number("MaxSizeInMegabytes", SIZES_MIB[0])
    if kept_mib is not None and asked == kept_mib * partitions:
        return kept_mib
    if asked not in SIZES_MIB and asked % partitions == 0 and asked // partitions in SIZES_MIB:
        return asked // partitions
    return asked


def message_bytes(fields: Fields, default_kib: int) -> int:
    """Return the largest message that a request asks for, in bytes."""
    return fields.number("MaxMessageSizeInKilobytes", default_kib) * _KIB
