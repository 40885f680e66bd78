"""``duobus top`` and ``duobus doctor`` beside real servers: empty, at work, two at once, started anew meanwhile."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from click.testing import CliRunner, Result

from duobus.cli.main import main
from duobus.cli.watch import machine
from duobus.testing.server import ServerProcess, queues_config

CONFIG = queues_config({"orders": {}, "bills": {}})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("watched"), config=CONFIG) as process:
        yield process


def duobus(*words: str, server: ServerProcess | None = None, status: int = 0, **environment: str) -> Result:
    if server is not None:
        environment["DUOBUS_CONNECTION_STRING"] = server.connection_string
    result = CliRunner().invoke(main, words, env={"DUOBUS_CONNECTION_STRING": None, **environment})
    assert result.exit_code == status, result.output
    assert "SAS_KEY_VALUE" not in result.output
    return result


def once(server: ServerProcess, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        duobus("top", "--once", "--json", "--interval", "0.2", *words, server=server).stdout
    )
    return found


def findings(*words: str, server: ServerProcess | None = None, status: int = 0) -> dict[str, dict[str, str]]:
    found = json.loads(duobus("doctor", *words, "-o", "json", server=server, status=status).stdout)
    return {finding["subject"]: finding for finding in found}


def looked_at(server: ServerProcess, *words: str) -> dict[str, dict[str, str]]:
    """Findings, whatever the status is that they end with."""
    result = CliRunner().invoke(
        main, ["doctor", *words, "-o", "json"], env={"DUOBUS_CONNECTION_STRING": server.connection_string}
    )
    return {finding["subject"]: finding for finding in json.loads(result.stdout)}


def until(is_so: Any, limit_s: float = 60) -> None:
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


# -- top ------------------------------------------------------------------------------------------------------------


def test_top_tells_of_entities_stores_and_clients(server: ServerProcess) -> None:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_sender("orders") as sender,
    ):
        sender.send_messages([ServiceBusMessage("x") for _ in range(7)])
        found = once(server)
        assert {row["entity"]: row["active"] for row in found["entities"]} == {"orders": 7, "bills": 0}
        assert [row["state"] for row in found["stores"]] == ["open"] * 4
        (connection,) = found["connections"]
        assert "python" in connection["product"]
        assert {link["address"] for link in connection["links"] if link["role"] == "sender"} >= {"orders"}
        assert [row["entity"] for row in once(server, "--prefix", "bil")["entities"]] == ["bills"]
        table = duobus("top", "--once", "--interval", "0.2", "--sort", "depth", server=server).stdout
        assert table.index("orders") < table.index("bills")
        assert "azsdk" in table


def test_top_of_an_empty_server_is_empty(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, arguments=("--emulator", "--stores", "1")) as empty:
        found = once(empty)
        assert (found["entities"], found["connections"], found["notes"]) == ([], [], [])
        assert "No entities." in duobus("top", "--once", "--interval", "0.2", server=empty).stdout


def test_top_without_a_server_says_which_one_was_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    text = f"Endpoint=sb://localhost:{port};SharedAccessKeyName=n;SharedAccessKey=k;UseDevelopmentEmulator=true;"
    # Another part of the command line may give what is not reached a status of its own.
    result = CliRunner().invoke(main, ["top", "--once"], env={"DUOBUS_CONNECTION_STRING": text})
    assert result.exit_code != 0
    assert f"localhost:{port}" in result.output


def started_top(server: ServerProcess, *words: str, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "DUOBUS_CONNECTION_STRING": server.connection_string}
    command = [sys.executable, "-m", "duobus", "top", *words]
    # Tests that run in the background of a shell ignore Ctrl-C, and so would what they start.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return subprocess.Popen(command, env=environment, text=True, **options)
    finally:
        signal.signal(signal.SIGINT, before)


def test_two_tops_go_on_over_a_restart_of_the_broker_with_rates_and_end_with_ctrl_c(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, config=CONFIG, arguments=("--emulator", "--stores", "1")) as process:
        words = ("--interval", "0.3", "--json")
        tops = [started_top(process, *words, stdout=subprocess.PIPE) for _ in range(2)]
        try:
            before = {lines_until(top, lambda line: True)["server"]["startedMs"] for top in tops}
            assert len(before) == 1
            process.restart()
            seen = [lines_until(top, lambda line: line["server"]["startedMs"] not in before) for top in tops]
            with (
                ServiceBusClient.from_connection_string(process.connection_string) as client,
                client.get_queue_sender("orders") as sender,
            ):
                sender.send_messages(ServiceBusMessage("x"))
                for top, first in zip(tops, seen, strict=True):
                    found = lines_until(top, lambda line: rate_of(line, "orders") > 0)
                    assert found["server"]["startedMs"] == first["server"]["startedMs"]
        finally:
            for top in tops:
                top.send_signal(2)
            statuses = []
            for top in tops:
                top.communicate(timeout=60)
                statuses.append(top.returncode)
        assert statuses == [0, 0]


def lines_until(top: subprocess.Popen[str], is_wanted: Any) -> dict[str, Any]:
    assert top.stdout is not None
    for line in top.stdout:
        found: dict[str, Any] = json.loads(line)
        if "error" not in found and is_wanted(found):
            return found
    raise AssertionError("top has ended")


def rate_of(line: dict[str, Any], entity: str) -> float:
    return next(row["sentPerSecond"] or 0.0 for row in line["entities"] if row["entity"] == entity)


def test_top_on_a_terminal_shows_a_screen_and_ends_with_ctrl_c(server: ServerProcess) -> None:
    control, terminal = pty.openpty()
    try:
        top = started_top(server, "--interval", "0.3", stdin=terminal, stdout=terminal, stderr=terminal, close_fds=True)
        os.close(terminal)
        text = ""

        def shows() -> bool:
            nonlocal text
            text += os.read(control, 65_536).decode(errors="replace")
            return "orders" in text and "commits/s" in text

        until(shows)
        # The screen of its own, which leaves the terminal as it was.
        assert "\x1b[?1049h" in text
        top.send_signal(2)
        # A terminal that nobody reads holds up what writes to it; reading fails when the last writer has gone.
        with suppress(OSError):
            while os.read(control, 65_536):
                pass
        assert top.wait(60) == 0
    finally:
        os.close(control)


# -- doctor ---------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_a_running_server_its_folder_and_the_machine(server: ServerProcess, tmp_path: Path) -> None:
    data = Path(server.ca).parents[1]
    found = findings("--data", str(data), "--port", str(server.ready["amqp_port"]), server=server)
    assert {"versions", "open files", "memory", "data folder", "room", "disk", "file system", "clock"} <= found.keys()
    assert f"process {server.pid}" in found["open files"]["found"]
    assert "a duobus server listens" in found[f"port {server.ready['amqp_port']}"]["found"]
    assert found["use"]["found"].startswith(f"in use by a server with process id {server.pid}")
    assert found["contents"]["found"].startswith("4 stores in files")
    assert found["health"]["status"] == found["server"]["status"] == found["stores"]["status"] == "ok"
    assert found["certificate server.pem"]["status"] == "ok"
    assert [path for path in data.iterdir() if path.name.startswith(".doctor")] == []


def test_the_doctor_finds_the_server_of_a_folder_without_a_connection_string(server: ServerProcess) -> None:
    found = findings("--data", str(Path(server.ca).parents[1]), "--port", str(server.ready["amqp_port"]))
    assert found["server"]["found"] == f"http://127.0.0.1:{server.ready['amqp_port']} answers"
    assert "not asked" in found["stores"]["found"]


def test_the_doctor_looks_at_a_server_over_tls_and_at_the_end_of_its_certificate(server: ServerProcess) -> None:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string_tls}
    words = ("doctor", "-o", "json", "--port", str(server.ready["tls_port"]))
    found = json.loads(duobus(*words, "--ca", server.ca, **environment).stdout)
    certificates = [one for one in found if one["subject"].startswith("certificate of localhost")]
    assert [one["status"] for one in certificates] == ["ok"]
    untrusted = json.loads(duobus(*words, status=1, **environment).stdout)
    (away,) = [one for one in untrusted if one["subject"] == "server"]
    assert away["status"] == "failure"
    assert "--ca" in away["remedy"]


def test_a_server_that_nobody_asked_for_may_be_away_and_one_that_was_named_may_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    words = ("--data", str(tmp_path / "bus"), "--port", str(port))
    named = findings(*words, "--endpoint", f"http://127.0.0.1:{port}", status=1)
    assert named["server"]["status"] == "failure"
    assert not (tmp_path / "bus").exists()
    assert named[f"port {port}"]["status"] == "ok"


def test_a_wrong_key_and_a_sick_store_are_failures(tmp_path: Path) -> None:
    arguments = ("--emulator", "--stores", "2", "--allow-drills")
    with ServerProcess(tmp_path, config=CONFIG, arguments=arguments) as process:
        wrong = process.connection_string.replace("SAS_KEY_VALUE", "wrong")
        port = ("--port", str(process.ready["amqp_port"]))
        result = duobus("doctor", *port, "-o", "json", status=1, DUOBUS_CONNECTION_STRING=wrong)
        (key,) = [one for one in json.loads(result.stdout) if one["subject"] == "key"]
        assert key["status"] == "failure"
        assert "wrong" not in key["found"]
        duobus("store", "fail", "2", server=process)
        # The first who asks for its health has an idle store probed.
        until(lambda: looked_at(process, *port)["health"]["status"] == "warning")
        sick = findings(*port, server=process, status=1)
        assert sick["store 2"]["status"] == "failure"
        duobus("store", "heal", "2", server=process)
        until(lambda: looked_at(process, *port)["health"]["status"] == "ok")
        assert findings(*port, server=process)["store 2"]["status"] == "warning"
        process.restart()
        assert findings(*port, server=process)["stores"]["found"] == "2 open"


def test_warnings_end_with_status_1_when_that_is_asked_for(server: ServerProcess, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    words = ("--data", str(tmp_path), "--port", str(server.ready["amqp_port"]))
    assert findings(*words, server=server)["data folder"]["status"] == "warning"
    findings(*words, "--strict", server=server, status=1)


def test_who_listens_on_a_port_is_told_apart(server: ServerProcess) -> None:
    assert machine.holder_of("127.0.0.1", server.ready["http_port"]) == machine.DUOBUS
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert machine.holder_of("127.0.0.1", port) == machine.OTHER
    assert machine.holder_of("127.0.0.1", port) == machine.FREE


def test_two_doctors_at_once_do_not_disturb_each_other(server: ServerProcess) -> None:
    words = [
        "doctor",
        "--data",
        str(Path(server.ca).parents[1]),
        "--port",
        str(server.ready["amqp_port"]),
        "-o",
        "json",
    ]
    environment = {**os.environ, "DUOBUS_CONNECTION_STRING": server.connection_string}
    command = [sys.executable, "-m", "duobus", *words]
    both = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for one in both:
        found = json.loads(one.communicate(timeout=60)[0])
        assert one.returncode == 0
        assert {finding["status"] for finding in found} <= {"ok", "warning"}


def test_without_options_the_doctor_looks_at_the_usual_ports_and_the_server_of_this_machine() -> None:
    result = CliRunner().invoke(main, ["doctor", "-o", "json"], env={"DUOBUS_CONNECTION_STRING": None})
    found = {finding["subject"]: finding for finding in json.loads(result.stdout)}
    assert {"port 5672", "port 5671", "port 5300", "server", "versions", "memory"} <= found.keys()
    assert "disk" not in found
    # Other programs on the machine may have these ports; a server that nobody asked for may be away.
    failures = [subject for subject, finding in found.items() if finding["status"] == "failure"]
    assert result.exit_code == (1 if failures else 0)
    assert "localhost:5300" in found["server"]["found"]


def test_what_people_read_has_the_remedy_below_the_finding_and_ends_with_a_count(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    result = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path), "-o", "table"], env={"COLUMNS": "200"})
    lines = result.stdout.splitlines()
    (index,) = [number for number, line in enumerate(lines) if "others can look into it" in line]
    assert lines[index].startswith("warning")
    assert "chmod 700" in lines[index + 1]
    assert re.fullmatch(r"\d+ failure, \d+ warning, \d+ ok\.", lines[-1])
    assert duobus_query("[?subject=='data folder'].status", tmp_path) == "warning"


def duobus_query(query: str, data: Path) -> str:
    words = ["doctor", "--data", str(data), "--query", query, "-o", "tsv"]
    return CliRunner().invoke(main, words, env={"DUOBUS_CONNECTION_STRING": None}).stdout.strip()
