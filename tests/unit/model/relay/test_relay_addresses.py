"""Addresses of relays: taken apart leniently, and what is the application's goes through as it was written."""

from __future__ import annotations

import pytest

from duobus.model.relay.addresses import (
    ACCEPT,
    CONNECT,
    LISTEN,
    address,
    common_path,
    encoded_path,
    parse_handshake,
    parse_request,
    rejected,
)


def test_a_handshake_says_its_path_its_action_its_id_and_its_token() -> None:
    found = parse_handshake(
        "/$hc/a/b%20c/?sb-hc-action=listen&sb-hc-id=x_G1&sb-hc-token=SharedAccessSignature%20sr%3Da"
    )
    assert found is not None
    assert (found.segments, found.raw_path, found.query) == (("a", "b c"), "/a/b%20c/", "")
    assert (found.action, found.id, found.token) == (LISTEN, "x_G1", "SharedAccessSignature sr=a")


@pytest.mark.parametrize("target", ["/%24hc/a", "/%24HC/a", "/$HC/a", "//$hc/a"])
def test_the_prefix_may_be_escaped_and_in_any_case(target: str) -> None:
    found = parse_handshake(target)
    assert found is not None
    assert found.segments == ("a",)


@pytest.mark.parametrize("target", ["/", "", "/a/$hc/b", "/$hcx/a", "/$servicebus/websocket"])
def test_any_other_path_is_no_handshake(target: str) -> None:
    assert parse_handshake(target) is None


def test_the_query_of_the_application_goes_through_as_it_was_written() -> None:
    found = parse_handshake("/$hc/a?x=%2f+1&sb-hc-action=CONNECT&&y&SB-HC-new=2&sbc-hc-token=t&x=%2F")
    assert found is not None
    assert found.query == "x=%2f+1&&y&x=%2F"
    assert (found.action, found.token) == (CONNECT, "t")


def test_a_plus_sign_in_a_token_stays_one() -> None:
    found = parse_handshake("/$hc/a?sb-hc-token=a+b%2Bc")
    assert found is not None
    assert found.token == "a+b+c"


@pytest.mark.parametrize("prefix", ["sb-hc-", ""])
def test_a_listener_rejects_in_both_spellings(prefix: str) -> None:
    query = f"sb-hc-action=accept&{prefix}statusCode=403&{prefix}statusDescription=not+for%20you"
    found = parse_handshake(f"/$hc/a?{query}")
    assert found is not None
    assert (found.is_reject, found.status, found.description) == (True, 403, "not for you")


def test_a_sender_may_have_parameters_of_its_own_called_like_those_of_a_reject() -> None:
    found = parse_handshake("/$hc/a?sb-hc-action=connect&statusCode=403")
    assert found is not None
    assert (found.is_reject, found.query) == (False, "statusCode=403")


@pytest.mark.parametrize("code", ["", "20", "2000", "abc", "²00", "-12"])
def test_a_status_that_is_none_rejects_nobody(code: str) -> None:
    found = parse_handshake(f"/$hc/a?sb-hc-action=accept&sb-hc-statusCode={code}")
    assert found is not None
    assert not found.is_reject


def test_a_reject_is_written_as_it_is_read() -> None:
    accept = address("wss://host:443", "a/b", ACCEPT, id="i", query="q=1")
    assert accept == "wss://host:443/$hc/a/b?sb-hc-action=accept&sb-hc-id=i&q=1"
    found = parse_handshake(rejected(accept, 410, "gone & away")[len("wss://host:443") :])
    assert found is not None
    assert (found.status, found.description, found.query) == (410, "gone & away", "q=1")


def test_an_address_is_read_as_it_was_written() -> None:
    found = parse_handshake(
        address("", encoded_path("a/b c"), LISTEN, id="x y&z", token="SharedAccessSignature sr=a%2fb&sig=c+d")
    )
    assert found is not None
    assert (found.segments, found.id) == (("a", "b c"), "x y&z")
    assert found.token == "SharedAccessSignature sr=a%2fb&sig=c+d"


def test_a_request_has_its_path_and_its_query_without_what_is_the_relays() -> None:
    found = parse_request("/a/b?sb-hc-token=t&x=1")
    assert (found.segments, found.raw_path, found.query, found.token) == (("a", "b"), "/a/b", "x=1", "t")


def test_the_longest_path_that_begins_a_target_counts_segment_by_segment() -> None:
    known = [("a",), ("A", "b"), ("a", "bc"), ("x",)]
    assert common_path(("a", "B", "c"), known) == ("A", "b")
    assert common_path(("a", "bcd"), known) == ("a",)
    assert common_path(("ab",), known) is None
    assert common_path((), known) is None
