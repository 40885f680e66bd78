"""``duobus relay serve``, ``forward`` and ``expose``: what they refuse and how they end, and a port through a relay."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from integration.relay.test_relay_clients import asynchronous
from integration.relay.test_relay_services import digest

from duobus.cli.main import main
from duobus.relay.aio import request
from kits.stand_in_relay import StandInRelay

NOBODY = "Endpoint=http://127.0.0.1:{port}/;SharedAccessKeyName=n;SharedAccessKey=secret;EntityPath=p"


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (["serve", "duobus.cli.main:main", "--relay", "nonsense"], 2, "has the form"),
        (["serve", "no_such_module:app", "--relay", NOBODY.format(port=1)], 2, "no module 'no_such_module'"),
        (["serve", "json:nothing", "--relay", NOBODY.format(port=1)], 2, "has no 'nothing'"),
        (["serve", "json", "--relay", NOBODY.format(port=1)], 2, "MODULE:APP"),
        (["forward", "--local", "here", "--relay", NOBODY.format(port=1)], 2, "HOST:PORT"),
        (["expose", "--listen", "127.0.0.1:99999", "--relay", NOBODY.format(port=1)], 2, "HOST:PORT"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words_that_help_and_without_the_key(
    words: list[str], status: int, text: str
) -> None:
    result = CliRunner().invoke(main, ["relay", *words])
    assert (result.exit_code, text in " ".join(result.output.split())) == (status, True), result.output
    assert "secret" not in result.output


class Command:
    """A command that runs in a process of its own."""

    def __init__(self, *words: str) -> None:
        self._words = words

    async def __aenter__(self) -> Command:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "duobus",
            "relay",
            *self._words,
            "--json",
            stdout=-1,
            stderr=-1,
            cwd=Path(__file__).parent,
        )
        return self

    async def event(self, name: str) -> dict[str, Any]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            found: dict[str, Any] = json.loads(line)
            if found["event"] == name:
                return found
        raise AssertionError(f"{name} never came: {await self.said()}")

    async def said(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            assert await self.process.wait() == 0
        # Reads what is left, so that the pipes are closed.
        await self.process.communicate()


@pytest.mark.slow
@asynchronous
async def test_a_port_is_forwarded_and_exposed_by_two_commands() -> None:
    server = await asyncio.start_server(digest, "127.0.0.1", 0)
    local = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with StandInRelay("p") as relay:
        string = relay.connection_string
        async with (
            Command("forward", "--local", local, "--relay", string) as forward,
            Command("expose", "--listen", "127.0.0.1:0", "--relay", string) as expose,
        ):
            assert (await forward.event("ready"))["local"] == local
            host, _, port = (await expose.event("listening"))["address"].partition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"hello")
            writer.write_eof()
            assert (await reader.read())[64:] == b"hello"
            writer.close()
    server.close()


@pytest.mark.slow
@asynchronous
async def test_an_application_is_served_by_a_command() -> None:
    async with (
        StandInRelay("p") as relay,
        Command("serve", "served_application:app", "--relay", relay.connection_string) as command,
    ):
        await command.event("ready")
        assert (await request(relay.endpoint, "GET", "x")).text == "/x"


@pytest.mark.slow
@asynchronous
async def test_a_relay_that_refuses_ends_the_command_with_the_status_of_its_kind() -> None:
    async with StandInRelay("p") as relay:
        for refusal, status in ((401, 5), (403, 5), (404, 3)):
            relay.refuses = refusal
            async with Command("forward", "--local", "1", "--relay", relay.connection_string) as command:
                assert await command.process.wait() == status
                assert str(refusal) in await command.said()


@pytest.mark.slow
@asynchronous
async def test_a_port_that_is_taken_is_told_with_what_to_do() -> None:
    server = await asyncio.start_server(digest, "127.0.0.1", 0)
    taken = server.sockets[0].getsockname()[1]
    relay = NOBODY.format(port=1)
    async with Command("expose", "--listen", f"127.0.0.1:{taken}", "--relay", relay) as command:
        assert await command.process.wait() == 1
        assert "Choose another port" in await command.said()
    server.close()


@pytest.mark.slow
@asynchronous
async def test_a_relay_that_cannot_be_reached_is_told_at_once_and_ends_the_command_with_6() -> None:
    relay = NOBODY.format(port=1)
    async with Command("forward", "--local", "1", "--relay", relay, "--retry-total", "2") as command:
        waiting = await command.event("waiting")
        assert (waiting["relay"], waiting["seconds"]) == ("127.0.0.1:1/p", 1)
        assert "cannot be reached" in waiting["error"]
        assert await command.process.wait() == 6
        assert "cannot be reached" in await command.said()
    async with Command("forward", "--local", "1", "--relay", relay, "--retry-total", "0") as command:
        assert await command.process.wait() == 6
        assert command.process.stdout is not None
        assert b"waiting" not in await command.process.stdout.read()


@pytest.mark.slow
@asynchronous
async def test_a_relay_that_is_started_a_little_later_is_found() -> None:
    relay = StandInRelay("p")
    async with relay:
        string = relay.connection_string
    async with Command("forward", "--local", "1", "--relay", string) as command:
        await command.event("waiting")
        async with relay:
            await command.event("ready")


def test_people_are_told_in_one_line_on_standard_error() -> None:
    relay = NOBODY.format(port=1)
    result = CliRunner().invoke(main, ["relay", "forward", "--local", "1", "--relay", relay, "--retry-total", "1"])
    assert result.exit_code == 6
    assert "Cannot reach 127.0.0.1:1/p, trying again for 0 s." in result.stderr
