"""Planted bugs of forwarding; see ``queues``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from duobus.broker.commit_loop import CommitLoop
from duobus.broker.forwarding.batches import InFlightBatch
from duobus.broker.forwarding.forwarder import Forwarder
from duobus.fragment import transfer
from duobus.fragment.commands import Command, Group
from duobus.fragment.forward_dedup import ForwardDedup, RecordForwarded
from duobus.fragment.message import TRANSFER
from duobus.fragment.send import Run
from duobus.fragment.transfer import RemoveTransferred
from duobus.model.metadata import MessageMetadata, TransferRoute
from duobus.storage.interface import CommitBatch


@contextmanager
def forwarded_without_record() -> Iterator[None]:
    """The destination keeps no entry of what it takes over."""

    def apply(command: RecordForwarded, fragment: Any, source: Any, now_ms: int, commit: CommitBatch) -> None:
        """Nothing is written, and nothing left out."""

    with mock.patch.object(RecordForwarded, "apply", apply):
        yield


@contextmanager
def dedup_lost_at_restart() -> Iterator[None]:
    """Entries are in memory only."""
    with mock.patch.object(ForwardDedup, "recover", return_value=None):
        yield


@contextmanager
def removed_before_accepted() -> Iterator[None]:
    """Over stores a message leaves its origin when its acceptance is asked for, not when it is durable."""
    original = CommitLoop.submit

    def submit(self: CommitLoop, command: Command) -> None:
        in_flight = command.reply
        if (
            isinstance(command, Group)
            and isinstance(in_flight, InFlightBatch)
            and isinstance(command.members[0], RecordForwarded)
        ):
            origin = in_flight._sender.handle
            origin.submit(RemoveTransferred(origin, 0, None, in_flight.forward_batch.messages))
        original(self, command)

    def accepted(self: Forwarder, in_flight: InFlightBatch, *, is_here: bool) -> None:
        self._end(in_flight, is_gone=is_here)

    with mock.patch.object(CommitLoop, "submit", submit), mock.patch.object(Forwarder, "_accepted", accepted):
        yield


@contextmanager
def forward_in_two_commits() -> Iterator[None]:
    """Within one store a message is stored there in one commit and removed here in the next, without an entry."""
    original = CommitLoop.submit

    def submit(self: CommitLoop, command: Command) -> None:
        in_flight = command.reply
        if (
            isinstance(command, Group)
            and isinstance(in_flight, InFlightBatch)
            and isinstance(command.members[0], RemoveTransferred)
        ):
            depart, run = command.members
            assert isinstance(run, Run)
            original(self, Group([run], None))
            depart.reply = None
            self._loop.call_later(0.05, original, self, Group([depart], in_flight))
            return
        original(self, command)

    with mock.patch.object(CommitLoop, "submit", submit):
        yield


@contextmanager
def forgotten_too_early() -> Iterator[None]:
    """An accepted number is forgotten at once, whether its origin still has the message or not."""
    from duobus.broker.forwarding.service import ForwardingService

    with (
        mock.patch.object(ForwardingService, "gone", lambda self, origin, counts: counts),
        mock.patch("duobus.broker.forwarding.service.SWEEP_S", 0.001),
    ):
        yield


@contextmanager
def hops_not_counted() -> Iterator[None]:
    """Every hop is the first."""
    original = transfer.onward

    def onward(*arguments: Any) -> MessageMetadata:
        metadata = original(*arguments)
        metadata.route = TransferRoute(1)
        return metadata

    with mock.patch.object(transfer, "onward", onward):
        yield


@contextmanager
def via_not_durable() -> Iterator[None]:
    """What was sent via an entity is not found again after a crash."""
    from duobus.broker import recovery

    states = tuple(state for state in recovery._SCANNED_STATES if state != TRANSFER)
    with mock.patch.object(recovery, "_SCANNED_STATES", states):
        yield


FORWARDING_BUGS: dict[str, Callable[[], Any]] = {
    "forwarded-without-record": forwarded_without_record,
    "dedup-lost-at-restart": dedup_lost_at_restart,
    "removed-before-accepted": removed_before_accepted,
    "forward-in-two-commits": forward_in_two_commits,
    "forgotten-too-early": forgotten_too_early,
    "hops-not-counted": hops_not_counted,
    "via-not-durable": via_not_durable,
}
