"""Endpoints of relays: connection strings, addresses, tokens."""

import pytest

from duobus.auth.sas_tokens import parse_sas
from duobus.relay import RelayEndpoint

TEXT = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=a=b;EntityPath=hc/one"


def test_a_connection_string_names_host_path_and_key_and_its_text_shows_no_key() -> None:
    endpoint = RelayEndpoint.from_connection_string(TEXT)
    assert (endpoint.host, endpoint.path) == ("contoso.servicebus.windows.net", "hc/one")
    assert (endpoint.key_name, endpoint.key, endpoint.is_secure) == ("root", "a=b", True)
    assert "a=b" not in repr(endpoint)


def test_the_emulators_connection_string_is_plain_and_keeps_its_port() -> None:
    endpoint = RelayEndpoint.from_connection_string(
        "Endpoint=sb://localhost:5300;SharedAccessKeyName=r;SharedAccessKey=k;UseDevelopmentEmulator=true;", "/svc/"
    )
    assert endpoint.listen_address("7") == "ws://localhost:5300/$hc/svc?sb-hc-action=listen&sb-hc-id=7"
    assert endpoint.request_address("/a b", "x=%20") == "http://localhost:5300/svc/a%20b?x=%20"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nonsense", "has the form"),
        ("SharedAccessKey=secret", "Endpoint="),
        ("Endpoint=sb://h/;SharedAccessKey=secret;EntityPath=p", "go together"),
        ("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=secret", "EntityPath"),
    ],
)
def test_what_is_wrong_with_a_connection_string_is_told_without_its_key(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match) as caught:
        RelayEndpoint.from_connection_string(text)
    assert "secret" not in str(caught.value)


def test_a_token_is_one_that_the_server_takes() -> None:
    endpoint = RelayEndpoint.from_connection_string(TEXT)
    token = parse_sas(endpoint.token(1_800_000_000))
    assert token.is_signed_by("a=b")
    assert (token.rule_name, token.expires_ms) == ("root", 1_800_000_000_000)
    assert token.resource == "http%3A%2F%2Fcontoso.servicebus.windows.net%2Fhc%2Fone"


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/hc/one", ("/", "")),
        ("/hc/one/a%2Fb?x=1&y", ("/a%2Fb", "x=1&y")),
        ("/HC/One/a", ("/a", "")),
        ("/hc/onetwo", ("/hc/onetwo", "")),
        ("/other", ("/other", "")),
    ],
)
def test_an_application_sees_no_path_of_the_hybrid_connection(target: str, expected: tuple[str, str]) -> None:
    assert RelayEndpoint.from_connection_string(TEXT).suffix_of(target) == expected
