"""Bearer tokens: what is taken, and a table of what is not."""

from __future__ import annotations

import hashlib
import hmac
import json
import random
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from duobus.auth import Authorizer, Grant, Grants, NamespaceRules
from duobus.auth.authorizer import HTTP_GRACE_MS, IDENTITY_LENGTH_MAX
from duobus.auth.bearer_tokens import KEYS_BYTES_MAX, KEYS_MAX, SKEW_MS, BearerTokens, Issuer, read_keys
from duobus.errors import ConfigurationError, Unauthorized
from duobus.model.descriptions import ALL_RIGHTS, AccessRule, Right
from kits.issuer import AUDIENCE, NAME, claims, document, ec_key, encoded, public, rsa_key, signed

NOW_S = 1_700_000_000
NOW_MS = NOW_S * 1000
RULES = [AccessRule(name="root", primary_key="one", secondary_key="two", rights=7)]
FIRST = NamespaceRules("contoso", RULES, ["bus.example.net"])
SECOND = NamespaceRules("fabrikam", RULES)


def authorizer(**options: Any) -> Authorizer:
    issuer = Issuer(NAME, read_keys(document()), **options)
    return Authorizer([FIRST, SECOND], BearerTokens([issuer]))


def taken(text: str, now_ms: int = NOW_MS, *, grace_ms: int = 0, namespace: NamespaceRules = FIRST) -> Grant:
    return authorizer().authorize_token(text, namespace, now_ms, grace_ms)


def made(**changes: Any) -> str:
    return signed(claims(NOW_S, **changes))


@pytest.mark.parametrize(
    ("roles", "rights"),
    [
        (["Owner"], ALL_RIGHTS),
        ("Owner", ALL_RIGHTS),
        (["Azure Service Bus Data Owner"], ALL_RIGHTS),
        (["sender"], Right.SEND),
        (["Azure Service Bus Data Receiver", "else"], Right.LISTEN),
        (["Sender", "Receiver"], Right.SEND | Right.LISTEN),
    ],
)
def test_roles_become_rights_on_the_whole_namespace_until_the_token_ends(roles: Any, rights: int) -> None:
    grant = taken(made(roles=roles))
    assert (grant.path, grant.rights, grant.expires_ms) == ((), rights, NOW_MS + 10_800_000)


@pytest.mark.parametrize("before", ["", "Bearer ", "bearer  "])
def test_a_token_may_stand_behind_bearer(before: str) -> None:
    assert taken(before + made()).rights == ALL_RIGHTS


@pytest.mark.parametrize(
    "audience",
    [AUDIENCE, AUDIENCE + "/", AUDIENCE + "//", ["x", AUDIENCE], "https://bus.example.net", "https://contoso/"],
)
def test_audiences_of_the_cloud_and_of_the_namespace_are_taken(audience: Any) -> None:
    assert taken(made(aud=audience)).rights


def test_keys_of_both_kinds_are_taken_with_their_own_algorithm() -> None:
    assert taken(signed(claims(NOW_S), key=ec_key(), kid="ec", alg="ES256")).rights


def test_a_token_ends_to_the_millisecond_and_over_http_after_the_grace() -> None:
    text = made(exp=NOW_S + 1)
    assert taken(text, NOW_MS + 1000).expires_ms == NOW_MS + 1000
    with pytest.raises(Unauthorized, match="expired") as refusal:
        taken(text, NOW_MS + 1001)
    assert refusal.value.sub_code == 40106
    assert taken(text, NOW_MS + 1000 + HTTP_GRACE_MS, grace_ms=HTTP_GRACE_MS).rights


@pytest.mark.parametrize("claim", ["nbf", "iat"])
def test_the_clock_of_an_issuer_may_be_five_minutes_ahead_and_no_more(claim: str) -> None:
    assert taken(made(**{claim: NOW_S + 300})).rights
    assert SKEW_MS == 300_000
    with pytest.raises(Unauthorized, match="not good yet"):
        taken(made(**{claim: NOW_S + 301}))


def test_signatures_with_a_rule_are_taken_beside_bearer_tokens() -> None:
    from duobus.auth import sign_token

    assert taken(sign_token("sb://contoso.servicebus.windows.net/q", "root", "one", NOW_S + 9)).path == ("q",)


def test_an_issuer_with_namespaces_has_no_say_in_others() -> None:
    limited = authorizer(namespaces=["fabrikam"])
    assert limited.authorize_token(made(), SECOND, NOW_MS).rights
    with pytest.raises(Unauthorized, match="no say"):
        limited.authorize_token(made(), FIRST, NOW_MS)


@pytest.mark.parametrize("name", ["oid", "appid", "azp", "client_id", "sub"])
def test_the_identity_of_a_token_is_the_object_or_whatever_else_names_its_client(name: str) -> None:
    names = ("oid", "appid", "azp", "client_id", "sub")
    later = dict.fromkeys(names[names.index(name) + 1 :], "another")
    for value in ("me", "or me", "or even me"):  # every length that base64 pads in its own way
        assert taken(made(**later, **{name: value})).who == value
    assert taken(made(**{name: "x" * 500})).who == "x" * IDENTITY_LENGTH_MAX
    assert taken(made(**{name: ""})).who == ""


