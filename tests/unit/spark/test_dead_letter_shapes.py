"""What makes dead letters alike."""

from __future__ import annotations

import pytest

from duobus.spark.jobs.work.fingerprints import alike, shape_of


def test_texts_that_differ_in_ids_and_numbers_are_alike() -> None:
    one = alike("Order 17 of 'Ada' failed at 0x7f00aa: 6b1dd0a2-3b0f-4f2e-9f0e-5b6b5b8f7a55\n  at line 3")
    two = alike("Order 2208 of 'Grace' failed at 0x1: 00000000-3b0f-4f2e-9f0e-5b6b5b8f7a55\n  at line 9")
    assert one == two == "Order <n> of <text> failed at <hex>: <id>"


def test_a_text_is_cut_and_none_is_empty() -> None:
    assert len(alike("x" * 100_000)) == 200
    assert alike(None) == alike("  \n ") == ""


@pytest.mark.parametrize(
    ("body", "kind", "shape"),
    [
        (b'{"b": 1, "a": "x", "c": null, "d": [], "e": {}, "f": true}', "data",
         "json {a: string, b: number, c: null, d: array, e: object, f: boolean}"),
        (b"[1]", "data", "json array"),
        (b"5", None, "json number"),
        (b"hello", "data", "text"),
        (b"\xff\x00", "data", "binary"),
        (b"", "data", "empty"),
        (None, "data", "empty"),
        (b"x" * 300_000, "data", "large"),
        (b"\x00\x53\x77\x40", "value", "amqp value"),
        (b"[" * 100_000, "data", "text"),
    ],
)  # fmt: skip
def test_a_body_has_a_shape(body: bytes | None, kind: str | None, shape: str) -> None:
    assert shape_of(body, kind) == shape


def test_an_object_with_many_members_is_cut() -> None:
    shape = shape_of(b"{" + b",".join(b'"m%03d":1' % number for number in range(50)) + b"}", "data")
    assert shape.count("number") == 20
    assert shape.endswith(", …}")
