"""The container image, built and run where no image registry and no container engine is (``make image``).

Health check, stop signal, user and volume are read from the image and acted on. The root is read-only. The network is
the container's own, so that its ports are those of the image. Docker, compose and other processors were not tried.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kit_image import ImageRun, Volume, built_image, running

from kits.container import COMPOSE, EMULATORS_COMPOSE, compose, environment_of, mounts, one, ports, variables, words

ADDRESS = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.xdist_group("image")]


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return built_image()


def document(*queues: Mapping[str, Any]) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": []}]}})


def test_the_image_says_what_the_dockerfile_says(config: dict[str, Any]) -> None:
    assert config["User"] == one("USER")
    assert list(config["Volumes"]) == words(one("VOLUME"))
    assert config["StopSignal"] == one("STOPSIGNAL")
    assert config["Entrypoint"] == words(one("ENTRYPOINT"))
    assert config["Healthcheck"]["Test"] == ["CMD", *words(one("HEALTHCHECK").split("CMD", 1)[1])]
    assert {f"{name}={value}" for name, value in variables().items()} <= set(config["Env"])


def test_an_empty_container_is_healthy_writes_only_to_its_volume_and_stops_by_its_signal(
    config: dict[str, Any], tmp_path: Path
) -> None:
    with running(config, tmp_path / "log") as container:
        status = Path(f"/proc/{container.pid}/status").read_text()
        assert re.search(r"^Uid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE)
        assert re.search(r"^Gid:\s+10001\s+10001\s+10001\s+10001$", status, re.MULTILINE)
        for path in ("/", "/tmp", "/opt/duobus", "/ServiceBus_Emulator"):
            done = container.inside("touch", f"{path}/x")
            assert "Read-only file system" in done.stderr, path
        assert container.inside("touch", "/data/x").returncode == 0
        key = container.inside("cat", "/data/connection-string").stdout
        assert "SAS_KEY_VALUE" not in key
        container.client("queue", "create", "orders", address=key.strip())
        container.client("message", "send", "orders", "two chairs", address=key.strip())
        assert "two chairs" in container.client("message", "receive", "orders", address=key.strip())
        assert container.stop() == 0
        assert not container.is_healthy()
        assert "stopped" in container.said().splitlines()[-1]


#: Signs in to the console as a person does, and uploads 3 MiB of messages, which do not stay in memory.
UPLOADER = r"""
import http.cookiejar, json, pathlib, re, urllib.parse, urllib.request

jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
browser = urllib.request.build_opener(jar, urllib.request.ProxyHandler({}))

def ask(path, data=None, kind="application/x-www-form-urlencoded"):
    headers = {"Accept": "text/html", "Origin": "http://localhost:8080", "Content-Type": kind}
    request = urllib.request.Request("http://localhost:8080" + path, data, headers)
    return browser.open(request, timeout=30).read().decode()

text = pathlib.Path("/data/connection-string").read_text()
key = dict(part.split("=", 1) for part in text.strip().split(";") if part)
page = ask("/sign-in")
place = re.search(r'<option[^>]* value="([^"]+)"|name="namespace"[^>]* value="([^"]+)"', page)
form = {
    "csrf": re.search(r'name="csrf" value="([^"]+)"', page)[1],
    "kind": "key",
    "namespace": place[1] or place[2],
    "rule": key["SharedAccessKeyName"],
    "key": key["SharedAccessKey"],
}
ask("/sign-in", urllib.parse.urlencode(form).encode())
token = re.search(r'data-csrf="([^"]+)"', ask("/"))[1]
line = json.dumps({"message": {"body": {"data": ["A" * 60_000]}}})
parts = [("csrf", token), ("path", "orders"), ("as", "send"), ('file"; filename="f', "\n".join([line] * 50))]
head = '--b\r\nContent-Disposition: form-data; name="'
body = "".join(f'{head}{name}"\r\n\r\n{text}\r\n' for name, text in parts)
print(ask("/dead-letter-files", (body + "--b--\r\n").encode(), "multipart/form-data; boundary=b"))
"""


def test_the_console_answers_inside_and_keeps_uploads_and_undo_files_on_the_volume(
    config: dict[str, Any], tmp_path: Path
) -> None:
    with running(config, tmp_path / "log", arguments=("--console",)) as container:
        until = time.monotonic() + 60
        while "http://localhost:8080" not in container.said() and time.monotonic() < until:
            time.sleep(0.2)
        key = container.inside("cat", "/data/connection-string").stdout.strip()
        container.client("queue", "create", "orders", address=key)
        done = container.inside("python3", "-c", UPLOADER)
        assert done.returncode == 0, (done.stderr, container.said())
        assert "run" in done.stdout
        assert container.inside("sh", "-c", "ls /data/.local/state/duobus/console-dead-letters").stdout
        assert container.inside("sh", "-c", "ls -ld /data/tmp").stdout.startswith("drwx------")
        assert container.stop() == 0


@pytest.mark.parametrize("text", [COMPOSE.read_text(), EMULATORS_COMPOSE], ids=["ours", "the-emulators"])
def test_a_compose_file_s_container_keeps_messages_and_takes_a_changed_file_at_the_next_start(
    config: dict[str, Any], tmp_path: Path, text: str
) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text(document({"Name": "orders"}, {"Name": "old"}))
    service = compose(text, {"CONFIG_PATH": str(mine), "ACCEPT_EULA": "Y"})
    assert {int(name.split("/")[0]) for name in config["ExposedPorts"]} >= set(ports(service))
    # Without one of its own, compose keeps the image's unnamed volume when a container is made anew.
    data = {path: Volume(tmp_path / "volume") for path in config["Volumes"]}
    for path, source in mounts(service).items():
        data.setdefault(path, Path(source) if "/" in source else Volume(tmp_path / source))  # type: ignore[arg-type]
    environment = environment_of(service)
    began = time.monotonic()
    with running(config, tmp_path / "log", data, environment) as container:
        container.client("message", "send", "orders", "two chairs", address=ADDRESS)
        print(f"\nfrom the container's start to the first message: {time.monotonic() - began:.1f} s")
        # The administration's port, and TLS by the authority that the server has made.
        management = ADDRESS.replace("localhost;", "localhost:5300;")
        assert "orders" in container.client("queue", "list", address=management)
        assert container.stop() == 0
    mine.write_text(document({"Name": "orders", "Properties": {"MaxDeliveryCount": 9}}, {"Name": "new"}))
    with running(config, tmp_path / "log", data, environment) as container:
        said = container.said()
        assert "kind=queue entity=orders changes=maxDeliveryCount: 3 -> 9" in said
        assert "configuration: delete namespace=sbemulatorns kind=queue entity=old" in said
        assert "two chairs" in container.client("message", "receive", "orders", address=ADDRESS)
        second = ImageRun(config, data, environment, (), tmp_path / "second")
        try:
            second.start()
            assert second.wait() != 0
            assert "is in use by a server" in second.said()
        finally:
            second.remove()
        assert container.is_healthy()
        assert container.stop() == 0
