"""Rights: what each grants, over AMQP and HTTP, and what no signature and no path obtains."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from urllib.parse import quote, unquote

import pytest

import duobus.auth.authorizer as authorizer_module
import duobus.auth.sas_tokens as sas_module
from duobus.auth import Authorizer, Grant, Grants, NamespaceRules, sign_token
from duobus.auth.authorizer import GRANTS_MAX, HTTP_GRACE_MS, parse_audience
from duobus.auth.sas_tokens import KEPT_LENGTH_MAX
from duobus.errors import Unauthorized
from duobus.model.address import parse_address
from duobus.model.descriptions import AccessRule, Right

_NOW_MS = 1_700_000_000_000
_LATER_S = 1_700_000_600


def _rule(name: str, rights: int, key: str = "") -> AccessRule:
    return AccessRule(name=name, primary_key=key or f"{name}-one", secondary_key=f"{name}-two", rights=rights)


_RULES = [_rule("root", 7), _rule("sender", Right.SEND), _rule("listener", Right.LISTEN)]
_FIRST = NamespaceRules("contoso", _RULES, ["bus.example.net"])
_SECOND = NamespaceRules("fabrikam", _RULES)
_AUTHORIZER = Authorizer([_FIRST, _SECOND])


def _grant(uri: str, rule: str = "root", key: str = "", expires_s: int = _LATER_S) -> Grant:
    text = sign_token(uri, rule, key or f"{rule}-one", expires_s)
    return _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS)


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sb://contoso.servicebus.windows.net/Orders", ("orders",)),
        ("sb://contoso/orders/", ("orders",)),
        ("amqps://localhost:5672/q1", ("q1",)),
        ("https://localhost:5300", ()),
        ("http://localhost:5300:80/q1", ("q1",)),
        ("https://localhost:5300/q1?api-version=2021-05&%24top=1", ("q1",)),
        ("http://host:443/$hc/relay", ("relay",)),
        ("http://host/$hc", ("$hc",)),
        ("sb://h/q/messages", ("q",)),
        ("sb://h/q/messages/head", ("q",)),
        ("sb://h/q/messages/1/c0ffee", ("q",)),
        ("sb://h/q/messages/$deadletterqueue", ("q", "messages", "$deadletterqueue")),
        ("sb://h/q/$management", ("q",)),
        ("sb://h/q/$deadletterqueue/messages/head", ("q", "$deadletterqueue")),
        ("sb://h/messages", ("messages",)),
        ("sb://h/t/subscriptions/messages", ("t", "subscriptions", "messages")),
        ("contoso", ()),
        ("host:5671", ()),
        ("sb://[::1]:5672/q", ("q",)),
    ],
)
def test_audiences_of_real_clients_are_understood(uri: str, path: tuple[str, ...]) -> None:
    assert _grant(uri).path == path


def test_a_wrong_key_and_an_unknown_rule_read_the_same() -> None:
    texts = set()
    for rule, key in (("root", "wrong"), ("nobody", "wrong"), ("nobody", "\0")):
        with pytest.raises(Unauthorized) as caught:
            _grant("sb://contoso/q", rule, key)
        texts.add(str(caught.value))
    assert len(texts) == 1


def test_both_keys_of_a_rule_are_good() -> None:
    assert _grant("sb://contoso/q", "sender", "sender-one").rights == Right.SEND
    assert _grant("sb://contoso/q", "sender", "sender-two").rights == Right.SEND


def test_a_token_ends_at_its_expiry_and_over_http_five_minutes_later() -> None:
    text = sign_token("sb://contoso/q", "root", "root-one", _NOW_MS // 1000)
    assert _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS).expires_ms == _NOW_MS
    with pytest.raises(Unauthorized, match="expired"):
        _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS + 1)
    _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS + HTTP_GRACE_MS, HTTP_GRACE_MS)
    with pytest.raises(Unauthorized, match="expired"):
        _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS + HTTP_GRACE_MS + 1, HTTP_GRACE_MS)


def test_a_token_for_another_namespace_is_refused_even_with_the_same_key() -> None:
    text = sign_token("sb://fabrikam.example/q", "root", "root-one", _LATER_S)
    with pytest.raises(Unauthorized, match="another namespace"):
        _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS)
    assert _AUTHORIZER.authorize_token(text, _SECOND, _NOW_MS).path == ("q",)


def test_a_bare_entity_name_never_becomes_a_grant_on_the_namespace() -> None:
    for uri in ("orders", "orders/eu", "queue.1", "/orders", ":5671/orders"):
        with pytest.raises(Unauthorized):
            _grant(uri)


def test_hosts_find_their_namespace_and_unknown_ones_the_default() -> None:
    for host in ("contoso", "CONTOSO.localhost:5671", "bus.example.net", "localhost", "10.0.0.1:5672", "", None):
        assert _AUTHORIZER.namespace_of(host) is _FIRST
    for host in ("fabrikam", "fabrikam.servicebus.windows.net", "Fabrikam:80:80"):
        assert _AUTHORIZER.namespace_of(host) is _SECOND


def test_a_login_gives_the_rights_of_its_rule_everywhere() -> None:
    grants = Grants()
    assert grants.is_empty
    grants.set_login(_AUTHORIZER.authorize_plain("sender", "sender-two", _FIRST))
    assert grants.allows(("any", "queue"), Right.SEND, _NOW_MS * 2)
    assert not grants.allows(("any", "queue"), Right.LISTEN, _NOW_MS)
    assert grants.next_expiry() is None
    assert not grants.is_empty
    for name, key in (("sender", "root-one"), ("nobody", "\0"), ("sender", "")):
        with pytest.raises(Unauthorized):
            _AUTHORIZER.authorize_plain(name, key, _FIRST)


def test_manage_includes_sending_and_listening() -> None:
    grants = Grants()
    grants.add("sb://contoso/q", Grant((), Right.MANAGE, None))
    for right in Right:
        assert grants.allows(("q",), right, _NOW_MS)


def test_a_grant_covers_parts_of_its_entity_and_no_neighbour() -> None:
    grants = Grants()
    grants.add("sb://contoso/Orders", _grant("sb://contoso", "listener"))
    for address in ("orders", "ORDERS/$DeadLetterQueue", "orders/$management", "orders/Subscriptions/x"):
        assert grants.allows(parse_address(address).segments(), Right.LISTEN, _NOW_MS)
        assert not grants.allows(parse_address(address).segments(), Right.SEND, _NOW_MS)
    for address in ("orders2", "order", "other", "x/orders"):
        assert not grants.allows(parse_address(address).segments(), Right.LISTEN, _NOW_MS)


def test_a_token_cannot_be_put_for_an_audience_it_does_not_cover() -> None:
    grants = Grants()
    for audience in ("sb://contoso/b", "sb://contoso/ab", "sb://contoso/b/a"):
        with pytest.raises(Unauthorized, match="audience"):
            grants.add(audience, _grant("sb://contoso/a"))
    # A wider audience is answered with what the token really covers.
    assert grants.add("sb://contoso", _grant("sb://contoso/a")).path == ("a",)
    assert grants.allows(("a",), Right.SEND, _NOW_MS)
    assert not grants.allows(("b",), Right.SEND, _NOW_MS)


def test_renewal_replaces_and_expiry_takes_the_right_away() -> None:
    grants = Grants()
    grants.add("sb://contoso/q", _grant("sb://contoso/q", expires_s=_LATER_S))
    grants.add("sb://contoso/p", _grant("sb://contoso/p", expires_s=_LATER_S + 5))
    assert grants.next_expiry() == _LATER_S * 1000
    grants.add("sb://CONTOSO/q/", _grant("sb://contoso/q", "sender", expires_s=_LATER_S + 60))
    assert grants.next_expiry() == (_LATER_S + 5) * 1000
    assert not grants.allows(("q",), Right.LISTEN, _NOW_MS)
    assert not grants.drop_expired((_LATER_S + 5) * 1000)
    assert grants.allows(("p",), Right.SEND, (_LATER_S + 5) * 1000)
    assert not grants.allows(("p",), Right.SEND, (_LATER_S + 5) * 1000 + 1)
    assert grants.drop_expired((_LATER_S + 5) * 1000 + 1)
    assert grants.next_expiry() == (_LATER_S + 60) * 1000


def test_the_number_of_grants_of_a_connection_is_limited() -> None:
    grants = Grants()
    grant = Grant((), 7, None)
    for number in range(GRANTS_MAX):
        grants.add(f"sb://contoso/q{number}", grant)
    grants.add("sb://contoso/q0", grant)
    with pytest.raises(Unauthorized, match="connection"):
        grants.add("sb://contoso/one-more", grant)


def test_errors_quote_nothing_of_the_token() -> None:
    canary = "CANARY-SECRET"
    for text in (
        f"SharedAccessSignature sr={canary}&sig={canary}&se=1&skn={canary}",
        f"SharedAccessSignature sr={canary}",
        f"{canary} x",
        sign_token(f"sb://contoso/../{canary}", "root", "root-one", _LATER_S),
        sign_token(f"sb://fabrikam/{canary}", "root", "root-one", _LATER_S),
    ):
        with pytest.raises(Unauthorized) as caught:
            _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS)
        assert canary not in str(caught.value)


# --- differential test: a second authorizer, written from the documents' text alone -----------------------------------


def _reference_path(uri: str) -> list[str] | None:
    text = re.sub(r"^[a-z]+://", "", unquote(uri).lower())
    text = re.split(r"[?#]", text)[0].rstrip("/")
    parts = [part for part in text.split("/")[1:] if part]
    if ".." in parts or "." in parts:
        return None
    match = re.fullmatch(r"(.+?)/(messages|messages/head|messages/[^/$]+/[^/$]+|\$management)", "/".join(parts))
    return match[1].split("/") if match else parts


def _reference_allows(
    uri: str, audience: str, rights: int, expires_ms: int, resource: str, right: int, now_ms: int
) -> bool:
    scope, wanted = _reference_path(uri), _reference_path(audience)
    if scope is None or wanted is None:
        return False
    if wanted[: len(scope)] == scope:
        scope = wanted
    elif scope[: len(wanted)] != wanted:
        return False
    parts = [part for part in unquote(resource).lower().split("/") if part]
    if parts[-1] == "$management":
        parts.pop()
    if parts[: len(scope)] != scope or now_ms > expires_ms:
        return False
    return bool(rights & 4) or bool(rights & right)


def test_twenty_thousand_random_cases_agree_with_an_independent_authorizer() -> None:
    rng = random.Random(7)
    names = ["a", "A", "ab", "a/b", "%61", "a/B"]
    tails = ["", "/", "/$management", "/$DeadLetterQueue", "/subscriptions/s", "/Subscriptions/S/$deadletterqueue"]
    allowed = 0
    for _ in range(20_000):
        uri, audience = (
            f"{rng.choice(['sb', 'amqps', 'https'])}://contoso{rng.choice(['', ':5672', '.example'])}/"
            + rng.choice(["", *names, "a/../b", "a//b", "a/messages/head", "b/messages"])
            + rng.choice(tails)
            for _ in range(2)
        )
        # Half of the time something fits, or nearly nothing would be allowed.
        if rng.random() < 0.5:
            audience = uri
        if rng.random() < 0.3:
            uri = "sb://contoso"
        name, rights = rng.choice([("root", 7), ("sender", 2), ("listener", 1)])
        resource = rng.choice(names) + rng.choice(tails)
        right = rng.choice([1, 2, 4])
        now_ms = _NOW_MS + rng.choice([0, 1000, 1001])
        grants = Grants()
        try:
            text = sign_token(uri, name, f"{name}-one", _NOW_MS // 1000 + 1)
            grants.add(audience, _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS))
        except Unauthorized:
            found = False
        else:
            found = grants.allows(parse_address(resource).segments(), right, now_ms)
        # A token holds its audience percent-encoded, a put-token's name is plain.
        expected = _reference_allows(quote(uri, safe=""), audience, rights, _NOW_MS + 1000, resource, right, now_ms)
        assert found == expected, (uri, audience, name, resource, right, now_ms - _NOW_MS)
        allowed += found
    # Both outcomes have to be common, or the test says little.
    assert 1000 < allowed < 19_000


def test_audiences_that_are_not_text_are_unauthorized() -> None:
    with pytest.raises(Unauthorized):
        parse_audience("sb://h/%ff")


# --- whose a right is, and when links have to be looked at again ------------------------------------------------------


def test_who_may_do_something_is_the_most_special_grant_on_the_way_there() -> None:
    grants = Grants()
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS) == ""
    grants.set_login(Grant((), Right.SEND, None, "login"))
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS) == "login"
    grants.add("sb://contoso", Grant((), Right.SEND, None, "everywhere"))
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS) == "everywhere"
    grants.add("sb://contoso/a", Grant((), Right.SEND, _NOW_MS, "on a"))
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS) == "on a"
    grants.add("sb://contoso/a/b", Grant((), Right.LISTEN, None, "listens on b"))
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS) == "on a"
    assert grants.who(("a", "b"), Right.LISTEN, _NOW_MS) == "listens on b"
    # What has ended gives nothing, and a neighbour's is nobody's business.
    assert grants.who(("a", "b"), Right.SEND, _NOW_MS + 1) == "everywhere"
    assert grants.who(("c",), Right.SEND, _NOW_MS) == "everywhere"


def test_a_share_of_a_queue_is_the_queues() -> None:
    grant = Grant(("q",), Right.LISTEN, _NOW_MS, "of q")
    assert grant.covers(("q", "~share", "2"))
    # The name of a share stands in the address; it is no entity that a grant could be for.
    assert Grant(("q", "$deadletterqueue"), Right.LISTEN, None).covers(("q", "~share", "2", "$deadletterqueue"))
    assert not Grant(("q", "$deadletterqueue"), Right.LISTEN, None).covers(("q", "~share", "2"))
    assert not Grant(("p",), Right.LISTEN, None).covers(("q", "~share", "2"))
    assert not Grant(("p",), Right.LISTEN, None).covers(("q",))
    grants = Grants()
    grants.add("sb://contoso/q/$deadletterqueue", Grant(("q", "$deadletterqueue"), Right.LISTEN, _NOW_MS, "of q"))
    dead_letters = ("q", "~share", "2", "$deadletterqueue")
    assert grants.allows(dead_letters, Right.LISTEN, _NOW_MS)
    assert not grants.allows(dead_letters, Right.LISTEN, _NOW_MS + 1)
    assert not grants.allows(dead_letters, Right.SEND, _NOW_MS)
    assert grants.who(dead_letters, Right.LISTEN, _NOW_MS) == "of q"


def test_each_grant_that_comes_or_ends_is_a_change() -> None:
    grants = Grants()
    seen = [grants.changes]
    for number in range(3):
        grants.add(f"sb://contoso/q{number}", Grant((), 7, _NOW_MS))
        seen.append(grants.changes)
    grants.set_login(Grant((), 7, None))
    seen.append(grants.changes)
    grants.drop_expired(_NOW_MS + 1)
    seen.append(grants.changes)
    assert seen == sorted(set(seen))
    assert not grants.drop_expired(_NOW_MS + 1)
    assert grants.changes == seen[-1]


def test_a_host_is_a_name_without_its_port_an_address_in_brackets_or_one_without() -> None:
    inner = NamespaceRules("inner", _RULES, ["BUS.Example.ORG", "::1", "fe80::2", "10.0.0.7"])
    found = Authorizer([_FIRST, inner])
    for host in ("bus.example.org:5671", "[::1]", "[::1]:5672", "::1", "fe80::2", "10.0.0.7:5671:80", "inner.local"):
        assert found.namespace_of(host) is inner, host
    for host in (":5671", "[inner]", "[::2]:5672", "bus.example.org:port", "fe80::3"):
        assert found.namespace_of(host) is _FIRST, host
    assert found.knows("inner.local.example", inner)
    assert not found.knows("inner.local.example", _FIRST)
    assert not found.knows("10.0.0.1", _FIRST)


def test_an_authorizer_needs_a_namespace() -> None:
    with pytest.raises(ValueError, match="at least one namespace"):
        Authorizer([])


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("sb://h/subscriptions/messages", ("subscriptions",)),
        ("sb://h/t/subscriptions/s/messages", ("t", "subscriptions", "s")),
        ("sb://h/$cbs", ("$cbs",)),
        ("sb://h/q/$cbs", ("q",)),
        ("sb://h/q#part?x", ("q",)),
    ],
)
def test_audiences_that_look_like_operations_are_understood(uri: str, path: tuple[str, ...]) -> None:
    assert parse_audience(uri).path == path


# --- access rules of entities -----------------------------------------------------------------------------------------


def _rules_of_orders(segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
    if tuple(segments[:1]) == ("orders",):
        yield ("orders",), _rule("own", Right.SEND)
        yield ("orders",), _rule("sender", Right.LISTEN, "another key")


_OWNING = NamespaceRules("contoso", _RULES, entity_rules=_rules_of_orders)
_OWNING_AUTHORIZER = Authorizer([_OWNING])


def _owned(uri: str, rule: str, key: str, resource: tuple[str, ...] | None = None, grace_ms: int = 0) -> Grant:
    text = sign_token(uri, rule, key, _LATER_S)
    return _OWNING_AUTHORIZER.authorize_token(text, _OWNING, _NOW_MS, grace_ms, resource)


def test_a_rule_of_an_entity_gives_rights_below_it_only_whatever_its_token_was_made_for() -> None:
    grant = _owned("sb://contoso/orders/subscriptions/s", "own", "own-one")
    assert (grant.path, grant.rights, grant.who) == (("orders", "subscriptions", "s"), Right.SEND, "own")
    wide = _owned("sb://contoso", "own", "own-one", ("orders", "x"), grace_ms=5)
    assert (wide.path, wide.who, wide.expires_ms) == (("orders",), "own", _LATER_S * 1000 + 5)
    with pytest.raises(Unauthorized, match="signature is wrong"):
        _owned("sb://contoso", "own", "own-one")
    with pytest.raises(Unauthorized, match="signature is wrong"):
        _owned("sb://contoso/orders", "own", "own-one", ("payroll",))
    with pytest.raises(Unauthorized, match="belongs to another entity"):
        _owned("sb://contoso/payroll", "own", "own-one", ("orders",))


def test_a_rule_of_an_entity_does_not_hide_the_namespaces_rule_of_the_same_name() -> None:
    assert _owned("sb://contoso/orders", "sender", "another key").rights == Right.LISTEN
    assert _owned("sb://contoso/orders", "sender", "sender-one").rights == Right.SEND
    assert _owned("sb://contoso/orders", "root", "root-one").rights == 7


# --- what is kept of audiences ----------------------------------------------------------------------------------------


def test_long_audiences_and_tokens_are_understood_and_not_kept() -> None:
    long = "x" * (KEPT_LENGTH_MAX + 1)
    keeping = (authorizer_module._kept_audience, sas_module._kept_sas, sas_module._kept_sign)
    before = [kept.cache_info().currsize for kept in keeping]
    misses = [kept.cache_info().misses for kept in keeping]
    assert _grant(f"sb://contoso/{long}").path == (long,)
    assert [kept.cache_info().currsize for kept in keeping] == before
    assert [kept.cache_info().misses for kept in keeping] == misses
    text = sign_token("sb://contoso/kept", "root", "root-one", _LATER_S)
    for _ in range(2):
        hits = [kept.cache_info().hits for kept in keeping]
        _AUTHORIZER.authorize_token(text, _FIRST, _NOW_MS)
    assert all(kept.cache_info().hits > hit for kept, hit in zip(keeping, hits, strict=True))
