"""Capture, triage of dead letters, and the syphon, with the real engine and a real broker."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage
from click.testing import CliRunner
from kit_sink import body, drained, make_queue, place
from spark_bus import CONNECTION_ENV

from duobus.cli.commands import spark as cli
from duobus.cli.main import main
from duobus.ha.transfer import to_backlog
from duobus.spark.connection import new_client
from duobus.spark.errors import OptionError
from duobus.spark.jobs import capture, deadletters, syphon
from duobus.spark.jobs.capture import write_batch
from duobus.spark.jobs.job import JobError

pytestmark = pytest.mark.slow


def send(options: dict[str, str], queue: str, messages: list[Any]) -> None:
    with new_client(place(options)) as client, client.get_queue_sender(queue) as sender:
        for message in messages:
            sender.send_messages(message)


def test_capture_takes_everything_once_and_goes_on_where_it_ended(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    """SP4."""
    make_queue(place_options, "capture-queue", enable_partitioning=True)
    texts = [f"{number}" for number in range(120)]
    send(place_options, "capture-queue", [[ServiceBusMessage(text) for text in texts[:80]]])
    settings = {
        **place_options,
        "queue": "capture-queue",
        "path": str(tmp_path / "captured"),
        "checkpoint": str(tmp_path / "checkpoint"),
        "maxMessagesPerTrigger": 50,
    }
    first = capture.run(spark, settings)
    assert first["messages"] == 80
    send(place_options, "capture-queue", [[ServiceBusMessage(text) for text in texts[80:]]])
    capture.run(spark, settings)
    found = spark.read.parquet(settings["path"])
    assert sorted(row.body.decode() for row in found.collect()) == sorted(texts)
    assert {row.entity for row in found.collect()} == {"capture-queue"}
    assert drained(place_options, "capture-queue")[40:] == []


def test_a_batch_that_is_written_again_replaces_its_own_files_alone(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "captured")

    def rows(first: int, count: int) -> Any:
        return spark.range(first, first + count).selectExpr(
            "'q/subscriptions/s' as entity", "timestamp_seconds(1700000000 + id * 3600) as enqueued_time", "id"
        )

    write_batch(rows(0, 10), path, "aaaa-00000000", "zstd")
    write_batch(rows(10, 5), path, "aaaa-00000001", "zstd")
    write_batch(rows(0, 10), path, "aaaa-00000000", "zstd")
    write_batch(rows(20, 5), path, "bbbb-00000000", "zstd")
    found = spark.read.parquet(path)
    assert sorted(row.id for row in found.collect()) == [*range(15), *range(20, 25)]
    assert {str(row.date) for row in found.collect()} == {"2023-11-14", "2023-11-15"}


def test_dead_letters_are_grouped_decided_and_resubmitted_without_loss(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    """SP5."""
    make_queue(place_options, "dead-one", detects_duplicates=True)
    bodies = [json.dumps({"order": number}) for number in range(12)]
    messages = [
        ServiceBusMessage(text, message_id=f"m{number}", application_properties={"n": number})
        for number, text in enumerate(bodies)
    ]
    send(place_options, "dead-one", messages)
    with new_client(place(place_options)) as client, client.get_queue_receiver("dead-one") as receiver:
        number = 0
        while number < 12:
            for message in receiver.receive_messages(12, max_wait_time=2):
                reason = "Timeout" if number % 3 else "Poison"
                text = f"Order {number} took {number * 7} ms"
                receiver.dead_letter_message(message, reason=reason, error_description=text)
                number += 1
    settings = {**place_options, "decisions": str(tmp_path / "decisions")}
    summary = deadletters.run(
        spark,
        settings
        | {
            "queue": "dead-one",
            "resubmit": "dead_letter_reason = 'Timeout'",
            "delete": "get_json_object(cast(body as string), '$.order') = 0",
        },
    )
    assert summary["messages"] == 12
    assert summary["actions"] == {"resubmit": 8, "hold": 3, "delete": 1}
    told = {(group["reason"], group["exception"], group["shape"]): group["count"] for group in summary["groups"]}
    assert told == {
        ("Timeout", "Order <n> took <n> ms", "json {order: number}"): 8,
        ("Poison", "Order <n> took <n> ms", "json {order: number}"): 4,
    }
    (table,) = (tmp_path / "decisions").glob("*.csv")
    assert len(list(csv.DictReader(table.read_text().splitlines()))) == 12

    would = deadletters.run(spark, settings | {"action": "apply", "dryRun": "true"})
    assert would["groups"] == [{"entity": "dead-one", "resubmit": 8, "delete": 1, "missing": 0, "to": "dead-one"}]
    done = deadletters.run(spark, settings | {"action": "apply"})
    # The dry run has changed nothing.
    assert done["groups"] == [{"entity": "dead-one", "resubmitted": 8, "deleted": 1, "refused": 0, "missing": 0}]
    would = deadletters.run(spark, settings | {"action": "apply", "dryRun": "true"})
    assert (would["resubmit"], would["delete"], would["missing"]) == (0, 0, 9)
    assert (done["resubmitted"], done["deleted"], done["refused"], done["missing"]) == (8, 1, 0, 0)
    again = deadletters.run(spark, settings | {"action": "apply"})
    assert (again["resubmitted"], again["deleted"], again["missing"]) == (0, 0, 9)
    found = drained(place_options, "dead-one")
    assert sorted(json.loads(body(message))["order"] for message in found) == [1, 2, 4, 5, 7, 8, 10, 11]
    properties = found[0].application_properties
    assert properties[b"x-duobus-original-dead-letter-reason"] == b"Timeout"
    assert properties[b"n"] in range(12)
    assert b"DeadLetterReason" not in properties
    left = drained(place_options, "dead-one", sub_queue="deadletter")
    assert sorted(json.loads(body(message))["order"] for message in left) == [3, 6, 9]

    with pytest.raises(OptionError, match="'dryRun' goes with action=apply"):
        deadletters.run(spark, {**place_options, "queue": "dead-one", "dryRun": "true"})
    with pytest.raises(OptionError, match="'resubmit' is no condition"):
        deadletters.run(spark, {**place_options, "queue": "dead-one", "resubmit": "no_such_column = 1"})
    table.write_text("entity,sequence_number,action\ndead-one,5,destroy\n")
    with pytest.raises(JobError, match=r"\.csv: entity 'dead-one', sequence number 5, action 'destroy'"):
        deadletters.run(spark, settings | {"action": "apply"})


def test_a_group_of_dead_letters_keeps_five_numbers_and_no_list_of_all(spark: Any) -> None:
    letters = spark.range(1_000, 0, -1).selectExpr(
        "'q' as entity", "'r' as reason", "'e' as exception", "'json' as shape", "date'2026-11-20' as day",
        "id as sequence_number", "timestamp_seconds(id) as enqueued_time",
    )  # fmt: skip
    groups = deadletters.grouped(letters)
    assert "collect_" not in groups._jdf.queryExecution().executedPlan().toString()
    (group,) = groups.collect()
    assert (group["count"], group["samples"]) == (1_000, [1, 2, 3, 4, 5])


def test_the_syphon_drains_backlogs_past_a_destination_that_is_away(
    spark: Any, place_options: dict[str, str], tmp_path: Path
) -> None:
    """SP5."""
    backlogs = [make_queue(place_options, f"prime/x-servicebus-transfer/{number}") for number in range(2)]
    make_queue(place_options, "syphon-to")
    for number, queue in enumerate(backlogs):
        messages = [
            to_backlog(ServiceBusMessage(f"{number}-{one}", message_id=f"{number}-{one}"), "syphon-to", 0)
            for one in range(20)
        ]
        messages.append(to_backlog(ServiceBusMessage("lost"), "syphon-nowhere", 0))
        messages.append(ServiceBusMessage("no path"))
        send(place_options, queue, messages)
    settings = {
        **place_options,
        "toConnectionStringEnv": CONNECTION_ENV,
        "primaryName": "prime",
        "checkpoint": str(tmp_path / "checkpoint"),
        # The SDK would try for eleven seconds to send where nothing is.
        "retryTotal": "0",
    }
    summary = syphon.run(spark, settings)
    assert (summary["delivered"], summary["held"], summary["buried"]) == (40, 2, 2)
    assert summary["paths"]["held"] == {"syphon-nowhere": 2}
    found = drained(place_options, "syphon-to")
    assert sorted(body(message).decode() for message in found) == sorted(
        f"{n}-{one}" for n in range(2) for one in range(20)
    )
    for queue in backlogs:
        (dead,) = drained(place_options, queue, sub_queue="deadletter")
        assert body(dead) == b"no path"
        assert dead.dead_letter_reason == "Destination queue not indicated in message when fetched from backlog."


class Borrowed:
    """A session that the command does not stop."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __getattr__(self, name: str) -> Any:
        return (lambda: None) if name == "stop" else getattr(self._spark, name)


def test_a_job_runs_from_the_command_line_and_prints_its_summary(
    spark: Any, place_options: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_queue(place_options, "capture-command")
    send(place_options, "capture-command", [ServiceBusMessage("a"), ServiceBusMessage("b")])
    file = tmp_path / "job.toml"
    file.write_text(
        f'connectionStringEnv = "{CONNECTION_ENV}"\nmanagementEndpoint = "{place_options["managementEndpoint"]}"\n'
        f'path = "{tmp_path / "captured"}"\nqueue = "another"\n'
    )
    # The session of these tests in the place of the command's own.
    monkeypatch.setattr(cli, "new_session", lambda *_: Borrowed(spark))
    command = ["spark", "capture", "--config", str(file), "--queue", "capture-command", "--json"]
    done = CliRunner().invoke(main, [*command, "--checkpoint", str(tmp_path / "checkpoint")])
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert (summary["job"], summary["messages"]) == ("capture", 2)
    assert spark.read.parquet(str(tmp_path / "captured")).count() == 2
