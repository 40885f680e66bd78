"""``/$duobus/metering``: metered operations by entity and hour, bounded, and what cannot be read is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_overview import SENDER, WATCHER, ask, watched

from duobus.model.metering import MeteringRecord
from duobus.telemetry import metering_hours
from duobus.telemetry.metering_hours import read_metered_hours
from duobus.telemetry.metering_log import MeteringLog
from kits.gateway import in_loop, serving
from kits.http_client import Http

HOUR = 3_600_000
DAY = 24 * HOUR
BASE = 480_000 * HOUR


def record(number: int, minute: int, entity: str = "q", namespace: str = "ns", kind: str = "send") -> MeteringRecord:
    return MeteringRecord("run", number, BASE + minute * 60_000, namespace, entity, kind, 2, 10, 3, "rule")


def test_records_are_summed_by_hour_entity_and_kind_and_repeats_count_once(tmp_path: Path) -> None:
    assert read_metered_hours(tmp_path / "none", "ns", BASE, BASE + DAY) == ([], BASE)
    log = MeteringLog(tmp_path)
    records = [record(1, 0), record(2, 59), record(3, 60), record(4, 61, "p"), record(5, 61, kind="settle")]
    log.write([*records, record(6, 61, namespace="other")])
    log.write(records[:2])
    found = read_metered_hours(tmp_path, "ns", BASE, BASE + DAY)
    assert [tuple(row.values()) for row in found.rows] == [
        (BASE + HOUR, "p", "send", 2, 10, 3),
        (BASE + HOUR, "q", "send", 2, 10, 3),
        (BASE + HOUR, "q", "settle", 2, 10, 3),
        (BASE, "q", "send", 4, 20, 6),
    ]
    assert found.since_ms == BASE
    assert [row["hourMs"] for row in read_metered_hours(tmp_path, "ns", BASE + HOUR, BASE + DAY).rows] == [
        BASE + HOUR
    ] * 3
    assert read_metered_hours(tmp_path, "ns", BASE, BASE + 1).rows[0]["messages"] == 2


def test_what_is_too_much_to_read_or_to_tell_is_left_out_from_its_oldest_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MeteringLog(tmp_path, file_bytes_max=2_000)
    for hour in range(40):
        log.write([record(hour * 2 + side, hour * 60, f"q{side}") for side in (0, 1)])
    assert len(read_metered_hours(tmp_path, "ns", BASE, BASE + 2 * DAY).rows) == 80
    with monkeypatch.context() as patch:
        patch.setattr(metering_hours, "READ_BYTES_MAX", 3_000)
        found = read_metered_hours(tmp_path, "ns", BASE, BASE + 2 * DAY)
        assert BASE < found.since_ms == min(row["hourMs"] for row in found.rows) + 60_000
        assert len(found.rows) < 80
    monkeypatch.setattr(metering_hours, "ROWS_MAX", 5)
    found = read_metered_hours(tmp_path, "ns", BASE, BASE + 2 * DAY)
    assert [row["hourMs"] for row in found.rows] == [BASE + 39 * HOUR] * 2 + [BASE + 38 * HOUR] * 2
    assert found.since_ms == BASE + 38 * HOUR


@in_loop
async def test_who_may_manage_reads_what_was_metered(tmp_path: Path) -> None:
    async with serving(data=tmp_path, ephemeral=False) as server:
        MeteringLog(tmp_path / "metering").write([record(1, 0)])
        http = await Http.connect(server.port("http") or 0)
        reply = await http.ask("GET", f"/$duobus/metering?from={BASE}&to={BASE + DAY}")
        assert reply.status == 200
        assert json.loads(reply.text) == {
            "fromMs": BASE,
            "toMs": BASE + DAY,
            "completeSinceMs": BASE,
            "rows": [
                {"hourMs": BASE, "entity": "q", "kind": "send", "messages": 2, "bytes": 10, "operations": 3},
            ],
        }
        assert json.loads((await http.ask("GET", "/$duobus/metering")).text)["rows"] == []
        for query, words in (
            ("?from=x", "an instant"),
            (f"?from={'9' * 16}", "an instant"),
            (f"?from=0&to={BASE}", "31 days"),
            (f"?from={BASE}&to=1", "31 days"),
        ):
            reply = await http.ask("GET", f"/$duobus/metering{query}")
            assert (reply.status, words in reply.text) == (400, True), query


@in_loop
async def test_listen_is_not_enough_and_a_server_in_memory_has_none() -> None:
    async with watched() as server:
        reply = await ask(server, "metering")
        assert (reply.status, "no metering files" in reply.text) == (400, True)
        for rule in (WATCHER, SENDER):
            assert (await ask(server, "metering", rule)).status == 401
