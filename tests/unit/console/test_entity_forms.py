"""What is typed into the forms of entities, and what a namespace says of it."""

from __future__ import annotations

import pytest

from duobus.console.screens.entities.durations import exact_duration, typed_duration
from duobus.console.screens.entities.fields import (
    changes_of,
    differences,
    fields_of,
    groups_of,
    label_of,
    merged,
    place_of,
    plain_sentence,
    statuses_of,
    texts_of,
    tier_of,
    typed_form,
)
from duobus.errors import ArgumentInvalid
from duobus.model.durations import INFINITE
from duobus.model.properties import Surface, properties_of
from duobus.model.tiers import ALL, PREMIUM, STANDARD


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("5m", "PT5M"),
        ("5 m", "PT5M"),
        ("90s", "PT1M30S"),
        ("1 h 30 m", "PT1H30M"),
        ("14d", "P14D"),
        ("0.5s", "PT0.5S"),
        ("500ms", "PT0.5S"),
        ("2 minutes", "PT2M"),
        ("pt10m", "PT10M"),
        ("P1DT2H", "P1DT2H"),
        ("unlimited", INFINITE),
        ("Never", INFINITE),
    ],
)
def test_a_duration_can_be_typed_in_the_ways_people_write_durations(text: str, iso: str) -> None:
    assert typed_duration(text) == iso


