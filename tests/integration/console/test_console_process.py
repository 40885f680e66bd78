"""The console beside a server: started, started again, ended; and where the server sends a browser."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock
from duobus.errors import ConfigurationError
from duobus.server.console_process import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    ConsoleOptions,
    ConsoleProcess,
    console_options,
)
from duobus.server.settings import Settings, load_settings
from duobus.telemetry.logs import Log
from kits.gateway import in_loop, serving, settled
from kits.http_client import Http

MEMBERS = {
    "admin_url": "http://localhost:5300",
    "connection_string": "Endpoint=sb://localhost:5672;SharedAccessKeyName=Root;SharedAccessKey=secret;"
    "UseDevelopmentEmulator=true;",
}


def process(program: str, place: str = "Endpoint=sb://x", **options: Any) -> ConsoleProcess:
    return ConsoleProcess(
        ConsoleOptions((), place), Clock(), Log("test"), command=(sys.executable, "-c", program), **options
    )


def test_the_console_of_a_server_gets_no_key_unless_the_key_is_public() -> None:
    started = console_options(Settings(data=None, console_port=0), MEMBERS)
    assert started.connection_string == "Endpoint=sb://localhost:5672;UseDevelopmentEmulator=true;"
    public = console_options(Settings(data=None, console_port=0, emulator=True), MEMBERS)
    assert "SharedAccessKey=secret" in public.connection_string
    assert "secret" not in " ".join(public.arguments)


def test_the_console_of_a_server_listens_where_the_server_says_and_on_this_machine_alone_otherwise() -> None:
    assert "--host" not in console_options(Settings(data=None, console_port=0), MEMBERS).arguments
    chosen = Settings(data=None, console_port=0, console_host="0.0.0.0", console_url="https://console.example.com")
    arguments = console_options(chosen, MEMBERS).arguments
    assert arguments[-4:] == ("--host", "0.0.0.0", "--public-url", "https://console.example.com")
    with pytest.raises(ConfigurationError, match="Give --console"):
        load_settings(Settings(data=None, ephemeral=True, console_host="0.0.0.0"))


@in_loop
async def test_a_console_that_dies_is_started_again_after_growing_pauses() -> None:
    pauses: list[float] = []
    enough = asyncio.Event()

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 8:
            enough.set()
            await asyncio.Event().wait()

    running = asyncio.ensure_future(process("raise SystemExit(3)", pause=pause).run())
    await enough.wait()
    running.cancel()
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


@in_loop
async def test_the_console_ends_with_its_server_and_its_address_is_known_only_meanwhile() -> None:
    console = process("import sys; print('{\"url\": \"http://here/\"}', flush=True); sys.stdin.read(); print('over')")
    running = asyncio.ensure_future(console.run())
    await settled(lambda: console.url is not None)
    assert console.url == "http://here/"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert console.url is None


@in_loop
@pytest.mark.parametrize(
    ("place", "is_told"), [("Endpoint=sb://x", False), ("Endpoint=sb://x;SharedAccessKey=k", True)]
)
async def test_the_log_has_the_access_code_only_where_the_key_is_public(
    place: str, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    told = json.dumps({"url": "http://here/", "code": "abc"})
    console = process(f"import sys; print('{told}', flush=True); sys.stdin.read()", place)
    running = asyncio.ensure_future(console.run())
    await settled(lambda: console.url is not None)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    records = [vars(record) for record in caplog.records]
    assert any("http://here/" in str(record) for record in records)
    assert any("sign-in#code=abc" in str(record) for record in records) == is_told


@in_loop
async def test_a_browser_is_sent_to_the_console_while_one_runs_and_other_clients_are_not() -> None:
    async with serving() as server:
        http = await Http.connect(server.port("http") or 0)
        before = await http.ask("GET", "/", headers={"Accept": "text/html"})
        assert before.status != 302
        assert server.rest is not None
        server.rest.console_url = lambda: "http://127.0.0.1:8080/"
        sent = await http.ask("GET", "/", headers={"Accept": "text/html,application/xhtml+xml"})
        assert (sent.status, sent.header("Location")) == (302, "http://127.0.0.1:8080/")
        other = await http.ask("GET", "/", headers={"Accept": "*/*"})
        assert (other.status, other.reason) == (before.status, before.reason)
        assert (await http.ask("GET", "/q", headers={"Accept": "text/html"})).status != 302


@pytest.mark.slow
def test_a_served_console_answers_and_ends_with_the_server(tmp_path: Path) -> None:
    ready, data = tmp_path / "ready.json", tmp_path / "data"
    ports = ("--port", "0", "--tls-port", "0", "--http-port", "0", "--console", "0")
    command = (sys.executable, "-m", "duobus", "serve", "--data", str(data), "--ready-file", str(ready), *ports)
    broker = subprocess.Popen([*command, "--log-format", "json"], stderr=subprocess.PIPE, text=True, bufsize=1)
    try:
        assert broker.stderr is not None
        url = ""
        for line in broker.stderr:
            told = json.loads(line)
            if "console ready" in line:
                url = next(value for value in told.values() if str(value).startswith("http://"))
                break
        with urllib.request.urlopen(f"{url}sign-in", timeout=60) as page:
            assert b"With an access rule" in page.read()
        request = urllib.request.Request(
            json.loads(ready.read_text())["admin_url"] + "/", headers={"Accept": "text/html"}
        )
        with urllib.request.urlopen(request, timeout=60) as page:
            assert page.url.startswith(url)
        # Without a word to the console: the pipe tells it.
        broker.kill()
        broker.wait()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(url, timeout=60).close()
            except OSError:
                break
        else:
            pytest.fail("the console has outlived its server")
    finally:
        broker.kill()
        broker.wait()
        assert broker.stderr is not None
        broker.stderr.close()