def test_a_token_without_the_times_that_may_be_missing_is_taken() -> None:
    assert taken(made(nbf=None, iat=None)).rights


@pytest.mark.parametrize("name", ["https://mine.example/", "api://bus"])
def test_an_audience_that_is_configured_is_taken_with_and_without_a_slash(name: str) -> None:
    found = authorizer(audiences=[name])
    for audience in (name.rstrip("/"), name.rstrip("/") + "/"):
        assert found.authorize_token(made(aud=audience), FIRST, NOW_MS).rights
    with pytest.raises(Unauthorized, match="another service"):
        found.authorize_token(made(aud=name + "x"), FIRST, NOW_MS)


@pytest.mark.parametrize("name", ["crit", "crit-null"])
def test_a_token_that_demands_extensions_is_told_so(name: str) -> None:
    with pytest.raises(Unauthorized, match="demands extensions"):
        taken(HOSTILE[name])


def test_as_many_keys_and_bytes_are_read_as_the_limits_say() -> None:
    most = document(*[public(rsa_key(), str(number)) for number in range(KEYS_MAX)])
    assert len(read_keys(most)) == KEYS_MAX
    assert len(read_keys(document().ljust(KEYS_BYTES_MAX))) == 2


def hmac_over(public_key: bytes, alg: str = "HS256") -> str:
    """A token "signed" with the public key, as whoever mixes up the kinds of algorithm would verify it."""
    head = encoded({"alg": alg, "kid": "rsa"}) + "." + encoded(claims(NOW_S))
    return head + "." + encoded(hmac.digest(public_key, head.encode(), hashlib.sha256))


def with_header(**header: Any) -> str:
    """A good token whose header is another; the signature covers it."""
    from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
    from cryptography.hazmat.primitives.hashes import SHA256

    head = encoded({"alg": "RS256", "kid": "rsa"} | header) + "." + encoded(claims(NOW_S))
    return head + "." + encoded(rsa_key().sign(head.encode(), PKCS1v15(), SHA256()))


def unsigned(alg: str) -> str:
    return f"{encoded({'alg': alg, 'kid': 'rsa'})}.{encoded(claims(NOW_S))}.{encoded(b'x')}"


PEM = rsa_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
DER = rsa_key().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
GOOD = made()
HEAD, BODY, SIGNATURE = GOOD.split(".")