@pytest.mark.parametrize("text", ["", "5", "m", "5 fortnights", "PT", "five m", "5m-", "1h 3", "\x00"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ArgumentInvalid, match=r"5m|PT1M"):
        typed_duration(text)


@pytest.mark.parametrize("iso", ["PT5M", "P1DT2H3M4.005S", "PT0S", "PT0.5S", INFINITE, "P14D"])
def test_the_text_of_a_duration_can_be_typed_again_without_loss(iso: str) -> None:
    assert typed_duration(exact_duration(iso)) == iso


@pytest.mark.parametrize("kind", ["queue", "topic", "subscription"])
def test_every_property_that_the_sdk_knows_has_one_field(kind: str) -> None:
    names = [field.name for field in fields_of(kind)]
    assert sorted(names) == sorted(item.json_name for item in properties_of(kind, Surface.SDK))
    assert all(field.label and field.hint for field in fields_of(kind))


def test_a_field_tells_its_unit_its_bounds_and_its_default() -> None:
    fields = {field.name: field for group in groups_of("queue", STANDARD) for field in group.fields}
    assert "5 s to 5 m" in fields["lockDuration"].hint
    assert fields["lockDuration"].default == "1 m"
    assert fields["maxSizeInMegabytes"].label == "Maximum size (MB)"
    assert [value for value, _ in fields["maxSizeInMegabytes"].options] == ["1024", "2048", "3072", "4096", "5120"]
    assert {name for name, field in fields.items() if field.is_fixed} == {
        "requiresSession",
        "requiresDuplicateDetection",
        "enablePartitioning",
    }


def test_a_kind_offers_only_the_statuses_that_it_can_have() -> None:
    assert [status for status, _ in statuses_of("queue")] == ["Active", "Disabled", "SendDisabled", "ReceiveDisabled"]
    assert [status for status, _ in statuses_of("topic")] == ["Active", "Disabled", "SendDisabled"]
    assert [label for _, label in statuses_of("subscription")] == ["Active", "Disabled", "Receive disabled"]


def test_the_tier_follows_from_what_the_namespace_says_of_itself() -> None:
    assert tier_of("Premium", is_duobus=True) is ALL
    assert tier_of("Premium", is_duobus=False) is PREMIUM
    assert tier_of(None, is_duobus=False) is STANDARD


def test_a_label_is_in_words() -> None:
    assert label_of("lockDuration") == "Lock duration"
    assert label_of("userMetadata") == "User metadata"


def test_what_stands_in_the_fields_makes_the_same_form_again() -> None:
    form = {
        "name": "orders",
        "lockDuration": "PT1M30S",
        "defaultMessageTimeToLive": INFINITE,
        "requiresSession": False,
        "maxDeliveryCount": 10,
        "maxSizeInMegabytes": 1024,
        "forwardTo": "eu/orders",
    }
    texts = texts_of("queue", form)
    assert texts["lockDuration"] == "1 m 30 s"
    assert texts["defaultMessageTimeToLive"] == "unlimited"
    typed, faults = typed_form("queue", texts)
    assert faults == {}
    assert {name: typed[name] for name in form if name != "name"} == {
        name: value for name, value in form.items() if name != "name"
    }


def test_what_cannot_be_meant_is_told_at_its_field() -> None:
    form, faults = typed_form(
        "queue",
        {"lockDuration": "unlimited", "maxDeliveryCount": "ten", "requiresSession": "maybe", "autoDeleteOnIdle": "x"},
    )
    assert form == {}
    assert set(faults) == {"lockDuration", "maxDeliveryCount", "requiresSession", "autoDeleteOnIdle"}


def test_a_change_by_somebody_else_is_told_and_what_was_left_alone_follows_it() -> None:
    shown = {"lockDuration": "1 m", "maxDeliveryCount": "10", "status": "Active"}
    now = {"lockDuration": "1 m", "maxDeliveryCount": "5", "status": "Disabled"}
    yours = {"lockDuration": "2 m", "maxDeliveryCount": "7", "status": "Active"}
    assert [(one.label, one.shown, one.now, one.yours) for one in differences(shown, now, yours)] == [
        ("Maximum delivery count", "10", "5", "7"),
        ("Status", "Active", "Disabled", "Active"),
    ]
    assert merged(shown, now, yours) == {"lockDuration": "2 m", "maxDeliveryCount": "7", "status": "Disabled"}


def test_only_what_differs_and_can_change_is_changed() -> None:
    now = texts_of("queue", {"requiresSession": False, "lockDuration": "PT1M", "status": "Active"})
    yours = now | {"requiresSession": "true", "lockDuration": "2 m"}
    assert changes_of(now, yours, fields_of("queue")) == ["lockDuration"]


_FRAMED = (
    "SubCode=40000. Bad Request. {} TrackingId:e099c43c-ef10-4c76-b8bd-c7e367b074bf_G0, SystemTracker:ns:/q1, "
    "Timestamp:2026-11-26T22:21:47"
)


@pytest.mark.parametrize(
    ("sentence", "place"),
    [
        ("LockDuration (ms) is 1200000; it must be from 5000 to 300000.", "lockDuration"),
        ("MaxMessageSizeInBytes is 716800000; it must be from 1024 to 104857600.", "maxMessageSizeInKilobytes"),
        ("MaxSizeInMegabytes is 7; it must be one of 1024, 2048.", "maxSizeInMegabytes"),
        ("SubCode=40400. The forwarding target 'nope' does not exist. Create it first.", "forwardTo"),
        ("The name 'q<script>' holds '<'; letters, digits and . - _ ~ are allowed.", "name"),
        ("The address holds an empty segment, '.' or '..'.", "name"),
        ("The disk is on fire.", ""),
    ],
)
def test_a_sentence_of_the_namespace_stands_at_the_field_that_it_is_about(sentence: str, place: str) -> None:
    texts = {"forwardTo": "nope", "forwardDeadLetteredMessagesTo": "other"}
    text = _FRAMED.format(sentence)
    assert place_of(text, fields_of("queue"), texts) == place
    assert plain_sentence(text) == sentence.removeprefix("SubCode=40400. ")


def test_a_target_for_dead_letters_that_is_missing_is_told_at_its_own_field() -> None:
    texts = {"forwardTo": "other", "forwardDeadLetteredMessagesTo": "nope"}
    text = _FRAMED.format("SubCode=40400. The forwarding target 'nope' does not exist. Create it first.")
    assert place_of(text, fields_of("queue"), texts) == "forwardDeadLetteredMessagesTo"
