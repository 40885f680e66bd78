"""From the fields of the form for sending to messages."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from duobus.console.screens.messages import drafts
from duobus.console.screens.messages.drafts import (
    DraftFault,
    count_lines,
    fields_of,
    form_of_fields,
    forms_of_lines,
    repeated,
)

NOW_MS = int(datetime(2026, 11, 26, 12, 0, tzinfo=UTC).timestamp() * 1_000)


def made(
    properties: list[tuple[str, str, str]] | None = None,
    *,
    has_file: bool = False,
    base: dict[str, Any] | None = None,
    **fields: str,
) -> dict[str, Any]:
    return form_of_fields(fields, properties or [], has_file=has_file, base=base, now_ms=NOW_MS)


def test_every_field_comes_into_the_message() -> None:
    form = made(
        body="hello\r\nworld",
        id="7",
        subject="s",
        session="c-1",
        correlation="c",
        type="text/plain",
        to="t",
        reply="r",
        reply_session="rs",
        partition="c-1",
        ttl="5m",
        schedule="10m",
    )
    assert form == {
        "body": {"data": ["hello\nworld"]},
        "properties": {
            "messageId": "7",
            "subject": "s",
            "groupId": "c-1",
            "correlationId": "c",
            "contentType": "text/plain",
            "to": "t",
            "replyTo": "r",
            "replyToGroupId": "rs",
        },
        "header": {"timeToLive": "PT5M"},
        "partitionKey": "c-1",
        "scheduledEnqueueTime": "2026-11-26T12:10:00.000+00:00",
    }


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", "5", "5"),
        ("long", "5", 5),
        ("int", "-5", {"$int": -5}),
        ("ubyte", "255", {"$ubyte": 255}),
        ("double", "1.5", 1.5),
        ("float", "1.5", {"$float": 1.5}),
        ("boolean", "True", True),
        ("null", "", None),
        ("uuid", "00000000-0000-0000-0000-000000000001", {"$uuid": "00000000-0000-0000-0000-000000000001"}),
        ("timestamp", "2026-01-31T12:00:00Z", {"$timestamp": "2026-01-31T12:00:00Z"}),
        ("binary", "AAE=", {"$binary": "AAE="}),
        ("symbol", "x", {"$symbol": "x"}),
        ("json", '{"$map": [["a", 1]]}', {"$map": [["a", 1]]}),
    ],
)
def test_properties_have_the_types_that_a_person_chooses_and_come_back_into_the_form(
    kind: str, text: str, expected: Any
) -> None:
    form = made([("p", kind, text)])
    assert form["applicationProperties"] == {"p": expected}
    name, shown_kind, shown_text = drafts.row_of_value("p", expected)
    assert (name, shown_kind) == ("p", kind)
    assert made([(name, shown_kind, shown_text)])["applicationProperties"] == {"p": expected}


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("properties", {"properties": [("p", "int", "x")]}),
        ("properties", {"properties": [("p", "boolean", "yes")]}),
        ("body", {"kind": "json", "body": '{"a": 1,\n}'}),
        ("body", {"kind": "json", "body": "[" * 100_000}),
        ("file", {"kind": "file"}),
        ("ttl", {"ttl": "soon"}),
        ("schedule", {"schedule": "tomorrow"}),
        ("schedule", {"schedule": "999999999d"}),
        ("", {"properties": [("p", "ubyte", "256")]}),
        ("", {"properties": [("p", "uuid", "x")]}),
    ],
)
def test_what_is_wrong_is_told_at_its_field(field: str, given: dict[str, Any]) -> None:
    with pytest.raises(DraftFault) as caught:
        made(**given)
    assert caught.value.field == field
    assert caught.value.text.endswith(".")


def test_a_mistake_in_json_has_its_line_and_column() -> None:
    with pytest.raises(DraftFault, match="line 2, column 1"):
        made(kind="json", body='{"a": 1,\n?}')


def test_checked_json_gets_its_content_type_and_may_hold_the_counter() -> None:
    form = made(kind="json", body='{"n": {{n}}}')
    assert form["properties"]["contentType"] == "application/json"
    assert [one["body"]["data"][0] for one in repeated(form, 2)] == ['{"n": 1}', '{"n": 2}']


def test_a_repeated_message_has_its_number_in_every_text_and_in_no_bytes() -> None:
    form = made([("p{{n}}", "string", "v{{n}}"), ("b", "binary", "AAE=")], id="m-{{n}}", has_file=True, kind="file")
    found = list(repeated(form, 3))
    assert [one["properties"]["messageId"] for one in found] == ["m-1", "m-2", "m-3"]
    assert found[2]["applicationProperties"] == {"p{{n}}": "v3", "b": {"$binary": "AAE="}}
    # Whoever sends the message puts the bytes of the file in this place.
    assert found[2]["body"] == {"data": [""]}


def test_a_copy_keeps_what_the_form_has_no_field_for() -> None:
    base = {
        "header": {"durable": True, "priority": 5, "timeToLive": "PT1H"},
        "annotations": {"x-own": {"$uint": 5}},
        "scheduledEnqueueTime": "2026-01-31T12:00:00Z",
        "properties": {
            "messageId": {"$ulong": 7},
            "groupSequence": 3,
            "subject": "old",
            "creationTime": "2026-01-31T12:00:00Z",
        },
        "applicationProperties": {"a": {"$int": 1}, "DeadLetterReason": "r", "DeadLetterErrorDescription": "d"},
        "body": {"value": {"k": {"$short": 1}}},
        "footer": {"f": 1},
    }
    fields, properties = fields_of(base)
    assert fields["kind"] == drafts.ORIGINAL
    copy = form_of_fields(fields | {"subject": "new"}, properties, has_file=False, base=base, now_ms=NOW_MS)
    assert copy == {
        "header": {"durable": True, "priority": 5, "timeToLive": "PT1H"},
        "annotations": {"x-own": {"$uint": 5}},
        "properties": {"messageId": {"$ulong": 7}, "groupSequence": 3, "subject": "new"},
        "applicationProperties": {"a": {"$int": 1}},
        "body": {"value": {"k": {"$short": 1}}},
        "footer": {"f": 1},
    }


def test_a_file_of_messages_has_records_or_bare_messages() -> None:
    lines = [
        json.dumps({"sequenceNumber": 1, "reason": "r", "message": {"body": {"data": ["a"]}}}),
        "",
        json.dumps({"body": {"data": ["b"]}, "scheduledEnqueueTime": "2026-01-31T12:00:00Z"}),
    ]
    found = list(forms_of_lines(io.BytesIO("\r\n".join(lines).encode())))
    assert found == [{"body": {"data": ["a"]}}, {"body": {"data": ["b"]}}]


@pytest.mark.parametrize("line", ["{", "[1]", '{"message": 5}', '{"unknown": 1}', "\xff", "[" * 100_000])
def test_a_line_that_is_no_message_is_named_and_nothing_is_sent(line: str) -> None:
    with pytest.raises(DraftFault, match=r"Line 2 is no message.*Nothing was sent\."):
        count_lines(io.BytesIO(b'{"body": {"data": ["a"]}}\n' + line.encode("latin-1")))


def test_a_file_without_a_message_is_refused() -> None:
    with pytest.raises(DraftFault, match="no message"):
        count_lines(io.BytesIO(b"\n\r\n"))


def test_a_line_that_is_longer_than_the_largest_message_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "LINE_BYTES_MAX", 10)
    with pytest.raises(DraftFault, match="Line 1 is longer"):
        count_lines([b'{"body": 1}'])


def test_the_messages_of_a_file_are_read_one_at_a_time() -> None:
    read: list[int] = []

    def lines() -> Iterator[bytes]:
        for number in range(3):
            read.append(number)
            yield b'{"body": {"data": ["a"]}}\n'

    found = forms_of_lines(lines())
    next(found)
    assert read == [0]
