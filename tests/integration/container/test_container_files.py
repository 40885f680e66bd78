"""The files of the container, without a container engine: what they say, and the entry point in a folder of the test.

``make image`` builds and runs the image; see tests/acceptance/image.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.testing.ports import HeldPort
from kits.container import (
    COMPOSE,
    DEPLOY,
    EMULATORS_COMPOSE,
    ENTRYPOINT,
    ROOT,
    compose,
    environment_of,
    instructions,
    last_stage,
    mounts,
    one,
    ports,
    variables,
    words,
)

CONFIG = "/ServiceBus_Emulator/ConfigFiles/Config.json"
EMULATORS_KEY = "SAS_KEY_VALUE"

# -- what the files say -----------------------------------------------------------------------------------------------


def test_the_base_is_an_argument_and_no_registry_is_named() -> None:
    (base,) = [found.text for found in instructions() if found.text.startswith("BASE=")]
    froms = [found.text for found in instructions() if found.name == "FROM"]
    assert froms == ["${BASE} AS build", "${BASE}"]
    # A first part with a dot or a port would be a registry.
    assert "/" not in base
    assert not re.search(r"https?://|\b(amd64|arm64|aarch64|x86_64)\b", (DEPLOY / "Dockerfile").read_text())


def test_the_image_runs_as_nobody_else_keeps_data_in_a_volume_and_offers_the_emulators_ports() -> None:
    assert one("USER") == "10001:10001"
    assert words(one("VOLUME")) == [variables()["DUOBUS_DATA"]] == ["/data"]
    assert set(one("EXPOSE").split()) == {"5672", "5671", "5300", "8080"}
    assert variables()["DUOBUS_CONFIG"] == CONFIG
    assert getattr(signal, one("STOPSIGNAL")) == signal.SIGTERM
    assert words(one("HEALTHCHECK").split("CMD", 1)[1]) == [*words(one("ENTRYPOINT")), "health"]


def test_what_is_copied_into_the_image_is_there_and_is_not_ignored() -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [found.text.split()[:-1] for found in instructions() if found.name == "COPY"]
    for name in [name for names in copied if not names[0].startswith("--from") for name in names]:
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignored, name
    (target,) = [found.text.split()[-1] for found in last_stage() if found.text.startswith("deploy/entrypoint.sh")]
    assert words(one("ENTRYPOINT")) == [Path(target).name]
    assert str(Path(target).parent) in variables()["PATH"].split(":")
    assert os.access(ENTRYPOINT, os.X_OK)


@pytest.mark.parametrize("text", [COMPOSE.read_text(), EMULATORS_COMPOSE], ids=["ours", "the-emulators"])
def test_compose_files_mount_and_publish_what_the_image_has(text: str) -> None:
    service = compose(text, {"CONFIG_PATH": "./mine.json", "ACCEPT_EULA": "Y"})
    assert service["image"] == "duobus"
    assert mounts(service)[CONFIG] == "./mine.json"
    assert set(mounts(service)) - {CONFIG} <= set(words(one("VOLUME")))
    assert {5672, 5300} <= set(ports(service)) <= {int(port) for port in one("EXPOSE").split()}
    assert environment_of(service)["ACCEPT_EULA"] == "Y"


def test_our_compose_file_runs_without_any_variable() -> None:
    service = compose(COMPOSE.read_text(), {})
    assert (DEPLOY / mounts(service)[CONFIG]).is_file()
    assert environment_of(service)["ACCEPT_EULA"] == "Y"
    assert service["read_only"] is True


# -- the entry point --------------------------------------------------------------------------------------------------


class Container:
    """What runs instead of a container: the entry point, with the paths of the image in a folder of the test.

    The programs are those of the environment that the tests run in.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports = {"--port": HeldPort(), "--tls-port": HeldPort(), "http": HeldPort()}
        self.data = self.place(variables()["DUOBUS_DATA"])
        self.config = self.place(variables()["DUOBUS_CONFIG"])
        self.data.mkdir(parents=True)
        self.config.parent.mkdir(parents=True)
        self.log = root / "log"
        self.process: subprocess.Popen[bytes] | None = None

    def place(self, path: str) -> Path:
        """A path of the image."""
        return self.root / path.lstrip("/")

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """The image's variables, with paths in the folder, and those that a user gives."""
        image = {name: str(self.place(value)) for name, value in variables().items() if name.startswith("DUOBUS_")}
        kept = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return kept | image | {"PATH": path, "EMULATOR_HTTP_PORT": str(self.ports["http"].number)} | given

    def call(self, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
        """Run the entry point to its end."""
        return subprocess.run(
            [str(ENTRYPOINT), *arguments], env=self.environment(given), capture_output=True, text=True, timeout=60
        )

    def is_healthy(self) -> bool:
        return self.call("health").returncode == 0

    def start(self, *arguments: str, **given: str) -> None:
        """Start the server, and wait until its health check says so."""
        options = [f"{name}={port.number}" for name, port in self.ports.items() if name.startswith("--")]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(ENTRYPOINT), "--stores=1", *options, *arguments],
                env=self.environment(given),
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        limit = time.monotonic() + 60
        while not self.is_healthy():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < limit
            threading.Event().wait(0.1)

    def stop(self) -> int:
        """Send the image's stop signal; returns the exit status."""
        assert self.process is not None
        self.process.send_signal(getattr(signal, one("STOPSIGNAL")))
        return self.process.wait(60)

    def names_over_tls(self) -> list[str]:
        """Names that the server's certificate is for, as a client finds them that trusts its authority."""
        context = ssl.create_default_context(cafile=self.data / "tls" / "ca.pem")
        address = ("127.0.0.1", self.ports["--tls-port"].number)
        with (
            socket.create_connection(address, timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as connection,
        ):
            certificate = connection.getpeercert()
        assert certificate is not None
        return [str(pair[1]) for pair in certificate["subjectAltName"]]

    def client(self, key: str = EMULATORS_KEY) -> ServiceBusClient:
        return ServiceBusClient.from_connection_string(
            f"Endpoint=sb://localhost:{self.ports['--port'].number};SharedAccessKeyName=RootManageSharedAccessKey;"
            f"SharedAccessKey={key};UseDevelopmentEmulator=true;",
            retry_total=0,
        )

    def send(self, queue: str, text: str) -> None:
        with self.client() as client, client.get_queue_sender(queue) as sender:
            sender.send_messages(ServiceBusMessage(text))

    def receive(self, queue: str) -> list[str]:
        with (
            self.client() as client,
            client.get_queue_receiver(queue, receive_mode="receiveanddelete", max_wait_time=10) as receiver,
        ):
            return [str(message) for message in receiver.receive_messages()]


@pytest.fixture
def container(tmp_path: Path) -> Iterator[Container]:
    made = Container(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


def config(*queues: Mapping[str, Any]) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": []}]}})


def test_without_a_file_the_server_starts_empty_with_a_key_of_its_own(container: Container) -> None:
    assert not container.is_healthy()
    container.start()
    assert container.is_healthy()
    assert "There is no" in container.log.read_text()
    # Nobody has said ACCEPT_EULA, so the key that everybody knows opens nothing.
    text = (container.data / "connection-string").read_text()
    assert "SharedAccessKey=" in text
    assert EMULATORS_KEY not in text
    assert container.stop() == 0
    assert not container.is_healthy()


def test_an_empty_file_and_a_folder_in_its_place_end_the_start_with_what_to_do(container: Container) -> None:
    container.config.write_text("")
    done = container.call()
    assert done.returncode == 1
    assert f"Error: {container.config}: line 1, column 1: Expecting value" in done.stderr
    container.config.unlink()
    container.config.mkdir()
    done = container.call()
    assert done.returncode == 1
    assert "is a folder: the file that was to be mounted there did not exist" in done.stderr
    container.config.rmdir()
    container.data.rmdir()
    done = container.call()
    assert done.returncode == 1
    assert f"cannot write to {container.data}. Mount a volume there" in done.stderr


@pytest.mark.parametrize("text", [COMPOSE.read_text(), EMULATORS_COMPOSE], ids=["ours", "the-emulators"])
def test_with_what_a_compose_file_says_messages_outlive_a_restart_and_the_changed_file_counts(
    container: Container, text: str
) -> None:
    mine = container.root / "mine.json"
    mine.write_text(config({"Name": "orders"}, {"Name": "old"}))
    service = compose(text, {"CONFIG_PATH": str(mine), "ACCEPT_EULA": "Y", "MSSQL_SA_PASSWORD": "x"})
    # A mount of a file.
    container.config.symlink_to(mounts(service)[CONFIG])
    given = environment_of(service)
    more = service.get("command", [])
    container.start(*more, **given)
    container.send("orders", "two chairs")
    assert ("sb-emulator" in container.names_over_tls()) is (text == COMPOSE.read_text())
    assert container.stop() == 0
    mine.write_text(config({"Name": "orders", "Properties": {"MaxDeliveryCount": 9}}, {"Name": "new"}))
    container.start(*more, **given)
    said = container.log.read_text()
    assert (
        "configuration: update namespace=sbemulatorns kind=queue entity=orders changes=maxDeliveryCount: 3 -> 9" in said
    )
    assert "configuration: delete namespace=sbemulatorns kind=queue entity=old" in said
    assert container.receive("orders") == ["two chairs"]
    container.send("new", "one table")
    # Twice at once: the second one has other ports, and the same volume.
    second = container.call("--stores=1", "--port=0", "--tls-port=0", EMULATOR_HTTP_PORT="0", **given)
    assert second.returncode == 1
    assert "is in use by a server" in second.stderr
    assert container.receive("new") == ["one table"]
    assert container.stop() == 0


def test_config_path_names_a_file_in_the_container_or_has_no_effect(container: Container) -> None:
    other = container.root / "other.json"
    other.write_text(config({"Name": "other"}))
    container.config.write_text(config({"Name": "mounted"}))
    container.start(CONFIG_PATH=str(other), ACCEPT_EULA="Y")
    container.send("other", "x")
    assert container.stop() == 0
    # That of the machine: it is for compose alone, and may come along in a file of variables.
    container.start(CONFIG_PATH="./Config.json", ACCEPT_EULA="y")
    container.send("mounted", "x")
    assert container.stop() == 0


@pytest.mark.parametrize(
    ("arguments", "given", "expected"),
    [
        ([], {}, "--tls-self-signed --config-mode apply --http-port PORT"),
        ([], {"ACCEPT_EULA": "Y"}, "--emulator --tls-self-signed --config-mode apply --http-port PORT"),
        ([], {"ACCEPT_EULA": "N", "DUOBUS_TLS": "off"}, "--config-mode apply --http-port PORT"),
        (["--config-mode", "add"], {}, "--tls-self-signed --config-mode apply --http-port PORT --config-mode add"),
        (["--tls-cert=c", "--tls-key=k"], {}, "--config-mode apply --http-port PORT --tls-cert=c --tls-key=k"),
        (["--join", "postgresql://db/x"], {}, "--tls-self-signed --http-port PORT --join postgresql://db/x"),
        (["--settings", "a.toml"], {}, "--http-port PORT --settings a.toml"),
        ([], {"DUOBUS_SETTINGS": "a.toml"}, "--http-port PORT"),
    ],
)
def test_what_the_entry_point_gives_to_serve(
    container: Container, arguments: list[str], given: dict[str, str], expected: str
) -> None:
    programs = container.root / "programs"
    programs.mkdir()
    (programs / "duobus").write_text('#!/bin/sh\necho "$@"\n')
    (programs / "duobus").chmod(0o755)
    done = container.call(*arguments, PATH=f"{programs}{os.pathsep}{os.environ['PATH']}", **given)
    port = str(container.ports["http"].number)
    assert done.stdout == f"serve --data {container.data} --host 0.0.0.0 {expected.replace('PORT', port)}\n"


@pytest.mark.parametrize("arguments", [["--console"], []])
def test_a_console_gets_a_folder_on_the_volume_where_the_root_has_no_place_for_its_files(
    container: Container, arguments: list[str]
) -> None:
    programs = container.root / "programs"
    programs.mkdir()
    (programs / "duobus").write_text('#!/bin/sh\necho "${TMPDIR:-} ${XDG_STATE_HOME:-}"\n')
    # Root may write everywhere: what says whether a folder can be written has to be planted.
    (programs / "duobus").chmod(0o755)
    entry = container.root / "entry"
    entry.write_text(
        ENTRYPOINT.read_text().replace("! -w /tmp", "! -w /nowhere").replace("HOME:-/}", "NO_HOME:-/nowhere}")
    )
    done = subprocess.run(
        ["sh", str(entry), *arguments],
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "DUOBUS_DATA": str(container.data)},
        capture_output=True,
        text=True,
        timeout=20,
    )
    expected = f"{container.data}/tmp {container.data}/.local/state" if arguments else " "
    assert done.stdout == f"{expected}\n"
    assert (container.data / "tmp").is_dir() == bool(arguments)


def test_options_of_serve_win_over_what_the_entry_point_says_and_other_commands_run(container: Container) -> None:
    container.config.write_text(config({"Name": "orders"}))
    container.start("--config-mode=add", "--host", "127.0.0.1", DUOBUS_TLS="off", ACCEPT_EULA="Y")
    said = container.log.read_text()
    assert "configuration compared" not in said
    assert "DANGER" not in said
    assert not (container.data / "tls").exists()
    port = container.ports["http"].number
    address = (
        f"Endpoint=sb://localhost:{port};SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={EMULATORS_KEY};"
        "UseDevelopmentEmulator=true;"
    )
    done = container.call("queue", "list", "-o", "json", DUOBUS_CONNECTION_STRING=address)
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout
    assert container.stop() == 0
    assert container.call("--help").stdout.startswith("Usage: duobus serve")
