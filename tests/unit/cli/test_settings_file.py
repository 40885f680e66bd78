"""The settings file of ``duobus serve``: every option is a key, the command line wins, faults are named."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from duobus.cli.commands import serve as module
from duobus.cli.commands.serve import command
from duobus.cli.main import main
from duobus.cli.settings_file import OWN_OPTIONS, keys_of
from duobus.server.settings import Settings

KEYS = keys_of(command)
#: Options that are still taken and do nothing any more.
WITHOUT_EFFECT = {"spread"}

#: Two values of each option whose text has a form of its own.
FORMS = {
    "store": ("postgresql://u@h/one", "postgresql://u@h/two"),
    "join": ("postgresql://u@h/one", "postgresql://u@h/two"),
    "quota": ("connections=7", "entities=8"),
}


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the settings with which servers would have been started, before they are looked at together."""
    found: list[Settings] = []
    process = types.ModuleType("duobus.server.process")

    def serve(settings: Settings) -> int:
        found.append(settings)
        return 0

    process.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "duobus.server.process", process)
    monkeypatch.setattr(module, "load_settings", lambda settings: settings)
    monkeypatch.delenv("DUOBUS_SETTINGS", raising=False)
    return found


def samples(key: str, option: click.Option) -> tuple[Any, Any]:
    """Two values that an option may have and that are not its default."""
    if option.is_flag:
        return option.default is not True, option.default is True
    if key in FORMS:
        return FORMS[key]
    if isinstance(option.type, click.Choice):
        return option.type.choices[-1], option.type.choices[-2]
    if isinstance(option.type, click.Path):
        return "/somewhere/one", "/somewhere/two"
    if isinstance(option.type, click.types.FloatParamType):
        return 2.5, 7
    if isinstance(option.type, click.types.IntParamType):
        return 17, 18
    return "one", "two"


def toml(key: str, option: click.Option, value: Any) -> str:
    """A line of the file; what JSON writes of these values is TOML."""
    return f"{key} = {json.dumps([value] if option.multiple else value)}\n"


def words(key: str, option: click.Option, value: Any) -> list[str]:
    """The same on the command line."""
    if option.is_flag:
        return [f"--{key}" if value else f"--no-{key}"]
    return [f"--{key}", str(value)]


def run(*arguments: object, **environment: str) -> Result:
    return CliRunner().invoke(main, ["serve", *map(str, arguments)], env=environment)


def test_every_option_but_those_about_the_file_itself_is_a_key() -> None:
    options = {name.removeprefix("--") for option in command.params for name in option.opts}
    assert set(KEYS) == options - OWN_OPTIONS
    assert {"data", "tls-port", "store", "drain-delay", "log-file"} <= set(KEYS)


@pytest.mark.parametrize("key", KEYS)
def test_a_key_does_what_its_option_does(key: str, tmp_path: Path, started: list[Settings]) -> None:
    option, path = KEYS[key], tmp_path / "duobus.toml"
    value, _ = samples(key, option)
    path.write_text(toml(key, option, value))
    for arguments in (["--settings", path], words(key, option, value), []):
        result = run(*arguments)
        assert result.exit_code == 0, result.output
    # Addresses have no equality; what is shown of them tells them apart.
    from_file, from_line, without = map(repr, started)
    assert from_file == from_line
    assert (from_file == without) == (key in WITHOUT_EFFECT)


@pytest.mark.parametrize("key", [key for key, option in KEYS.items() if not option.is_flag])
def test_the_command_line_wins(key: str, tmp_path: Path, started: list[Settings]) -> None:
    option, path = KEYS[key], tmp_path / "duobus.toml"
    value, other = samples(key, option)
    path.write_text(toml(key, option, value))
    assert run("--settings", path, *words(key, option, other)).exit_code == 0
    assert run(*words(key, option, other)).exit_code == 0
    both, from_line = map(repr, started)
    assert both == from_line


@pytest.mark.parametrize("key", KEYS)
def test_a_value_of_another_type_is_refused_by_file_and_key(key: str, tmp_path: Path, started: list[Settings]) -> None:
    option, path = KEYS[key], tmp_path / "duobus.toml"
    wrong = "yes" if option.is_flag or isinstance(option.type, click.types.FloatParamType) else True
    path.write_text(f"{key} = {json.dumps(wrong)}\n")
    result = run("--settings", path)
    assert (result.exit_code, started) == (1, [])
    (line,) = result.output.splitlines()
    assert line.startswith(f"Error: {path}: '{key}' has to be ")


