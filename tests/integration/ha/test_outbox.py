"""The file of an outbox: durable, bounded, owned by one, and honest about what it cannot read (I53)."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest

from duobus.clock import Clock
from duobus.ha.errors import OutboxFailed, OutboxFull
from duobus.ha.outbox.file import OutboxFile
from duobus.ha.outbox.message import Packed
from duobus.ha.outbox.plan import OutboxBatch
from duobus.ha.outbox.queue import Depth, Outbox


def packed(text: str, key: str = "") -> Packed:
    return Packed(key, b"", text.encode())


def put(outbox: Outbox, *texts: str, key: str = "") -> None:
    outbox.store([packed(text, key) for text in texts]).result()


def taken(outbox: Outbox) -> tuple[OutboxBatch, list[str]]:
    batch = outbox.take()
    assert batch is not None
    return batch, [item[2].decode() for item in outbox.read(batch).result() if not isinstance(item, int)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox.db"


def test_what_was_stored_is_there_when_the_file_is_opened_again(path: Path) -> None:
    with Outbox(path) as outbox:
        put(outbox, "one", "two")
    with Outbox(path) as outbox:
        assert outbox.depth == Depth(2, 6, 0)
        assert taken(outbox)[1] == ["one", "two"]


def test_what_was_sent_is_gone_and_what_was_taken_and_not_sent_comes_again(path: Path) -> None:
    with Outbox(path) as outbox:
        put(outbox, "sent", key="a")
        put(outbox, "taken", key="b")
        outbox.on_sent(taken(outbox)[0])
        taken(outbox)
    with Outbox(path) as outbox:
        assert taken(outbox)[1] == ["taken"]


def test_messages_of_threads_side_by_side_share_commits(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commits: list[int] = []
    whole = OutboxFile._commit
    gate = threading.Event()

    def counted(self: OutboxFile, database: sqlite3.Connection, batch: list[object]) -> None:
        gate.wait()
        commits.append(len(batch))
        whole(self, database, batch)  # type: ignore[arg-type]

    with Outbox(path) as outbox:
        monkeypatch.setattr(OutboxFile, "_commit", counted)
        futures = [outbox.store([packed(str(number))]) for number in range(100)]
        assert not any(future.done() for future in futures), "not before the commit"
        gate.set()
        for future in futures:
            future.result()
        assert len(commits) <= 2
        assert outbox.depth.messages == 100


def test_a_message_beyond_the_bound_is_refused_and_there_is_room_when_one_was_sent(path: Path) -> None:
    with Outbox(path, messages_max=2) as outbox:
        put(outbox, "one", "two")
        with pytest.raises(OutboxFull, match="2 messages of 6 bytes"):
            outbox.store([packed("three")])
        outbox.on_sent(taken(outbox)[0])
        outbox.set_aside()  # Behind the removal.
        put(outbox, "three")


def test_bytes_are_bounded_and_what_is_about_to_be_stored_counts(path: Path) -> None:
    with Outbox(path, bytes_max=10) as outbox:
        first: Future[object] = outbox.store([packed("12345678")])  # type: ignore[assignment]
        with pytest.raises(OutboxFull):
            outbox.store([packed("123")])
        first.result()
    with Outbox(path, bytes_max=10) as outbox, pytest.raises(OutboxFull):
        outbox.store([packed("123")])


def test_there_is_room_for_the_bytes_of_what_was_sent(path: Path) -> None:
    with Outbox(path, bytes_max=10) as outbox:
        put(outbox, "123", key="a")
        put(outbox, "1234567", key="b")
        outbox.on_sent(taken(outbox)[0])
        outbox.set_aside()  # Behind the removal.
        put(outbox, "123", key="a")
        with pytest.raises(OutboxFull, match="2 messages of 10 bytes"):
            outbox.store([packed("1")])


def test_it_is_told_to_the_millisecond_when_there_is_something_to_send_again(path: Path) -> None:
    class Still(Clock):
        def monotonic_ms(self) -> int:
            return 5_000

    with Outbox(path, retry_first_ms=2_500, clock=Still()) as outbox:
        put(outbox, "x")
        assert outbox.wait_s() is None
        outbox.on_away(taken(outbox)[0], 1.0)
        assert outbox.wait_s() == 2.5


def test_a_list_is_stored_whole_or_not_at_all(path: Path) -> None:
    with Outbox(path, messages_max=2) as outbox:
        with pytest.raises(OutboxFull):
            outbox.store([packed("a"), packed("b"), packed("c")])
        assert outbox.depth.messages == 0


def test_what_was_refused_is_set_aside_with_the_reason_and_counts_until_it_is_discarded(path: Path) -> None:
    with Outbox(path, messages_max=1) as outbox:
        put(outbox, "bad")
        assert outbox.on_refused(taken(outbox)[0], "too large") == 1
    with Outbox(path, messages_max=1) as outbox:
        assert outbox.take() is None
        assert [(item.number, item.reason) for item in outbox.set_aside()] == [(1, "too large")]
        with pytest.raises(OutboxFull, match="1 of them set aside"):
            outbox.store([packed("x")])
        assert outbox.discard() == 1
        put(outbox, "x")


def test_what_is_set_aside_can_be_tried_again_behind_the_others(path: Path) -> None:
    with Outbox(path) as outbox:
        put(outbox, "mended")
        outbox.on_refused(taken(outbox)[0], "full")
        put(outbox, "next")
        assert outbox.try_again([77]) == 0
        assert outbox.try_again() == 1
        assert outbox.depth == Depth(2, 10, 0)
        assert taken(outbox)[1] == ["next", "mended"]


def test_a_damaged_message_is_set_aside_and_never_sent_as_something_else(path: Path) -> None:
    with Outbox(path) as outbox:
        put(outbox, "whole", "broken", "whole too", "broken too")
    with sqlite3.connect(path) as database:
        database.execute("UPDATE messages SET data = x'00' WHERE number = 2")
        database.execute("UPDATE messages SET head = 'text' WHERE number = 4")
    database.close()
    with Outbox(path) as outbox:
        batch = outbox.take()
        assert batch is not None
        assert [item for item in outbox.read(batch).result() if isinstance(item, int)] == [2, 4]
        outbox.on_damaged(batch, [2, 4])
        assert taken(outbox)[1] == ["whole", "whole too"]
        assert [item.number for item in outbox.set_aside()] == [2, 4]


def test_a_full_disk_refuses_messages_and_takes_them_again_when_there_is_room(path: Path) -> None:
    with Outbox(path) as outbox:

        def few_pages(database: sqlite3.Connection) -> None:
            database.execute("PRAGMA max_page_count=20")

        outbox._file.submit(few_pages).result()
        with pytest.raises(OutboxFailed, match="full"):
            put(outbox, "x" * 1_000_000)
        assert outbox.depth.messages == 0
        put(outbox, "small")
        assert taken(outbox)[1] == ["small"]


def test_after_any_other_error_of_the_disk_nothing_more_is_promised(path: Path) -> None:
    with Outbox(path) as outbox:

        def fail(_: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        put(outbox, "before")
        with pytest.raises(OutboxFailed, match="disk I/O error"):
            outbox._file.submit(fail).result()
        with pytest.raises(OutboxFailed, match="closed"):
            put(outbox, "after")
    with Outbox(path) as outbox:
        assert taken(outbox)[1] == ["before"]


def test_what_waits_behind_an_error_of_the_disk_is_refused_with_that_error(path: Path) -> None:
    begun, gate = threading.Event(), threading.Event()

    def fail(_: sqlite3.Connection) -> None:
        begun.set()
        gate.wait()
        raise sqlite3.OperationalError("disk I/O error")

    with Outbox(path) as outbox:
        failing = outbox._file.submit(fail)
        begun.wait()
        waiting = outbox.store([packed("behind")])
        gate.set()
        for future in (failing, waiting):
            with pytest.raises(OutboxFailed, match="disk I/O error"):
                future.result()
        assert outbox.depth.messages == 0


def test_a_second_process_or_object_cannot_have_the_file(path: Path) -> None:
    program = f"from duobus.ha.outbox.queue import Outbox; Outbox({str(path)!r})"
    with Outbox(path):
        with pytest.raises(OutboxFailed, match="another process has it open"):
            Outbox(path)
        other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert "another process has it open" in other.stderr


def test_the_file_is_for_its_owner_only_and_no_link_is_followed(path: Path) -> None:
    with Outbox(path):
        assert path.stat().st_mode & 0o777 == 0o600
    link = path.with_name("link.db")
    link.symlink_to(path)
    with pytest.raises(OutboxFailed, match="not a file of this user"):
        Outbox(link)


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(OutboxFailed, match="format 99"):
        Outbox(path)


def test_a_second_sender_is_refused(path: Path) -> None:
    with Outbox(path) as outbox:
        outbox.attach(lambda: None)
        with pytest.raises(ValueError, match="has a sender"):
            outbox.attach(lambda: None)
        outbox.detach()
        outbox.attach(lambda: None)


@pytest.mark.parametrize("options", [{"messages_max": 0}, {"bytes_max": 0}, {"messages_max": 10_000_001}])
def test_bounds_out_of_range_are_refused(path: Path, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="has to be"):
        Outbox(path, **options)  # type: ignore[arg-type]


def test_a_commit_is_synced_to_the_disk_before_it_is_answered(path: Path) -> None:
    """FULL syncs the log at each commit; NORMAL would lose the last ones with the power."""
    with Outbox(path) as outbox:

        def settings(database: sqlite3.Connection) -> tuple[str, int]:
            return tuple(database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))

        assert outbox._file.submit(settings).result() == ("wal", 2)
