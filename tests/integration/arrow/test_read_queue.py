"""``read_queue`` against a real server: what is looked at stays, what is claimed goes when that is said."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage

from duobus.arrow import read_queue
from duobus.spark.errors import EntityError, OptionError
from duobus.spark.schema import arrow_schema
from duobus.testing.server import ServerProcess, queues_config

_NAMES = itertools.count(1)
QUEUES = {f"q{number}": {} for number in range(1, 15)}
QUEUES["short"] = {"LockDuration": "PT5S"}
QUEUES["sessions"] = {"RequiresSession": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("arrow"), config=queues_config(QUEUES)) as process:
        yield process


@pytest.fixture
def text(server: ServerProcess) -> str:
    return server.connection_string


@pytest.fixture
def queue() -> str:
    return f"q{next(_NAMES)}"


def send(text: str, queue: str, messages: list[Any]) -> None:
    with ServiceBusClient.from_connection_string(text) as client, client.get_queue_sender(queue) as sender:
        for at in range(0, len(messages), 500):
            sender.send_messages(
                [
                    one if isinstance(one, ServiceBusMessage) else ServiceBusMessage(one)
                    for one in messages[at : at + 500]
                ]
            )


def bodies(table: Any) -> list[bytes]:
    return table.column("body").to_pylist()


def test_a_browse_sees_all_messages_again_and_again_in_the_columns_of_spark(text: str, queue: str) -> None:
    send(
        text,
        queue,
        [ServiceBusMessage(f"{n}", message_id=f"m{n}", application_properties={"n": n}) for n in range(2_500)],
    )
    for _ in range(2):
        reader = read_queue(text, queue=queue, batch_size=700)
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.schema.equals(arrow_schema())
        batches = list(reader)
        assert max(batch.num_rows for batch in batches) == 700
        table = pa.Table.from_batches(batches)
        assert sorted(map(int, bodies(table))) == list(range(2_500))
        assert table.column("application_property_types").to_pylist()[0] == [("n", "long")]
        assert set(table.column("entity").to_pylist()) == {queue}


def test_duckdb_and_pandas_count_what_was_sent(text: str, queue: str) -> None:
    send(text, queue, [ServiceBusMessage(f"{n}", subject="odd" if n % 2 else "even") for n in range(1_201)])
    found = read_queue(text, queue=queue, columns=["subject", "sequence_number"])
    counted = duckdb.from_arrow(found).query("t", "select subject, count(*) from t group by 1 order by 1").fetchall()
    assert counted == [("even", 601), ("odd", 600)]
    frame = read_queue(text, queue=queue, columns=["subject"]).read_pandas()
    assert frame.subject.value_counts().to_dict() == {"even": 601, "odd": 600}


def test_filter_limit_and_numbers_choose_rows(text: str, queue: str) -> None:
    send(text, queue, [ServiceBusMessage(f"{n}", subject=f"s{n % 3}") for n in range(30)])
    table = read_queue(text, queue=queue, columns=["body"], filter=pc.field("subject") == "s1", limit=4).read_all()
    assert table.num_rows == 4
    assert {int(body) % 3 for body in bodies(table)} == {1}
    numbers = read_queue(text, queue=queue, columns=["sequence_number"]).read_all().column(0).to_pylist()
    some = read_queue(
        text, queue=queue, columns=["sequence_number"], from_sequence=numbers[5], to_sequence=numbers[9]
    ).read_all()
    assert some.column(0).to_pylist() == [number for number in numbers if numbers[5] <= number <= numbers[9]]


def test_times_choose_rows_from_an_instant_on_and_before_another(text: str, queue: str) -> None:
    send(text, queue, ["early"])
    (first,) = read_queue(text, queue=queue, columns=["enqueued_time"]).read_all().column(0).to_pylist()
    later = first + timedelta(milliseconds=1)
    assert read_queue(text, queue=queue, from_time=later).read_all().num_rows == 0
    assert read_queue(text, queue=queue, from_time=first, to_time=later).read_all().num_rows == 1
    assert read_queue(text, queue=queue, to_time=first).read_all().num_rows == 0
    assert read_queue(text, queue=queue, to_time=datetime.now(UTC) + timedelta(days=1)).read_all().num_rows == 1


def test_a_claim_removes_what_was_read_when_that_is_said_and_gives_back_the_rest(text: str, queue: str) -> None:
    send(text, queue, [f"{n}" for n in range(100)])
    with read_queue(text, queue=queue, mode="claim", limit=60, max_wait=0.5) as claim:
        assert pa.table(claim).num_rows == 60
        assert claim.settle() == (60, ())
        assert claim.unsettled == 0
    assert read_queue(text, queue=queue).read_all().num_rows == 40
    with read_queue(text, queue=queue, mode="claim", max_wait=0.5) as claim:
        rest = claim.reader.read_all()
        assert rest.num_rows == 40
    with read_queue(text, queue=queue, mode="claim", max_wait=0.5) as claim:
        again = claim.reader.read_all()
        assert sorted(bodies(again)) == sorted(bodies(rest))
        assert set(again.column("delivery_count").to_pylist()) == {1}


def test_a_claim_leaves_what_the_filter_leaves_out(text: str, queue: str) -> None:
    send(text, queue, [ServiceBusMessage(f"{n}", subject=f"s{n % 2}") for n in range(20)])
    with read_queue(
        text, queue=queue, mode="claim", filter=[("subject", "=", "s1")], columns=["body"], max_wait=0.5
    ) as claim:
        assert {int(body) % 2 for body in bodies(claim.reader.read_all())} == {1}
        assert claim.settle().completed == 10
    assert {int(body) % 2 for body in bodies(read_queue(text, queue=queue).read_all())} == {0}


def test_locks_are_renewed_until_the_caller_settles(text: str) -> None:
    send(text, "short", ["slow"])
    with read_queue(text, queue="short", mode="claim", max_wait=0.5) as claim:
        assert claim.reader.read_all().num_rows == 1
        # Longer than the lock of the queue lasts.
        threading.Event().wait(6.5)
        assert claim.settle() == (1, ())
    assert read_queue(text, queue="short").read_all().num_rows == 0


def test_a_session_is_claimed_by_its_name(text: str) -> None:
    send(text, "sessions", [ServiceBusMessage(f"{n}", session_id="a" if n < 3 else "b") for n in range(5)])
    with read_queue(text, queue="sessions", mode="claim", session="a", max_wait=0.5) as claim:
        assert bodies(claim.reader.read_all()) == [b"0", b"1", b"2"]
        assert claim.settle() == (3, ())
    assert read_queue(text, queue="sessions", session="a").read_all().num_rows == 0
    assert bodies(read_queue(text, queue="sessions", session="b").read_all()) == [b"3", b"4"]
    with pytest.raises(EntityError, match="requires sessions: give the argument session"):
        read_queue(text, queue="sessions")


def test_a_reader_that_is_killed_removes_nothing(text: str, queue: str, server: ServerProcess) -> None:
    send(text, queue, [f"{n}" for n in range(50)])
    program = (
        "import json, os, signal, sys\n"
        "from duobus.arrow import read_queue\n"
        f"claim = read_queue({text!r}, queue={queue!r}, mode='claim', max_wait=0.5)\n"
        "print(json.dumps(sorted(map(int, claim.reader.read_all().column('body').to_pylist()))), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert json.loads(done.stdout) == list(range(50))
    assert sorted(map(int, bodies(read_queue(text, queue=queue).read_all()))) == list(range(50))


def test_an_entity_that_there_is_not_is_an_error_of_the_call(text: str) -> None:
    with pytest.raises(EntityError, match="no 'nothing'"):
        read_queue(text, queue="nothing")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"queue": "a", "topic": "b", "subscription": "c"}, "says what to read"),
        ({"topic": "b"}, "go together"),
        ({"queue": "a", "columns": ["bod"]}, "Did you mean 'body'"),
        ({"queue": "a", "mode": "eat"}, "'browse' or 'claim'"),
        ({"queue": "a", "limit": -1}, "0 or more"),
        ({"queue": "a", "batch_size": 0}, "1 to"),
        ({"queue": "a", "mode": "claim", "from_sequence": 5}, "mode='browse' only"),
        ({"queue": "a", "connection_string_env": "OTHER"}, "which namespace"),
    ],
)
def test_wrong_arguments_are_told_in_a_sentence(text: str, given: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError, match=told):
        read_queue(text, **given)


def test_without_spark_and_without_pyarrow_it_is_told_what_is_missing() -> None:
    program = (
        "import sys\n"
        "sys.modules['pyspark'] = None\n"
        "import duobus.arrow\n"
        "assert 'pyarrow' not in sys.modules\n"
        "duobus.arrow.read_queue\n"
        "for name in [name for name in sys.modules if name.startswith(('duobus.arrow.', 'duobus.spark'))]:\n"
        "    del sys.modules[name]\n"
        "for name in [name for name in sys.modules if name.startswith('pyarrow')]:\n"
        "    sys.modules[name] = None\n"
        "try:\n"
        "    duobus.arrow.read_queue\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert not done.stderr
    assert "pip install 'duobus[arrow]'" in done.stdout
