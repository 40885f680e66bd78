"""In what the description of an entity that exists differs from what a configuration asks for (design 6)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec


def differences(kept: msgspec.Struct, asked: msgspec.Struct) -> list[str]:
    """Names of the properties in which two descriptions differ, times of change excepted."""
    ignored = {"name", "created_at_ms", "updated_at_ms", "accessed_at_ms"}
    names: Iterable[str] = kept.__struct_fields__
    return [name for name in names if name not in ignored and getattr(kept, name) != getattr(asked, name)]
