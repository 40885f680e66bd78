"""Bugs planted in the fan-out, to see that the simulation of topics catches them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final
from unittest import mock

from duobus.fragment.send import Run
from duobus.fragment.topics import fanout
from duobus.model.assigned_ids import MessageIds
from duobus.rules import Match, RuleSet
from duobus.storage.interface import CommitBatch


@contextmanager
def copy_left_out() -> Iterator[None]:
    """The last copy of a run is shown and not written: one that a crash takes away while others stay."""
    original = fanout._CopyBuilder.write

    def write(self: Any, commit: CommitBatch) -> list[fanout.Copies]:
        before = len(commit.puts)
        copies = original(self, commit)
        if len(commit.puts) - before > 2:
            commit.puts.pop()
        return copies

    with mock.patch.object(fanout._CopyBuilder, "write", write):
        yield


@contextmanager
def tombstone_for_one_copy() -> Iterator[None]:
    """A run whose commit was ambiguous is deleted from the first subscription only."""
    original = Run.written_ranges

    def written_ranges(run: Run, fragment: Any) -> list[tuple[int, int, int]]:
        return original(run, fragment)[:2]

    with mock.patch.object(Run, "written_ranges", written_ranges):
        yield


@contextmanager
def subscription_passed_over() -> Iterator[None]:
    """Of some messages the last subscription that takes them gets no copy."""
    original = RuleSet.match_payload

    def match_payload(self: RuleSet, *message: Any) -> Match:
        found = original(self, *message)
        if len(found.sources) > 2 and message[-1] % 7 == 0:
            return Match(found.sources[:-1], found.altered, found.errors)
        return found

    with mock.patch.object(RuleSet, "match_payload", match_payload):
        yield


@contextmanager
def action_without_its_copy() -> Iterator[None]:
    """A rule with an action and one without, on one subscription, give one copy together."""
    original = RuleSet.match_payload

    def match_payload(self: RuleSet, *message: Any) -> Match:
        found = original(self, *message)
        altered = [copy for copy in found.altered if copy.source not in found.sources]
        return Match(found.sources, altered, found.errors)

    with mock.patch.object(RuleSet, "match_payload", match_payload):
        yield


@contextmanager
def ids_of_an_earlier_life() -> Iterator[None]:
    """Each life of a server gives the message ids again that the one before has given."""
    original = MessageIds.next

    def next_id(self: MessageIds) -> bytes:
        return b"0" * _PREFIX + original(self)[_PREFIX:]

    with mock.patch.object(MessageIds, "next", next_id):
        yield


#: Digits of an id that are random.
_PREFIX: Final = 20

BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "copy-left-out": copy_left_out,
    "tombstone-for-one-copy": tombstone_for_one_copy,
    "subscription-passed-over": subscription_passed_over,
    "action-without-its-copy": action_without_its_copy,
}

#: Of what only servers do.
WIRE_BUGS: dict[str, Callable[[], AbstractContextManager[None]]] = {"ids-of-an-earlier-life": ids_of_an_earlier_life}
