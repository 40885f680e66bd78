"""What all commands of a fragment have in common: one object per batch, which also carries its result back.

A command knows what it does, in three steps: ``check`` and ``apply`` when a commit starts, ``release`` when that
commit is durable. Each operation is one file, with its commands, their steps and their errors: ``send``,
``receive``, ``settlement``, ``housekeeping``, ``purge``, ``transfer``, ``forward_dedup``, ``sessions.states``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duobus.errors import ServiceBusError
from duobus.fragment.message import RESERVED, QueuedMessage
from duobus.model.batches import Mailbox

if TYPE_CHECKING:
    from duobus.fragment.fragment import Fragment
    from duobus.fragment.source import Source
    from duobus.storage.interface import CommitBatch


class Command:
    """Parent of all commands; its children are compiled with it, so all of them are in this package.

    Attributes:
        handle: The fragment it is for (a FragmentHandle; opaque to the fragment).
        source_no: The source of that fragment.
        reply: Where the released command goes, or None when nobody waits.
        error: Why it was not done; None when it was.
    """

    __slots__ = ("error", "handle", "reply", "source_no")

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None) -> None:
        self.handle = handle
        self.source_no = source_no
        self.reply = reply
        self.error: ServiceBusError | None = None

    def check(self, fragment: Fragment, source: Source, now_ms: int) -> ServiceBusError | None:
        """Say why the command cannot be done, or None; a check changes nothing, but see ``Fragment.find_fault``."""
        return None

    def apply(self, fragment: Fragment, source: Source, now_ms: int, commit: CommitBatch) -> None:
        """Do the command, which was checked: decide, and write down what the store must keep. Cannot fail."""
        raise NotImplementedError

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """The commit is durable: make the command's effects visible."""

    def weight(self) -> tuple[int, int]:
        """Messages and bytes by which the command, once applied, makes its commit longer."""
        return 0, 0

    def may_wait(self) -> bool:
        """Whether the commit of the command, which is not answered, may wait for others a little."""
        return False

    def effort_spent(self) -> int:
        """What was done for the command before it was refused, in messages."""
        return 0

    def written_ranges(self, fragment: Fragment) -> list[tuple[int, int, int]]:
        """(source key, first count, last count) of all messages that its commit may have written (I27)."""
        return []

    def finish(self) -> None:
        """Answer whoever waits for the command."""
        reply = self.reply
        if reply is not None:
            reply.ready.append(self)
            reply.wake()


class RemovalCommand(Command):
    """Parent of the commands that remove messages for good.

    Attributes:
        messages: After apply: what was removed.
    """

    __slots__ = ("messages",)

    def __init__(self, handle: Any, source_no: int, reply: Mailbox | None) -> None:
        super().__init__(handle, source_no, reply)
        self.messages: list[QueuedMessage] = []

    def remove(self, source: Source, messages: list[QueuedMessage], commit: CommitBatch) -> None:
        """Take the messages out of everyone's reach and write down their removal."""
        self.messages = messages
        for message in messages:
            message.lock = RESERVED
        source.uncount(messages)
        source.write_removals(messages, commit)

    def release(self, fragment: Fragment, source: Source, now_ms: int) -> None:
        """The removal is durable: forget the messages."""
        for message in self.messages:
            source.forget(message)


class Group(Command):
    """Commands of one message broker that are done together or not at all, in one commit.

    The message broker takes a group apart: a fragment is given its members one by one.
    """

    __slots__ = ("members",)

    def __init__(self, members: list[Command], reply: Mailbox | None) -> None:
        super().__init__(None, 0, reply)
        self.members = members

    def weight(self) -> tuple[int, int]:
        """Messages and bytes of all members."""
        weights = [member.weight() for member in self.members]
        return sum([messages for messages, _ in weights]), sum([size for _, size in weights])

    def effort_spent(self) -> int:
        """What was done for all members."""
        return sum([member.effort_spent() for member in self.members])
