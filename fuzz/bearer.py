"""Fuzz target of bearer tokens: whatever stands in a JWT, it is refused in clear words or says what was signed."""

from __future__ import annotations

import json
from functools import cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm
from jwt.utils import base64url_encode

from duobus.auth.bearer_tokens import AUDIENCE, BearerTokens, Issuer, read_keys
from duobus.errors import ConfigurationError, ServiceBusError

NAME: Final = "https://issuer.example/v2.0"
NOW_MS: Final = 1_700_000_000_000
CLAIMS: Final = {"iss": NAME, "aud": AUDIENCE, "exp": NOW_MS // 1000 + 60, "roles": ["Sender"]}
#: The private number of a key that is the same in every run; it opens nothing.
_SECRET: Final = 0xD0B5


@cache
def _made() -> tuple[ec.EllipticCurvePrivateKey, BearerTokens]:
    key = ec.derive_private_key(_SECRET, ec.SECP256R1())
    member = ECAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "k", "use": "sig", "alg": "ES256"}
    return key, BearerTokens([Issuer(NAME, read_keys(json.dumps({"keys": [member]}).encode()))])


def signed(header: bytes, claims: bytes) -> str:
    """A token whose two parts are these bytes, signed well."""
    head = base64url_encode(header) + b"." + base64url_encode(claims)
    key, _ = _made()
    signature = PyJWS().get_algorithm_by_name("ES256").sign(head, key)
    return (head + b"." + base64url_encode(signature)).decode()


def bearer(data: bytes) -> None:
    """The first byte chooses: a whole token, its header, its claims (each well signed), or a document of keys."""
    kind, rest = data[:1], data[1:]
    if kind < b"\x40":
        text = rest.decode("utf-8", "replace")
    elif kind < b"\x80":
        text = signed(rest, json.dumps(CLAIMS).encode())
    elif kind < b"\xc0":
        text = signed(b'{"alg":"ES256","kid":"k"}', rest)
    else:
        try:
            read_keys(rest)
        except ConfigurationError:
            pass
        return
    _, tokens = _made()
    try:
        rights, expires_ms, _ = tokens.verify(text, "ns", lambda host: host == "ns.example", NOW_MS)
    except ServiceBusError as error:
        if len(text) > 12 and text in str(error):
            raise AssertionError("an error quotes the token") from None
        return
    if not 0 < rights <= 7 or expires_ms < NOW_MS:
        raise AssertionError("a token that is over, or has no role, was taken")
    if kind < b"\x40" and text.count(".") != 2:
        raise AssertionError("what is no token was taken")


def seeds() -> list[bytes]:
    """Inputs to begin with."""
    header, claims = b'{"alg":"ES256","kid":"k"}', json.dumps(CLAIMS).encode()
    document = json.dumps(
        {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}, {"kty": "EC", "crv": "P-256", "x": "", "y": ""}]}
    )
    return [
        b"\x00" + signed(header, claims).encode(),
        b"\x00Bearer " + signed(b'{"alg":"none"}', claims).encode(),
        b"\x40" + header,
        b"\x40" + b'{"alg":"ES256","kid":"k","crit":["b64"],"b64":false}',
        b"\x80" + claims,
        b"\x80" + json.dumps(CLAIMS | {"aud": ["https://ns.example"], "nbf": 0, "roles": "Owner"}).encode(),
        b"\xc0" + document.encode(),
    ]
