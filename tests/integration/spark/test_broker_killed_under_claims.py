"""Two claim streams on one queue, whose broker is killed before it has written down what it delivered."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit_stream import Stream
from spark_bus import CONNECTION_ENV, Bus

from duobus.testing.server import ServerProcess, queues_config


@pytest.mark.slow
def test_what_one_stream_defers_is_not_the_others_though_both_received_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = queues_config({"claimed": {"LockDuration": "PT1M"}})
    with ServerProcess(tmp_path, config=config) as server:
        monkeypatch.setenv(CONNECTION_ENV, server.connection_string)
        bus = Bus({"connectionStringEnv": CONNECTION_ENV})
        bus.send("claimed", ["a", "b"])
        first = Stream(bus, queue="claimed")
        end = first.claim(2)
        server.kill()
        server.start()
        monkeypatch.setenv(CONNECTION_ENV, server.connection_string)
        second = Stream(bus, queue="claimed")
        theirs = second.claim(1)
        assert [row["body"] for row in second.rows(theirs)] == [b"a"]
        # The first stream's process goes on where it was, or another one with its checkpoint.
        again = Stream(bus, queue="claimed")
        again.reader._claims()
        # As when the locks of the claim have ended, 18 s after it.
        again.reader._access.is_past = lambda _: True
        assert again.rows(end) == []
        assert [row["body"] for row in second.rows(theirs)] == [b"a"]
        for stream in (first, second, again):
            stream.stop()
        server.kill()
