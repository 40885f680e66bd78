"""Bytecode of the tests is written beforehand only where it is missing, and only that of this interpreter counts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tools import tests_bytecode

TAG = sys.implementation.cache_tag


def make(folder: Path, name: str, *cached: str) -> Path:
    path = folder / f"{name}.py"
    path.touch()
    (folder / "__pycache__").mkdir(exist_ok=True)
    for tag in cached:
        (folder / "__pycache__" / f"{name}.{tag}.pyc").touch()
    return path


def test_a_module_counts_until_it_has_rewritten_bytecode_of_this_interpreter(tmp_path: Path) -> None:
    make(tmp_path, "test_written", f"{TAG}-pytest-9.1.1")
    make(tmp_path, "kit_of_tests")
    missing = {
        make(tmp_path, "test_new"),
        make(tmp_path, "test_imported_without_pytest", str(TAG)),
        make(tmp_path, "test_of_another_python", "cpython-27-pytest-9.1.1"),
    }
    assert set(tests_bytecode.without_bytecode(tmp_path)) == missing


@pytest.mark.parametrize("number", [tests_bytecode.FEW, tests_bytecode.FEW + 1])
def test_processes_are_started_for_many_modules_and_for_few_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    for one in range(number):
        make(tmp_path, f"test_{one}")
    started: list[list[str]] = []

    class Process:
        def __init__(self, command: list[str], **_given: object) -> None:
            started.append(command)

        def wait(self) -> int:
            return 0

    monkeypatch.setattr(tests_bytecode, "TESTS", tmp_path)
    monkeypatch.setattr(tests_bytecode.subprocess, "Popen", Process)
    tests_bytecode.main()
    classes, *imports = started
    assert classes[-1] == "kits.spark_classes"
    assert len(imports) == (2 if number > tests_bytecode.FEW else 0)
    wanted = {str(tmp_path / name) for half in tests_bytecode.HALVES for name in half}
    assert {word for command in started for word in command if word.startswith(str(tmp_path))} == (
        wanted if imports else set()
    )


def test_the_halves_are_all_folders_of_tests_but_the_kits() -> None:
    folders = {path.name for path in tests_bytecode.TESTS.iterdir() if path.is_dir()} - {"kits", "__pycache__"}
    assert {name for half in tests_bytecode.HALVES for name in half} == folders
