"""Headers on their way through a relay."""

from __future__ import annotations

from duobus.model.relay.headers import (
    combined,
    description_of,
    end_to_end,
    has_via,
    size_of,
    via_appended,
    without_port,
)


def test_headers_of_one_connection_stay_behind_and_so_do_those_that_connection_names() -> None:
    given = [
        ("Host", "h"),
        ("Connection", "close, X-Hop"),
        ("X-Hop", "1"),
        ("PROXY-Anything", "2"),
        ("Transfer-Encoding", "chunked"),
        ("Content-Type", "text/plain"),
        ("Content-Encoding", "gzip"),
    ]
    assert end_to_end(given) == [("Content-Type", "text/plain"), ("Content-Encoding", "gzip")]


def test_headers_of_one_name_become_one() -> None:
    assert combined([("Accept", "a"), ("accept", "b"), ("Cookie", "x=1"), ("cookie", "y=2"), ("Z", "")]) == {
        "Accept": "a, b",
        "Cookie": "x=1; y=2",
        "Z": "",
    }


def test_a_relay_names_itself_last() -> None:
    assert via_appended([("via", "1.0 first"), ("A", "b"), ("Via", "1.1 second")], "relay:8080") == [
        ("A", "b"),
        ("Via", "1.0 first, 1.1 second, 1.1 relay:8080"),
    ]


def test_an_answer_of_the_application_is_known_by_the_relays_name_in_via() -> None:
    assert has_via({"via": "1.1 other, 1.1 Relay:8080"}, "relay:8080")
    assert has_via({"Via": "1.1 relay"}, "relay:443")
    assert not has_via({"Via": "1.1 other"}, "relay")
    assert not has_via({"Via": "relay"}, "relay")
    assert not has_via({"Date": "x"}, "relay")


def test_a_port_is_taken_off_a_host() -> None:
    assert [without_port(host) for host in ("a:1", "a", "[::1]:2", "[::1]", "::1")] == [
        "a",
        "a",
        "[::1]",
        "[::1]",
        "::1",
    ]


def test_a_description_becomes_one_line() -> None:
    assert description_of("not\r\nX: y \u00e9\t here", 512) == "not X: y here"
    assert description_of("abc", 2) == "ab"


def test_the_size_of_headers_is_that_of_names_and_values() -> None:
    assert size_of([("ab", "\u00e9"), ("c", "")]) == 5