HOSTILE: dict[str, str] = {
    "none": unsigned("none"),
    "none-in-capitals": unsigned("NONE"),
    "none-without-signature": f"{encoded({'alg': 'none'})}.{BODY}.",
    "no-signature": f"{HEAD}.{BODY}.",
    "public-key-pem-as-secret": hmac_over(PEM),
    "public-key-der-as-secret": hmac_over(DER),
    "document-as-secret": hmac_over(document()),
    "empty-secret": hmac_over(b""),
    "other-algorithm-of-the-key": signed(claims(NOW_S), alg="RS512"),
    "pss-of-the-key": signed(claims(NOW_S), alg="PS256"),
    "algorithm-of-the-other-key": signed(claims(NOW_S), kid="ec"),
    "foreign-key": signed(claims(NOW_S), key=rsa_key(1)),
    "foreign-curve-key": signed(claims(NOW_S), key=ec_key(1), kid="ec", alg="ES256"),
    "unknown-kid": signed(claims(NOW_S), kid="nobody"),
    "kid-as-path": signed(claims(NOW_S), kid="../../../dev/null"),
    "kid-as-query": signed(claims(NOW_S), kid="rsa' OR '1'='1"),
    "no-kid-with-two-keys": signed(claims(NOW_S), kid=None),
    "kid-as-number": with_header(kid=7),
    "crit": with_header(crit=["exp"]),
    "crit-null": with_header(crit=None),
    "own-key-in-header": signed(claims(NOW_S), key=rsa_key(1), kid=None),
    "unencoded-payload": with_header(b64=False),
    "changed-body": f"{HEAD}.{encoded(claims(NOW_S, roles=['Owner'], sub='me'))}.{SIGNATURE}",
    "changed-signature": f"{HEAD}.{BODY}.{SIGNATURE[:-4]}AAAA",
    "zero-ecdsa": f"{encoded({'alg': 'ES256', 'kid': 'ec'})}.{BODY}.{encoded(bytes(64))}",
    "issuer-missing": made(iss=None),
    "issuer-other": made(iss="https://evil.example/"),
    "issuer-longer": made(iss=NAME + "/"),
    "issuer-in-capitals": made(iss=NAME.upper()),
    "issuer-as-list": made(iss=[NAME]),
    "audience-missing": made(aud=None),
    "audience-other": made(aud="https://storage.azure.com"),
    "audience-longer": made(aud=AUDIENCE + ".evil.example"),
    "audience-with-path": made(aud=AUDIENCE + "/q"),
    "audience-empty": made(aud=[]),
    "audience-of-other-namespace": made(aud="https://fabrikam"),
    "audience-of-nobody": made(aud="https://nobody.example"),
    "audience-of-no-host": made(aud="https://"),
    "audience-not-tls": made(aud="http://contoso"),
    "expired": made(exp=NOW_S - 1),
    "expiry-missing": made(exp=None),
    "expiry-as-text": made(exp=str(NOW_S + 60)),
    "expiry-true": made(exp=True),
    "expiry-endless": signed(json.dumps(claims(NOW_S)).replace(f'"exp": {NOW_S + 10800}', '"exp": 1e999').encode()),
    "expiry-huge": made(exp=10**30),
    "expiry-of-400-digits": made(exp=10**400),
    "expiry-negative": made(exp=-1),
    "not-yet": made(nbf=NOW_S + 3600),
    "not-yet-made": made(iat=NOW_S + 3600),
    "no-roles": made(roles=None),
    "empty-roles": made(roles=[]),
    "other-roles": made(roles=["Reader", "Azure Service Bus Data"]),
    "roles-as-numbers": made(roles=[7]),
    "roles-as-map": made(roles={"Owner": True}),
    "body-is-list": signed(b"[]"),
    "body-is-no-json": signed(b"{"),
    "body-is-deep": signed(b'{"iss":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "not-utf-8": signed(b'{"iss":"\xff"}'),
    "four-parts": GOOD + ".x",
    "five-parts": GOOD + ".x.y",
    "two-parts": f"{HEAD}.{BODY}",
    "dots": "..",
    "blanks-inside": f"{HEAD}. {BODY}.{SIGNATURE}",
    "other-alphabet": f"{HEAD}.{BODY}.\uff21\uff22\uff23",
    "padding": f"{HEAD}=.{BODY}.{SIGNATURE}",
    "line-feed-between": f"{HEAD}.{BODY}\n.{SIGNATURE}",
    "too-long": made(junk="x" * 20_000),
}


@pytest.mark.parametrize("name", list(HOSTILE))
def test_a_hostile_token_is_refused_and_nothing_of_it_is_quoted(name: str) -> None:
    text = HOSTILE[name]
    with pytest.raises(Unauthorized) as refusal:
        taken(text)
    for part in text.split("."):
        assert len(part) < 12 or part not in str(refusal.value)


def test_whatever_is_changed_in_a_good_token_it_is_refused_or_says_the_same() -> None:
    chosen = random.Random(15)
    for _ in range(2_000):
        letters = list(GOOD)
        for _ in range(chosen.choice((1, 1, 2, 5))):
            letters[chosen.randrange(len(letters))] = chosen.choice("AZaz09-_.=\0é ")
        text = "".join(letters)
        try:
            grant = taken(text)
        except Unauthorized:
            continue
        # The last letter of a part has bits that mean nothing; surplus ones may differ.
        assert (grant.rights, grant.expires_ms) == (ALL_RIGHTS, NOW_MS + 10_800_000)
        assert text.split(".")[1][:-1] == BODY[:-1]


def test_an_unknown_key_has_the_keys_read_again_and_a_wrong_signature_does_not() -> None:
    missed: list[int] = []
    found = authorizer(missed=lambda: missed.append(1))
    for text, count in ((HOSTILE["foreign-key"], 0), (HOSTILE["unknown-kid"], 1)):
        with pytest.raises(Unauthorized):
            found.authorize_token(text, FIRST, NOW_MS)
        assert len(missed) == count


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"keys": []}',
        b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "rsa"}]}',
        document(public(rsa_key(2, 1024), "small")),
        document(public(rsa_key(), "rsa", use="enc")),
        document(public(rsa_key(), "rsa", alg="RS512")),
        document({"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off-the-curve"}),
        document(*[public(ec_key(), str(number)) for number in range(KEYS_MAX + 1)]),
        b" " * (KEYS_BYTES_MAX + 1),
    ],
    ids=[
        "empty",
        "list",
        "no-keys",
        "symmetric",
        "short-rsa",
        "for-encryption",
        "other-algorithm",
        "off-the-curve",
        "too-many",
        "too-long",
    ],
)
def test_a_document_without_a_usable_key_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        read_keys(data)


def test_keys_of_other_kinds_are_left_out_and_private_parts_not_read() -> None:
    private = json.loads(document())["keys"][1] | {"d": encoded(b"\x01" * 32)}
    keys = read_keys(document(private, {"kty": "OKP", "crv": "Ed25519", "x": "AA"}, public(rsa_key(), "rsa")))
    assert [(key.kid, key.algorithm) for key in keys] == [("ec", "ES256"), ("rsa", "RS256")]
    assert not hasattr(keys[0].key, "private_bytes")


def test_a_token_ends_when_its_issuer_has_other_keys() -> None:
    issuer = Issuer(NAME, read_keys(document()))
    grants = Grants()
    issued = Authorizer([FIRST], BearerTokens([issuer])).authorize_token(made(roles="Sender"), FIRST, NOW_MS)
    grants.add("sb://contoso/q", issued)
    assert not grants.check_again(None)
    assert grants.allows(("q",), Right.SEND, NOW_MS)
    issuer.keys = ()
    assert grants.check_again(None)
    assert not grants.allows(("q",), Right.SEND, NOW_MS)
