"""The screens of the console. Another screen is another line here."""

from __future__ import annotations

from typing import Final

from duobus.console.screens import (
    access,
    audit,
    cluster,
    connections,
    dead_letters,
    entities,
    messages,
    overview,
    pairs,
    relays,
    stores,
    usage,
)
from duobus.console.visits import Screen

SCREENS: Final[tuple[Screen, ...]] = (
    overview.screen,
    *entities.SCREENS,
    messages.screen,
    dead_letters.screen,
    connections.screen,
    relays.screen,
    stores.screen,
    cluster.screen,
    pairs.screen,
    audit.screen,
    usage.screen,
    access.screen,
)
