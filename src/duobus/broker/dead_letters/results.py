"""What all moves of the dead-letter service have in common."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from duobus.broker.entities.queue import COUNT_BITS, Queue
from duobus.errors import ServiceBusError
from duobus.fragment import transfer
from duobus.fragment.commands import Command
from duobus.fragment.message import FORWARDING, QueuedMessage
from duobus.model.batches import Mailbox

if TYPE_CHECKING:
    from duobus.broker.fragment_handle import FragmentHandle
    from duobus.fragment.fragment import Fragment


class MoveResult:
    """What became of a chunk.

    Attributes:
        moved: Sequence number to the new one; None where there is none to tell (a topic, another entity's copy).
        skipped: Sequence number to why a message was left.
    """

    __slots__ = ("moved", "skipped")

    def __init__(self) -> None:
        self.moved: dict[int, int | None] = {}
        self.skipped: dict[int, str] = {}


class Answer(Mailbox):
    """Waits for one command."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        super().__init__()
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        """See Mailbox."""
        if not self._future.done():
            self._future.set_result(None)

    async def error(self) -> ServiceBusError | None:
        """Wait until the command is durable, or refused."""
        await self._future
        command: Command = self.ready[0]
        return command.error


def number_of(handle: FragmentHandle, message: QueuedMessage) -> int:
    """The sequence number of a message."""
    return handle.number << COUNT_BITS | message.count


def give_back(queue: Queue, handle: FragmentHandle, fragment: Fragment, messages: list[QueuedMessage]) -> None:
    """Put messages back that were taken and are still here, whatever became of the others."""
    source = fragment.sources.get(queue.source_no)
    left = [message for message in messages if message.lock == FORWARDING]
    if not left or handle.fragment is not fragment or source is None:
        return
    handle.follow_up(fragment, transfer.give_back(fragment, source, left, handle.now_ms()))
