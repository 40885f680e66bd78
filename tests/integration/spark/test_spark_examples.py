"""The examples of the pipeline run as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duobus.testing.server import ServerProcess

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


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
