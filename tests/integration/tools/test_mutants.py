"""The tool that changes the code tells a change that a test notices from one that none can."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SEED = 19


@pytest.fixture(scope="module")
def mutants() -> Iterator[Any]:
    """The tool, with the library that it takes its operators from."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "tools")])
        import mutants

        try:
            mutants.install()
        except (OSError, subprocess.SubprocessError):
            pytest.skip("mutmut cannot be had here; make mutants gets it")
        yield mutants


def tried(folder: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "tools/mutants.py", "--rooms", "short", "--folder", str(folder), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "short.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert len({entry["key"] for entry in entries}) == len(entries), "one was tried twice"
    return {entry["key"]: entry for entry in entries}


def one(mutants: Any, function: str, change: str) -> str:
    found = mutants.drawn(mutants.SHORT, SEED, sys.maxsize)
    keys = [mutant.key for mutant in found if mutant.function == function and change in mutants.difference(mutant)]
    assert len(keys) == 1, keys
    return str(keys[0])


@pytest.mark.slow
def test_a_mutant_that_a_test_notices_is_killed_and_one_that_none_can_survives(mutants: Any, tmp_path: Path) -> None:
    noticed = one(mutants, "_expires_ms", "+    return int(whole) * 1001")
    never = one(mutants, "parse_sas", "if len(text) < KEPT_LENGTH_MAX")
    keys = ("--keys", f"{noticed},{never}", "--seed", str(SEED))
    first = tried(tmp_path, "--count", "4", *keys)
    assert first[noticed]["state"] == "killed"
    assert "tests/unit/auth/test_sas.py::test_fields_may_come" in first[noticed]["by"]
    assert first[never]["state"] == "survived"
    assert first[never]["tests"] > 5
    drawn = [mutant.key for mutant in mutants.drawn(mutants.SHORT, SEED, 5)]
    assert set(first) == {*drawn[:4], noticed, never}
    # Stopped and started again it goes on with what is missing.
    again = tried(tmp_path, "--count", "5", *keys)
    assert set(again) == {*first, drawn[4]}
    assert {entry["state"] for entry in again.values()} == {"killed", "survived"}


MODULE = """
class Counter:
    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, value):
        if not value:  # {comment}
            raise ValueError("nothing")
        self._value = value
        self.told(value, quickly=True)


def unrelated(a, b):
    return {unrelated}
"""


def found_in(tmp_path: Path, comment: str, unrelated: str, before: str = "") -> dict[str, Any]:
    from mutant_operators import Source

    source = Source(tmp_path / "module.py", before + MODULE.format(comment=comment, unrelated=unrelated))
    return {mutant.key: (source.mutated(mutant), mutant) for mutant in source.mutants()}


def test_a_mutant_keeps_its_name_when_its_function_moves_or_a_comment_changes(mutants: Any, tmp_path: Path) -> None:
    first = found_in(tmp_path, "why", "a + b")
    moved = found_in(tmp_path, "why not", "a + b", "import os\n\n")
    assert list(first) == list(moved)
    changed = found_in(tmp_path, "why", "a * b")
    ours = {key for key, (_, mutant) in first.items() if mutant.function == "Counter.value"}
    assert ours == set(first) & set(changed)


def test_mutants_are_faults_that_somebody_could_make(mutants: Any, tmp_path: Path) -> None:
    texts = [text for text, _ in found_in(tmp_path, "why", "a + b").values()]
    for change in (
        "if value:",
        "            pass",
        "self._value = None",
        "self.told(value, )",
        "quickly=False",
        "        pass\n",
        "return a - b",
    ):
        assert any(change in text for text in texts), change
    assert not any("XXnothing" in text for text in texts)


@pytest.fixture
def frozen_again() -> Iterator[None]:
    """Looking for functions takes back the freeze that all tests of this process share."""
    yield
    gc.collect()
    gc.freeze()


@pytest.mark.usefixtures("frozen_again")
def test_a_mutants_code_is_given_to_the_functions_of_a_module_that_is_imported(mutants: Any, tmp_path: Path) -> None:
    import mutant_server
    from mutant_operators import Source

    path = tmp_path / "module.py"
    path.write_text(MODULE.format(comment="why", unrelated="a + b"))
    source = Source(path)
    names: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    (minus,) = [one for one in source.mutants() if "return a - b" in source.mutated(one)]
    turned = next(one for one in source.mutants() if one.operator == "remove_unary_ops")
    assert names["unrelated"](5, 3) == 8
    assert mutant_server.apply(source, minus)
    assert names["unrelated"](5, 3) == 2
    assert mutant_server.apply(source, turned)
    with pytest.raises(ValueError, match="nothing"):
        names["Counter"]().value = 1


def test_what_survives_is_argued_in_a_sentence_each(mutants: Any) -> None:
    entries = json.loads(mutants.ARGUED.read_text())
    assert len({entry["key"] for entry in entries}) == len(entries)
    for entry in entries:
        assert entry["room"] in mutants.ROOMS
        assert entry["verdict"] in {"equivalent", "survivor"}
        assert entry["why"].endswith("."), entry


def test_servers_that_a_mutant_left_behind_are_ended_and_no_others(mutants: Any, tmp_path: Path) -> None:
    import mutant_server

    def server(folder: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)", str(tmp_path / folder / "data")]
        return subprocess.Popen(command, start_new_session=True)

    left, other = server("one"), server("one more")
    try:
        mutant_server.end_those_of(tmp_path / "one")
        assert left.wait(60) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()
