"""What tests hand to the management of resources: plain values."""

from enum import StrEnum
from types import SimpleNamespace


class AccessRights(StrEnum):
    """Rights of a rule."""

    manage = "Manage"
    send = "Send"
    listen = "Listen"


class SBAuthorizationRule(SimpleNamespace):
    """``rights``."""


class SBQueue(SimpleNamespace):
    """Properties of a queue, by the names of the administration client of the SDK."""


class SBSubscription(SimpleNamespace):
    """Properties of a subscription, likewise."""
