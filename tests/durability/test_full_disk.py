"""A real store on a real file system that is full again and again (I1, I17); tools/fulldisk.py does the work."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "fulldisk.py"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fulldisk", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_store_whose_disk_is_full_again_and_again_holds_what_it_acknowledged() -> None:
    words = [sys.executable, str(TOOL), "--seconds", "4", "--disk", "tmpfs", "--seed", "7"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "no difference" in done.stdout


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({1: b"a", 2: b"b", 3: b"c"}, r"revived \[3\]"),
        ({1: b"a"}, r"lost \[2\]"),
        ({1: b"a", 2: b"other"}, r"altered \[2\]"),
    ],
)
def test_what_differs_from_the_last_commit_is_told(tool: ModuleType, found: dict[int, bytes], words: str) -> None:
    model = tool.Model()
    model.held, model.last_commit_no = {1: b"a", 2: b"b"}, 5

    with pytest.raises(tool.Difference, match=words):
        model.judge(5, found)


def test_a_commit_that_failed_may_be_there_whole_or_not_at_all(tool: ModuleType) -> None:
    model = tool.Model()
    model.held, model.last_commit_no = {1: b"a"}, 5
    model.attempt = 6, {2: b"b"}
    model.judge(6, {2: b"b"})
    assert (model.held, model.last_commit_no) == ({2: b"b"}, 6)

    model.attempt = 7, {}
    model.judge(6, {2: b"b"})
    assert model.last_commit_no == 6

    with pytest.raises(tool.Difference, match="should be one of"):
        model.judge(4, {2: b"b"})
