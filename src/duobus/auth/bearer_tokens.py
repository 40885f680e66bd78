"""Bearer tokens (JWT) of configured issuers: whose they are, whether they are good, and what their roles allow.

Keys come from the configuration alone: what a token says of where its key could be found is never followed. A
key has one algorithm, so that a token cannot choose how it is verified. Nothing here asks an issuer: keys are kept
until others replace them, so that an issuer that is away harms no token in hand (I54). No text of a token goes into an
error or a log.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from jwt import PyJWK, PyJWS
from jwt.exceptions import PyJWTError
from jwt.utils import base64url_decode

from duobus.auth.authorizer import EXPIRED, INVALID_AUDIENCE, INVALID_SIGNATURE, token_expired
from duobus.auth.sas_tokens import MALFORMED, TOKEN_LENGTH_MAX
from duobus.errors import ConfigurationError, Unauthorized
from duobus.model.descriptions import ALL_RIGHTS, Right

#: How far ahead an issuer's clock may be: a token is taken so long before its ``nbf`` and ``iat``.
SKEW_MS: Final = 300_000
#: Most keys of one issuer that are looked at; issuers have two to six.
KEYS_MAX: Final = 64
#: Longest key document in bytes; 64 keys with their certificates are about half of it.
KEYS_BYTES_MAX: Final = 524_288
#: Bits of an RSA key: below it is too weak, above it checking takes too long.
RSA_BITS_MIN: Final = 2_048
RSA_BITS_MAX: Final = 8_192
#: Audience of the cloud's tokens, without the slashes that clients put behind it (Azure: AMQP protocol guide).
AUDIENCE: Final = "https://servicebus.azure.net"
#: What HTTP tells when nobody that is known has made a token (Azure: Service Bus REST API).
ISSUER_NOT_FOUND: Final = 40109

#: Latest ``exp`` that is understood, in seconds; far inside 64 bits when counted in ms.
_SECONDS_END: Final = 10**12
_LONG_ROLE: Final = "azure service bus data "
#: Lower-case role, without the cloud's long beginning, to its rights.
ROLES: Final = {"owner": int(ALL_RIGHTS), "sender": int(Right.SEND), "receiver": int(Right.LISTEN)}

_TOKEN: Final = re.compile(r"\s*(?:[Bb]earer +)?([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+)\s*")


class PublicKey(NamedTuple):
    """A key that signatures are verified with; ``algorithm`` is the only one that it is used for."""

    kid: str
    algorithm: str
    key: Any


class _Jwk(msgspec.Struct, frozen=True):
    """The public members of a key; private ones, certificates and addresses are not even read."""

    kty: str
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""


class _KeySet(msgspec.Struct, frozen=True):
    keys: list[_Jwk]


class _Header(msgspec.Struct, frozen=True):
    alg: str
    kid: str = ""
    crit: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _Claims(msgspec.Struct, frozen=True):
    iss: str
    aud: str | list[str]
    exp: int | float
    nbf: int | float = 0
    iat: int | float = 0
    roles: str | list[str] = ()  # type: ignore[assignment]


class IssuerKey:
    """A key of an issuer, with which a token was signed that gives ``rights``; see authorizer.Signer."""

    __slots__ = ("_issuer", "_key", "_rights")

    #: It is no entity's.
    path: tuple[str, ...] = ()

    def __init__(self, issuer: Issuer, key: PublicKey, rights: int) -> None:
        self._issuer = issuer
        self._key = key
        self._rights = rights

    def rights_now(self) -> int | None:
        """See Signer: the issuer has the key."""
        return self._rights if self._key in self._issuer.keys else None


class BearerRights(NamedTuple):
    """What a good token allows, until when, and what it was signed with."""

    rights: int
    expires_ms: int
    signer: IssuerKey


class Issuer:
    """Somebody whose tokens are taken.

    Attributes:
        keys: What its tokens may be signed with; replaced as a whole.
    """

    __slots__ = ("_audiences", "_missed", "_name", "_namespaces", "keys")

    def __init__(
        self,
        name: str | re.Pattern[str],
        keys: Iterable[PublicKey] = (),
        *,
        audiences: Iterable[str] = (),
        namespaces: Iterable[str] = (),
        missed: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what is configured.

        Args:
            name: What ``iss`` has to be, or match in whole.
            keys: Its keys, as far as they are known yet.
            audiences: What ``aud`` may be beside the cloud's and the namespace's own.
            namespaces: Lower-case names of those that its tokens are good for; none is all.
            missed: Called when a token names a key that is not among ``keys``: there may be newer ones.
        """
        self._name = name
        self._audiences = frozenset(audience.rstrip("/") for audience in audiences)
        self._namespaces = frozenset(namespaces)
        self._missed = missed
        self.keys = tuple(keys)

    def has_made(self, iss: str) -> bool:
        """Whether ``iss`` names it."""
        return iss == self._name if isinstance(self._name, str) else self._name.fullmatch(iss) is not None

    def key(self, kid: str, algorithm: str) -> PublicKey:
        """Return the key that a token was signed with; a token that names none needs an issuer that has one only.

        Raises:
            Unauthorized: There is none such, or it has another algorithm.
        """
        found = [key for key in self.keys if not kid or key.kid == kid]
        if not found:
            self._missed()
        if len(found) != 1 or found[0].algorithm != algorithm:
            raise Unauthorized(
                "The token was signed with a key that its issuer is not known to have. Get a fresh token; if the "
                "issuer has new keys, they are being read.",
                INVALID_SIGNATURE,
            )
        return found[0]

    def is_audience(self, audience: str) -> bool:
        """Whether ``aud`` is one that is taken whatever the namespace."""
        plain = audience.rstrip("/")
        return plain == AUDIENCE or plain in self._audiences

    def may_enter(self, namespace: str) -> bool:
        """Whether its tokens are good for a namespace."""
        return not self._namespaces or namespace in self._namespaces


