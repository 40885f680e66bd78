"""Settings and the ready file."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from duobus.errors import ConfigurationError
from duobus.model.options import HttpOptions
from duobus.model.tiers import PREMIUM_PARTITIONED, tier_named
from duobus.server.settings import ReadyFile, Settings, is_loopback, load_settings, ready_members


def _settings(**changes: Any) -> Settings:
    return load_settings(Settings(**{"data": Path("bus"), **changes}))


def test_the_defaults_are_the_ports_of_the_service_on_this_machine_only() -> None:
    settings = _settings()
    assert (settings.port, settings.tls_port, settings.http_port, settings.https_port) == (5672, 5671, 5300, None)
    assert (settings.host, settings.stores, settings.log_format) == ("127.0.0.1", 4, "text")
    assert not settings.offers_tls
    assert settings.warnings == ()
    assert [namespace.name for namespace in settings.namespaces] == ["duobus"]


def test_the_emulator_has_its_own_namespace() -> None:
    assert [namespace.name for namespace in _settings(emulator=True).namespaces] == ["sbemulatorns"]


def test_the_emulator_on_a_public_interface_warns_loudly() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "bus.example.net"):
        (warning,) = _settings(emulator=True, host=host).warnings
        assert warning.startswith("DANGER")
    for host in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        assert _settings(emulator=True, host=host).warnings == ()


@pytest.mark.parametrize(
    ("http", "expected"),
    [
        (HttpOptions(), [False, False, True]),
        # The file is the emulator's: what it does not say is as there, whatever clients get that do not say.
        (HttpOptions(tier=tier_named("all", partition_by_default=True)), [False, False, True]),
        (HttpOptions(tier=PREMIUM_PARTITIONED), [True, True, True]),
    ],
)
def test_an_entity_of_the_file_is_partitioned_as_it_says_and_always_where_the_whole_namespace_is(
    tmp_path: Path, http: HttpOptions, expected: list[bool]
) -> None:
    said: tuple[dict[str, Any], ...] = ({}, {"EnablePartitioning": False}, {"EnablePartitioning": True})
    entities = [{"Name": f"e{number}", "Properties": properties} for number, properties in enumerate(said)]
    topics = [{**entity, "Name": f"t{entity['Name']}", "Subscriptions": []} for entity in entities]
    namespace = {"Name": "sbemulatorns", "Queues": entities, "Topics": topics}
    path = tmp_path / "Config.json"
    path.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}))
    (found,) = _settings(config=path, http=http).namespaces
    assert [queue.enable_partitioning for queue in found.queues] == expected
    assert [topic.enable_partitioning for topic in found.topics] == expected


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"data": None}, "--data"),
        ({"stores": 0}, "--stores"),
        ({"stores": 65}, "--stores"),
        ({"port": 65_536}, "--port"),
        ({"http_port": -1}, "--http-port"),
        ({"port": 5300}, "--http-port"),
        ({"tls_self_signed": True, "tls_port": 5672}, "--tls-port"),
        ({"tls_cert": Path("c")}, "--tls-key"),
        ({"tls_key": Path("k")}, "--tls-cert"),
        ({"tls_self_signed": True, "tls_cert": Path("c"), "tls_key": Path("k")}, "--tls-self-signed"),
        ({"tls_names": ("bus",)}, "--tls-name is for the certificate that --tls-self-signed makes"),
        ({"tls_self_signed": True, "tls_names": ("bus", "sb://bus")}, "--tls-name 'sb://bus' is no host name"),
        ({"tls_self_signed": True, "tls_names": ("bus:5671",)}, "--tls-name 'bus:5671' is no host name"),
        ({"tls_self_signed": True, "tls_names": ("bücher.example",)}, "ASCII form"),
        ({"tls_self_signed": True, "tls_names": ("",)}, "--tls-name '' is no host name"),
        ({"tls_self_signed": True, "tls_names": ("a" * 64,)}, "is no host name"),
        ({"https_port": 443}, "--https-port"),
        ({"log_format": "xml"}, "--log-format"),
        ({"host": ""}, "--host"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        _settings(**changes)


def test_port_zero_may_be_given_for_every_listener() -> None:
    settings = _settings(port=0, tls_port=0, http_port=0, https_port=0, tls_self_signed=True)
    assert settings.offers_tls


def test_ephemeral_needs_no_folder_and_says_what_it_means() -> None:
    (warning,) = _settings(data=None, ephemeral=True).warnings
    assert "memory" in warning


def test_a_configuration_file_brings_namespaces_and_warnings(tmp_path: Path) -> None:
    path = tmp_path / "Config.json"
    path.write_text('{"UserConfig":{"Namespaces":[{"Name":"sbemulatorns","Queues":[{"Name":"q"}]}],"Extra":1}}')
    settings = _settings(config=path)
    assert [queue.name for queue in settings.namespaces[0].queues] == ["q"]
    assert settings.warnings == ("$.UserConfig: the member 'Extra' is not known and has no effect.",)


def test_a_configuration_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"missing\.json"):
        _settings(config=tmp_path / "missing.json")
    (tmp_path / "bad.json").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(ConfigurationError, match=r"bad\.json"):
        _settings(config=tmp_path / "bad.json")


def test_loopback_is_told_from_other_hosts() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "::1", "[::1]", "LocalHost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.1.2.3", "localhost.example.net"))


def _members(host: str = "127.0.0.1", **changes: Any) -> dict[str, object]:
    ports: dict[str, Any] = {
        "amqp_port": 1,
        "tls_port": None,
        "http_port": 3,
        "https_port": None,
        "ca": None,
        **changes,
    }
    return ready_members(_settings(host=host), rule_name="R", key="K", **ports)


def test_the_ready_file_has_the_members_that_programs_rely_on() -> None:
    assert _members(tls_port=2, https_port=4, ca=Path("/x/ca.pem")) == {
        "pid": os.getpid(),
        "amqp_port": 1,
        "tls_port": 2,
        "http_port": 3,
        "https_port": 4,
        "connection_string": (
            "Endpoint=sb://localhost:1;SharedAccessKeyName=R;SharedAccessKey=K;UseDevelopmentEmulator=true;"
        ),
        "connection_string_tls": "Endpoint=sb://localhost:2;SharedAccessKeyName=R;SharedAccessKey=K;",
        "admin_url": "http://localhost:3",
        "ca": "/x/ca.pem",
    }


def test_ports_that_are_not_offered_are_null_in_the_ready_file() -> None:
    members = _members(http_port=None)
    assert [members[name] for name in ("tls_port", "https_port", "connection_string_tls", "ca")] == [None] * 4
    assert members["admin_url"] is None


@pytest.mark.parametrize(
    ("host", "written"),
    [("0.0.0.0", "localhost"), ("::", "localhost"), ("::1", "[::1]"), ("192.0.2.7", "192.0.2.7"), ("bus", "bus")],
)
def test_connection_strings_name_a_host_that_reaches_the_server(host: str, written: str) -> None:
    assert str(_members(host)["connection_string"]).startswith(f"Endpoint=sb://{written}:1;")


def test_the_ready_file_is_private_whole_and_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left over")
    path.chmod(0o644)
    ready = ReadyFile(path)
    ready.write(_members())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["amqp_port"] == 1
    assert [file.name for file in tmp_path.iterdir()] == ["ready.json"]
    ready.remove()
    ready.remove()
    assert not path.exists()


def test_the_ready_file_of_another_process_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    for content in ('{"pid": 1}', "[]", "no json", '"pid"'):
        path.write_text(content)
        ReadyFile(path).remove()
        assert path.read_text() == content


def test_a_ready_file_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--ready-file"):
        ReadyFile(tmp_path / "missing" / "ready.json").write(_members())
