"""Which commits wait in the journal, and which go to SQLite at once."""

from __future__ import annotations

import pytest

from duobus.storage.interface import CommitBatch, Put
from duobus.storage.journal.backlog import _COPY_BYTES, LargeCommits, _estimate, measure

LARGE = [bytes(1 << 10)] * 500


def sent(payloads: list[bytes], removed: tuple[int, int] | None = None) -> CommitBatch:
    """A commit of new messages, which removes a range of earlier ones."""
    batch = CommitBatch(1, 1)
    batch.puts = [Put(1, 1, 1, payloads)] if payloads else []
    batch.removed = [(1, *removed)] if removed else []
    batch.sources = [(1, 1 + len(payloads), 0, b"")]
    return batch


def spread(payloads: list[bytes], number: int) -> CommitBatch:
    """A commit of new messages of so many sources, which take turns."""
    batch = CommitBatch(1, 1)
    batch.puts = [Put(1 + index % number, 1, 1, [payload]) for index, payload in enumerate(payloads)]
    batch.sources = [(1 + index, 2, 0, b"") for index in range(number)]
    return batch


def test_large_commits_of_what_stays_go_to_sqlite_after_a_few() -> None:
    large = LargeCommits()
    assert [large.is_one(sent(LARGE)) for _ in range(8)].index(True) < 6


def test_large_commits_of_what_is_removed_as_fast_wait_in_the_journal() -> None:
    large = LargeCommits()
    assert not any(large.is_one(sent(LARGE, (1, 500))) for _ in range(100))


@pytest.mark.parametrize(("number", "is_for_sqlite"), [(1, True), (60, True), (65, False), (500, False)])
def test_large_commits_whose_sources_get_less_than_a_page_each_wait_in_the_journal(
    number: int, is_for_sqlite: bool
) -> None:
    large = LargeCommits()
    assert any(large.is_one(spread(LARGE, number)) for _ in range(20)) == is_for_sqlite


def test_large_commits_of_a_topic_s_copies_go_to_sqlite_however_many_its_subscriptions_are() -> None:
    large, body = LargeCommits(), bytes(1000)
    batch = spread([body] * 2000, 2000)
    for put in batch.puts:
        put.origins = [-7]
    assert any(large.is_one(batch) for _ in range(20))


def test_a_purge_before_does_not_keep_large_commits_from_sqlite() -> None:
    large = LargeCommits()
    for _ in range(20):
        large.is_one(sent([b"small"], (1, 1)))
    large.is_one(sent([], (1, 1_000_000)))
    assert [large.is_one(sent(LARGE)) for _ in range(8)].index(True) < 6


def test_how_large_a_long_commit_is_is_told_by_some_of_its_messages() -> None:
    for sizes in ([1 << 10] * 500, [10, 3000] * 450, [*range(1000)], [1] * 31):
        commit = sent([bytes(size) for size in sizes], (1, 7))
        (size, *counts), (told, *counts_told, is_exact) = measure(commit), _estimate(commit)
        assert counts_told == counts
        assert told == pytest.approx(size, rel=0.1)
        assert is_exact == (len(sizes) < 32)


def test_what_was_measured_exactly_is_not_measured_again() -> None:
    large = LargeCommits()
    for commit in (sent([b"a", b"bc"], (1, 7)), spread(LARGE, 500)):
        large.is_one(commit)
        assert large.measured == measure(commit)
    large.is_one(sent(LARGE))
    assert large.measured is None


def test_a_body_that_copies_share_is_measured_once() -> None:
    batch, body = CommitBatch(1, 1), bytes(1000)
    batch.puts = [Put(key, 1, 1, [body, b"own"], None, [-7, 8]) for key in (2, 3)]
    alone = CommitBatch(1, 1)
    alone.puts = [Put(1, 1, 1, [body, b"own", b"own", b""])]
    (size, *rows), (expected, *numbers) = measure(batch), measure(alone)
    assert (size - 4 * _COPY_BYTES, rows) == (expected, numbers)
