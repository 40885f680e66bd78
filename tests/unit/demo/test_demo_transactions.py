"""How tasks and their results are judged, and what the workers of transactions mean to do."""

from __future__ import annotations

from collections import Counter

import pytest

from duobus_demo.expectations.transaction_account import SHOWN, Outcome, Result, TransactionAccount, judge
from duobus_demo.workers.transaction_workers import RESULTS, TASKS, Intention, intention_of, transaction_queues

TASKS_OF_TWO = ("a:0", "a:1", "b:0")
ATTEMPTS = {
    "a:0/1": Outcome.ROLLED_BACK,
    "a:0/2": Outcome.COMMITTED,
    "a:1/1": Outcome.REFUSED,
    "a:1/2": Outcome.UNKNOWN,
    "a:1/3": Outcome.UNKNOWN,
    "b:0/1": Outcome.UNFINISHED,
    "b:0/2": Outcome.COMMITTED,
}
RIGHT = (Result("a:0/2", 1), Result("b:0/2", 7), Result("a:1/3", 2))


def kinds(tasks=TASKS_OF_TWO, attempts=ATTEMPTS, results=RIGHT, left=()):
    """How many faults of each kind there are; those that there are none of are left out."""
    return {kind: len(found) for kind, found in judge(tasks, attempts, results, left)._asdict().items() if found}


def test_each_task_with_one_result_of_a_transaction_that_may_be_committed_is_right():
    assert kinds() == {}


def test_a_task_without_a_result_is_lost():
    assert kinds(tasks=(*TASKS_OF_TWO, "b:1")) == {"lost": 1}


def test_a_task_that_was_not_acknowledged_may_have_a_result_or_none():
    assert kinds(tasks=("a:0", "b:0")) == {}


def test_a_commit_that_was_acknowledged_has_its_own_result():
    # The task has one, of another attempt, which says nothing of this one.
    assert kinds(attempts={**ATTEMPTS, "a:1/2": Outcome.COMMITTED}) == {"lost": 1}


def test_two_results_of_one_task_are_doubled_whichever_attempts_they_are_of():
    assert kinds(results=(*RIGHT, Result("a:1/2", 3))) == {"doubled": 1}


def test_one_result_that_is_there_as_two_messages_is_doubled():
    assert kinds(results=(*RIGHT, Result("a:1/3", 3))) == {"doubled": 1}


@pytest.mark.parametrize("outcome", [Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.UNFINISHED])
def test_a_result_of_a_transaction_that_was_not_committed_is_a_fault(outcome):
    assert kinds(attempts={**ATTEMPTS, "a:1/3": outcome}) == {"undone": 1}


def test_a_result_of_a_transaction_that_was_never_tried_is_a_fault():
    assert kinds(results=(*RIGHT, Result("b:1/1", 8))) == {"undone": 1}


def test_a_task_that_is_left_beside_its_result_is_a_fault():
    assert kinds(left=("a:1",)) == {"left": 1}


def test_a_task_that_is_left_without_a_result_is_lost_if_it_was_acknowledged():
    assert kinds(left=("b:1",)) == {}
    assert kinds(tasks=(*TASKS_OF_TWO, "b:1"), left=("b:1",)) == {"lost": 1}


def test_results_out_of_the_order_of_their_session_are_found():
    assert kinds(results=(Result("a:1/3", 1), Result("b:0/2", 7), Result("a:0/2", 2))) == {"out_of_order": 1}


def test_the_account_counts_what_was_entered_and_one_message_that_comes_again_once():
    account = TransactionAccount()
    account.acknowledged("a:0")
    assert not account.is_whole()
    first, second = account.begin("a:0"), account.begin("a:0")
    assert (first, second) == ("a:0/1", "a:0/2")
    account.note(first, Outcome.ROLLED_BACK)
    account.note(second, Outcome.COMMITTED)
    for _ in range(2):
        account.received(second, 5)
    assert account.is_whole()
    assert account.counts() == {"tasks": 1, "results": 1}
    account.looked()
    report = account.report()
    assert report.pop("faults") == []
    assert {name: count for name, count in report.items() if count} == {
        "tasks": 1,
        "results": 1,
        "committed": 1,
        "rolled_back": 1,
        "is_looked": True,
    }


def test_the_account_tells_the_first_faults_of_each_kind_in_words():
    account = TransactionAccount()
    for number in range(SHOWN + 3):
        account.acknowledged(f"a:{number}")
    account.received(account.begin("a:0"), 1)
    account.left(["a:0"])
    report = account.report()
    assert (report["lost"], report["undone"], report["left"]) == (SHOWN + 2, 1, 1)
    assert len(report["faults"]) == SHOWN + 2
    assert "undone a:0/1, unfinished" in report["faults"]
    assert "left a:0: a:0/1 as 1" in report["faults"]
    assert report["is_looked"] is False


def test_a_seed_always_means_the_same_and_every_end_is_among_it():
    meant = [intention_of(27, f"t0:{number}/1") for number in range(500)]
    assert meant == [intention_of(27, f"t0:{number}/1") for number in range(500)]
    counts = Counter(meant)
    assert counts[Intention.COMMIT] > counts[Intention.ROLL_BACK] > counts[Intention.CUT] > 5


def test_results_that_are_doubled_are_not_taken_for_duplicates():
    tasks, results = transaction_queues()
    assert (tasks["Name"], results["Name"]) == (TASKS, RESULTS)
    assert tasks["Properties"]["RequiresDuplicateDetection"]
    assert "RequiresDuplicateDetection" not in results["Properties"]
