"""Shared access signatures: vectors of good ones, and everything malformed."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest
from azure.core.credentials import AccessToken
from azure.servicebus._base_handler import ServiceBusSharedKeyCredential
from hypothesis import given
from hypothesis import strategies as st

from duobus.auth import SasToken, parse_sas, sign, sign_token
from duobus.clock import Entropy
from duobus.errors import Unauthorized

_ENCODED_KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
_VECTORS = [
    ("SAS_KEY_VALUE", "https%3A%2F%2Flocalhost%3A5300", "3ZE90K2uj5omLP0qSuwkj3Msr++8tieshhs+eklEGW8="),
    (
        "SAS_KEY_VALUE",
        "https%3a%2f%2flocalhost%3a5300%2fq1%3fapi-version%3d2021-05",
        "7iwjtBXZfmLJzm7mb8pu6CiiWzW00NH6OUQslw8dPPg=",
    ),
    ("SAS_KEY_VALUE", "sb%3A%2F%2Flocalhost%2Fq1", "pzTTzmoigJ9CqkBnSeZmsPY4bi7akvvlClcPZIvv6zM="),
    (_ENCODED_KEY, "sb%3A%2F%2Flocalhost%2Fq1", "NEdMLZ9qfFApJHjRexhAPbTOUIlPYttVjcaQazqLFak="),
]
_BASE64_DECODED_FIRST = "qSepECxsx4OkvWLlOiZKEYtvGG6Q5xfzn4+JtoRfELM="


def _token(resource: str, signature: str, expiry: str = "1800000000", name: str = "k") -> str:
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}"


@pytest.mark.parametrize(("key", "resource", "signature"), _VECTORS)
def test_signatures_equal_the_vectors_of_the_contract(key: str, resource: str, signature: str) -> None:
    assert sign(key, resource, "1800000000") == signature
    escaped = quote(signature, safe="")
    for escape in ("%2B", "%2F", "%3D"):
        # Only the escapes may be written small; the letters of base64 may not.
        for text in (escaped, escaped.replace(escape, escape.lower())):
            assert parse_sas(_token(resource, text)).is_signed_by(key)


def test_a_key_that_looks_like_base64_is_used_as_text() -> None:
    token = parse_sas(_token("sb%3A%2F%2Flocalhost%2Fq1", quote(_BASE64_DECODED_FIRST, safe="")))
    assert not token.is_signed_by(_ENCODED_KEY)


def test_the_resource_is_signed_as_it_stands_in_the_token() -> None:
    upper, lower = "sb%3A%2F%2Fh%2Fq", "sb%3a%2f%2fh%2fq"
    assert parse_sas(_token(lower, quote(sign("key", lower, "1800000000"), safe=""))).is_signed_by("key")
    assert not parse_sas(_token(lower, quote(sign("key", upper, "1800000000"), safe=""))).is_signed_by("key")


def test_fields_may_come_in_any_order_with_any_scheme_spelling() -> None:
    signature = quote(sign("key", "sb%3A%2F%2Fh", "1800000000.75"), safe="")
    for prefix in ("SharedAccessSignature ", "sharedaccesssignature   ", "Bearer SharedAccessSignature "):
        token = parse_sas(f"{prefix}sig={signature}&skn=a%2Fb&se=1800000000.75&sr=sb%3A%2F%2Fh")
        assert token.is_signed_by("key")
        assert token.rule_name == "a/b"
        assert token.expires_ms == 1_800_000_000_000


def test_a_plus_that_a_client_decoded_to_a_blank_is_a_plus() -> None:
    key, resource, signature = _VECTORS[0]
    assert "+" in signature
    assert parse_sas(_token(resource, signature.replace("+", "%20"))).is_signed_by(key)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SharedAccessSignature",
        "SharedAccessSignature ",
        "Basic abc",
        "eyJhbGciOiJub25lIn0.e30.",
        "SharedAccessSignature sr=a&sig=b&se=1",
        "SharedAccessSignature sr=&sig=b&se=1&skn=k",
        "SharedAccessSignature sr=a&sr=a&sig=b&se=1&skn=k",
        "SharedAccessSignature sr=a&sig=b&sig=c&se=1&skn=k",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=k&x=1&x=2",
        "SharedAccessSignature sr=a&sig=b&se=1&skn=k&",
        _token("a", "b", "-1"),
        _token("a", "b", "+1"),
        _token("a", "b", "1e9"),
        _token("a", "b", "٣"),
        _token("a", "b", "1" * 13),
        _token("a", "b", "1.x"),
        _token("a", "%ff"),
        _token("a", "b", name="%ff"),
        _token("a" * 20_000, "b"),
    ],
)
def test_a_malformed_token_is_unauthorized_in_clear_words(text: str) -> None:
    with pytest.raises(Unauthorized):
        parse_sas(text)


@given(st.text(max_size=200))
def test_arbitrary_text_is_a_token_or_unauthorized(text: str) -> None:
    for candidate in (text, "SharedAccessSignature " + text):
        try:
            assert not parse_sas(candidate).is_signed_by("key")
        except Unauthorized:
            continue


@given(st.integers(0, 43), st.integers(1, 255))
def test_any_altered_character_of_the_signature_is_caught(position: int, change: int) -> None:
    signature = bytearray(sign("key", "a", "1").encode())
    signature[position] ^= change
    token = SasToken("a", "1", signature.decode("latin-1"), "k")
    assert not token.is_signed_by("key")


def test_truncated_and_empty_signatures_are_refused() -> None:
    signature = sign("key", "a", "1")
    for wrong in ("", signature[:-1], signature + "=", signature[:10]):
        assert not SasToken("a", "1", wrong, "k").is_signed_by("key")


def test_our_own_tokens_are_good_and_so_are_the_sdks() -> None:
    assert parse_sas(sign_token("sb://h/q", "rule-1", "key", 1_800_000_000)).is_signed_by("key")
    credential: Any = ServiceBusSharedKeyCredential("rule-1", "key")
    token: AccessToken = credential.get_token("sb://h/q")
    text = token.token if isinstance(token.token, str) else token.token.decode()
    parsed = parse_sas(text)
    assert parsed.is_signed_by("key")
    assert parsed.rule_name == "rule-1"


def test_new_keys_are_base64_of_32_bytes_and_never_alike() -> None:
    keys = {Entropy().access_key() for _ in range(20)}
    assert len(keys) == 20
    assert {len(key) for key in keys} == {44}
    assert {len(base64.b64decode(key)) for key in keys} == {32}


def test_a_resource_that_no_text_can_hold_is_compared_and_not_an_accident() -> None:
    # Bytes of an HTTP head that are not UTF-8 come as lone surrogates.
    assert not parse_sas(_token("\udcff", "\udcff")).is_signed_by("key")


def test_any_blanks_may_stand_before_and_behind_a_scheme() -> None:
    signature = quote(sign("key", "a", "1"), safe="")
    for before in ("  ", "Bearer   ", " bearer "):
        assert parse_sas(f"{before}{_token('a', signature, '1')}  ").is_signed_by("key")
