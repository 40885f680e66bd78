"""What access rules become by a change: two keys a rule, and always one rule that may manage."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from duobus.errors import ArgumentInvalid, EntityAlreadyExists, EntityNotFound, NotAllowed
from duobus.model import access_rules
from duobus.model.access_rules import (
    ADD,
    PRIMARY,
    REMOVE,
    RIGHTS,
    ROTATE,
    SECONDARY,
    SWAP,
    RuleChange,
    differences,
    names_of,
    rights_of,
)
from duobus.model.descriptions import ACCESS_RULES_MAX, AccessRule

ROOT = AccessRule(name="Root", primary_key="root 1", secondary_key="root 2", rights=7)
READER = AccessRule(name="reader", primary_key="old 1", secondary_key="old 2", rights=1, created_at_ms=5)


def changed(
    *rules: AccessRule, verb: str, name: str = "reader", keeps_manage: bool = True, **given: Any
) -> tuple[AccessRule, ...]:
    numbers = count(1)
    return access_rules.changed(
        rules,
        RuleChange(verb=verb, name=name, **given),
        place="here",
        new_key=lambda: f"new {next(numbers)}",
        now_ms=99,
        keeps_manage=keeps_manage,
    )


def keys(rule: AccessRule) -> tuple[str, str]:
    return rule.primary_key, rule.secondary_key


def test_a_rule_is_added_behind_the_others_with_two_keys_and_its_time() -> None:
    kept, added = changed(ROOT, verb=ADD, rights=3)
    assert kept == ROOT
    assert (added.name, keys(added), added.rights) == ("reader", ("new 1", "new 2"), 3)
    assert (added.created_at_ms, added.modified_at_ms) == (99, 99)


def test_the_first_rule_of_all_can_be_added() -> None:
    assert [rule.name for rule in changed(verb=ADD, rights=1)] == ["reader"]


@pytest.mark.parametrize(("which", "expected"), [(PRIMARY, ("new 1", "old 2")), (SECONDARY, ("old 1", "new 1"))])
def test_one_key_is_replaced_and_the_other_one_stays(which: str, expected: tuple[str, str]) -> None:
    kept, rule = changed(ROOT, READER, verb=ROTATE, which=which)
    assert kept == ROOT
    assert keys(rule) == expected
    assert (rule.rights, rule.created_at_ms, rule.modified_at_ms) == (1, 5, 99)


def test_two_keys_exchange_their_places() -> None:
    assert keys(changed(ROOT, READER, verb=SWAP)[1]) == ("old 2", "old 1")


def test_a_rule_is_removed() -> None:
    assert changed(ROOT, READER, verb=REMOVE) == (ROOT,)


def test_the_last_rule_with_manage_stays_whatever_else_there_is() -> None:
    with pytest.raises(NotAllowed, match="last access rule of here with the right Manage"):
        changed(ROOT, READER, verb=REMOVE, name="Root")
    other = AccessRule(name="other", primary_key="a", secondary_key="b", rights=7)
    assert changed(ROOT, other, verb=REMOVE, name="Root") == (other,)
    # The namespace has another one.
    assert changed(ROOT, verb=REMOVE, name="Root", keeps_manage=False) == ()


def test_a_rule_gets_other_rights_and_keeps_its_keys_which_the_audit_log_tells() -> None:
    kept, rule = changed(ROOT, READER, verb=RIGHTS, rights=3)
    assert kept == ROOT
    assert (rule.rights, keys(rule), rule.created_at_ms, rule.modified_at_ms) == (3, ("old 1", "old 2"), 5, 99)
    assert differences((ROOT, READER), (kept, rule), "reader") == {"rights": [["Listen"], ["Listen", "Send"]]}


def test_the_last_rule_with_manage_keeps_manage() -> None:
    with pytest.raises(NotAllowed, match="last access rule of here with the right Manage"):
        changed(ROOT, READER, verb=RIGHTS, name="Root", rights=3)
    assert changed(ROOT, READER, verb=RIGHTS, name="Root", rights=7)[0].rights == 7
    # The namespace has another one.
    assert changed(ROOT, verb=RIGHTS, name="Root", rights=1, keeps_manage=False)[0].rights == 1


@pytest.mark.parametrize("verb", [ROTATE, SWAP, RIGHTS, REMOVE])
def test_what_is_not_there_is_said_to_be_missing(verb: str) -> None:
    with pytest.raises(EntityNotFound, match="no access rule 'reader' of here"):
        changed(ROOT, verb=verb)


def test_a_name_is_taken_once_and_counts_with_its_case() -> None:
    with pytest.raises(EntityAlreadyExists, match="exists already"):
        changed(READER, verb=ADD, rights=1)
    assert len(changed(READER, verb=ADD, name="Reader", rights=1)) == 2


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a" * 257, "é", "a\n"])
def test_a_name_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(ArgumentInvalid, match="letters, digits"):
        changed(verb=ADD, name=name, rights=1)


def test_there_are_as_many_rules_as_the_service_allows() -> None:
    many = [AccessRule(name=str(number), primary_key="a", secondary_key="b", rights=1) for number in range(12)]
    assert len(many) == ACCESS_RULES_MAX
    with pytest.raises(ArgumentInvalid, match="at most 12"):
        changed(*many, verb=ADD, rights=1)


def test_rights_are_read_by_their_names_and_manage_has_the_others() -> None:
    assert [rights_of(names) for names in (["listen"], ["Send", " LISTEN "], ["manage"])] == [1, 3, 7]
    assert names_of(7) == ["Listen", "Send", "Manage"]
    for names in ([], [""], ["own"]):
        with pytest.raises(ArgumentInvalid):
            rights_of(names)


def test_the_audit_log_is_told_which_key_changed_and_no_key() -> None:
    before = (ROOT, READER)
    after = changed(*before, verb=ROTATE, which=SECONDARY)
    assert access_rules.differences(before, after, "reader") == {"secondary_key": ["***", "***"]}
    assert access_rules.differences((), (READER,), "reader") == {"rights": [None, ["Listen"]]}
    assert access_rules.differences((READER,), (), "reader") == {}
