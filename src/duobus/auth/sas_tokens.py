"""Shared access signatures: parse, verify (Azure: shared access signatures).

The signature covers the text of ``sr`` exactly as it stands in the token, still percent-encoded, because
clients differ in the case of their escapes (rule 0.3). No text of a token ever goes into an error or a log.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

from duobus.errors import Unauthorized
from duobus.model.access_rules import signature_of as _sign

#: Longest token that is looked at, in characters; the longest audience is a small part of it.
TOKEN_LENGTH_MAX = 16_384

#: Over HTTP every request brings its token. So many that came last are kept, taken apart, and as many signatures as
#: they should have; longer ones are not kept, so that nobody can fill the memory with them. Nothing is kept of what a
#: token is allowed: keys, rules and times are looked at anew each time.
KEPT_TOKENS: Final = 1024
KEPT_LENGTH_MAX: Final = 1024

#: Most digits of ``se``; 12 reach the year 33658 and stay far inside 64 bits when counted in ms.
_EXPIRY_DIGITS_MAX = 12

#: What HTTP tells beside the text (Azure: Service Bus REST API): MalformedToken.
MALFORMED = 40105

_SCHEME = "sharedaccesssignature"
_FIELDS = ("sr", "sig", "se", "skn")


class SasToken:
    """One parsed token; nothing about it is verified yet.

    Attributes:
        resource: Text of ``sr`` as received, which is what was signed.
        expiry: Text of ``se`` as received, signed too.
        signature: ``sig``, percent-decoded.
        rule_name: ``skn``, percent-decoded.
        expires_ms: ``se`` in ms since the epoch.
    """

    __slots__ = ("_signature", "expires_ms", "expiry", "resource", "rule_name", "signature")

    def __init__(self, resource: str, expiry: str, signature: str, rule_name: str) -> None:
        self.resource = resource
        self.expiry = expiry
        self.signature = signature
        self._signature = signature.encode("utf-8", "surrogatepass")
        self.rule_name = rule_name
        self.expires_ms = _expires_ms(expiry)

    def is_signed_by(self, key: str) -> bool:
        """Return whether the signature was made with this key text; takes the same time whichever byte differs."""
        signing = _kept_sign if len(self.resource) <= KEPT_LENGTH_MAX else _sign
        return hmac.compare_digest(signing(key, self.resource, self.expiry), self._signature)


def parse_sas(text: str) -> SasToken:
    """Return the parts of ``[Bearer ]SharedAccessSignature sr=…&sig=…&se=…&skn=…``, fields in any order.

    Raises:
        Unauthorized: It is not such a token; the text says what is missing or doubled, never a value.
    """
    return _kept_sas(text) if len(text) <= KEPT_LENGTH_MAX else _parse_sas(text)


def _parse_sas(text: str) -> SasToken:
    if len(text) > TOKEN_LENGTH_MAX:
        raise Unauthorized(f"The token is longer than {TOKEN_LENGTH_MAX} characters.", MALFORMED)
    scheme, _, rest = text.strip().partition(" ")
    if scheme.lower() == "bearer":
        scheme, _, rest = rest.lstrip().partition(" ")
    if scheme.lower() != _SCHEME:
        raise Unauthorized(
            "The token is no SharedAccessSignature. Put a token made from a rule's name and key.", MALFORMED
        )
    fields: dict[str, str] = {}
    for part in rest.strip().split("&"):
        name, separator, value = part.partition("=")
        if not separator or name in fields:
            raise Unauthorized("The token holds a field twice or without a value.", MALFORMED)
        fields[name] = value
    missing = [name for name in _FIELDS if not fields.get(name)]
    if missing:
        raise Unauthorized(f"The token lacks {' and '.join(missing)}.", MALFORMED)
    try:
        # A sloppy client decodes "+" to a blank; base64 knows no blank, so it was a plus.
        signature = unquote(fields["sig"], errors="strict").replace(" ", "+")
        rule_name = unquote(fields["skn"], errors="strict")
    except UnicodeDecodeError:
        raise Unauthorized("The token's sig or skn is not UTF-8.", MALFORMED) from None
    return SasToken(fields["sr"], fields["se"], signature, rule_name)


_kept_sas: Final = lru_cache(KEPT_TOKENS)(_parse_sas)
# Two keys each.
_kept_sign: Final = lru_cache(2 * KEPT_TOKENS)(_sign)


def _expires_ms(expiry: str) -> int:
    whole, _, fraction = expiry.partition(".")
    if not (whole.isascii() and whole.isdigit() and len(whole) <= _EXPIRY_DIGITS_MAX):
        raise Unauthorized("The token's se is no number of seconds since 1970.", MALFORMED)
    if fraction and not (fraction.isascii() and fraction.isdigit()):
        raise Unauthorized("The token's se is no number of seconds since 1970.", MALFORMED)
    return int(whole) * 1000
