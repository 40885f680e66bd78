"""What can end a demonstration before it has a result."""

from __future__ import annotations


class DemoFailed(Exception):
    """The demonstration could not be finished. The text says what was waited for, and what to do where one can."""
