"""What the demonstration sends, and in which portions."""

from __future__ import annotations

from pathlib import Path

from duobus_demo.corpus import MESSAGE_ID_LENGTH_MAX, Outgoing, digest_of, source_files, standard_library
from duobus_demo.dispositions import Action, DeferredNumbers, Dispositions
from duobus_demo.feed import Feed


def messages(count: int) -> list[Outgoing]:
    return [Outgoing(str(number), body=b"%d" % number) for number in range(count)]


def test_standard_library_is_sent_whole_with_unique_short_ids() -> None:
    library = standard_library()

    ids = [message.message_id for message in library]
    assert len(ids) == len(set(ids)) > 500
    assert max(map(len, ids)) <= MESSAGE_ID_LENGTH_MAX
    assert {"json/decoder.py", "abc.py"} <= set(ids)
    keyed = sum(message.partition_key is not None for message in library)
    assert 0.4 < keyed / len(library) < 0.6
    assert {m.partition_key for m in library if m.message_id.startswith("json/")} <= {None, "json"}


def test_installed_packages_and_caches_are_left_out(tmp_path: Path) -> None:
    for name in ("a.py", "p/b.py", "p/c.txt", "site-packages/d.py", "p/__pycache__/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    found = list(source_files(tmp_path))

    assert [message.message_id for message in found] == ["a.py", "p/b.py"]
    assert found[1].read() == b"p/b.py"


def test_path_too_long_for_a_message_id_is_hashed(tmp_path: Path) -> None:
    name = "n" * (MESSAGE_ID_LENGTH_MAX - 2) + ".py"
    (tmp_path / name).write_text("")

    assert [message.message_id for message in source_files(tmp_path)] == [digest_of(name.encode())]


def test_feed_hands_out_no_more_than_it_was_allowed() -> None:
    feed = Feed(messages(3))
    assert feed.take() is None
    feed.allow(2)
    taken = [feed.take(), feed.take(), feed.take()]

    assert [message and message.message_id for message in taken] == ["0", "1", None]
    assert (feed.taken, feed.is_finished) == (2, False)


def test_feed_is_finished_when_the_last_was_asked_for() -> None:
    feed = Feed(messages(1), limit=None)
    feed.take()
    assert not feed.is_finished

    assert feed.take() is None
    assert feed.is_finished


def test_finished_feed_hands_out_nothing_even_if_there_is_more() -> None:
    feed = Feed(messages(5), limit=None)
    feed.finish()

    assert feed.take() is None


def test_each_unusual_settlement_happens_once_per_message() -> None:
    dispositions = Dispositions(share=5)
    ids = [f"m{number}" for number in range(500)]

    first = [dispositions.choose(message_id) for message_id in ids]

    for action in (Action.ABANDON, Action.DEFER, Action.DEAD_LETTER):
        assert 50 < first.count(action) < 150
    assert {dispositions.choose(message_id) for message_id in ids} == {Action.COMPLETE}


def test_share_of_zero_completes_every_message() -> None:
    dispositions = Dispositions(share=0)

    assert {dispositions.choose(f"m{number}") for number in range(100)} == {Action.COMPLETE}


def test_deferred_number_is_handed_out_once_until_added_again() -> None:
    numbers = DeferredNumbers()
    numbers.add(5)
    numbers.add(5)

    assert [numbers.take(), numbers.take()] == [5, None]
    numbers.add(5)
    assert numbers.take() == 5
