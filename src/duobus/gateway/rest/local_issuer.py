"""The server's own issuer: makes bearer tokens for the clients that the operator has named."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from jwt import PyJWS
from jwt.algorithms import ECAlgorithm

from duobus.auth.bearer_tokens import AUDIENCE, Issuer, read_keys
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.model.options import TokenClient, TokenEndpointOptions

#: Stands in for a client that does not exist, so that an unknown name costs the same time as a wrong secret.
_NOBODY: Final = TokenClient(client_id="", client_secret="\0" * 16, roles=("",))
_SCOPE_END: Final = "/.default"
#: Scopes that libraries ask for beside that of the service: of OpenID Connect, without a meaning here.
_OPENID_SCOPES: Final = frozenset({"openid", "offline_access", "profile", "email"})


def new_signing_key() -> bytes:
    """Return a fresh private key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


class Granted(NamedTuple):
    """A token, and the second since 1970 at which it ends."""

    token: str
    expires_s: int


class LocalIssuer:
    """Makes tokens and tells the keys to verify them with.

    Attributes:
        options: Tenant, life of tokens, clients.
        key_set: The JWKS document.
        issuer: How its tokens are verified.
    """

    def __init__(self, options: TokenEndpointOptions, signing_key: bytes, clock: Clock, entropy: Entropy) -> None:
        """``signing_key``: PEM of a P-256 key; ConfigurationError when it is none."""
        try:
            key = load_pem_private_key(signing_key, None)
        except (ValueError, TypeError):
            key = None
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
            raise ConfigurationError("The key of the token endpoint is no P-256 key. Remove it: a new one is made.")
        self.options = options
        self._key = key
        self._clock = clock
        self._entropy = entropy
        self._clients = {client.client_id: client for client in options.clients}
        public = key.public_key()
        spki = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self._kid = base64.urlsafe_b64encode(hashlib.sha256(spki).digest()[:18]).decode()
        member = ECAlgorithm.to_jwk(public, as_dict=True) | {"kid": self._kid, "use": "sig", "alg": "ES256"}
        self.key_set = json.dumps({"keys": [member]}).encode()
        # Its clients know it by whatever name they reach it: that it was this server is proved by the key.
        name = re.compile(rf"https?://[^/\s]{{1,300}}/{re.escape(options.tenant)}/v2\.0")
        self.issuer = Issuer(name, read_keys(self.key_set))

    def client(self, client_id: str, secret: str) -> TokenClient | None:
        """Return who logs in, or None; takes the same time whatever is wrong."""
        found = self._clients.get(client_id, _NOBODY)
        # Digests have one length, so that not even that of the secret shows.
        given = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
        known = hashlib.sha256(found.client_secret.encode("utf-8", "surrogatepass")).digest()
        return found if hmac.compare_digest(given, known) and found is not _NOBODY else None

    def audience(self, scope: str) -> str | None:
        """Return what a token for ``scope`` is to be made for, or None when it is another service's.

        Several scopes are separated by blanks; those of OpenID Connect, which some libraries ask for beside the one
        that counts, give nothing.
        """
        wanted = {one for one in scope.split() if one not in _OPENID_SCOPES}
        if len(wanted) != 1:
            return None
        found = wanted.pop()
        if not found.endswith(_SCOPE_END):
            return None
        audience = found.removesuffix(_SCOPE_END)
        return audience if audience.rstrip("/") == AUDIENCE else None

    def token(self, client: TokenClient, audience: str, name: str) -> Granted:
        """Return a token for a client; ``name``: what this issuer is called by it."""
        now_s = self._clock.now_ms() // 1000
        expires_s = now_s + self.options.lifetime_seconds
        claims: dict[str, Any] = {
            "iss": name,
            "aud": audience,
            "sub": client.client_id,
            "appid": client.client_id,
            "roles": list(client.roles),
            "iat": now_s,
            "nbf": now_s,
            "exp": expires_s,
            "jti": str(self._entropy.uuid()),
        }
        return Granted(PyJWS().encode(json.dumps(claims).encode(), self._key, "ES256", {"kid": self._kid}), expires_s)
