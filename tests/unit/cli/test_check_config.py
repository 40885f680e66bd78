"""``duobus serve --check-config`` says what a start would do and all that is wrong, and opens and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from duobus.cli.main import main
from duobus.clock import Clock, Entropy
from duobus.gateway.tls import SelfSigned
from duobus.server import config_check

TOKENS = {"Issuers": [{"Issuer": "https://issuer.example", "Audiences": ["a"], "Keys": "/nowhere/keys.json"}]}


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["serve", "--check-config", *map(str, arguments)])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with a certificate, a token and a configuration that are right."""
    SelfSigned(tmp_path / "tls", Clock(), Entropy()).ensure(())
    (tmp_path / "token").write_text("a-token-of-more-than-sixteen-characters\n")
    queues = [{"Name": "orders"}, {"Name": "bills"}]
    config = {"UserConfig": {"Namespaces": [{"Name": "shop", "Queues": queues, "Topics": [{"Name": "news"}]}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    return tmp_path


def contents(folder: Path) -> Iterator[tuple[str, int]]:
    for path in sorted(folder.rglob("*")):
        yield str(path), path.stat().st_mtime_ns


def test_without_any_option_the_fault_is_the_one_of_a_start() -> None:
    result = run()
    assert result.exit_code == 1
    assert result.stderr == "Error: Give --data DIR, the folder to keep everything in, or --ephemeral.\n"
    assert result.stdout == "faults: 1\n"


def test_at_the_defaults_a_data_folder_would_be_made_and_is_not(tmp_path: Path) -> None:
    result = run("--data", tmp_path / "bus")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        f"data: {tmp_path / 'bus'}, which would be made",
        "stores: 4 in the data folder",
        "namespace: duobus, with queues: 0, topics: 0, access rules of the configuration: 0",
        "port: AMQP on 127.0.0.1, 5672",
        "port: HTTP on 127.0.0.1, 5300",
        "logs: text, to standard error",
        "The configuration is right.",
    ]
    assert list(tmp_path.iterdir()) == []


def test_everything_that_is_named_is_told_and_nothing_is_written(files: Path) -> None:
    settings = files / "duobus.toml"
    settings.write_text(
        'data = "bus"\nconfig = "Config.json"\ntls-cert = "tls/server.pem"\ntls-key = "tls/server-key.pem"\n'
        'metrics-token-file = "token"\nhost = "0.0.0.0"\ntls-port = 0\nhttps-port = 443\nlog-file = "duobus.log"\n'
        'join = "postgresql://duobus:canary@db/bus"\nstore = ["postgresql://duobus:canary@db2/bus"]\n'
        'advertise = "bus1.example"\nlog-format = "json"\n'
    )
    before = list(contents(files))
    result = run("--settings", settings)
    assert result.exit_code == 0, result.output
    assert list(contents(files)) == before
    for line in (
        f"data: {files / 'bus'}, which would be made",
        "catalog: shared, postgresql://duobus@db/bus?schema=duobus_catalog, not asked",
        "address for the other servers: bus1.example",
        "stores: 0 beside the catalog",
        "store: postgresql://duobus@db2/bus, not asked",
        "namespace: shop, with queues: 2, topics: 1, access rules of the configuration: 0",
        "port: AMQP over TLS on 0.0.0.0, one that the system picks",
        "port: HTTPS on 0.0.0.0, 443",
        f"logs: json, to {files / 'duobus.log'}",
    ):
        assert line in result.stdout.splitlines(), result.stdout
    assert f"certificate: {files / 'tls' / 'server.pem'}, until " in result.stdout
    assert "canary" not in result.output


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    for name in ("Config.json", "cert", "key", "token", "ca", "tokens"):
        (tmp_path / name).write_text("broken")
    settings = tmp_path / "duobus.toml"
    settings.write_text(
        'config = "Config.json"\ntls-cert = "cert"\ntls-key = "key"\nmetrics-token-file = "token"\ncluster-ca = "ca"\n'
        'bearer-tokens = "tokens"\nlog-file = "none/log"\nready-file = "none/ready"\n'
        'ports = 5\nquota = ["connections"]\n'
    )
    result = run("--settings", settings)
    assert result.exit_code == 1
    faults = result.stderr.splitlines()
    for wanted in ("'ports'", "'quota'", "Config.json", "cert", "metrics-token", "cluster-ca", "tokens:", "log-file"):
        assert any(wanted in fault for fault in faults), (wanted, faults)
    assert all(fault.startswith("Error: ") for fault in faults)
    assert result.stdout.splitlines()[-1] == f"faults: {len(faults)}"
    # Only the settings that could be read count, so nothing is told of what a start would do with them.
    assert "data:" not in result.stdout


def test_settings_that_were_not_all_read_are_no_plan(tmp_path: Path) -> None:
    settings = tmp_path / "duobus.toml"
    settings.write_text('data = "bus"\ncolour = "red"\nspread = true\n')
    result = run("--settings", settings)
    # Neither what a start would do with the rest, nor what is missing beside it: the key may have been meant for that.
    assert result.stdout.splitlines() == [f"settings: {settings} gives data, spread", "faults: 1"]
    (fault,) = result.stderr.splitlines()
    assert "'colour'" in fault


def test_options_that_contradict_each_other_are_told_beside_a_file_that_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text("[]")
    result = run("--data", tmp_path, "--config", config, "--advertise", "bus1")
    assert [line.partition(": ")[2][:12] for line in result.stderr.splitlines()] == [f"{config}"[:12], "--advertise "]


def test_the_keys_of_an_issuer_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_text(json.dumps(TOKENS))
    result = run("--data", tmp_path, "--bearer-tokens", path)
    assert result.exit_code == 1
    assert "/nowhere/keys.json" in result.stderr
    TOKENS["Issuers"][0]["Keys"] = "http://127.0.0.1:9/keys"
    path.write_text(json.dumps(TOKENS))
    assert run("--data", tmp_path, "--bearer-tokens", path).exit_code == 0


def test_a_certificate_that_has_ended_is_warned_of(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(Clock):
        def now_ms(self) -> int:
            return super().now_ms() + 100 * 365 * 86_400_000

    monkeypatch.setattr("duobus.cli.commands.serve.Clock", Later)
    made = SelfSigned(files / "tls", Clock(), Entropy()).ensure(())
    result = run("--data", files / "bus", "--tls-cert", made.certificate, "--tls-key", made.key)
    assert result.exit_code == 0, result.output
    assert f"Warning: The certificate {made.certificate} has ended on" in result.stderr


def test_the_driver_of_postgresql_is_demanded_only_where_it_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_check, "find_spec", lambda _name: None)
    assert run("--data", tmp_path).exit_code == 0
    for option in ("--join", "--store"):
        result = run("--data", tmp_path, option, "postgresql://u@h/d")
        assert result.exit_code == 1
        assert result.stderr == f"Error: {option} needs more than is installed: pip install 'duobus[postgres]'\n"


def test_the_warnings_of_a_start_are_told(tmp_path: Path) -> None:
    result = run("--data", tmp_path, "--emulator", "--host", "0.0.0.0")
    assert result.exit_code == 0
    assert result.stderr.startswith("Warning: DANGER: --emulator")
