"""Addresses of entities, and their names."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from duobus.errors import ArgumentInvalid, EntityNotFound
from duobus.model.address import (
    DEAD_LETTER,
    MAIN,
    PATH_LENGTH_MAX,
    TRANSFER_DEAD_LETTER,
    Address,
    check_entity_name,
    check_subscription_name,
    parse_address,
)


@pytest.mark.parametrize(
    "text",
    [
        "q1",
        "/q1",
        "q1/",
        "//q1//",
        "amqps://localhost:5672/q1",
        "amqp://contoso.servicebus.windows.net/q1/",
        "sb://[::1]:5672/q1",
        "%71%31",
        "Q1",
    ],
)
def test_every_form_that_sdks_send_names_the_same_queue(text: str) -> None:
    address = parse_address(text)
    assert (address.key, address.subscription, address.sub_queue) == ("q1", None, MAIN)
    assert not address.is_management
    assert not address.is_cbs


def test_the_path_keeps_the_spelling_of_the_client() -> None:
    assert parse_address("amqps://h/Orders/EU").path == "Orders/EU"
    assert parse_address("amqps://h/Orders/EU").key == "orders/eu"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q/$management", Address("q", is_management=True)),
        ("q/$MANAGEMENT", Address("q", is_management=True)),
        ("q/$DeadLetterQueue", Address("q", sub_queue=DEAD_LETTER)),
        ("q/$deadletterqueue/$management", Address("q", sub_queue=DEAD_LETTER, is_management=True)),
        ("q/$Transfer/$DeadLetterQueue", Address("q", sub_queue=TRANSFER_DEAD_LETTER)),
        ("q%2F%24DeadLetterQueue", Address("q", sub_queue=DEAD_LETTER)),
        ("t/Subscriptions/s", Address("t", "s")),
        ("a/b/subscriptions/s/$DeadLetterQueue", Address("a/b", "s", DEAD_LETTER)),
        ("t/subscriptions/subscriptions", Address("t", "subscriptions")),
        ("t/subscriptions/subscriptions/subscriptions/s", Address("t/subscriptions/subscriptions", "s")),
        ("contoso/x-servicebus-transfer/0", Address("contoso/x-servicebus-transfer/0")),
        ("$cbs", Address("", is_cbs=True)),
        ("amqps://host/$CBS", Address("", is_cbs=True)),
    ],
)
def test_an_address_is_parsed_from_the_right(text: str, expected: Address) -> None:
    address = parse_address(text)
    assert address == expected
    assert (address.key, address.subscription, address.sub_queue) == (
        expected.key,
        expected.subscription,
        expected.sub_queue,
    )


@pytest.mark.parametrize(
    "text",
    [
        "a//b",
        "a/../b",
        "a/%2e%2e/b",
        "a/./b",
        "..",
        "a\x00",
        "a%00b",
        "a\nb",
        "a\x7f",
        "a\\b",
        "a%5Cb",
        "a%ff",
        "a" * (PATH_LENGTH_MAX + 1),
        "%61" * 3000,
    ],
)
def test_a_hostile_address_is_refused_as_an_argument(text: str) -> None:
    with pytest.raises(ArgumentInvalid):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "amqps://host",
        "amqps://host/",
        "$management",
        "$DeadLetterQueue",
        "a%252fb",
        "a b",
        "a?b",
        "a@b",
        "ä",
        "q/$DeadLetterQueue/$DeadLetterQueue",
        "q/$cbs",
        "$Resources",
        "t/subscriptions/a b",
    ],
)
def test_a_name_that_nothing_can_have_is_simply_not_found(text: str) -> None:
    with pytest.raises(EntityNotFound, match=r"^The messaging entity '.*' could not be found\."):
        parse_address(text)


def test_percent_signs_are_decoded_exactly_once() -> None:
    assert parse_address("%61%2Fb").path == "a/b"
    with pytest.raises(EntityNotFound):
        parse_address("%2561")


def test_rights_are_asked_for_the_whole_address_without_management() -> None:
    assert parse_address("T/Subscriptions/S/$deadletterqueue/$management").segments() == (
        "t",
        "subscriptions",
        "s",
        "$deadletterqueue",
    )
    assert parse_address("Q/$transfer/$deadletterqueue").segments() == ("q", "$transfer", "$deadletterqueue")


@example("$CBS")
@given(st.text(max_size=300))
def test_arbitrary_text_ends_in_an_address_or_a_clean_refusal(text: str) -> None:
    try:
        address = parse_address(text)
    except (ArgumentInvalid, EntityNotFound):
        return
    if address.is_cbs:
        # The token node belongs to no entity: it has no segments that could be parsed again.
        assert address == Address("", is_cbs=True)
        return
    again = parse_address("/".join(address.segments()) + ("/$management" if address.is_management else ""))
    assert again == address


_NAMES = st.lists(st.text("abcXYZ019.-_~", min_size=1, max_size=8), min_size=1, max_size=4).map("/".join)


@given(_NAMES)
def test_every_name_that_may_be_created_is_reached_by_its_address(name: str) -> None:
    try:
        check_entity_name(name)
    except ArgumentInvalid:
        return
    assert parse_address(name) == Address(name)


@pytest.mark.parametrize("name", ["a", "queue.1", "txt/.-_123", "a/b/c", "messages", "Subscriptions", "x~y", "a" * 260])
def test_legal_entity_names_are_accepted(name: str) -> None:
    assert check_entity_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", "/a", "a/", "a//b", ".a", "a-", "$Default", "a/../b", "a b", "ä", "a\x00b", "a\\b", "a" * 261),
        *("a/messages", "a/subscriptions/b", "a/$DeadLetterQueue", "a?b", "a#b", "a*", "a%b"),
    ],
)
def test_illegal_entity_names_are_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ArgumentInvalid, match="name"):
        check_entity_name(name)


def test_subscription_names_are_short_and_have_no_slash() -> None:
    assert check_subscription_name("s.1") == "s.1"
    assert check_subscription_name("$Default", kind="rule") == "$Default"
    for name in ("", "a/b", "s" * 51, "$Default", "-a"):
        with pytest.raises(ArgumentInvalid):
            check_subscription_name(name)
