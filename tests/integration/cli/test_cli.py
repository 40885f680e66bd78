"""The command shell: options, messages, exit statuses, and what is not imported."""

from __future__ import annotations

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.server.settings import Settings

_OPTIONS = [
    *("--data", "--config", "--host", "--port", "--tls-port", "--http-port", "--https-port", "--stores"),
    *("--tls-self-signed", "--tls-cert", "--tls-key", "--emulator", "--ephemeral", "--ready-file", "--log-format"),
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Return the settings with which a server would have been started; it ends with status 3."""
    found: list[Settings] = []
    module = types.ModuleType("duobus.server.process")

    def serve(settings: Settings) -> int:
        found.append(settings)
        return 3

    module.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "duobus.server.process", module)
    return found


def test_help_of_serve_names_every_option_and_has_an_example() -> None:
    result = CliRunner().invoke(main, ["serve", "--help"])
    assert result.exit_code == 0
    for option in _OPTIONS:
        assert option in result.output
    assert "duobus serve --data" in result.output


def test_help_of_the_whole_names_the_commands_without_loading_them() -> None:
    code = (
        "import sys; from click.testing import CliRunner; from duobus.cli.main import main;"
        "print(CliRunner().invoke(main, ['--help']).output);"
        "print([name for name in sys.modules if name.startswith('duobus.cli.')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert re.search(r"^  serve +Run the broker", result.stdout, re.MULTILINE)
    assert re.search(r"^  demo +Send", result.stdout, re.MULTILINE)
    assert result.stdout.strip().endswith("['duobus.cli.main']")


def test_the_version_is_printed_and_nothing_else() -> None:
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert result.output.startswith("duobus ")


def test_every_option_of_serve_reaches_the_settings(started: list[Settings], tmp_path: Path) -> None:
    config = tmp_path / "c.json"
    config.write_text('{"UserConfig":{"Namespaces":[{"Name":"n"}]}}')
    arguments = [
        *("serve", "--data", "d", "--config", str(config), "--host", "::1", "--port", "1", "--tls-port", "2"),
        *("--http-port", "3", "--https-port", "4", "--stores", "2", "--tls-cert", "c", "--tls-key", "k"),
        *("--emulator", "--ephemeral", "--ready-file", "r", "--log-format", "json"),
    ]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 3, result.output
    (settings,) = started
    assert (settings.data, settings.config, settings.ready_file) == (Path("d"), config, Path("r"))
    assert (settings.host, settings.port, settings.tls_port) == ("::1", 1, 2)
    assert (settings.http_port, settings.https_port, settings.stores) == (3, 4, 2)
    assert (settings.tls_cert, settings.tls_key, settings.tls_self_signed) == (Path("c"), Path("k"), False)
    assert (settings.emulator, settings.ephemeral, settings.log_format) == (True, True, "json")
    assert settings.namespaces[0].name == "n"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--data"),
        (["--data", "d", "--stores", "0"], "--stores"),
        (["--data", "d", "--port", "70000"], "--port"),
        (["--data", "d", "--config", "missing.json"], "missing.json"),
        (["--data", "d", "--log-format", "xml"], "--log-format"),
        (["--data", "d", "--colour"], "--colour"),
    ],
)
def test_a_wrong_option_ends_with_a_clear_text_and_no_server(
    started: list[Settings], arguments: list[str], named: str
) -> None:
    result = CliRunner().invoke(main, ["serve", *arguments])
    assert result.exit_code in {1, 2}
    assert named in result.output
    assert "Traceback" not in result.output
    assert started == []


def test_the_command_line_loads_nothing_heavy_before_it_is_needed() -> None:
    code = (
        "import sys; import duobus.cli.main, duobus.cli.commands.serve;"
        "print([name for name in ('aiohttp', 'cryptography', 'apsw', 'prometheus_client', 'asyncio', 'rich')"
        " if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
