"""The tutorial of the pipeline runs as it is written, and the examples beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tutorial" / "spark.md"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.timeout(240)
def test_the_tutorial_runs_from_messages_to_their_cost(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SP8."""
    monkeypatch.chdir(tmp_path)
    (config,) = blocks("json")
    cells = blocks("python")
    names: dict[str, Any] = {}
    with ServerProcess(tmp_path, config=json.loads(config), arguments=("--emulator",)) as server:
        (tmp_path / "connection.txt").write_text(server.connection_string)
        # Where the page's own command puts it.
        (tmp_path / "bus").symlink_to(tmp_path / "data")
        for cell in cells[:-1]:
            exec(compile(cell, "cell", "exec"), names)  # the page is ours
        server.terminate()
        exec(compile(cells[-1], "cell", "exec"), names)
    told = capsys.readouterr().out
    assert names["spark"] is spark
    assert told.count("300\n") == 2
    assert "300 10 0 290" in told
    assert names["told"]["compact"]["damaged"] == 0
    assert names["told"]["servers_incomplete"] == []
    assert names["told"]["by_kind"]["send"]["operations"] == 600
    assert names["told"]["currency"] == "EUR"


def test_an_example_counts_what_waits(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "spark"))
    import count_messages
    from azure.servicebus import ServiceBusClient, ServiceBusMessage

    config = {"UserConfig": {"Namespaces": [{"Name": "n", "Queues": [{"Name": "q", "Properties": {}}]}]}}
    with ServerProcess(tmp_path, config=config, arguments=("--emulator",)) as server:
        connection = tmp_path / "connection.txt"
        connection.write_text(server.connection_string)
        # Workers of this session have their environment already, so they read the file.
        monkeypatch.setattr(count_messages, "PLACE", {"connectionStringFile": str(connection)})
        with (
            ServiceBusClient.from_connection_string(server.connection_string) as client,
            client.get_queue_sender("q") as sender,
        ):
            messages = [ServiceBusMessage("x", application_properties={"sender": name}) for name in ("a", "b", "a")]
            sender.send_messages([*messages, ServiceBusMessage("y")])
        rows = count_messages.count(spark, "q").collect()
    assert {row["sender"]: row["messages"] for row in rows} == {"a": 2, "b": 1, "nobody": 1}