def test_one_value_is_no_list_and_an_entry_of_a_list_has_its_type(tmp_path: Path) -> None:
    path = tmp_path / "duobus.toml"
    path.write_text('store = "postgresql://u@h/d"\nwebsocket-origin = ["a", 5]\n')
    assert run("--settings", path).output == (
        f"Error: {path}: 'store' has to be a list of texts, not text.\n"
        f"{path}: 'websocket-origin' has to be a list of texts, not a whole number.\n"
    )


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("prot = 5", "'port'"),
        ("tls_port = 5", "'tls-port'"),
        ("DATA = 5", "'data'"),
        ("[log-fromat]", "'log-format'"),
        ("colour = 5", "duobus serve --help"),
        ("settings = 5", "command line"),
        ("check-config = true", "command line"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_right_one(line: str, hint: str, tmp_path: Path) -> None:
    path = tmp_path / "duobus.toml"
    path.write_text(line)
    result = run("--settings", path)
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: {path}: the key ")
    assert hint in result.output


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("port = 70000", "'port' has a wrong value: 70000 is not in the range"),
        ('log-format = "xml"', "'log-format' has a wrong value: 'xml' is not one of 'text', 'json'"),
        ('quota = ["connection=5"]', "'quota': --quota 'connection=5' is no quota"),
        ('store = ["mysql://u:secret@h/d"]', "'store': The address of a messaging store begins with postgresql://"),
        (
            'join = "mysql://u:secret@h/d"',
            "'join': The address of a catalog that servers share begins with postgresql://",
        ),
        ("port = ", "this is no TOML"),
    ],
)
def test_a_wrong_value_is_refused_by_file_and_key_and_no_secret_is_told(line: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "duobus.toml"
    path.write_text(line)
    result = run("--settings", path)
    assert result.exit_code == 1
    assert f"{path}: {named}" in result.output
    assert "secret" not in result.output


def test_what_options_say_together_is_refused_with_the_place_of_those_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    path = tmp_path / "duobus.toml"
    path.write_text('data = "bus"\ntls-cert = "chain.pem"\n')
    result = run("--settings", path)
    assert result.exit_code == 1
    assert result.output == (
        f"Error: --tls-cert and --tls-key belong together; give both or neither. ({path} gives tls-cert.)\n"
    )
    # The same on the command line alone names no file.
    assert "gives" not in run("--data", "bus", "--tls-cert", "chain.pem").output


def test_an_empty_file_changes_nothing(tmp_path: Path, started: list[Settings]) -> None:
    path = tmp_path / "duobus.toml"
    path.write_text("")
    assert run("--settings", path).exit_code == 0
    assert run().exit_code == 0
    assert started[0] == started[1]


def test_a_relative_path_is_one_beside_the_file(tmp_path: Path, started: list[Settings]) -> None:
    path = tmp_path / "duobus.toml"
    path.write_text('data = "bus"\nconfig = "/etc/Config.json"\n')
    run("--settings", path)
    (settings,) = started
    assert (settings.data, settings.config) == (tmp_path / "bus", Path("/etc/Config.json"))


def test_the_variable_names_the_file_and_the_option_wins_over_it(tmp_path: Path, started: list[Settings]) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text("port = 1")
    second.write_text("port = 2")
    assert run(DUOBUS_SETTINGS=str(first)).exit_code == 0
    assert run("--settings", second, DUOBUS_SETTINGS=str(first)).exit_code == 0
    assert run(DUOBUS_SETTINGS="").exit_code == 0
    assert [settings.port for settings in started] == [1, 2, 5672]


def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path, started: list[Settings]) -> None:
    missing, binary = tmp_path / "missing.toml", tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path in (missing, binary):
        result = run(DUOBUS_SETTINGS=str(path))
        assert result.exit_code == 1
        assert str(path) in result.output
        assert "Traceback" not in result.output
    assert started == []


def test_with_stores_in_postgresql_of_the_file_there_are_none_in_files(tmp_path: Path, started: list[Settings]) -> None:
    path = tmp_path / "duobus.toml"
    for text in ('store = ["postgresql://u@h/d"]', 'store = ["postgresql://u@h/d"]\nstores = 2'):
        path.write_text(text)
        assert run("--settings", path).exit_code == 0
    assert [settings.stores for settings in started] == [0, 2]
