"""The screen to which the pages of this package belong."""

from __future__ import annotations

from typing import Final

from duobus.console.visits import Screen

screen: Final = Screen("messages", label="Messages", order=30)

#: What this package keeps in the memory of a session, by the name of the screen.
MEMORY: Final = screen.name
