"""The commands on entities and messages, against a real server process with plain HTTP and TLS."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage, ServiceBusReceiver, ServiceBusSender
from azure.servicebus.exceptions import ServiceBusConnectionError
from click.testing import CliRunner
from kit_shell import KEY, Shell

from duobus.cli.main import main
from duobus.cli.output import clean
from duobus.cli.remote import LOCAL, Remote, duration
from duobus.testing.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("command-line")) as process:
        yield process


@pytest.fixture
def shell(server: ServerProcess) -> Shell:
    return Shell(server)


def test_a_queue_is_created_shown_listed_updated_and_deleted(shell: Shell) -> None:
    made = shell.record("queue", "create", "life", "--enable-partitioning", "true", "--lock-duration", "90s")
    assert (made["name"], made["enablePartitioning"], made["lockDuration"]) == ("life", True, "PT1M30S")
    changed = shell.record("queue", "update", "life", "--max-delivery-count", "3")
    assert (changed["maxDeliveryCount"], changed["lockDuration"]) == (3, "PT1M30S")
    shown = shell.record("queue", "show", "life")
    assert shown["activeMessageCount"] == 0
    assert changed.items() <= shown.items()
    assert "life" in [queue["name"] for queue in shell.records("queue", "list")]
    shell.run("queue", "delete", "life", "--yes")
    assert "life" not in [queue["name"] for queue in shell.records("queue", "list")]


def test_what_is_created_by_hand_is_partitioned_unless_that_is_refused(shell: Shell) -> None:
    """PE3."""
    for kind in ("queue", "topic"):
        for words, expected in (
            ((), True),
            (("--no-partitioned",), False),
            (("--enable-partitioning", "false"), False),
            (("--enable-partitioning", "false", "--no-partitioned"), False),
        ):
            name = f"{kind}-by-hand-{len(''.join(words))}"
            assert shell.record(kind, "create", name, *words)["enablePartitioning"] is expected
            shell.run(kind, "delete", name, "--yes")
        both = shell.run(kind, "create", "both", "--enable-partitioning", "true", "--no-partitioned", status=2)
        assert "not both" in both.stderr


def test_what_is_missing_ends_with_status_3(shell: Shell) -> None:
    assert "There is no queue none" in shell.run("queue", "show", "none", status=3).stderr
    shell.run("queue", "update", "none", "--status", "Disabled", status=3)
    shell.run("queue", "delete", "none", "--yes", status=3)
    shell.run("queue", "delete", "none", "--dry-run", status=3)
    shell.run("subscription", "create", "none", "sub", status=3)
    shell.run("message", "send", "none", "hello", status=3)
    shell.run("message", "peek", "none", status=3)


def test_a_topic_is_no_queue_and_is_not_deleted_as_one(shell: Shell) -> None:
    shell.run("queue", "create", "kind-q")
    shell.run("topic", "create", "kind-t")
    for noun, name in (("queue", "kind-t"), ("topic", "kind-q")):
        for words in (("show", name), ("update", name, "--status", "Disabled"), ("delete", name, "--yes")):
            told = shell.run(noun, *words, status=3).stderr
            assert f"There is no {noun} {name}: the entity of this name is of another kind." in told
        assert "exists already" in shell.run(noun, "create", name, "--dry-run", status=4).stderr
    shell.run("queue", "delete", "kind-q", "--yes")
    shell.run("topic", "delete", "kind-t", "--yes")


def test_a_wrong_key_is_told_as_one_over_amqp_too(shell: Shell) -> None:
    shell.run("queue", "create", "locked-up")
    shell.environment["DUOBUS_CONNECTION_STRING"] = (shell.environment["DUOBUS_CONNECTION_STRING"] or "").replace(
        KEY, "d3Jvbmc="
    )
    told = shell.run("message", "send", "locked-up", "hello", status=5).stderr
    assert "was not taken: the key is wrong" in told
    # And why, as the management API says it.
    assert "The token's signature is wrong, or its rule does not exist. Check the key and its name." in told


def test_what_exists_ends_with_status_4_and_what_is_refused_with_status_1(shell: Shell) -> None:
    shell.run("queue", "create", "twice")
    shell.run("queue", "create", "twice", status=4)
    assert "exists already" in shell.run("queue", "create", "twice", "--dry-run", status=4).stderr
    refused = shell.run("queue", "create", "far", "--forward-to", "nowhere", status=1)
    assert "does not exist" in refused.stderr


def test_what_makes_no_sense_ends_with_status_2(shell: Shell) -> None:
    shell.run("queue", "create", status=2)
    shell.run("queue", "create", "q", "--lock-duration", "soon", status=2)
    shell.run("queue", "create", "q", "--enable-partitioning", "perhaps", status=2)
    shell.run("queue", "update", "q", status=2)
    shell.run("queue", "delete", "q", status=2)
    shell.run("message", "send", "q", "--property", "colour", status=2)
    shell.run("message", "send", "q", "--property", "size:=large", status=2)
    shell.run("message", "receive", "q", "--wait", "PT0S", status=2)
    shell.run("message", "send", "q", "body", "--lines", status=2)
    shell.run("rule", "create", "t", "s", "r", "--label", "x", "--filter-sql-expression", "1=1", status=2)


def test_a_dry_run_changes_nothing(shell: Shell) -> None:
    would = shell.run("queue", "create", "dry", "--max-size", "2048", "--dry-run")
    assert json.loads(would.stdout) == {"name": "dry", "enablePartitioning": True, "maxSizeInMegabytes": 2048}
    assert "Would create" in would.stderr
    shell.run("queue", "show", "dry", status=3)
    shell.run("queue", "create", "dry")
    assert shell.record("queue", "update", "dry", "--status", "Disabled", "--dry-run")["status"] == "Disabled"
    assert shell.record("queue", "show", "dry")["status"] == "Active"
    shell.run("queue", "delete", "dry", "--dry-run")
    shell.run("queue", "show", "dry")


def test_a_rule_of_a_subscription_filters_and_acts(shell: Shell) -> None:
    shell.run("topic", "create", "prices", "--enable-partitioning", "true")
    shell.run("subscription", "create", "prices", "alerts", "--lock-duration", "PT30S")
    shell.run("rule", "delete", "prices", "alerts", "$Default", "--yes")
    sql, action = ("--filter-sql-expression", "size > 5"), ("--action-sql-expression", "SET sys.Label = 'big'")
    made = shell.record("rule", "create", "prices", "alerts", "big", *sql, *action)
    assert made["filter"] == {"type": "sql", "sqlExpression": "size > 5"}
    match = ("--correlation-filter-property", "colour=red", "--correlation-filter-property", "ripe:=true")
    made = shell.record("rule", "create", "prices", "alerts", "red", "--label", "fruit", *match)
    assert made["filter"] == {"type": "correlation", "label": "fruit", "properties": {"colour": "red", "ripe": True}}
    changed = shell.record("rule", "update", "prices", "alerts", "big", "--filter-sql-expression", "size > 6")
    assert (changed["filter"]["sqlExpression"], changed["action"]) == (
        "size > 6",
        {"type": "sql", "sqlExpression": action[1]},
    )
    assert {rule["name"] for rule in shell.records("rule", "list", "prices", "alerts")} == {"big", "red"}
    for size in ("6", "7"):
        shell.run("message", "send", "prices", f"of size {size}", "--property", f"size:={size}")
    got = shell.record("message", "receive", "prices", "--subscription", "alerts")
    assert (got["body"], got["subject"], got["properties"]["size"]) == ("of size 7", "big", 7)
    assert [topic["name"] for topic in shell.records("topic", "list")] == ["prices"]
    assert shell.record("topic", "show", "prices")["subscriptionCount"] == 1
    assert shell.record("subscription", "list", "prices")["lockDuration"] == "PT30S"


def test_lines_are_sent_peeked_and_received_and_then_gone(shell: Shell) -> None:
    shell.run("queue", "create", "lines")
    lines = [f"line {number}" for number in range(250)]
    assert "Sent: 250." in shell.run("message", "send", "lines", "--lines", given="\n".join(lines)).stderr
    peeked = shell.records("message", "peek", "lines", "--count", "1000")
    assert [message["body"] for message in peeked] == lines
    last = str(peeked[-2]["sequenceNumber"])
    assert len(shell.records("message", "peek", "lines", "--from", last, "--count", "9")) == 2
    locked = shell.records("message", "receive", "lines", "--count", "130")
    deleted = shell.records("message", "receive", "lines", "--count", "120", "--mode", "receive-and-delete")
    assert [message["body"] for message in locked + deleted] == lines
    assert shell.record("queue", "show", "lines")["totalMessageCount"] == 0


def test_what_was_sent_before_a_failure_is_told(shell: Shell) -> None:
    shell.run("queue", "create", "cut", "--no-partitioned")
    large = "x" * 200_000
    told = shell.run("message", "send", "cut", "--lines", given=f"{large}\n{large}\n{large * 2}\n", status=1).stderr
    assert told.startswith("Sent: 2.\n")
    assert len(shell.records("message", "peek", "cut", "--count", "9")) == 2
    shell.run("queue", "update", "cut", "--status", "ReceiveDisabled")
    told = shell.run("message", "send", "none", "hello", "--count", "3", status=3).stderr
    assert told.startswith("Sent: 0.")
    shell.run("queue", "update", "cut", "--status", "SendDisabled")
    told = shell.run("message", "send", "cut", "hello", status=1).stderr
    assert "Sent" not in told


def test_the_number_that_is_on_its_way_is_told_where_the_answer_may_be_lost(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run("queue", "create", "broken", "--no-partitioned")
    send, calls = ServiceBusSender.send_messages, []

    def second_breaks(sender: ServiceBusSender, batch: ServiceBusMessageBatch) -> None:
        calls.append(batch)
        if len(calls) == 2:
            raise ServiceBusConnectionError(message="the connection broke")
        send(sender, batch)

    monkeypatch.setattr(ServiceBusSender, "send_messages", second_breaks)
    large = "x" * 100_000
    told = shell.run("message", "send", "broken", "--lines", given=f"{large}\n" * 3, status=6).stderr
    assert told.startswith("Sent: 2. The next 1 were refused, or, if the connection broke, may have been accepted.\n")
    assert "the connection broke" in told


def test_the_number_that_was_received_before_a_failure_is_told(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.run("queue", "create", "half", "--no-partitioned")
    shell.run("message", "send", "half", "--lines", given="1\n2\n3\n")
    complete, calls = ServiceBusReceiver.complete_message, []

    def third_breaks(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
        calls.append(message)
        if len(calls) == 3:
            raise ServiceBusConnectionError(message="the connection broke")
        complete(receiver, message)

    monkeypatch.setattr(ServiceBusReceiver, "complete_message", third_breaks)
    told = shell.run("message", "receive", "half", "--count", "3", status=6).stderr
    assert told.startswith("Received before the failure: 2.\n")


def test_everything_that_is_said_of_a_message_arrives(shell: Shell) -> None:
    shell.run("queue", "create", "said", "--requires-session", "true")
    words = {
        "--message-id": "id",
        "--session-id": "s",
        "--correlation-id": "c",
        "--subject": "l",
        "--content-type": "text/plain",
        "--to": "t",
        "--reply-to": "r",
        "--reply-to-session-id": "rs",
        "--time-to-live": "2h",
        "--property": "n:=1.5",
    }
    shell.run("message", "send", "said", "ü", *(word for pair in words.items() for word in pair))
    got = shell.record("message", "receive", "said", "--session-id", "s")
    names = ("messageId", "sessionId", "correlationId", "subject", "contentType", "to", "replyTo", "replyToSessionId")
    assert [got[name] for name in names] == ["id", "s", "c", "l", "text/plain", "t", "r", "rs"]
    assert (got["timeToLive"], got["properties"], got["body"], got["state"]) == ("PT2H", {"n": 1.5}, "ü", "active")


def test_a_body_that_is_no_text_comes_in_base64(shell: Shell) -> None:
    shell.run("queue", "create", "bytes")
    shell.run("message", "send", "bytes", "--count", "2", given=b"\xff\x00")
    got = shell.records("message", "receive", "bytes", "--count", "2")
    assert [message["bodyBase64"] for message in got] == ["/wA=", "/wA="]


def test_a_dead_letter_is_received_from_its_queue(shell: Shell) -> None:
    shell.run("queue", "create", "short", "--enable-dead-lettering-on-message-expiration", "true")
    shell.run("message", "send", "short", "late", "--time-to-live", "PT0.05S")
    got = shell.record("message", "receive", "short", "--dead-letter", "--wait", "10s")
    assert (got["body"], got["deadLetterReason"]) == ("late", "TTLExpiredException")


def test_the_forms_of_output_hold_the_same(shell: Shell) -> None:
    shell.run("queue", "create", "forms")
    assert json.loads(shell.run("message", "peek", "forms", "-o", "json").stdout) == []
    shell.run("message", "send", "forms", "--lines", given="one\ntab\there \x1b[31m[red]\n")
    peek = ("message", "peek", "forms", "--count", "5", "-o")
    assert len(json.loads(shell.run(*peek, "json").stdout)) == 2
    rows = [line.split("\t") for line in shell.run(*peek, "tsv").stdout.splitlines()]
    assert [row[-1] for row in rows] == ["one", r"tab\there \x1b[31m[red]"]
    table = shell.run(*peek, "table").stdout
    assert "\x1b" not in table
    assert "one" in table
    assert json.loads(shell.run("queue", "show", "forms", "-o", "json").stdout)["name"] == "forms"
    assert "maxDeliveryCount" in shell.run("queue", "show", "forms", "-o", "table").stdout


def test_a_refusal_is_told_in_the_words_of_the_server_with_its_tracking_id(shell: Shell) -> None:
    shell.run("queue", "create", "there-already")
    told = shell.run("queue", "create", "there-already", status=4).stderr
    assert "The entity 'there-already' exists already." in told
    assert "TrackingId:" in told
    assert "Operation returned" not in told


def test_letters_of_all_languages_are_printed_as_utf_8_whatever_the_environment_says(
    shell: Shell, server: ServerProcess
) -> None:
    name = "\u4f60\u597d \U0001f4e6"
    shell.run("queue", "create", "languages", "--user-metadata", name)
    environment = os.environ | {
        "DUOBUS_CONNECTION_STRING": server.connection_string,
        "PYTHONIOENCODING": "ascii",
        "PYTHONUTF8": "0",
    }
    for form in ("yaml", "json", "tsv"):
        words = ["-m", "duobus", "queue", "show", "languages", "--query", "{name: userMetadata}", "-o", form]
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, check=True)
        assert name in done.stdout.decode("utf-8"), form


def test_a_query_chooses_what_is_printed_in_every_form(shell: Shell) -> None:
    shell.run("queue", "create", "asked-1", "--enable-partitioning", "true")
    shell.run("queue", "create", "asked-2", "--user-metadata", "yes", "--no-partitioned")
    names = "[?starts_with(name, 'asked')].name"
    several = "[?starts_with(name, 'asked')].{name: name, parted: enablePartitioning}"
    for query, form, expected in (
        (names, "tsv", "asked-1\nasked-2\n"),
        (names, "table", "asked-1\nasked-2\n"),
        (names, "jsonl", '"asked-1"\n"asked-2"\n'),
        (names, "yaml", "- asked-1\n- asked-2\n"),
        (several, "tsv", "asked-1\ttrue\nasked-2\tfalse\n"),
        (several, "yaml", "- name: asked-1\n  parted: true\n- name: asked-2\n  parted: false\n"),
        ("length([?starts_with(name, 'asked')])", "tsv", "2\n"),
        ("[?name=='none'] | [0]", "tsv", ""),
    ):
        assert shell.run("queue", "list", "--query", query, "-o", form).stdout == expected, (query, form)
    assert json.loads(shell.run("queue", "list", "--query", names, "-o", "json").stdout) == ["asked-1", "asked-2"]
    shown = shell.run("queue", "show", "asked-2", "--query", "[name, userMetadata]", "-o", "tsv")
    assert shown.stdout == "asked-2\nyes\n"
    assert shell.run("queue", "show", "asked-2", "--query", "userMetadata", "-o", "yaml").stdout == "'yes'\n"
    assert "no JMESPath" in shell.run("queue", "list", "--query", "[?", status=2).stderr
    assert "does not fit" in shell.run("queue", "list", "--query", "length(`1`)", status=2).stderr


def test_the_namespace_is_shown_to_whoever_has_a_key(shell: Shell) -> None:
    found = shell.record("namespace", "show")
    assert (found["name"], found["messagingSku"]) == ("sbemulatorns", "Premium")
    assert shell.run("namespace", "show", "--query", "name", "-o", "tsv").stdout == "sbemulatorns\n"


def test_tls_with_the_servers_own_authority(server: ServerProcess, shell: Shell) -> None:
    rule = f"SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={KEY}"
    shell.environment["DUOBUS_CONNECTION_STRING"] = f"Endpoint=sb://localhost:{server.ready['tls_port']};{rule}"
    assert "duobus trust" in shell.run("queue", "list", status=6).stderr
    shell.environment["DUOBUS_CA"] = server.ca
    shell.run("queue", "create", "safe")
    shell.run("message", "send", "safe", "hello")
    assert shell.record("message", "receive", "safe")["body"] == "hello"


def test_a_server_that_goes_away_before_its_answer_does_not_answer(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            for _ in range(20):
                try:
                    listener.accept()[0].close()
                except OSError:
                    return

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        shell.environment["DUOBUS_CONNECTION_STRING"] = LOCAL.replace("sb://localhost", f"sb://127.0.0.1:{port}")
        for words in (("queue", "list"), ("store", "list"), ("dlq", "list", "q")):
            assert f"127.0.0.1:{port} does not answer" in shell.run(*words, status=6).stderr
        # Wakes the thread.
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(60)


def test_the_endpoint_of_the_management_may_be_another(server: ServerProcess, shell: Shell) -> None:
    elsewhere = LOCAL.replace("sb://localhost", "sb://localhost:1")
    shell.environment["DUOBUS_CONNECTION_STRING"] = elsewhere
    assert "localhost:1 does not answer" in shell.run("topic", "list", status=6).stderr
    assert "localhost:1 does not answer" in shell.run("message", "peek", "q", status=6).stderr
    assert "localhost:1 does not answer" in shell.run("store", "list", status=6).stderr
    assert "localhost:1 does not answer" in shell.run("dlq", "list", "q", status=6).stderr
    shell.run("queue", "create", "elsewhere", "--endpoint", f"http://localhost:{server.ready['http_port']}")


@pytest.mark.parametrize(
    "text", ["nothing", "Endpoint=;SharedAccessKey=geheim", "Endpoint=sb://a:b;SharedAccessKey=geheim"]
)
def test_a_wrong_connection_string_is_refused_and_not_repeated(text: str) -> None:
    result = CliRunner().invoke(main, ["queue", "list", "--connection-string", text])
    assert result.exit_code == 2
    assert "geheim" not in result.output
    assert "nothing" not in result.output


def test_a_wrong_key_is_refused_and_not_repeated(server: ServerProcess, shell: Shell) -> None:
    shell.environment["DUOBUS_CONNECTION_STRING"] = server.connection_string.replace(KEY, "geheim")
    for words in (
        ["queue", "list"],
        ["queue", "show", "q"],
        ["queue", "create", "q"],
        ["queue", "delete", "q", "--yes"],
        ["rule", "list", "t", "s"],
        ["namespace", "show"],
        ["topology", "export"],
        ["message", "peek", "q"],
        ["dlq", "list", "q"],
        ["store", "list"],
    ):
        told = shell.run(*words, status=5).output
        assert "geheim" not in told
        assert "The token's signature is wrong, or its rule does not exist. Check the key and its name." in told, words
        assert "Operation returned" not in told


def test_without_a_connection_string_a_refusal_says_how_to_give_one(
    server: ServerProcess, shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duobus.cli.remote.LOCAL", server.connection_string.replace(KEY, "wrong"))
    for words in (["queue", "list"], ["store", "list"], ["dlq", "list", "q"], ["message", "peek", "q"]):
        shell.environment["DUOBUS_CONNECTION_STRING"] = None
        assert "No connection string was given" in shell.run(*words, status=5).stderr
        shell.environment["DUOBUS_CONNECTION_STRING"] = server.connection_string.replace(KEY, "wrong")
        assert "No connection string was given" not in shell.run(*words, status=5).stderr


def test_a_key_without_the_right_is_told_which_right_it_lacks(server: ServerProcess, shell: Shell) -> None:
    where = ("--connection-string", server.connection_string, "--endpoint", server.ready["admin_url"])
    shell.run("queue", "create", "ours")
    added = shell.run("key", "add", "sender", "--entity", "ours", "--rights", "send", *where)
    shell.environment["DUOBUS_CONNECTION_STRING"] = json.loads(added.stdout)["primaryConnectionString"]
    for words, sentence in (
        (["queue", "show", "ours"], "Manage,EntityRead claims required for this operation."),
        (["queue", "update", "ours", "--status", "Disabled"], "Manage,EntityRead claims required"),
        (["queue", "delete", "ours", "--yes"], "Manage,EntityRead claims required"),
        (["key", "list", "--entity", "ours"], "'Manage' claim(s) are required"),
        (["dlq", "list", "ours"], "'Listen' claim(s) are required"),
        (["message", "peek", "ours"], "'Listen' claim(s) are required"),
    ):
        more = ["--endpoint", server.ready["admin_url"]] if words[0] != "message" else []
        told = shell.run(*words, *more, status=5).stderr
        assert sentence in told, words
        assert "Operation returned" not in told


def test_without_a_connection_string_it_is_the_emulator_of_this_machine() -> None:
    assert Remote(None, None, None).url == "http://localhost:5300"
    assert Remote(LOCAL.replace("localhost", "localhost:5672"), None, None).url == "http://localhost:5672"
    azure = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=n;SharedAccessKey=k="
    assert Remote(azure, None, None).url == "https://contoso.servicebus.windows.net"


def test_keys_are_masked_in_whatever_is_told() -> None:
    remote = Remote("Endpoint=sb://h;SharedAccessKeyName=n;SharedAccessKey=ab/c=", None, None)
    assert (
        remote.masked("got ab/c= and SharedAccessKey=other; sig=x&se=1")
        == "got *** and SharedAccessKey=***; sig=***&se=1"
    )


def test_durations_are_iso_or_short() -> None:
    assert [duration(text) for text in ("90s", "5m", "2h", "7d", "PT1M")] == ["PT1M30S", "PT5M", "PT2H", "P7D", "PT1M"]
    with pytest.raises(click.BadParameter):
        duration("5 minutes")


def test_control_characters_of_others_are_not_printed() -> None:
    assert clean("a\x1b]0;b\x07\u202e") == r"a\x1b]0;b\x07\u202e"


def test_trust_names_the_authority_for_every_language(server: ServerProcess, tmp_path: Path) -> None:
    folder = Path(server.ca).parents[1]
    result = CliRunner().invoke(main, ["trust", "--data", os.fspath(folder)])
    assert result.exit_code == 0
    for word in ("connection_verify=", "NODE_EXTRA_CA_CERTS=", "keytool", "update-ca-certificates", "DUOBUS_CA="):
        assert word in result.output
    assert server.ca in result.output
    only = CliRunner().invoke(main, ["trust", "--data", os.fspath(folder), "--language", "go"])
    assert only.output.splitlines()[1:] == [f"export SSL_CERT_FILE={server.ca}"]
    assert CliRunner().invoke(main, ["trust", "--data", os.fspath(tmp_path)]).exit_code == 3


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from every_command(found, (*path, name))
        else:
            yield (*path, name)


def test_the_help_of_every_command_has_an_example_of_it() -> None:
    paths = list(every_command(main))
    assert ("rule", "update") in paths
    for path in paths:
        result = CliRunner().invoke(main, [*path, "--help"])
        assert result.exit_code == 0
        example = result.output.split("Example:")[1]
        assert f"duobus {' '.join(path)}" in example


def test_without_the_sdk_a_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("azure.servicebus", "azure.servicebus.management", "azure.core.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    for words in (["queue", "list"], ["message", "send", "q", "x"], ["rule", "create", "t", "s", "r", "--label", "x"]):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 1
        assert "pip install 'duobus[ha]'" in result.output
