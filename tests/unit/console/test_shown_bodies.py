"""Bodies of messages as pages show them."""

from __future__ import annotations

import gzip
import json
import time
import zlib

import pytest

from duobus.console.screens.messages.bodies import (
    DUMPED_BYTES_MAX,
    HEX,
    SHOWN_BYTES_MAX,
    TEXT,
    pretty_json,
    pretty_xml,
    shown,
)


def test_json_is_laid_out_with_every_value_as_it_was_written() -> None:
    body = shown(b'{"price": 1.10, "big": 12345678901234567890123, "e": [], "o": {}, "s": "a\\u00e9,{"}', "", "")
    assert body.kind == "json"
    assert body.text.splitlines() == [
        "{",
        '  "price": 1.10,',
        '  "big": 12345678901234567890123,',
        '  "e": [],',
        '  "o": {},',
        '  "s": "a\\u00e9,{"',
        "}",
    ]


def test_what_is_laid_out_is_still_the_same_json() -> None:
    text = json.dumps({"a": [1, {"b": None, "c": [[], {}]}, 'x"\\'], "d": "\ud800 é"})
    pretty = pretty_json(text)
    assert pretty is not None
    assert json.loads(pretty) == json.loads(text)


def test_json_that_is_nested_a_thousand_deep_is_shown_and_in_bounded_time() -> None:
    began = time.process_time()
    body = shown(b"[" * 30_000 + b"]" * 30_000, "application/json", "")
    assert body.text.startswith("[\n  [\n    [")
    assert time.process_time() - began < 5


def test_what_is_no_json_stays_text_whatever_its_content_type_says() -> None:
    assert shown(b'{"a": 1', "application/json", "").kind == "text"
    assert pretty_json("{'a': 1}") is None


def test_xml_is_laid_out_and_its_entities_stay_names() -> None:
    text = "<a x='1'><b>one &amp; two</b><c/><d></d><!-- > --><![CDATA[<x>]]></a>"
    assert pretty_xml(text) == "\n".join(
        ("<a x='1'>", "  <b>one &amp; two</b>", "  <c/>", "  <d></d>", "  <!-- > -->", "  <![CDATA[<x>]]>", "</a>")
    )


@pytest.mark.parametrize(
    "text",
    [
        '<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        "<a><b></a>" * 3 + "<c>",
        "</a><a>",
        "<a",
        "no tags at all < here",
    ],
)
def test_what_declares_entities_or_is_no_xml_is_shown_as_it_is(text: str) -> None:
    assert pretty_xml(text) is None
    assert shown(text.encode(), "application/xml", "").text == text


def test_a_body_of_opening_signs_costs_linear_time() -> None:
    began = time.process_time()
    for text in ("<" * SHOWN_BYTES_MAX, "<!--" * (SHOWN_BYTES_MAX // 4), '"' * SHOWN_BYTES_MAX, '"\\' * 100_000):
        shown(text.encode(), "application/xml", "")
        pretty_json(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("encoding", ["gzip", "deflate", ""])
def test_a_packed_body_is_shown_unpacked(encoding: str) -> None:
    packed = zlib.compress(b'{"a": 1}') if encoding == "deflate" else gzip.compress(b'{"a": 1}')
    body = shown(packed, "application/json", encoding)
    assert body.text == '{\n  "a": 1\n}'
    assert "unpacked" in body.notes[0]
    assert body.size == len(packed)


def test_a_packed_body_unpacks_to_no_more_than_is_shown() -> None:
    body = shown(gzip.compress(b"x" * 50_000_000), "", "gzip")
    assert len(body.text) == SHOWN_BYTES_MAX
    assert any("Only the first 256 KiB" in note for note in body.notes)


def test_what_only_says_that_it_is_packed_is_shown_with_a_sentence() -> None:
    body = shown(b"plain", "", "gzip")
    assert body.text == "plain"
    assert "cannot be unpacked" in body.notes[0]


def test_packed_data_that_ends_too_early_is_shown_as_far_as_it_goes() -> None:
    body = shown(gzip.compress(b"a" * 1_000)[:-12], "", "")
    assert body.text.startswith("aaa")
    assert "ends too early" in body.notes[1]


def test_bytes_are_shown_as_digits_and_no_more_of_them_than_a_page_holds() -> None:
    body = shown(bytes(range(256)), "", "")
    assert body.kind == HEX
    assert body.text.splitlines()[4] == ("00000040  40 41 42 43 44 45 46 47  48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO")
    long = shown(b"\xff" * 1_000_000, "", "")
    assert len(long.text.splitlines()) == DUMPED_BYTES_MAX // 16
    assert len(long.notes) == 2


def test_a_person_chooses_text_or_digits() -> None:
    assert shown(b'{"a":1}', "", "", TEXT).text == '{"a":1}'
    assert shown(b"ab", "", "", HEX).text.startswith("00000000  61 62 ")


def test_a_long_text_is_cut_between_characters() -> None:
    body = shown("é".encode() * SHOWN_BYTES_MAX, "", "")
    assert body.text == "é" * (SHOWN_BYTES_MAX // 2)
    odd = shown(b"a" + "é".encode() * SHOWN_BYTES_MAX, "", "")
    assert odd.kind == TEXT


def test_the_charset_of_the_content_type_counts_and_an_unknown_one_does_no_harm() -> None:
    assert shown("é".encode("latin-1"), "text/plain; charset=iso-8859-1", "").text == "é"
    assert shown("\ufeffé".encode("utf-16"), "text/plain", "").text.endswith("é")
    assert shown("é".encode(), "text/plain; charset=rot13", "").text == "é"
    assert shown("é".encode(), "text/plain; charset=nothing", "").text == "é"


def test_control_characters_and_marks_that_turn_text_are_made_visible() -> None:
    assert shown("a\x00b\u202egpj\t.".encode(), "", "").text == "a\\x00b[U+202E]gpj\t."


def test_an_empty_body_is_empty() -> None:
    assert shown(b"", "application/json", "gzip").kind == "empty"
