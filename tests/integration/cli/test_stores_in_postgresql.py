"""A server with a store in a file and one in PostgreSQL: what is shown, moved from one to the other, and given up."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from click.testing import CliRunner
from test_drills import duobus, received

from duobus.cli.main import main
from duobus.testing.postgres_server import PostgresServer
from duobus.testing.server import ServerProcess
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    # The SDK forgets the socket of a connection that could not be made.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

QUEUE = "queue"
CONFIG = {"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": [{"Name": QUEUE, "Properties": {}}]}]}}
SECRET = "never-shown"


@pytest.fixture
def postgres() -> Iterator[PostgresServer]:
    with running_postgres(durable=True) as server:
        yield server


@pytest.fixture
def server(tmp_path: Path, postgres: PostgresServer) -> ServerProcess:
    """Not started yet."""
    address = postgres.url().replace("postgres@", f"postgres:{SECRET}@")
    return ServerProcess(
        tmp_path, config=CONFIG, arguments=("--emulator", "--log-format", "json", "--stores", "1", "--store", address)
    )


@pytest.mark.usefixtures("either_way")
def test_a_fragment_moves_to_postgresql_and_back_under_traffic(server: ServerProcess, tmp_path: Path) -> None:
    sent = 0
    with server, ServiceBusClient.from_connection_string(server.connection_string) as client:
        rows = duobus(server, "store", "list")
        assert [row["place"].partition("?")[0].partition(":")[0] for row in rows] == ["stores/store-1.db", "postgresql"]
        with client.get_queue_sender(QUEUE) as sender:
            for target in (2, 1, 2):
                sender.send_messages([ServiceBusMessage(f"{sent + index}") for index in range(100)])
                sent += 100
                with ThreadPoolExecutor(1) as beside:
                    move = beside.submit(duobus, server, "fragment", "move", QUEUE, "0", "--to", str(target))
                    end = sent + 20
                    while not move.done() or sent < end:
                        sender.send_messages(ServiceBusMessage(f"{sent}"))
                        sent += 1
                assert [row["state"] for row in move.result()] == ["done"]
                (fragment,) = duobus(server, "fragment", "list", QUEUE)
                assert fragment["store"] == target
        assert sorted(map(int, received(client, QUEUE))) == list(range(sent))
    shown = [server.log_path.read_text(), str(rows)]
    shown += [path.read_bytes().decode(errors="replace") for path in tmp_path.rglob("catalog.db*")]
    assert not any(SECRET in text for text in shown)


def test_a_backup_of_what_is_in_postgresql_is_refused_with_what_to_do(server: ServerProcess, tmp_path: Path) -> None:
    with server:
        pass
    words = ["backup", "--data", str(tmp_path / "data"), "--to", str(tmp_path / "backup")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "Back those up with PostgreSQL's means" in result.output


def test_a_store_in_postgresql_is_given_up_when_it_cannot_be_read(
    server: ServerProcess, tmp_path: Path, postgres: PostgresServer
) -> None:
    with server:
        pass
    words = ["store", "replace", "2", "--data", str(tmp_path / "data"), "--yes"]
    refused = CliRunner().invoke(main, words)
    assert (refused.exit_code, "can be read" in refused.output) == (1, True)
    postgres.stop()
    assert CliRunner().invoke(main, words).exit_code == 0


def test_a_start_without_the_address_of_a_store_says_which_is_missing(server: ServerProcess, tmp_path: Path) -> None:
    with server:
        pass
    words = ["serve", "--data", str(tmp_path / "data"), "--stores", "1", "--port", "0", "--http-port", "0"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 1
    assert "Messaging store 2 is at postgresql://postgres@127.0.0.1" in result.output
    assert SECRET not in result.output


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--store", f"postgresql://me:{SECRET}@127.0.0.1:1/bus"], "cannot be reached"),
        (["--store", f"mysql://me:{SECRET}@h/bus"], "begins with postgresql://"),
        (["--store", "postgresql://h/bus", "--stores", "64"], "more than 64"),
    ],
)
def test_an_address_that_leads_nowhere_ends_the_start_with_what_to_do(
    tmp_path: Path, words: list[str], text: str
) -> None:
    common = ["serve", "--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0"]
    result = CliRunner().invoke(main, [*common, *words])
    assert result.exit_code == 1
    assert text in result.output
    assert SECRET not in result.output
