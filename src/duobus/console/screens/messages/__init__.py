"""The messages of an entity: looked at, sent, received and settled by hand, followed live, and purged."""

from duobus.console.screens.messages import list_page
from duobus.console.screens.messages.screen import screen

__all__ = ["list_page", "screen"]
