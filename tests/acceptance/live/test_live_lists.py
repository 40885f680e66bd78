"""What is made of the results of upstream's live tests: lists of expected failures only ever shrink."""

from __future__ import annotations

import json

import pytest
from kit_live import FAILED, HERE, PASSED, SKIPPED, disagreements, told


def test_a_failure_that_no_list_expects_is_told() -> None:
    assert disagreements({"a": FAILED, "b": PASSED}, {}) == ["a failed, and the list does not expect it"]


def test_an_expected_failure_is_no_disagreement() -> None:
    assert disagreements({"a": FAILED, "b": PASSED}, {"a": "a reason"}) == []


def test_an_expected_failure_that_passes_has_to_be_taken_out() -> None:
    (line,) = disagreements({"a": PASSED}, {"a": "a reason"})
    assert "take it out (a reason)" in line


def test_a_test_that_passes_on_quick_machines_only_may_stay_in_the_list() -> None:
    assert disagreements({"a": PASSED, "b": FAILED}, {"a": "unsteady: a reason", "b": "unsteady: a reason"}) == []


def test_a_test_that_skips_itself_may_stand_in_the_list() -> None:
    assert disagreements({"a": SKIPPED, "b": SKIPPED}, {"a": "a reason"}) == []


def test_what_was_not_run_is_no_disagreement() -> None:
    assert disagreements({}, {"a": "a reason"}) == []


def test_the_summary_tells_expected_failures_apart() -> None:
    results = {"a": FAILED, "b": FAILED, "c": PASSED, "d": SKIPPED}
    assert told(results, {"a": "a reason"}) == "1 of 4 passed, 2 failed (1 of them expected), 1 skipped themselves"


@pytest.mark.parametrize("client", ["python", "go", "rust"])
def test_every_expected_failure_has_a_reason(client: str) -> None:
    forms = json.loads((HERE / f"{client}.json").read_text())
    reasons = [reason for listed in forms.values() for reason in listed.values()]
    assert all(isinstance(reason, str) and len(reason.split()) >= 3 for reason in reasons), reasons
