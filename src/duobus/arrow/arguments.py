"""The arguments that ``read_queue`` has in both modes, for type checkers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypedDict


class Arguments(TypedDict, total=False):
    """See ``read_queue``."""

    queue: str | None
    topic: str | None
    subscription: str | None
    sub_queue: str | None
    session: str | None
    columns: Sequence[str] | None
    filter: Any
    from_sequence: int | None
    to_sequence: int | None
    from_time: datetime | None
    to_time: datetime | None
    limit: int | None
    batch_size: int
    max_wait: float
    ca_file: str | None
    connection_string_env: str | None
