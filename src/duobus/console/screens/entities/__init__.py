"""The entities of a namespace: table and tree, one entity, forms, rules and their try-out, import and export."""

from __future__ import annotations

from typing import Final

from duobus.console.screens.entities import editor, entity, overview, rules, topology, trial
from duobus.console.visits import Screen

#: All of them are one entry of the navigation.
SCREENS: Final[tuple[Screen, ...]] = (
    overview.screen,
    entity.screen,
    editor.screen,
    rules.screen,
    trial.screen,
    topology.screen,
)
