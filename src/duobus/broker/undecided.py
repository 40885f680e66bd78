"""Undecided: groups whose commit failed, so that only their store can tell whether it holds them.

A settlement cannot be undone by a tombstone, and a transaction must never be half believed: its client hears "done" or
"rolled back" when the store has been opened again and its last commit number says which (I8, I18).
"""

from __future__ import annotations

from duobus.broker.fragment.commands import Group
from duobus.errors import ServiceBusError


class Undecided:
    """The groups of one message broker that wait for the truth."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Group, int, ServiceBusError]] = []

    def keep(self, group: Group, commit_no: int, error: ServiceBusError) -> None:
        """Remember a group of an ambiguous commit, and its error should that commit turn out not to be there."""
        self._waiting.append((group, commit_no, error))

    def decide(self, last_commit_no: int) -> None:
        """The store is open again: answer everybody. No commit was made since that of the groups."""
        waiting, self._waiting = self._waiting, []
        for group, commit_no, error in waiting:
            group.error = None if last_commit_no >= commit_no else error
            if group.reply is not None:
                group.reply.ready.append(group)
                group.reply.wake()
