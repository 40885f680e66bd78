"""Overlay: what a rule changed on a copy, stored and applied."""

from __future__ import annotations

import pytest

from duobus.codec import (
    Int,
    Symbol,
    application_properties_section,
    build_message,
    data_section,
    has_made_id,
    scan,
    with_made_id,
)
from duobus.errors import InternalError
from duobus.model.metadata import MessageMetadata
from duobus.model.overlay import Overlay

OVERLAY = Overlay(
    {3: "new", 0: None, 6: Symbol("a/b")},
    {"x": Int(1), "y": None},
    ("gone", "absent"),
    {"ttl_ms": 5, "session_id": None},
)


def test_it_is_stored_and_read_back() -> None:
    again = Overlay.decode(OVERLAY.encode())
    assert again == OVERLAY
    assert (again.properties, again.application) == (OVERLAY.properties, OVERLAY.application)
    assert (again.removed, again.envelope) == (OVERLAY.removed, OVERLAY.envelope)
    assert type(again.application["x"]) is Int


@pytest.mark.parametrize("data", [b"", b"\x40", b"\xff", b"\x45", OVERLAY.encode()[:-1]])
def test_a_stored_form_that_is_none_is_our_own_fault(data: bytes) -> None:
    with pytest.raises(InternalError):
        Overlay.decode(data)


def test_it_changes_properties_and_nothing_behind_them() -> None:
    tail = data_section(b"one") + data_section(b"two")
    payload = build_message(["id", b"u", None, "old"], {"gone": 1, "kept": "k"}) + tail
    expected = build_message(
        ["id", b"u", None, "new", None, None, Symbol("a/b")], {"kept": "k", "x": Int(1), "y": None}
    )
    assert OVERLAY.apply_to(payload) == expected + tail


def test_sections_that_are_missing_are_made() -> None:
    tail = data_section(b"one")
    assert Overlay({3: "s"}).apply_to(tail) == build_message([None, None, None, "s"]) + tail
    assert Overlay(None, {"a": 1}).apply_to(tail) == application_properties_section({"a": 1}) + tail
    assert Overlay().apply_to(tail) == tail


def test_what_is_rare_of_the_copy_is_changed_and_of_the_original_not() -> None:
    original = MessageMetadata(ttl_ms=1, session_id="s", priority=9)
    assert OVERLAY.metadata(original) == MessageMetadata(ttl_ms=5, priority=9)
    assert original == MessageMetadata(ttl_ms=1, session_id="s", priority=9)
    assert Overlay(None, None, (), {"ttl_ms": None}).metadata(MessageMetadata(ttl_ms=1)) is None
    assert Overlay(None, None, (), {"ttl_ms": 7}).metadata(None) == MessageMetadata(ttl_ms=7)
    assert Overlay().metadata(original) is original


def test_the_message_id_that_the_broker_gave_stays_so_and_no_action_takes_one_away() -> None:
    """No message is without an id."""
    made = with_made_id(build_message([None, None, "to"], data=b"m"), 0, b"0" * 32)
    for changes in ({3: "label"}, {0: None}, {0: None, 3: "label"}):
        changed = Overlay(properties=changes).apply_to(made)
        assert has_made_id(changed)
        assert (scan(changed).message_id, scan(changed).to) == ("0" * 32, "to")
        own = Overlay(properties=changes).apply_to(build_message(["own"], data=b"m"))
        assert scan(own).message_id == "own"
    assert not has_made_id(Overlay(properties={0: "own"}).apply_to(made))