class BearerTokens:
    """Verifies the tokens of all issuers."""

    __slots__ = ("_issuers", "_jws")

    def __init__(self, issuers: Sequence[Issuer]) -> None:
        self._issuers = tuple(issuers)
        self._jws = PyJWS()

    def verify(
        self, text: str, namespace: str, is_own_host: Callable[[str], bool], now_ms: int, grace_ms: int = 0
    ) -> BearerRights:
        """Return what a token, with or without ``Bearer`` before it, allows in a namespace.

        ``is_own_host``: whether a host name is one of the namespace's own. ``grace_ms``: how long past its end it is
        taken still; the end that is returned has it in it.

        Raises:
            Unauthorized: Malformed, of nobody that is known, wrongly signed, not good yet or no longer, for another
                service or namespace, or without a role that means something here.
        """
        token = bearer_of(text)
        if token is None or len(token) > TOKEN_LENGTH_MAX:
            raise _malformed("is no JSON Web Token")
        head, body, _ = token.split(".")
        header = _decoded(head, _Header)
        claims = _decoded(body, _Claims)
        if header.crit is not msgspec.UNSET:
            raise _malformed("demands extensions that are not known here")
        issuer = next((one for one in self._issuers if one.has_made(claims.iss)), None)
        if issuer is None:
            raise Unauthorized(
                "The token's issuer is not one that this server trusts. Check the tenant, and the server's "
                "--bearer-tokens.",
                ISSUER_NOT_FOUND,
            )
        key = issuer.key(header.kid, header.alg)
        try:
            self._jws.decode(token, key.key, algorithms=[key.algorithm])
        except (PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthorized("The token's signature is wrong. Get a fresh token.", INVALID_SIGNATURE) from None
        expires_ms = _milliseconds(claims.exp) + grace_ms
        if now_ms > expires_ms:
            raise token_expired(expires_ms - grace_ms)
        if max(_milliseconds(claims.nbf), _milliseconds(claims.iat)) > now_ms + SKEW_MS:
            raise Unauthorized("The token is not good yet. Check the clocks of issuer and server.", EXPIRED)
        audiences = [claims.aud] if isinstance(claims.aud, str) else claims.aud
        if not any(issuer.is_audience(one) or _is_of(one, is_own_host) for one in audiences):
            raise Unauthorized(
                f"The token was made for another service. Ask for the scope {AUDIENCE}/.default.", INVALID_AUDIENCE
            )
        if not issuer.may_enter(namespace):
            raise Unauthorized("The token's issuer has no say in this namespace.", INVALID_AUDIENCE)
        rights = _rights(claims.roles)
        return BearerRights(rights, expires_ms, IssuerKey(issuer, key, rights))


def bearer_of(text: str) -> str | None:
    """Return the token in ``[Bearer ]x.y.z``, or None when the text has another form: it may be a signature then."""
    found = _TOKEN.fullmatch(text)
    return found[1] if found else None


def rights_of(role: str) -> int:
    """Return the rights of a role, by its short or the cloud's long name; 0 for one that means nothing here."""
    return ROLES.get(role.lower().removeprefix(_LONG_ROLE), 0)


def read_keys(data: bytes) -> tuple[PublicKey, ...]:
    """Return the keys of a JWKS document that can verify: RSA (RS256) and P-256 (ES256), for signatures.

    Raises:
        ConfigurationError: It is no such document, or has no such key.
    """
    if len(data) > KEYS_BYTES_MAX:
        raise ConfigurationError(f"The key document is longer than {KEYS_BYTES_MAX} bytes.")
    try:
        members = msgspec.json.decode(data, type=_KeySet).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ConfigurationError("The key document is no JSON Web Key Set ({'keys': [...]}).") from None
    if len(members) > KEYS_MAX:
        raise ConfigurationError(f"The key document has {len(members)} keys; at most {KEYS_MAX} are read.")
    found = tuple(key for key in map(_key, members) if key is not None)
    if not found:
        raise ConfigurationError(
            f"The key document has no key that is taken: RSA of {RSA_BITS_MIN} to {RSA_BITS_MAX} bits for RS256, or "
            "P-256 for ES256."
        )
    return found


def _key(member: _Jwk) -> PublicKey | None:
    algorithm = {("RSA", ""): "RS256", ("EC", "P-256"): "ES256"}.get((member.kty, member.crv))
    if algorithm is None or member.use != "sig" or member.alg not in ("", algorithm):
        return None
    if algorithm == "RS256":
        public = {"kty": "RSA", "n": member.n, "e": member.e}
    else:
        public = {"kty": "EC", "crv": "P-256", "x": member.x, "y": member.y}
    try:
        key = PyJWK(public, algorithm).key
    except (PyJWTError, ValueError, TypeError):
        return None
    if algorithm == "RS256" and not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX:
        return None
    return PublicKey(member.kid, algorithm, key)


def _decoded(part: str, kind: type[Any]) -> Any:
    try:
        return msgspec.json.decode(base64url_decode(part), type=kind)
    except (msgspec.MsgspecError, binascii.Error, ValueError, RecursionError):
        raise _malformed("lacks a member that is needed, or holds a wrong one") from None


def _malformed(what: str) -> Unauthorized:
    return Unauthorized(f"The token {what}. Get it from an issuer of JSON Web Tokens.", MALFORMED)


def _milliseconds(seconds: float) -> int:
    # Whole numbers have any length here, and what is no number is not in between either.
    if not 0 <= seconds < _SECONDS_END:
        raise _malformed("has a time that is none")
    return int(seconds * 1000)


def _is_of(audience: str, is_own_host: Callable[[str], bool]) -> bool:
    scheme, separator, rest = audience.lower().partition("://")
    host = rest.rstrip("/")
    return scheme == "https" and bool(separator) and bool(host) and "/" not in host and is_own_host(host)


def _rights(roles: str | Sequence[str]) -> int:
    rights = 0
    for role in [roles] if isinstance(roles, str) else roles:
        rights |= rights_of(role)
    if not rights:
        raise Unauthorized("The token has none of the roles Owner, Sender and Receiver. Assign one to its client.")
    return rights
