"""The ways to a namespace: strings, variables, files, providers, TLS with an authority of one's own; and rights."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus.management import AccessRights, AuthorizationRule
from pyspark.sql.types import BinaryType, StructType
from spark_bus import CONNECTION_ENV, Bus

from duobus.clock import Clock
from duobus.spark.connection import Kept, masked, new_client, place_of
from duobus.spark.data_source import DuobusDataSource
from duobus.spark.errors import EntityError, OptionError
from duobus.spark.options import CONNECTION_OPTIONS, parse
from duobus.testing.server import ServerProcess

SCHEMA = StructType().add("body", BinaryType())


def bodies(**options: str) -> list[bytes]:
    reader: Any = DuobusDataSource(options).reader(SCHEMA)
    return [row["body"] for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def queue(bus: Bus) -> str:
    name = bus.queue()
    bus.send(name, ["a"])
    return name


def test_a_file_may_hold_the_connection_string(queue: str, spark_server: ServerProcess, tmp_path: Path) -> None:
    path = tmp_path / "connection"
    path.write_text(spark_server.connection_string + "\n")
    assert bodies(queue=queue, connectionStringFile=str(path)) == [b"a"]


def test_a_provider_may_give_it(queue: str) -> None:
    assert bodies(queue=queue, endpoint="localhost", credentialProvider="spark_provider:connection") == [b"a"]


def test_tls_is_spoken_with_an_authority_of_ones_own(queue: str, spark_server: ServerProcess) -> None:
    port = spark_server.ready["tls_port"]
    text = spark_server.connection_string_tls
    if f":{port}" not in text:
        text = text.replace("Endpoint=sb://localhost", f"Endpoint=sb://localhost:{port}", 1)
    assert bodies(queue=queue, connectionString=text, caFile=spark_server.ca) == [b"a"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"connectionStringEnv": "NOT_SET_ANYWHERE"}, "variable 'NOT_SET_ANYWHERE' .* is not set"),
        ({"connectionStringFile": "/nowhere/at/all"}, "'connectionStringFile' cannot be read"),
        ({"connectionString": "nonsense"}, "is no connection string"),
        ({"endpoint": "x", "credentialProvider": "nomodule:f"}, "'nomodule:f' .* cannot be had"),
        ({"endpoint": "x", "credentialProvider": "spark_provider:nothing"}, "returned nothing"),
        ({"endpoint": "x", "credentialProvider": "spark_provider"}, "has to be module:function"),
    ],
)
def test_what_leads_nowhere_is_told(options: dict[str, str], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        new_client(place_of(parse(options, CONNECTION_OPTIONS)))


def test_a_wrong_key_is_told_without_the_key(queue: str, spark_server: ServerProcess) -> None:
    text = spark_server.connection_string.replace("SharedAccessKey=", "SharedAccessKey=wrong")
    with pytest.raises(
        EntityError, match=f"There is no '{queue}' in the namespace, or the key does not suffice"
    ) as caught:
        bodies(queue=queue, connectionString=text, retryTotal="0")
    assert masked(text).split("SharedAccessKey=")[1] not in text
    assert "wrong" not in str(caught.value)


def test_rights_to_send_do_not_suffice_to_read(bus: Bus, spark_server: ServerProcess) -> None:
    rule = AuthorizationRule(
        type="SharedAccessAuthorizationRule",
        key_name="sender",
        rights=[AccessRights.SEND],
        primary_key="c2VuZGVyLWtleS1zZW5kZXIta2V5LXNlbmRlci1rZXk=",
        secondary_key="c2VuZGVyLWtleS1zZW5kZXIta2V5LXNlbmRlci1rZXk=",
        claim_type="SharedAccessKey",
        claim_value="None",
    )
    name = bus.queue(authorization_rules=[rule])
    endpoint = spark_server.connection_string.split(";")[0]
    text = f"{endpoint};SharedAccessKeyName=sender;SharedAccessKey={rule.primary_key};UseDevelopmentEmulator=true;"
    with pytest.raises(EntityError, match=r"Listen is needed"):
        bodies(queue=name, connectionString=text, retryTotal="0")


def test_what_travels_names_the_secret_and_does_not_hold_it(bus: Bus, spark_server: ServerProcess) -> None:
    key = spark_server.connection_string.split("SharedAccessKey=")[1].split(";")[0]
    assert key.encode() not in pickle.dumps(bus.place)
    assert os.environ[CONNECTION_ENV] == spark_server.connection_string
    literal = place_of(parse({"connectionString": spark_server.connection_string}, CONNECTION_OPTIONS))
    assert key not in repr(literal)


class VirtualClock(Clock):
    def __init__(self) -> None:
        self.passed_ms = 0

    def monotonic_ms(self) -> int:
        return self.passed_ms


class Thing:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_what_was_idle_is_closed_when_something_else_is_asked_for() -> None:
    clock = VirtualClock()
    kept = Kept(clock)
    first: Thing = kept.get(("one",), Thing)
    assert kept.get(("one",), Thing) is first
    clock.passed_ms += 121_000
    kept.get(("two",), Thing)
    assert first.closed


def test_a_client_stays_open_as_long_as_what_it_opened_is_used() -> None:
    """Closing a client closes its receivers: a stream broke after two minutes."""
    clock = VirtualClock()
    kept = Kept(clock)
    client: Thing = kept.get(("client", "here"), Thing)
    for _ in range(4):
        clock.passed_ms += 100_000
        kept.get(("reader", "here", "queue"), Thing)
    assert not client.closed
    clock.passed_ms += 121_000
    kept.get(("reader", "elsewhere", "queue"), Thing)
    assert client.closed


def test_no_more_is_kept_than_the_limit() -> None:
    kept = Kept(VirtualClock())
    things = [kept.get(("thing", number), Thing) for number in range(65)]
    assert [thing.closed for thing in things] == [True] + [False] * 64


def test_what_another_process_opened_is_forgotten_and_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(VirtualClock())
    theirs: Thing = kept.get(("one",), Thing)
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert kept.get(("one",), Thing) is not theirs
    assert not theirs.closed
