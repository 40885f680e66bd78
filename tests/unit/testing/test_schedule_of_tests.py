"""Which process is given which tests, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kits.schedule import (
    ALL,
    DURATIONS,
    LONG_S,
    QUICK_TESTS,
    REST,
    UNIT,
    Places,
    Schedule,
    parts_of,
    pieces_of,
    read_durations,
    write_durations,
)


class Process:
    """A process that runs what it is given, one test after the other, when it is told to go on."""

    def __init__(self, part: str, collected: Sequence[str]) -> None:
        self.workerinput: dict[str, Any] = {"part": part}
        self.collected = list(collected)
        self.given: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self, schedule: Schedule) -> bool:
        """Run the next test, as a process of pytest-xdist does: only with another behind it, or at the end."""
        if not self.given or (len(self.given) == 1 and not self.shutting_down):
            return False
        place = self.given.pop(0)
        self.ran.append(self.collected[place])
        schedule.mark_test_complete(self, place, 1.0)
        return True


def begun(processes: Sequence[Process], durations: dict[str, float] | None = None, **given: Any) -> Schedule:
    schedule = Schedule([process.workerinput["part"] for process in processes], durations or {}, **given)
    for process in processes:
        schedule.add_node(process)
    for process in processes:
        assert not schedule.collection_is_completed
        schedule.add_node_collection(process, process.collected)
    assert schedule.collection_is_completed
    schedule.schedule()
    return schedule


def run_all(schedule: Schedule, processes: Sequence[Process]) -> None:
    # Each runs one at a time, so that all get on alike.
    while sum(process.run_one(schedule) for process in processes):
        pass


def some_tests(file: str, number: int) -> list[str]:
    return [f"{file}::test_{one}" for one in range(number)]


def test_every_test_runs_once_and_every_process_is_told_to_end() -> None:
    tests = [*some_tests("a.py", 30), *(f"{test}@g" for test in some_tests("g.py", 5)), *some_tests("b.py", 3)]
    processes = [Process(ALL, tests) for _ in range(3)]
    schedule = begun(processes, {"g": 9.0})
    assert schedule.has_pending
    run_all(schedule, processes)
    assert sorted(test for process in processes for test in process.ran) == sorted(tests)
    assert all(process.shutting_down for process in processes)
    assert schedule.tests_finished
    assert not schedule.has_pending
    assert schedule.took["g"] == 5.0


def test_fewer_tests_than_processes_are_run_and_the_others_end() -> None:
    processes = [Process(ALL, ["a.py::test"]) for _ in range(3)]
    run_all(begun(processes), processes)
    assert [process.ran for process in processes] == [["a.py::test"], [], []]
    assert all(process.shutting_down for process in processes)


def test_no_tests_at_all_end_at_once() -> None:
    processes = [Process(ALL, []) for _ in range(2)]
    assert begun(processes).tests_finished


def test_the_tests_of_a_group_are_one_piece_and_quick_tests_go_by_some_of_a_file() -> None:
    tests = [*some_tests("a.py", QUICK_TESTS + 1), "b.py::test@g", "b.py::test[x@y]", "a.py::test_z@g"]
    assert [piece.tests for piece in pieces_of(tests, {})] == [
        tuple(tests[:QUICK_TESTS]),
        (tests[QUICK_TESTS],),
        ("b.py::test@g", "a.py::test_z@g"),
        ("b.py::test[x@y]",),
    ]


def test_long_pieces_come_first_the_longest_before_the_others_and_the_rest_keeps_its_order() -> None:
    tests = ["a.py::quick", "b.py::short", "c.py::long", "d.py::x@group", "e.py::quick"]
    durations = {"b.py::short": LONG_S / 2, "c.py::long": 60.0, "group": 90.0}
    assert [piece.tests[0] for piece in pieces_of(tests, durations)] == [
        "d.py::x@group",
        "c.py::long",
        "a.py::quick",
        "b.py::short",
        "e.py::quick",
    ]


def test_behind_a_long_test_a_process_has_a_quick_one_and_no_other_long_one() -> None:
    """A process begins with a test when it knows the next one, which then waits for as long as the first one takes."""
    tests = ["a.py::long", "b.py::long", "c.py::long", "d.py::quick", "e.py::quick"]
    processes = [Process(ALL, tests) for _ in range(2)]
    schedule = begun(processes, {"a.py::long": 9.0, "b.py::long": 8.0, "c.py::long": 7.0})
    assert [[tests[place] for place in process.given] for process in processes] == [
        ["a.py::long", "d.py::quick"],
        ["b.py::long", "e.py::quick"],
    ]
    processes[1].run_one(schedule)
    assert [tests[place] for place in processes[1].given] == ["e.py::quick", "c.py::long"]


def test_where_all_tests_run_some_processes_run_the_unit_tests_and_the_others_the_rest() -> None:
    assert parts_of(8, everything=True) == [UNIT] * 2 + [REST] * 6
    assert parts_of(4, everything=True) == [UNIT] + [REST] * 3
    assert parts_of(2, everything=True) == [ALL] * 2
    assert parts_of(8, everything=False) == [ALL] * 8
    totals: list[int] = []
    unit, rest = some_tests("u.py", 20), some_tests("r.py", 100)
    processes = [Process(UNIT, rest + unit), *(Process(REST, rest) for _ in range(2))]
    run_all(begun(processes, tell_total=totals.append), processes)
    assert processes[0].ran[:QUICK_TESTS] == unit[:QUICK_TESTS]
    assert all(set(process.ran) <= set(rest) for process in processes[1:])
    assert sorted(test for process in processes for test in process.ran) == sorted(rest + unit)
    assert totals == [120]


def test_there_are_unit_tests_to_the_end_because_their_processes_take_quick_ones_of_the_rest_as_well() -> None:
    unit, long, quick = some_tests("u.py", 40), some_tests("long.py", 6), some_tests("quick.py", 160)
    processes = [Process(UNIT, [*long, *quick, *unit]), *(Process(REST, [*long, *quick]) for _ in range(3))]
    schedule = begun(processes, dict.fromkeys(long, LONG_S))
    run_all(schedule, processes)
    ran = processes[0].ran
    assert set(ran) >= set(unit)
    assert set(ran) & set(quick)
    assert not set(ran) & set(long)
    assert set(ran[-2 * QUICK_TESTS :]) & set(unit)


def test_without_unit_tests_their_processes_run_the_rest_long_ones_too() -> None:
    rest = some_tests("long.py", 40)
    processes = [Process(UNIT, rest), *(Process(REST, rest) for _ in range(3))]
    run_all(begun(processes, dict.fromkeys(rest, LONG_S)), processes)
    assert len(processes[0].ran) > 1
    assert sorted(test for process in processes for test in process.ran) == sorted(rest)


def test_of_the_processes_without_unit_tests_one_runs_quick_ones_from_the_beginning() -> None:
    long = some_tests("long.py", 9)
    rest = [*long, *some_tests("quick.py", 100)]
    unit = some_tests("u.py", 20)
    processes = [Process(UNIT, [*rest, *unit]), *(Process(REST, rest) for _ in range(6))]
    schedule = begun(processes, dict.fromkeys(long, 60.0))
    assert [process.collected[process.given[0]] in long for process in processes] == [False, *[True] * 5, False]
    run_all(schedule, processes)
    assert sorted(test for process in processes for test in process.ran) == sorted([*rest, *unit])


def test_what_a_process_that_crashed_had_left_is_run_by_the_one_that_takes_its_place() -> None:
    all_tests = [*some_tests("u.py", 5), *some_tests("r.py", 1)]
    processes = [Process(UNIT, all_tests), Process(REST, all_tests[5:])]
    schedule = begun(processes)
    run_all(schedule, processes[1:])
    processes[0].run_one(schedule)
    assert schedule.remove_node(processes[0]) == "u.py::test_1"
    assert schedule.remove_node(processes[1]) is None
    assert not schedule.tests_finished
    another = Process(UNIT, all_tests)
    schedule.add_node(another)
    schedule.add_node_collection(another, another.collected)
    schedule.schedule()
    run_all(schedule, [another])
    assert another.ran == ["u.py::test_2", "u.py::test_3", "u.py::test_4"]
    assert schedule.tests_finished


def test_a_process_that_takes_the_place_of_another_has_its_part() -> None:
    places = Places([UNIT, REST])
    processes = [Process("", []) for _ in range(3)]
    for process in processes[:2]:
        places.give(process)
    places.take_back(processes[1])
    places.give(processes[2])
    assert [process.workerinput["part"] for process in processes] == [UNIT, REST, REST]


def test_processes_that_have_collected_different_tests_are_refused_by_name() -> None:
    schedule = Schedule([ALL, ALL], {})
    processes = [Process(ALL, ["a.py::one"]), Process(ALL, ["a.py::two"])]
    for process in processes:
        schedule.add_node(process)
    schedule.add_node_collection(processes[0], processes[0].collected)
    with pytest.raises(RuntimeError, match=r"different tests.*a\.py::one, a\.py::two"):
        schedule.add_node_collection(processes[1], processes[1].collected)


def test_durations_come_back_as_they_were_written_without_the_quick_ones(tmp_path: Path) -> None:
    path = tmp_path / "new" / "durations.tsv"
    write_durations({"a": 2.0, "b": 70.0, "c": 0.4}, path)
    assert list(read_durations(path).items()) == [("b", 70.0), ("a", 2.0)]
    assert read_durations(tmp_path / "none") == {}


def test_the_recorded_durations_name_long_pieces() -> None:
    assert min(read_durations(DURATIONS).values()) >= LONG_S
