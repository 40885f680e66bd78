"""The compiled twin: what is compiled, what it says where it cannot be, and that the copy works."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from duobus.compiled import compiled_rooms
from tools import compile_twin

ROOT = Path(__file__).resolve().parents[3]
script = compile_twin.build_script()
#: A file without this has no class that derives from another one.
DERIVED = re.compile(r"^\s*class \w+[\[(]", re.MULTILINE)


def test_every_pattern_of_the_table_names_a_module() -> None:
    for pattern in [*script.TABLE["modules"], *script.TABLE["plain"]]:
        assert list((ROOT / "src").glob(pattern)), pattern
    assert "duobus/codec/decoder.py" in script.modules()
    assert "duobus/codec/values.py" not in script.modules()


def test_no_class_of_the_interpreter_derives_from_a_compiled_one() -> None:
    """It would fail when it is made, and only in the twin (decision 0008)."""
    source = ROOT / "src"
    compiled = set(script.modules())
    for path in source.rglob("*.py"):
        text = path.read_text()
        if path.relative_to(source).as_posix() in compiled or not DERIVED.search(text):
            continue
        tree = ast.parse(text)
        from_compiled = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0
            for alias in node.names
            if defining_file(node.module, alias.name) in compiled
        }
        bases = {
            ast.unparse(base): node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for base in node.bases
        }
        assert not from_compiled & bases.keys(), (
            f"{path.name}: {[bases[name] for name in from_compiled & bases.keys()]}"
        )


def defining_file(module: str, name: str) -> str | None:
    """The file below ``src`` that defines a class of ours; None for anything else."""
    if not module.startswith("duobus"):
        return None
    found = getattr(importlib.import_module(module), name, None)
    home = getattr(found, "__module__", None)
    return f"{home.replace('.', '/')}.py" if isinstance(found, type) and home else None


def test_the_compiler_is_the_one_that_the_checks_run_with() -> None:
    assert script.TABLE["requires"] in (ROOT / "constraints.txt").read_text().splitlines()


def test_a_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert compile_twin.main([]) == 2
    assert "the C compiler 'no-such-compiler' is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="Without DUOBUS_COMPILE=1 it installs as pure Python"):
        script.extensions()


def test_a_machine_without_the_headers_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(script.sysconfig, "get_path", lambda _name: str(tmp_path))
    assert "apt-get install python3-dev" in (script.missing() or "")


def test_an_editable_install_is_not_compiled() -> None:
    words = [sys.executable, str(ROOT / "setup.py"), "editable_wheel"]
    environment = os.environ | {"DUOBUS_COMPILE": "1"}
    result = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode != 0
    assert "use `make compile`" in result.stderr


def _fake_twin(source: Path, twin: Path) -> None:
    (source / "duobus" / "codec").mkdir(parents=True)
    (source / "duobus" / "codec" / "decoder.py").write_text("one = 1\n")
    shutil.copytree(source, twin)
    for part in compile_twin.RECIPE:
        (source.parent / part).write_text("a recipe")
        shutil.copy(source.parent / part, twin / part)
    (twin / "duobus" / "codec" / f"decoder{EXTENSION_SUFFIXES[0]}").touch()


def test_a_twin_of_other_sources_is_not_fresh(tmp_path: Path) -> None:
    source, twin = tmp_path / "src", tmp_path / "twin"
    _fake_twin(source, twin)
    assert compile_twin.is_fresh(twin, source)
    (source / "duobus" / "codec" / "decoder.py").write_text("one = 2\n")
    assert not compile_twin.is_fresh(twin, source)


def test_a_twin_by_another_recipe_is_not_fresh(tmp_path: Path) -> None:
    source, twin = tmp_path / "src", tmp_path / "twin"
    _fake_twin(source, twin)
    (tmp_path / "pyproject.toml").write_text("another recipe")
    assert not compile_twin.is_fresh(twin, source)


def test_a_twin_with_a_source_too_few_or_for_another_python_is_not_fresh(tmp_path: Path) -> None:
    source, twin = tmp_path / "src", tmp_path / "twin"
    _fake_twin(source, twin)
    (source / "duobus" / "new.py").touch()
    assert not compile_twin.is_fresh(twin, source)
    (source / "duobus" / "new.py").unlink()
    module = twin / "duobus" / "codec" / f"decoder{EXTENSION_SUFFIXES[0]}"
    module.rename(module.with_name("decoder.cpython-27-pdp11.so"))
    assert not compile_twin.is_fresh(twin, source)


def test_rooms_are_compiled_where_an_extension_module_lies_beside_the_source(tmp_path: Path) -> None:
    assert compiled_rooms(tmp_path) == ()
    for folder, module in (("codec", "decoder"), ("fragment", "fragment")):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"{module}{EXTENSION_SUFFIXES[0]}").touch()
    assert compiled_rooms(tmp_path) == ("codec", "fragment")


@pytest.mark.parametrize(
    ("folder", "is_left_out"),
    [
        ("fragment", True),
        ("fragment/sessions", True),
        ("gateway/amqp", True),
        ("gateway/amqp/links", False),
        ("codec", False),
    ],
)
def test_the_twin_of_the_simulation_leaves_the_fragment_as_python(folder: str, is_left_out: bool) -> None:
    module = f"any{EXTENSION_SUFFIXES[0]}"
    left_out = compile_twin._without_fragment(f"/any/src/duobus/{folder}", ["any.py", module])
    assert left_out == ([module] if is_left_out else [])


@pytest.mark.slow
def test_a_compiled_copy_works_and_leaves_the_sources_alone(tmp_path: Path) -> None:
    missing = script.missing()
    if missing is not None:
        pytest.skip(f"cannot compile: {missing}")
    # the two modules of the codec that compile quickest and show most
    root = tmp_path / "root"
    root.mkdir()
    for part in compile_twin.PARTS:
        shutil.copy(ROOT / part, root / part)
    shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info"))
    table = (root / "pyproject.toml").read_text()
    few = 'modules = ["duobus/codec/encoder.py", "duobus/codec/decoder.py"]'
    table = re.sub(r'modules = \["?[^\]]*\]', few, table)
    # What the C compiler does to make code quick takes longer than everything else, and nothing is measured here.
    table, levels = re.subn(r'optimization = "\d"', 'optimization = "0"', table)
    assert levels == 1
    (root / "pyproject.toml").write_text(table)
    twin = tmp_path / "twin"
    compile_twin.compile_into(twin, tmp_path / "engine", root)
    assert compile_twin.is_fresh(twin, root / "src")
    assert not list(root.rglob("*.so"))
    code = (
        "from duobus.codec import DecodeError, decode, encode\n"
        "assert decode(encode([1, 'two', {b'3': None}]))[0] == [1, 'two', {b'3': None}]\n"
        "assert type(encode).__name__ == 'builtin_function_or_method', type(encode)\n"
        "try:\n    decode(b'\\xa1\\x05ab')\nexcept DecodeError as error:\n    print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(twin)}
    shown = [
        subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True).stdout
        for words in (["-c", code], ["-m", "duobus", "--version"])
    ]
    assert shown[0].startswith("truncated")
    assert shown[1].endswith("(compiled: codec)\n")
