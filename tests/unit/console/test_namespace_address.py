"""Connection strings, taken apart: what leads where, and that no error holds a key."""

from __future__ import annotations

import pytest

from duobus.console.namespace.address import NamespaceAddress
from duobus.errors import ArgumentInvalid

AZURE = "Endpoint=sb://shop.servicebus.windows.net/;SharedAccessKeyName=Root;SharedAccessKey=c2VjcmV0PQ=="


def test_a_namespace_of_azure_is_managed_by_https() -> None:
    address = NamespaceAddress(AZURE)
    assert (address.url, address.messaging_endpoint) == ("https://shop.servicebus.windows.net", None)
    assert (address.rule_name, address.key, address.entity) == ("Root", "c2VjcmV0PQ==", "")


def test_an_emulator_is_managed_by_http_at_its_own_port() -> None:
    plain = NamespaceAddress(
        "Endpoint=sb://localhost;SharedAccessKeyName=a;SharedAccessKey=b;UseDevelopmentEmulator=true;"
    )
    assert plain.url == "http://localhost:5300"
    assert "Endpoint=sb://localhost:5300;" in plain.management_text
    assert plain.text.startswith("Endpoint=sb://localhost;")
    chosen = NamespaceAddress("Endpoint=sb://localhost:5672;UseDevelopmentEmulator=true")
    assert chosen.url == "http://localhost:5672"


def test_the_operator_may_say_where_entities_are_managed() -> None:
    address = NamespaceAddress("Endpoint=sb://localhost:5672;UseDevelopmentEmulator=true", "http://localhost:5399")
    assert (address.url, address.is_plain) == ("http://localhost:5399", True)


def test_over_tls_the_port_is_kept_for_messages() -> None:
    address = NamespaceAddress("Endpoint=sb://bus.example.com:5671;SharedAccessKeyName=a;SharedAccessKey=b")
    assert (address.url, address.messaging_endpoint) == ("https://bus.example.com:5671", "sb://bus.example.com:5671")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "secret",
        "Endpoint=http://host;SharedAccessKey=secret",
        "Endpoint=sb://;SharedAccessKey=secret",
        "Endpoint=sb://user:secret@host",
        "Endpoint=sb://host:secret",
        "Endpoint=sb://[secret",
        "x" * 9_000,
    ],
)
def test_what_is_no_connection_string_is_refused_and_not_quoted(text: str) -> None:
    with pytest.raises(ArgumentInvalid) as error:
        NamespaceAddress(text)
    assert "secret" not in str(error.value)
    assert "Endpoint=sb://HOST" in str(error.value)


def test_another_rule_takes_the_place_of_the_one_before() -> None:
    address = NamespaceAddress(AZURE).with_key("Other", "bmV3")
    assert (address.rule_name, address.key) == ("Other", "bmV3")
    assert "c2VjcmV0" not in address.text
    assert address.is_same_place(NamespaceAddress(AZURE))
    assert not address.is_same_place(NamespaceAddress(AZURE.replace("shop", "other")))


@pytest.mark.parametrize(
    ("name", "key"), [("", "k"), ("n", ""), ("n;Endpoint=sb://e", "k"), ("n", "k;x=y"), ("n\n", "k")]
)
def test_a_name_or_key_cannot_bring_another_member_along(name: str, key: str) -> None:
    with pytest.raises(ArgumentInvalid):
        NamespaceAddress(AZURE).with_key(name, key)


def test_keys_and_signatures_are_masked() -> None:
    masked = NamespaceAddress(AZURE).masked("c2VjcmV0PQ== SharedAccessKey=abc;x sig=def&se=1 SharedAccessSignature=ghi")
    assert masked == "*** SharedAccessKey=***;x sig=***&se=1 SharedAccessSignature=***"
