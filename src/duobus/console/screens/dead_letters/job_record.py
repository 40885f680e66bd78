"""What is known of a run: what was asked for, how far it is, and what came of it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from duobus.console.screens.dead_letters.selection import Selection

# States of a run.
WAITING: Final = "waiting"
RUNNING: Final = "running"
PAUSED: Final = "paused"
HELD_UP: Final = "held up"
STOPPING: Final = "stopping"
DONE: Final = "done"
STOPPED: Final = "stopped"
FAILED: Final = "failed"
INTERRUPTED: Final = "interrupted"
ENDED: Final = frozenset({DONE, STOPPED, FAILED, INTERRUPTED})

# What a run does.
RESUBMIT: Final = "resubmit"
MOVE: Final = "move"
PURGE: Final = "purge"
UNDO: Final = "undo"
SEND: Final = "send"
RESTORE: Final = "bury"

#: Reasons why messages were left that one run tells apart, and messages that it names for them.
REASONS_MAX: Final = 100
EXAMPLES_MAX: Final = 200
_REASON_LENGTH: Final = 300


class JobRecord(msgspec.Struct):
    """A run, as it is kept in a file.

    Attributes:
        id: Its name in addresses and of its files.
        namespace: Host of the namespace.
        who: Name of the access rule with which the run was begun.
        action: What it does.
        selection: Which messages are meant, see ``Selection.data``.
        to: Entity of a move.
        repair: What is changed on the messages, see the dead-letter service.
        rate: Messages a second; None for no bound.
        is_dry: It looks only.
        begun_ms, ended_ms: When; 0 for not yet.
        state: One of the states.
        note: A sentence: why it waits, or has failed.
        expected: How many messages there will be; 0 when nobody knows.
        looked: How many messages were looked at.
        done, left, gone: See ``duobus.dead_letters.work.Totals``.
        reasons: Why messages were left, with their number.
        examples: Some of those messages: sequence number and reason.
        recorded: How many messages the undo file holds.
        undo_until_ms: Until when the run can be undone; 0 for never.
        undone_by: The run that undid this one; empty for none.
        undoes: The run that this one undoes; empty for none.
    """

    id: str
    namespace: str
    who: str
    action: str
    selection: dict[str, Any]
    begun_ms: int
    to: str = ""
    repair: dict[str, Any] | None = None
    rate: int | None = None
    is_dry: bool = False
    ended_ms: int = 0
    state: str = WAITING
    note: str = ""
    expected: int = 0
    looked: int = 0
    done: int = 0
    left: int = 0
    gone: int = 0
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    examples: list[tuple[int | None, str]] = msgspec.field(default_factory=list)
    recorded: int = 0
    undo_until_ms: int = 0
    undone_by: str = ""
    undoes: str = ""

    @property
    def meant(self) -> Selection:
        """The selection."""
        return Selection.of_data(self.selection)

    @property
    def has_ended(self) -> bool:
        """Whether nothing more happens."""
        return self.state in ENDED

    def skip(self, number: int | None, reason: str) -> None:
        """Count the reason why a message was left."""
        reason = reason[:_REASON_LENGTH]
        if reason in self.reasons or len(self.reasons) < REASONS_MAX:
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append((number, reason))

    def can_be_undone(self, now_ms: int) -> bool:
        """Whether the undo file is there and worth reading."""
        return self.has_ended and not self.undone_by and self.recorded > 0 and now_ms < self.undo_until_ms

    def seconds_left(self, now_ms: int) -> float | None:
        """How long the rest takes at the pace until now; None when nobody can tell."""
        handled = self.done + self.left + self.gone
        if self.state != RUNNING or not handled or self.expected <= handled:
            return None
        return (now_ms - self.begun_ms) / 1000 / handled * (self.expected - handled)
