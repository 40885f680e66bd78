"""A log file that can be moved away, and lines with priorities for the journal."""

from __future__ import annotations

import io
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from duobus.clock import Clock
from duobus.telemetry.logs import Log, LogFile, is_journal, set_up_logs


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in set(root.handlers) - set(handlers):
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def texts(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_a_file_that_was_moved_away_gets_what_comes_until_it_is_opened_again(tmp_path: Path) -> None:
    path, moved = tmp_path / "duobus.log", tmp_path / "duobus.log.1"
    file = LogFile(path)
    set_up_logs("json", Clock(), file)
    Log("test").info("one")
    path.rename(moved)
    Log("test").info("two")
    assert not path.exists()
    file.reopen()
    Log("test").info("three")
    assert (texts(moved), texts(path)) == (["one", "two"], ["three"])


def test_a_file_is_appended_to_and_others_may_not_read_it(tmp_path: Path) -> None:
    path = tmp_path / "duobus.log"
    for text in ("first run", "second run"):
        file = LogFile(path)
        set_up_logs("json", Clock(), file)
        Log("test").info(text)
        file.close()
    assert texts(path) == ["first run", "second run"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o037 == 0


def test_two_servers_may_write_to_one_file(tmp_path: Path) -> None:
    path = tmp_path / "duobus.log"
    first, second = LogFile(path), LogFile(path)
    for turn in range(3):
        for name, file in (("first", first), ("second", second)):
            set_up_logs("json", Clock(), file)
            Log("test").info(f"{name} {turn}")
    first.close()
    second.close()
    assert texts(path) == [f"{name} {turn}" for turn in range(3) for name in ("first", "second")]


def test_a_file_that_cannot_be_opened_again_leaves_the_old_one_in_use(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    file = LogFile(folder / "duobus.log")
    set_up_logs("json", Clock(), file)
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="No such file"):
        file.reopen()
    Log("test").info("still written")
    assert texts(tmp_path / "elsewhere" / "duobus.log") == ["still written"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_line_that_the_file_does_not_take_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    file = LogFile(Path("/dev/full"))
    set_up_logs("text", Clock(), file)
    Log("test").warning("disk is full", store=2)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("warning duobus.test: disk is full store=2")
    file.close()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_lines_for_the_journal_begin_with_their_priority(log_format: str) -> None:
    stream = io.StringIO()
    set_up_logs(log_format, Clock(), stream, logging.DEBUG, has_priorities=True)
    log = Log("test")
    log.debug("d")
    log.info("i")
    log.warning("w")
    log.error("e", exception=ValueError("two\nlines"))
    lines = stream.getvalue().splitlines()
    assert [line[:3] for line in lines] == ["<7>", "<6>", "<4>", "<3>"]
    if log_format == "json":
        assert [json.loads(line[3:])["event"] for line in lines] == ["d", "i", "w", "e"]


def test_elsewhere_lines_have_no_priority() -> None:
    stream = io.StringIO()
    set_up_logs("json", Clock(), stream)
    Log("test").info("i")
    assert stream.getvalue().startswith("{")


def test_the_journal_is_known_by_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "stream").open("w") as stream:
        status = os.fstat(stream.fileno())
        own = f"{status.st_dev}:{status.st_ino}"
        assert is_journal(stream, {"JOURNAL_STREAM": own})
        # The variable stays in the environment when a shell sends the stream elsewhere.
        assert not is_journal(stream, {"JOURNAL_STREAM": f"{own}1"})
        assert not is_journal(stream, {})
    assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": own})
