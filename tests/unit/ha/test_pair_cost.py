"""What a pair costs: by its configuration, and by the metering of a server (PN13 to PN15, I59)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.ha.cost import CostPlan, estimate, used
from duobus.model.metering import EMPTY_RECEIVE, PING, RECEIVE, SEND, SETTLE, MeteringRecord
from duobus.telemetry.metering_log import MeteringLog

MINUTE_MS = 60_000


def test_ten_queues_and_polls_of_fifteen_minutes_are_the_figures_of_the_documents() -> None:
    found = estimate(CostPlan())
    assert (found.polls_per_hour, found.polls_per_day, found.polls_per_month) == (40, 960, 28_800)
    assert found.outage == 0


@pytest.mark.parametrize(("size", "operations"), [(0, 4), (1024, 4), (65_536, 4), (65_537, 8), (262_144, 16)])
def test_a_syphoned_message_is_four_operations_per_64_kib_begun(size: int, operations: int) -> None:
    assert estimate(CostPlan(messages=1, message_bytes=size)).diverted == operations


def test_each_client_pings_each_entity_once_an_interval_the_first_time_after_one() -> None:
    assert estimate(CostPlan(outage_s=59)).pings == 0
    assert estimate(CostPlan(outage_s=3_600)).pings == 60
    assert estimate(CostPlan(outage_s=3_600, clients=3, entities=2, ping_interval_s=30)).pings == 720


def test_polls_go_by_queues_polls_and_syphons() -> None:
    assert estimate(CostPlan(backlog_queues=1, poll_s=120)).polls_per_hour == 30
    assert estimate(CostPlan(syphons=2)).polls_per_hour == 80
    assert estimate(CostPlan(syphons=0)).polls_per_hour == 0


def records() -> list[MeteringRecord]:
    backlog, other = "contoso/x-servicebus-transfer/0", "tailspin/x-servicebus-transfer/0"
    rows = [
        (0, backlog, SEND, 10, 1_000, 10),
        (0, backlog, RECEIVE, 10, 1_200, 11),
        (0, backlog, SETTLE, 10, 0, 10),
        (15, backlog, EMPTY_RECEIVE, 1, 0, 1),
        (30, other, EMPTY_RECEIVE, 1, 0, 1),
        (59, "orders", PING, 2, 0, 2),
        (59, "orders", SEND, 500, 5, 500),
        (59, "orders/x-servicebus-transfer/no", SEND, 500, 5, 500),
    ]
    return [
        MeteringRecord("s", number, minute * MINUTE_MS, "n", entity, kind, messages, size, operations)
        for number, (minute, entity, kind, messages, size, operations) in enumerate(rows, 1)
    ]


def test_what_a_server_metered_is_added_up_by_what_a_pair_did() -> None:
    found = used(records())
    assert (found.to_backlog, found.from_backlog, found.polls, found.pings) == (10, 11, 2, 2)
    assert found.operations == 25
    assert found.hours == 1
    assert (found.messages_to_backlog, found.messages_from_backlog) == (10, 10)
    assert (found.bytes_to_backlog, found.bytes_from_backlog) == (1_000, 1_200)
    assert found.by_queue == {"contoso/x-servicebus-transfer/0": 22, "tailspin/x-servicebus-transfer/0": 1}


def test_the_backlog_queues_of_one_primary_are_counted_alone() -> None:
    found = used(records(), "CONTOSO")
    assert found.polls == 1
    assert list(found.by_queue) == ["contoso/x-servicebus-transfer/0"]


def test_without_records_nothing_was_used() -> None:
    found = used([])
    assert (found.operations, found.hours) == (0, 0)


def run(*words: str, status: int = 0) -> str:
    done = CliRunner().invoke(main, ["pair", "cost", *words])
    assert done.exit_code == status, done.output
    return done.output


def test_the_command_prints_the_estimate_and_what_was_metered(tmp_path: Path) -> None:
    MeteringLog(tmp_path / "metering").write(records())
    found = json.loads(run("--json", "--data", str(tmp_path), "--primary-name", "contoso"))
    assert (found["polls_per_hour"], found["polls_per_month"]) == (40, 28_800)
    assert (found["metered_polls"], found["metered_pings"], found["metered_operations"]) == (1, 2, 24)
    assert found["metered_polls_per_hour"] == 1
    assert "polls_per_day" in run()


def test_a_folder_without_metering_is_told(tmp_path: Path) -> None:
    assert "--ephemeral keeps none" in run("--data", str(tmp_path), status=1)
