"""InDoubtCommits: groups whose commit failed, so that only their store can tell whether it holds them.

A settlement cannot be undone by a tombstone, and a transaction must never be half believed: its client hears "done" or
"rolled back" when the store has been opened again and its last commit number says which (I8, I18). The same holds for
the numbers that a transaction is promised: they may be in one commit with its discharge.
"""

from __future__ import annotations

from typing import Final

from duobus.errors import ServiceBusError
from duobus.fragment.commands import Command, Group
from duobus.fragment.send import Reserve

#: What is answered when the truth is known.
AWAITED: Final = (Group, Reserve)


class InDoubtCommits:
    """The commands of one message broker that wait for the truth."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: list[tuple[Command, int, ServiceBusError]] = []

    def keep(self, command: Command, commit_no: int, error: ServiceBusError) -> None:
        """Remember a command of an ambiguous commit, and its error should that commit turn out not to be there."""
        self._waiting.append((command, commit_no, error))

    def decide(self, last_commit_no: int) -> None:
        """The store is open again: answer everybody. No commit was made since that of the groups."""
        waiting, self._waiting = self._waiting, []
        for command, commit_no, error in waiting:
            command.error = None if last_commit_no >= commit_no else error
            if command.reply is not None:
                command.reply.ready.append(command)
                command.reply.wake()
