"""The messages of an entity: looked at, sent, received and settled by hand, followed live, and purged."""

from duobus.console.screens.messages import (
    list_page,
    purge_page,
    receive_page,
    send_page,
    session_page,
    tail_page,
)
from duobus.console.screens.messages.places import screen

__all__ = ["list_page", "purge_page", "receive_page", "screen", "send_page", "session_page", "tail_page"]
