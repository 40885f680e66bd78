"""Logs: form, escaping and masking (I66)."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duobus.clock import Clock, Entropy
from duobus.telemetry.logs import (
    VALUE_LENGTH_MAX,
    Log,
    escape_controls,
    mask_connection_string,
    mask_token,
    new_tracking_id,
    set_up_logs,
    timestamp,
    tracking_suffix,
)

_CONNECTION = "Endpoint=sb://h:1;SharedAccessKeyName=root;SharedAccessKey=CANARY+/=;UseDevelopmentEmulator=true;"
_TOKEN = "SharedAccessSignature sr=sb%3A%2F%2Fh&sig=CANARY%3D&se=1&skn=root"


class _FixedClock(Clock):
    def now_ms(self) -> int:
        return 1_700_000_000_123


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def _lines(log_format: str, text: str, error: BaseException | None = None, **fields: Any) -> list[str]:
    stream = io.StringIO()
    set_up_logs(log_format, _FixedClock(), stream)
    if error is None:
        Log("test").info(text, **fields)
    else:
        Log("test").error(text, exception=error, **fields)
    return stream.getvalue().splitlines()


def test_a_json_line_holds_the_event_and_its_fields() -> None:
    (line,) = _lines("json", "A store was closed", store_id=2, tracking_id="t-1", ratio=0.5, ok=True, none=None)
    assert json.loads(line) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "info",
        "logger": "duobus.test",
        "event": "A store was closed",
        "store_id": 2,
        "tracking_id": "t-1",
        "ratio": 0.5,
        "ok": True,
        "none": None,
    }


def test_a_text_line_is_for_people() -> None:
    (line,) = _lines("text", "A store was closed", store_id=2)
    assert line == "2023-11-14T22:13:20.123Z info    duobus.test: A store was closed store_id=2"


@given(st.text(max_size=50), st.sampled_from(["text", "json"]))
def test_nothing_that_a_peer_sends_can_forge_a_line(value: str, log_format: str) -> None:
    stream = io.StringIO()
    set_up_logs(log_format, _FixedClock(), stream)
    Log("test").info(value, entity=value)
    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].isprintable()


def test_terminal_escapes_are_written_as_text() -> None:
    assert escape_controls("a\x1b[31m\r\n\u2028\ud800b") == "a\\x1b[31m\\r\\n\\u2028\\ud800b"
    assert escape_controls("grüße") == "grüße"


@pytest.mark.parametrize(
    "text",
    [
        _CONNECTION,
        _TOKEN,
        f"Bearer {_TOKEN}",
        _TOKEN.lower().replace("canary", "CANARY"),
        "sharedaccesskey = CANARY",
        '{"PrimaryKey": "CANARY", "SecondaryKey":"CANARY"}',
        "primary_key='CANARY'",
        "eyJhbGciOiJIUzI1NiJ9.CANARY.CANARY",
        "https://h/q?sig=CANARY&x=1",
        "SharedAccessSignature=SharedAccessSignature sr=a&sig=CANARY&se=1",
    ],
)
def test_secrets_are_masked_wherever_they_stand(text: str) -> None:
    for log_format in ("text", "json"):
        (line,) = _lines(log_format, f"before {text} after", field=text)
        assert "CANARY" not in line
        assert "***" in line


@pytest.mark.parametrize("text", ["pa\u017f\u017fWORD=CANARY", "primary_\u212aey: CANARY", "a eyJCANARY-x.CANARY.x"])
def test_a_secret_is_masked_however_its_name_is_spelt(text: str) -> None:
    (line,) = _lines("text", text)
    assert "CANARY" not in line


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: Basic c2VjcmV0MTIz",
        "{'Authorization': 'Negotiate c2VjcmV0MTIz'}",
        "authorization=Unheard c2VjcmV0MTIz more c2VjcmV0MTIz",
        "Proxy-Authorization: c2VjcmV0MTIz",
        "sent Bearer c2VjcmV0MTIz",
        "basic c2VjcmV0MTIz",
    ],
)
def test_an_authorization_is_masked_whatever_its_scheme(text: str) -> None:
    assert "c2VjcmV0MTIz" not in mask_token(text)
    assert "c2VjcmV0MTIz" not in _lines("text", text)[0]


def test_masking_keeps_what_is_no_secret() -> None:
    masked = mask_connection_string(_CONNECTION)
    assert masked == ("Endpoint=sb://h:1;SharedAccessKeyName=root;SharedAccessKey=***;UseDevelopmentEmulator=true;")
    assert mask_token("entity orders, design 3") == "entity orders, design 3"


def test_an_exception_is_logged_on_one_line_without_secrets() -> None:
    try:
        raise ValueError(f"bad {_CONNECTION}")
    except ValueError as error:
        for log_format in ("text", "json"):
            (line,) = _lines(log_format, "It failed", error)
            assert "ValueError" in line
            assert "CANARY" not in line


def test_what_other_libraries_log_has_the_same_form() -> None:
    stream = io.StringIO()
    set_up_logs("json", _FixedClock(), stream)
    logging.getLogger("asyncio").error("%s failed: %s", "x", _TOKEN)
    line = json.loads(stream.getvalue())
    assert line["logger"] == "asyncio"
    assert "CANARY" not in line["event"]


def test_a_second_set_up_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logs("text", _FixedClock(), first)
    set_up_logs("json", _FixedClock(), second)
    Log("test").warning("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("\n") == 1


def test_long_values_are_cut_and_fields_cannot_replace_the_frame() -> None:
    (line,) = _lines("json", "x", level="forged", body="y" * 100_000)
    members = json.loads(line)
    assert (members["level"], members["field_level"]) == ("info", "forged")
    assert len(members["body"]) <= VALUE_LENGTH_MAX + 1


def test_debug_lines_are_left_out_by_default() -> None:
    stream = io.StringIO()
    set_up_logs("text", _FixedClock(), stream)
    Log("test").debug("detail")
    assert stream.getvalue() == ""


def test_a_tracking_suffix_has_the_form_of_the_service() -> None:
    """TL2."""
    text = tracking_suffix("id-1", "B0", "host", "q\n1", 1_700_000_000_123)
    assert text == " TrackingId:id-1_B0, SystemTracker:host:q\\n1, Timestamp:2023-11-14T22:13:20"
    assert len({new_tracking_id(Entropy()) for _ in range(10)}) == 10
    assert timestamp(0) == "1970-01-01T00:00:00.000Z"
