"""Random access rules and HTTP requests against an authorizer written from the documents' text alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import re
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

import pytest

from duobus.auth.authorizer import Authorizer, NamespaceRules
from duobus.errors import Unauthorized
from duobus.gateway.rest.authorization import Guard
from duobus.gateway.rest.request_target import parse_target
from duobus.gateway.rest.runtime.routes import call_of
from duobus.model.descriptions import AccessRule, Right

CASES = 100_000
NOW_S = 1_700_000_000
LISTEN, SEND, MANAGE = 1, 2, 4

#: Entities with access rules of their own: (path, rule, rights).
OF_ENTITIES = [
    ("orders", "own", MANAGE | SEND | LISTEN),
    ("orders", "sends", SEND),
    ("a/b", "own", LISTEN),
    ("topic", "own", LISTEN | SEND),
]
OF_NAMESPACE = [("root", 7), ("sends", SEND), ("listens", LISTEN), ("both", SEND | LISTEN)]
RESOURCES = [
    "orders",
    "Orders",
    "orders2",
    "a",
    "a/b",
    "A%2Fb",
    "a/bc",
    "topic",
    "topic/Subscriptions/s",
    "topic/subscriptions/s/rules/r",
    "topic/Subscriptions",
    "$Resources/queues",
    "%24Resources/topics",
    "$namespaceinfo",
]
#: Method and what stands behind the entity, with the right that it takes.
OPERATIONS = [
    ("GET", "", MANAGE),
    ("PUT", "", MANAGE),
    ("DELETE", "", MANAGE),
    ("POST", "/messages", SEND),
    ("POST", "/messages/head", LISTEN),
    ("DELETE", "/Messages/Head?timeout=1", LISTEN),
    ("DELETE", "/messages/5/c0ffee", LISTEN),
    ("PUT", "/messages/a%2Fb/c0ffee", LISTEN),
    ("POST", "/$DeadLetterQueue/messages/head", LISTEN),
]


def keys_of(path: str, rule: str) -> tuple[str, str]:
    return f"{path}:{rule}:one", f"{path}:{rule}:two"


# -- the table: nothing of the product is used -------------------------------------------------------------------------


def path_of_audience(uri: str) -> list[str] | None:
    # The token holds it percent-encoded; decoded once it is this.
    text = re.sub(r"^[a-z]+://", "", uri.lower())
    text = re.split(r"[?#]", text)[0].rstrip("/")
    host, *parts = text.split("/")
    if re.sub(r"(:\d+)+$", "", host) not in {"ns", "ns.example.net", "localhost"}:
        return None
    parts = [part for part in parts if part]
    joined = "/".join(parts)
    # Behind "subscriptions" it is the name of one.
    operations = r"messages|messages/head|messages/[^/$]+/[^/$]+"
    found = re.fullmatch(rf"(.+?)(?:(?<!/subscriptions)/(?:{operations})|/(?:\$management|\$cbs))", joined)
    return (found[1] if found else joined).split("/") if joined else []


def is_prefix(short: Sequence[str], long: Sequence[str]) -> bool:
    return list(long[: len(short)]) == list(short)


def table_allows(
    resource: str, right: int, uri: str, signer: tuple[str, str, int], key: str, expires_s: int, name: str
) -> bool:
    """Whether a request gets in: the rule has signed it, it is of the way to the resource, and it has the right."""
    signed_for, rule, rights = signer
    if name != rule or key not in keys_of(signed_for, rule):
        return False
    if expires_s + 300 < NOW_S:
        return False
    scope = path_of_audience(uri)
    if scope is None:
        return False
    parts = [part for part in unquote(resource.partition("?")[0]).lower().split("/") if part]
    raw = [part for part in resource.partition("?")[0].lower().split("/") if part]
    home = signed_for.lower().split("/") if signed_for else []
    # A rule of an entity is looked for on the way to the resource, and good for nothing outside of its entity.
    if not is_prefix(home, parts):
        return False
    if not (is_prefix(scope, home) or is_prefix(home, scope)):
        return False
    effective = scope if len(scope) >= len(home) else home
    if not (is_prefix(effective, parts) or is_prefix(effective, raw)):
        return resource.lower() in {"$namespaceinfo"}
    if resource.lower() == "$namespaceinfo":
        return True
    return bool(rights & (right | MANAGE))


# -- the product -------------------------------------------------------------------------------------------------------


def entity_rules(segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
    for path, rule, rights in OF_ENTITIES:
        parts = tuple(path.split("/"))
        if tuple(segments[: len(parts)]) == parts:
            one, two = keys_of(path, rule)
            yield parts, AccessRule(name=rule, primary_key=one, secondary_key=two, rights=rights)


def made_guard() -> tuple[Guard, NamespaceRules]:
    rules = [
        AccessRule(name=name, primary_key=keys_of("", name)[0], secondary_key=keys_of("", name)[1], rights=rights)
        for name, rights in OF_NAMESPACE
    ]
    namespace = NamespaceRules("ns", rules, ["ns.example.net"], entity_rules)
    other = NamespaceRules("other", rules)
    clock: Any = SimpleNamespace(now_ms=lambda: NOW_S * 1000)
    return Guard(Authorizer([namespace, other]), clock), namespace


def signed(uri: str, name: str, key: str, expires_s: int) -> str:
    resource = quote(uri, safe="")
    digest = hmac.digest(key.encode(), f"{resource}\n{expires_s}".encode(), hashlib.sha256)
    return (
        f"SharedAccessSignature sr={resource}&sig={quote(base64.b64encode(digest).decode(), safe='')}"
        f"&se={expires_s}&skn={name}"
    )


@pytest.mark.slow
def test_a_hundred_thousand_requests_get_in_exactly_where_the_table_says() -> None:
    chance = random.Random(11)
    guard, namespace = made_guard()
    signers = [*OF_ENTITIES, *(("", name, rights) for name, rights in OF_NAMESPACE)]
    hosts = [
        "sb://ns",
        "https://ns.example.net",
        "https://ns.example.net:5300",
        "amqps://localhost:5671",
        "http://ns:443:80",
    ]
    hosts += ["sb://other"]
    tails = ["", "/", "?api-version=2021-05&%24top=1", "/messages", "/messages/head", "/$management"]
    allowed = 0
    for case in range(CASES):
        resource, (method, tail, right) = chance.choice(RESOURCES), chance.choice(OPERATIONS)
        target = parse_target(f"/{resource}{tail}")
        call = call_of(method, target)
        lists = resource.lower().endswith(("subscriptions", "queues", "topics", "$namespaceinfo"))
        if lists and tail:
            continue
        path, name, rights = chance.choice(signers)
        wanted = chance.choice(["", resource, resource, path, chance.choice(RESOURCES)])
        uri = f"{chance.choice(hosts)}/{wanted}{chance.choice(tails)}"
        one, two = keys_of(path, name)
        key = chance.choice([one, one, two, "wrong" if chance.random() < 0.3 else two])
        shown = name if chance.random() < 0.95 else "nobody"
        expires_s = NOW_S + chance.choice([60, 60, 0, -300, -301])
        text = signed(uri, shown, key, expires_s)
        # As each server of the gateway asks: messages by their entity, everything else by its address.
        needed = None if resource == "$namespaceinfo" else Right(right)
        try:
            guard._demand(text, target.lower, target.raw, namespace, needed)
        except Unauthorized:
            found = False
        else:
            found = True
        expected = table_allows(f"{resource}{tail}", right, uri, (path, name, rights), key, expires_s, shown)
        assert found == expected, (case, method, resource, tail, uri, path, name, key, expires_s - NOW_S, call)
        allowed += found
    # Both outcomes have to be common, or the test says little.
    assert 0.03 * CASES < allowed < 0.9 * CASES
