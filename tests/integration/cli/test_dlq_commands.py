"""``duobus dlq`` against a real server process, filled and read through the SDK."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus._pyamqp.error import MessageSendFailed
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityDisabledError, ServiceBusAuthenticationError
from azure.servicebus.exceptions import ServiceBusError as SdkError
from click.testing import CliRunner, Result

from duobus.cli.failures import Unreachable
from duobus.cli.main import main
from duobus.cli.remote import said
from duobus.dead_letters.client import DeadLetterClient
from duobus.dead_letters.sdk_backend import _is_sent
from duobus.dead_letters.work import Totals
from duobus.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("desk")) as process:
        yield process


class Bench:
    """Commands, and the SDK beside them."""

    def __init__(self, server: ServerProcess) -> None:
        self.text = server.connection_string

    def run(self, *words: str, status: int = 0, given: str | bytes = "") -> Result:
        environment = {"DUOBUS_CONNECTION_STRING": self.text}
        result = CliRunner().invoke(main, words, env=environment, input=given)
        assert result.exit_code == status, (result.output, result.exception)
        assert "SAS_KEY_VALUE" not in result.output
        return result

    def records(self, *words: str, **options: Any) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run(*words, **options).stdout.splitlines()]

    def dead(self, queue: str, messages: list[Any], reason: str = "poison") -> None:
        """Make a queue if there is none, send messages and dead-letter them."""
        self.run("queue", "create", queue, "--no-partitioned")
        with ServiceBusClient.from_connection_string(self.text) as client:
            with client.get_queue_sender(queue) as sender:
                for message in messages:
                    sender.send_messages(message)
            with client.get_queue_receiver(queue) as receiver:
                left = len(messages)
                while left:
                    for message in receiver.receive_messages(left, max_wait_time=10):
                        receiver.dead_letter_message(message, reason=reason, error_description="by hand")
                        left -= 1

    def received(self, queue: str, number: int) -> list[Any]:
        found: list[Any] = []
        with (
            ServiceBusClient.from_connection_string(self.text) as client,
            client.get_queue_receiver(queue, receive_mode="receiveanddelete") as receiver,
        ):
            while len(found) < number:
                got = receiver.receive_messages(number - len(found), max_wait_time=5)
                assert got
                found += got
        return found

    def counts(self, queue: str) -> tuple[int, int]:
        (shown,) = self.records("queue", "show", queue)
        return shown["activeMessageCount"], shown["deadLetterMessageCount"]


@pytest.fixture
def bench(server: ServerProcess) -> Bench:
    return Bench(server)


def numbered(number: int) -> list[ServiceBusMessage]:
    return [
        ServiceBusMessage(json.dumps({"n": n}), message_id=str(n), application_properties={"n": n})
        for n in range(number)
    ]


def test_dead_letters_are_listed_and_resubmitted_repaired(bench: Bench) -> None:
    bench.dead("again", numbered(7))
    listed = bench.records("dlq", "list", "again", "--filter", "n >= 2 AND DeadLetterReason = 'poison'")
    assert [record["messageId"] for record in listed] == ["2", "3", "4", "5", "6"]
    repair = ("--set", "attempt:=2", "--subject", "fixed", "--patch", '[{"op": "add", "path": "/ok", "value": true}]')
    would = bench.records("dlq", "resubmit", "again", *repair, "--dry-run", "--json", "$.n = 6")
    assert [record["repaired"]["body"] for record in would] == [{"data": ['{"n":6,"ok":true}']}]
    assert bench.counts("again") == (0, 7)
    done = bench.run("dlq", "resubmit", "again", *repair, "--chunk", "2", "--yes", "--rate", "1000")
    assert "Resubmitted: 7. Left: 0." in done.stderr
    found = bench.received("again", 7)
    assert [json.loads(str(message)) for message in found] == [{"n": n, "ok": True} for n in range(7)]
    assert {(message.subject, message.dead_letter_reason) for message in found} == {("fixed", None)}
    assert found[0].application_properties == {b"n": 0, b"attempt": 2}
    assert bench.counts("again") == (0, 0)


def test_what_was_done_before_a_failure_is_told(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.dead("broken", numbered(5))
    exported = bench.run("dlq", "export", "broken").stdout
    order, calls = DeadLetterClient.order, []

    def third_breaks(client: DeadLetterClient, address: str, what: dict[str, Any]) -> dict[str, Any]:
        calls.append(what)
        if len(calls) == 3:
            raise Unreachable("the server went away")
        return order(client, address, what)

    monkeypatch.setattr(DeadLetterClient, "order", third_breaks)
    told = bench.run("dlq", "resubmit", "broken", "--chunk", "2", "--yes", status=6).stderr
    assert told == "Done before the failure: 4. Left: 0.\nError: the server went away\n"
    assert bench.counts("broken") == (4, 1)
    calls[:] = [{}, {}]
    told = bench.run("dlq", "import", "-", "broken", given=exported, status=6).stderr
    assert told == "Error: the server went away\n", "nothing was done"


def test_what_cannot_be_repaired_is_named_and_stays(bench: Bench, tmp_path: Path) -> None:
    bench.dead("partly", [*numbered(2), ServiceBusMessage("no json")])
    done = bench.run("dlq", "resubmit", "partly", "--patch", '[{"op": "remove", "path": "/n"}]', "--yes", status=7)
    assert "no JSON" in json.loads(done.stdout)["reason"]
    assert bench.counts("partly") == (2, 1)
    words = ("--patch", "[]", "--set", "a=b", "--remove", "c", "--patch", '[{"op": "remove", "path": "/n"}]')
    again = bench.run("dlq", "resubmit", "partly", *words, "--undo", str(tmp_path / "undo"), "--yes", status=7)
    assert "no JSON" in json.loads(again.stdout)["reason"], "with an undo file, too"


def test_a_sample_is_shown_and_then_somebody_has_to_agree(bench: Bench) -> None:
    bench.dead("sample", numbered(3))
    shown = bench.run("dlq", "resubmit", "sample", "--set", "a=b", "--sample", "1", status=2)
    assert "as it would be" in shown.stderr
    assert '"a": "b"' in shown.stderr
    assert "--yes" in shown.stderr
    assert bench.counts("sample") == (0, 3)


def test_a_move_and_a_purge_are_undone(bench: Bench, tmp_path: Path) -> None:
    bench.dead("undo", numbered(5))
    bench.run("queue", "create", "parked")
    notes = str(tmp_path / "move")
    bench.run("dlq", "move", "undo", "--to", "parked", "--undo", notes, "--yes", "--chunk", "2", "--count", "4")
    assert (bench.counts("undo"), bench.counts("parked")) == ((0, 1), (4, 0))
    (gone,) = bench.received("parked", 1)
    assert gone.application_properties[b"DeadLetterReason"] == b"poison"
    bench.run("dlq", "undo", notes, "--dry-run")
    undone = bench.run("dlq", "undo", notes, status=7)
    assert "Undone: 3. Left: 1." in undone.stderr
    assert (bench.counts("undo"), bench.counts("parked")) == ((0, 4), (0, 0))
    purged = str(tmp_path / "purge")
    bench.run("dlq", "purge", "undo", "--undo", purged, "--yes")
    assert bench.counts("undo") == (0, 0)
    bench.run("dlq", "undo", purged)
    # A second time there is nothing to undo.
    assert "Undone: 0." in bench.run("dlq", "undo", purged).stderr
    assert bench.counts("undo") == (0, 4)
    listed = bench.records("dlq", "list", "undo")
    assert {record["reason"] for record in listed} == {"poison"}
    assert bench.run("dlq", "purge", "undo", "--undo", purged, "--yes", status=1).stderr.count("cannot be made") == 1


def annotated(**options: Any) -> AmqpAnnotatedMessage:
    properties = {
        "text": "ü",
        "flag": True,
        "none": None,
        "double": 1.5,
        "uuid": uuid.UUID(int=7),
        "binary": {"TYPE": "BINARY", "VALUE": b"\x00\xff"},
        **{kind.lower(): {"TYPE": kind, "VALUE": 5} for kind in ("UBYTE", "UINT", "ULONG", "LONG", "TIMESTAMP")},
        "symbol": {"TYPE": "SYMBOL", "VALUE": "s"},
    }
    return AmqpAnnotatedMessage(
        header={"priority": 7, "time_to_live": 3_600_000},
        properties={"message_id": "m", "group_id": "g", "content_type": "a/b", "creation_time": 1_700_000_000_000},
        annotations={"x-opt-partition-key": "g", "x-opt-mine": {"TYPE": "UINT", "VALUE": 1}},
        application_properties=properties,
        footer={"f": "oot"},
        **options,
    )


BODIES = [
    {"data_body": [b"\x00\xff", b"text"]},
    {"value_body": {"a": [1, None, "x"], "b": b"bytes"}},
    {"sequence_body": [[1, "two"], [3.5]]},
]


def test_an_export_comes_back_as_it_was_whatever_the_body(bench: Bench, tmp_path: Path) -> None:
    bench.dead("whole", [annotated(**body) for body in BODIES])
    exported = bench.run("dlq", "export", "whole").stdout
    forms = [json.loads(line)["message"] for line in exported.splitlines()]
    values = forms[0]["applicationProperties"]
    assert values["uint"] == {"$uint": 5}
    assert (values["symbol"], values["binary"]) == ({"$symbol": "s"}, {"$binary": "AP8="})
    assert [list(form["body"]) for form in forms] == [["data"], ["value"], ["sequence"]]
    assert (forms[0]["annotations"], forms[0]["footer"]) == ({"x-opt-mine": {"$uint": 1}}, {"f": "oot"})
    file = tmp_path / "whole.jsonl"
    file.write_text(exported)
    bench.run("dlq", "import", str(file), "whole", "--as-dead-letters")
    again = bench.records("dlq", "list", "whole")
    assert [record["message"] for record in again] == forms + forms
    assert {(record["reason"], record["description"]) for record in again} == {("poison", "by hand")}
    bench.run("queue", "create", "elsewhere")
    assert "Would import: 3." in bench.run("dlq", "import", str(file), "elsewhere", "--dry-run").stderr
    bench.run("dlq", "import", str(file), "elsewhere")
    first, second, third = bench.received("elsewhere", 3)
    assert list(first.body) == [b"\x00\xff", b"text"]
    assert second.body == {b"a": [1, None, b"x"], b"b": b"bytes"}
    assert [list(part) for part in third.body] == [[1, b"two"], [3.5]]
    assert (first.session_id, first.partition_key, first.raw_amqp_message.header.priority) == ("g", "g", 7)


def test_without_a_desk_the_sdk_moves_what_is_meant(bench: Bench, tmp_path: Path) -> None:
    bench.dead("client", numbered(6))
    bench.run("queue", "create", "far")
    words = ("--filter", "n > 2", "--set", "moved:=true", "--yes", "--client-side")
    done = bench.run("dlq", "move", "client", "--to", "far", *words)
    assert "Moved: 3. Left: 0." in done.stderr
    assert (bench.counts("client"), bench.counts("far")) == ((0, 3), (3, 0))
    found = bench.received("far", 3)
    assert {message.application_properties[b"DeadLetterReason"] for message in found} == {b"poison"}
    assert {message.application_properties[b"moved"] for message in found} == {True}
    bench.run("dlq", "resubmit", "client", "--yes", "--client-side", "--undo", str(tmp_path / "undo"), status=2)
    bench.run("dlq", "resubmit", "client", "--count", "2", "--yes", "--client-side")
    assert bench.counts("client") == (2, 1)


def test_without_a_desk_a_message_that_its_destination_refuses_is_skipped_and_no_other_error_is() -> None:
    class Sender:
        def __init__(self, error: Exception) -> None:
            self._error = error

        def send_messages(self, _: Any) -> None:
            raise self._error

    totals = Totals()
    refused = SdkError("no session", condition=b"amqp:not-allowed", error=MessageSendFailed(b"amqp:not-allowed"))
    assert not _is_sent(Sender(refused), AmqpAnnotatedMessage(data_body=b""), 7, totals, said)
    assert (totals.left, totals.skipped[0]["sequenceNumber"]) == (1, 7)
    for error in (MessagingEntityDisabledError(), ServiceBusAuthenticationError(), ValueError("new")):
        with pytest.raises(type(error)):
            _is_sent(Sender(error), AmqpAnnotatedMessage(data_body=b""), 8, totals, said)
    assert totals.left == 1


def test_a_message_sent_by_the_sdk_on_import_has_its_types(bench: Bench, tmp_path: Path) -> None:
    bench.dead("typed", [annotated(**BODIES[1])])
    file = tmp_path / "typed.jsonl"
    file.write_text(bench.run("dlq", "export", "typed").stdout)
    bench.run("queue", "create", "typed2")
    bench.run("dlq", "import", str(file), "typed2", "--client-side")
    with (
        ServiceBusClient.from_connection_string(bench.text) as client,
        client.get_queue_receiver("typed2") as receiver,
    ):
        (message,) = receiver.receive_messages(1, max_wait_time=5)
        receiver.dead_letter_message(message)
    (was,) = bench.records("dlq", "list", "typed")
    (is_now,) = bench.records("dlq", "list", "typed2")
    assert is_now["message"]["applicationProperties"] == was["message"]["applicationProperties"]
    assert is_now["message"]["annotations"] == was["message"]["annotations"]


def test_what_makes_no_sense_is_refused_before_anything_is_done(bench: Bench) -> None:
    bench.run("queue", "create", "sense")
    bench.run("dlq", "resubmit", "sense", status=2)
    bench.run("dlq", "resubmit", "sense", "--yes", "--patch", "{", status=2)
    bench.run("dlq", "resubmit", "sense", "--yes", "--patch", '[{"op": "add"}]', status=2)
    bench.run("dlq", "list", "sense", "--filter", "a = (", status=1)
    bench.run("dlq", "list", "sense", "--json", "$.a >", status=1)
    bench.run("dlq", "list", "nothing-here", status=3)
    bench.run("dlq", "move", "sense", "--to", "nothing-here", "--yes", status=3)
    bench.run("dlq", "import", "-", "sense", given="{}\n", status=1)
    bench.run("dlq", "import", "-", "sense", "--subscription", "s", status=2)
