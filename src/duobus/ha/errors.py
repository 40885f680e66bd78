"""Errors of pairs, beside those of the SDK, which reach the caller as they are."""

from __future__ import annotations


class PairingRefused(ValueError):
    """The two clients cannot be paired. Correct the call; repeating it does not help."""


class BacklogUnavailable(Exception):
    """No backlog queue is there, and none could be made; at a send: none took the message.

    A retry helps when the secondary is back. At a send ``__cause__`` is what the last queue answered; the message was
    not accepted anywhere, unless that was a time-out.
    """


class NotDiverted(Exception):
    """The entity has failed over, and the operation has no form that a backlog queue could keep."""


class PairFaulted(Exception):
    """The pair is broken: one of its clients was closed and the other not. Make new clients and pair them."""
