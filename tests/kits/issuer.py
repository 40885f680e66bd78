"""An issuer of bearer tokens: keys, their document, and tokens with whatever is asked for."""

from __future__ import annotations

import base64
import json
import time
from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

NAME = "https://issuer.example/tenant/v2.0"
AUDIENCE = "https://servicebus.azure.net"
THREE_HOURS_S = 10_800


@cache
def rsa_key(number: int = 0, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A key; one that was made is used again, because making them takes long."""
    return rsa.generate_private_key(65_537, bits)


@cache
def ec_key(number: int = 0) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: Any, kid: str, **more: str) -> dict[str, Any]:
    """A member of a key document."""
    algorithm = RSAAlgorithm if isinstance(key, rsa.RSAPrivateKey) else ECAlgorithm
    return algorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": kid} | more


def document(*members: dict[str, Any]) -> bytes:
    """A key document; without members, that of the two keys that tokens are signed with."""
    return json.dumps({"keys": list(members) or [public(rsa_key(), "rsa"), public(ec_key(), "ec")]}).encode()


def claims(now_s: float | None = None, **changes: Any) -> dict[str, Any]:
    """Claims of a good token; None leaves one out."""
    start = int(time.time() if now_s is None else now_s)
    found = {"iss": NAME, "aud": AUDIENCE, "iat": start, "nbf": start, "exp": start + THREE_HOURS_S, "roles": ["Owner"]}
    return {name: value for name, value in (found | changes).items() if value is not None}


def signed(body: dict[str, Any] | bytes, *, key: Any = None, kid: str | None = "rsa", alg: str = "RS256") -> str:
    """A token with these claims."""
    payload = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if kid is None else {"kid": kid}
    return PyJWS().encode(payload, rsa_key() if key is None else key, alg, headers)


def token(**changes: Any) -> str:
    """A good token, with these claims changed."""
    return signed(claims(**changes))


def encoded(data: bytes | dict[str, Any]) -> str:
    """A part of a token."""
    return (
        base64.urlsafe_b64encode(data if isinstance(data, bytes) else json.dumps(data).encode()).rstrip(b"=").decode()
    )
