"""Differences, JSON patches, and what the form of a repair asks for."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from duobus.console.screens.dead_letters.differences import LINES_MAX, lines_between, patch_between
from duobus.console.screens.dead_letters.message_texts import BODY_MAX, body_of, text_of
from duobus.console.screens.dead_letters.repairs import read_repair, summary_of
from duobus.model.json.patch import parse_patch, patched
from duobus.model.json.repair import parse_repair


def shown(before: str, after: str) -> list[str]:
    signs = {"same": " ", "removed": "-", "added": "+", "gap": "~"}
    return [signs[line.kind] + line.text for line in lines_between(before, after)]


def test_a_difference_shows_what_is_removed_and_added_with_some_lines_around() -> None:
    before = "\n".join(f"line {n}" for n in range(20))
    after = before.replace("line 10", "line ten")
    assert shown(before, before) == []
    assert shown(before, after) == [
        "~7 unchanged lines",
        " line 7",
        " line 8",
        " line 9",
        "-line 10",
        "+line ten",
        " line 11",
        " line 12",
        " line 13",
        "~6 unchanged lines",
    ]
    changed = [line for line in lines_between(before, after) if line.kind in {"removed", "added"}]
    assert [(line.before, line.after) for line in changed] == [(11, None), (None, 11)]


def test_a_difference_of_long_texts_is_quick_and_bounded() -> None:
    before = "\n".join(f"a{n}" for n in range(50_000))
    after = "first\n" + "\n".join(f"b{n}" for n in range(50_000))
    began = time.process_time()
    assert len(lines_between(before, after)) <= 2 * LINES_MAX
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"a": 1}, {"a": 1, "b": [1, {"c": None}]}),
        ({"a": 1, "b": 2}, {"b": 3}),
        ({"a": [1, 2, 3]}, {"a": [1, 5, 3]}),
        ({"a": [1, 2, 3]}, {"a": [1]}),
        ({"a/b": {"~c": 1}}, {"a/b": {"~c": 2}}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ([1], {"a": 1}),
        ("x", None),
        ({str(n): n for n in range(300)}, {str(n): n + 1 for n in range(300)}),
    ],
)
def test_a_patch_makes_one_document_of_another(before: Any, after: Any) -> None:
    found = patched(before, parse_patch(patch_between(before, after)))
    assert json.dumps(found) == json.dumps(after)


def test_a_document_that_is_the_same_needs_no_patch() -> None:
    assert patch_between({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]}) == []


SAMPLE = {"body": {"data": ['{"order":5,"lines":[1]}']}}


def test_an_edited_body_becomes_a_patch_for_all_messages() -> None:
    was = body_of(SAMPLE).text
    fields = {
        "body": '{"order": 5, "lines": [1], "currency": "EUR"}',
        "body_was": was.replace("\n", "\r\n"),
        "patch": "x",
    }
    found = read_repair(fields, SAMPLE)
    assert (found.errors, found.repair) == ({}, {"patch": [{"op": "add", "path": "/currency", "value": "EUR"}]})


def test_a_body_that_nobody_has_edited_leaves_the_patch_as_it_is_typed() -> None:
    was = body_of(SAMPLE).text
    typed = '[{"op": "remove", "path": "/order"}]'
    found = read_repair({"body": was.replace("\n", "\r\n"), "body_was": was, "patch": typed}, SAMPLE)
    assert found.repair == {"patch": [{"op": "remove", "path": "/order"}]}


def test_a_body_that_is_no_json_is_replaced_as_a_whole() -> None:
    sample = {"body": {"data": ["no json"]}}
    found = read_repair({"body": "mended\r\ntext", "body_was": "no json"}, sample)
    assert found.repair == {"body": "mended\ntext"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"body": "{", "body_was": "x"}, "body"),
        ({"patch": "["}, "patch"),
        ({"patch": "[" * 100_000}, "patch"),
        ({"set": "nonsense"}, "set"),
        ({"set": "a := [broken"}, "set"),
    ],
)
def test_what_makes_no_sense_is_told_at_its_field(fields: dict[str, str], field: str) -> None:
    assert list(read_repair(fields, SAMPLE).errors) == [field]


def test_every_field_of_the_form_is_something_that_the_service_takes() -> None:
    fields = {
        "set": "attempt := 2\r\ncountry = DE\r\n\r\n",
        "remove": "old, older",
        "subject": "mended",
        "groupId": "s1",
        "contentType": "application/json",
        "correlationId": "c",
        "to": "t",
        "replyTo": "r",
        "find": "NaN",
        "with": "null",
        "patch": '[{"op": "remove", "path": "/x"}]',
    }
    found = read_repair(fields, None)
    assert found.errors == {}
    parse_repair(found.repair)
    assert found.repair is not None
    assert found.repair["set"] == {"attempt": 2, "country": "DE"}
    assert len(summary_of(found.repair)) == 12
    assert read_repair({}, None).repair is None
    assert summary_of(None) == []


@pytest.mark.parametrize(
    ("form", "kind", "can_patch"),
    [
        ({"body": {"data": ['{"a":1}']}}, "json", True),
        ({"body": {"value": '{"a":1}'}}, "json", True),
        ({"body": {"data": ["text"]}}, "text", False),
        ({"body": {"data": [{"$binary": "AP8="}]}}, "binary", False),
        ({"body": {"data": ["a", "b"]}}, "data", False),
        ({"body": {"sequence": [[1, "two"]]}}, "sequence", False),
        ({"raw": "AAAA"}, "binary", False),
        ({}, "none", False),
        ({"body": {"data": ["[" * 100_000]}}, "text", False),
        ({"body": {"data": ["[" * 900 + "]" * 900]}}, "json", True),
    ],
)
def test_a_body_is_shown_by_what_it_is(form: dict[str, Any], kind: str, can_patch: bool) -> None:
    found = body_of(form)
    expected = "binary" if kind == "data" else kind
    assert (found.kind, found.can_patch) == (expected, can_patch)
    assert len(found.text) <= BODY_MAX
    assert text_of(form).endswith(found.text)
