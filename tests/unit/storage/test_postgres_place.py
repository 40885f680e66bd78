"""Addresses of stores in PostgreSQL: what is recorded and shown has no secret in it."""

from __future__ import annotations

import pytest

from duobus.errors import ConfigurationError
from duobus.storage.postgres.address import LENGTH_MAX, is_postgres, parse


def test_a_password_goes_to_the_driver_and_nowhere_else() -> None:
    place = parse("postgresql://me:s%40cret@db.example:5433/bus?sslpassword=key&sslmode=verify-full")
    assert place.url == "postgresql://me@db.example:5433/bus?sslmode=verify-full"
    text, beside = place.conninfo()
    assert text == place.url
    assert (beside["password"], beside["sslpassword"]) == ("s@cret", "key")
    assert "cret" not in repr(place)
    assert "cret" not in place.in_schema("duobus_1").url


def test_what_is_recorded_reads_back_as_the_same_place() -> None:
    place = parse("postgres://me@one:1,two:2/bus?passfile=/run/pass&unsafe_no_sync=1&application=x").in_schema("a_1")
    again = parse(place.url)
    assert (again.url, again.schema, again.is_unsafe) == (place.url, "a_1", True)
    assert is_postgres(place.url)
    assert not is_postgres("stores/store-1.db")


def test_parameters_of_ours_are_not_libpqs_and_only_primaries_are_asked_for() -> None:
    text, beside = parse("postgresql://h/bus?schema=mine&unsafe_no_sync=0").conninfo()
    assert text == "postgresql://h/bus"
    assert beside["target_session_attrs"] == "read-write"
    _, beside = parse("postgresql://h/bus?connect_timeout=9").conninfo()
    assert "connect_timeout" not in beside


@pytest.mark.parametrize(
    ("address", "word"),
    [
        ("http://me:secret@h/bus", "begins with"),
        ("postgresql://me:secret@h", "no database"),
        ("postgresql://me:secret@h/", "no database"),
        ("postgresql://h/bus?schema=Robert'; DROP", "small letters"),
        ("postgresql://h/bus?schema=", "small letters"),
        ("postgresql://h/bus?schema=" + "a" * 64, "63 at most"),
        ("postgresql://h/bus?a=1&a=2", "twice"),
        ("postgresql://h/bus?unsafe_no_sync=yes", "0 or 1"),
        ("postgresql://me:secret@h/bus\n", "printable"),
        ("postgresql://h/" + "b" * LENGTH_MAX, "characters at most"),
    ],
)
def test_an_address_that_is_none_is_refused_without_telling_its_password(address: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as refused:
        parse(address)
    assert "secret" not in str(refused.value)
