"""From a token to rights, and the rights that one connection has collected.

Everything is compared as lower-case path segments, never by string prefix: a grant on ``orders`` covers
``orders/$deadletterqueue`` and not ``orders2`` (Azure: AMQP protocol guide, Azure: shared access signatures).
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

from duobus.auth.sas_tokens import KEPT_LENGTH_MAX, KEPT_TOKENS, SasToken, parse_sas
from duobus.errors import Unauthorized
from duobus.model.address import SHARE, without_share
from duobus.model.descriptions import AccessRule, Right

if TYPE_CHECKING:
    from duobus.auth.bearer_tokens import BearerTokens

#: How long past its expiry a token is still taken over HTTP: the Python client uses its own for 60 s more.
#: AMQP gives no grace.
HTTP_GRACE_MS = 300_000

#: Most audiences that one connection may hold grants for; one link uses at most two.
GRANTS_MAX = 4096
#: Longest name of an identity that is kept, in characters.
IDENTITY_LENGTH_MAX = 128

#: Stands in for a rule that does not exist, so that an unknown name costs the same time as a wrong key.
_NOBODY = AccessRule(name="", primary_key="\0", secondary_key="\0", rights=0)

#: What HTTP tells beside the text (Azure: Service Bus REST API).
INVALID_SIGNATURE, INVALID_AUDIENCE, EXPIRED = 40103, 40104, 40106

#: Later times are told as this one.
_YEAR_9999_MS: Final = 253_402_300_799_000

#: Lower-case segments of a resource to the access rules of the entities on the way to it, each with the entity's path.
EntityRules = Callable[[Sequence[str]], Iterable[tuple[tuple[str, ...], AccessRule]]]

#: Trailing parts of an audience that name an operation on an entity and not another resource.
_OPERATION_SEGMENTS = frozenset({"$management", "$cbs"})


class NamespaceRules:
    """What the authorizer knows of one namespace.

    Attributes:
        name: Name of the namespace, lower case.
        hosts: Further host names by which clients may call it, lower case, without port.
        rules: Its access rules by name.
        entity_rules: Finds the access rules of its entities; each is good for its entity and what is below it.
    """

    __slots__ = ("entity_rules", "hosts", "name", "rules")

    def __init__(
        self,
        name: str,
        rules: Iterable[AccessRule],
        hosts: Iterable[str] = (),
        entity_rules: EntityRules = lambda segments: (),
    ) -> None:
        self.name = name.lower()
        self.hosts = frozenset(host.lower() for host in hosts)
        self.rules = {rule.name: rule for rule in rules}
        self.entity_rules = entity_rules


class Signer(Protocol):
    """What a token was signed, or a login was made, with; it may be taken away while the grant is in use."""

    @property
    def path(self) -> tuple[str, ...]:
        """Lower-case segments of the entity whose access rule it is; empty for anything else."""

    def rights_now(self) -> int | None:
        """The rights that it gives now; None when it is not good any more."""


class RuleKey:
    """A key of an access rule.

    Attributes:
        path: See Signer.
    """

    __slots__ = ("_key", "_name", "_namespace", "path")

    def __init__(self, namespace: NamespaceRules, path: tuple[str, ...], name: str, key: str) -> None:
        self._namespace = namespace
        self.path = path
        self._name = name
        self._key = key

    def rights_now(self) -> int | None:
        """See Signer: the rule has its name, and the key is one of its two."""
        rule = self._rule()
        return None if rule is None or self._key not in (rule.primary_key, rule.secondary_key) else rule.rights

    def _rule(self) -> AccessRule | None:
        if not self.path:
            return self._namespace.rules.get(self._name)
        rules = self._namespace.entity_rules(self.path)
        return next((rule for path, rule in rules if path == self.path and rule.name == self._name), None)


class Grant:
    """Rights on a path and everything below it, until an instant.

    Attributes:
        path: Lower-case segments; empty is the whole namespace.
        rights: Right values added up.
        expires_ms: Last ms in which it is good, or None for as long as the connection lives.
        who: Name of the access rule, or of the identity, that it speaks for.
        signer: What it was signed with; None when that cannot be taken away.
    """

    __slots__ = ("expires_ms", "path", "rights", "signer", "who")

    def __init__(
        self,
        path: tuple[str, ...],
        rights: int,
        expires_ms: int | None,
        who: str = "",
        signer: Signer | None = None,
    ) -> None:
        self.who = who
        self.signer = signer
        self.path = path
        self.rights = rights
        self.expires_ms = expires_ms

    def covers(self, segments: Sequence[str]) -> bool:
        """Return whether these lower-case segments are the path or below it."""
        if tuple(segments[: len(self.path)]) == self.path:
            return True
        # What servers make of a queue among themselves is the queue's.
        return SHARE in segments and without_share(segments)[: len(self.path)] == self.path


class Audience:
    """A parsed audience or ``sr``.

    Attributes:
        host: Lower case, without port.
        path: Lower-case segments of the resource.
        is_qualified: Whether a scheme or a port showed that the first part is a host indeed.
    """

    __slots__ = ("host", "is_qualified", "path")

    def __init__(self, host: str, path: tuple[str, ...], is_qualified: bool) -> None:
        self.host = host
        self.path = path
        self.is_qualified = is_qualified


class Authorizer:
    """Verifies tokens and logins against the access rules of all namespaces of the server.

    The first namespace is the default: every host name that belongs to no other one falls to it.
    """

    __slots__ = ("_bearer", "_by_host", "_default")

    def __init__(self, namespaces: Sequence[NamespaceRules], bearer: BearerTokens | None = None) -> None:
        """``bearer``: verifies the tokens of issuers, where any are configured."""
        if not namespaces:
            raise ValueError("at least one namespace is needed")
        self._bearer = bearer
        self._default = namespaces[0]
        self._by_host: dict[str, NamespaceRules] = {}
        for namespace in namespaces:
            for host in (namespace.name, *namespace.hosts):
                self._by_host.setdefault(host, namespace)

    def namespace_of(self, host: str | None) -> NamespaceRules:
        """Return the namespace that a host name (with or without port) stands for.

        An exact name wins, then the first label (``contoso.example.net`` is ``contoso``), then the default.
        """
        name = _without_port((host or "").lower())
        return self._by_host.get(name) or self._by_host.get(name.partition(".")[0]) or self._default

    def knows(self, host: str, namespace: NamespaceRules) -> bool:
        """Whether a host name (without port) is one of a namespace's own, not only one that falls to it."""
        return self._is_known(host.lower()) and self.namespace_of(host) is namespace

    def authorize_token(
        self,
        text: str,
        namespace: NamespaceRules,
        now_ms: int,
        grace_ms: int = 0,
        resource: Sequence[str] | None = None,
    ) -> Grant:
        """Return what a token allows in ``namespace``.

        The grant's ``expires_ms`` has the grace in it, so that ``Grants`` needs no other rule. ``resource``: what the
        token is for, where that is known; the token's own audience says it otherwise. The access rules of the entity
        that it names are tried before those of the namespace, and give rights below that entity only, whatever the
        token was made for (Azure: shared access signatures, step 5).

        Raises:
            Unauthorized: Not a token of this namespace, malformed, wrongly signed or expired. The text says which,
                except that it does not tell an unknown rule from a wrong key; it quotes nothing of the token.
        """
        # The text decides, not what a client calls it: a signature has an equals sign, a JWT has none.
        if self._bearer is not None and "=" not in text and text.count(".") == 2:
            rights, expires_ms, issued = self._bearer.verify(
                text, namespace.name, lambda host: self.knows(_without_port(host), namespace), now_ms, grace_ms
            )
            return Grant((), rights, expires_ms, identity_of(text), issued)
        token = parse_sas(text)
        audience = parse_audience(token.resource)
        path, rule, key = self._signer(token, namespace, audience.path if resource is None else resource)
        if rule is _NOBODY:
            raise Unauthorized(
                "The token's signature is wrong, or its rule does not exist. Check the key and its name.",
                INVALID_SIGNATURE,
            )
        if now_ms > token.expires_ms + grace_ms:
            raise token_expired(token.expires_ms)
        if not self._is_host_of(audience, namespace):
            raise Unauthorized(
                "The token was made for another namespace. Check the endpoint it was made with.", INVALID_AUDIENCE
            )
        longer, shorter = (audience.path, path) if len(audience.path) >= len(path) else (path, audience.path)
        if longer[: len(shorter)] != shorter:
            raise Unauthorized("The token's rule belongs to another entity than its audience.", INVALID_AUDIENCE)
        signer = RuleKey(namespace, path, rule.name, key)
        return Grant(longer, rule.rights, token.expires_ms + grace_ms, rule.name, signer)

    def _signer(
        self, token: SasToken, namespace: NamespaceRules, resource: Sequence[str]
    ) -> tuple[tuple[str, ...], AccessRule, str]:
        """The rule that has signed a token, with the path that it is good for, and the key; _NOBODY for none."""
        named = [(path, rule) for path, rule in namespace.entity_rules(resource) if rule.name == token.rule_name]
        named.append(((), namespace.rules.get(token.rule_name, _NOBODY)))
        found: tuple[tuple[str, ...], AccessRule, str] = ((), _NOBODY, "")
        for path, rule in named:
            # Both are computed always: the time must not tell which key, or whether any, came close.
            is_primary = token.is_signed_by(rule.primary_key)
            is_secondary = token.is_signed_by(rule.secondary_key)
            if (is_primary | is_secondary) and found[1] is _NOBODY:
                found = path, rule, rule.primary_key if is_primary else rule.secondary_key
        return found

    def authorize_plain(self, rule_name: str, key: str, namespace: NamespaceRules) -> Grant:
        """Return what a rule's name and key allow: the rule's rights on the whole namespace (SASL PLAIN).

        Raises:
            Unauthorized: There is no such rule, or the key is not one of its two.
        """
        rule = namespace.rules.get(rule_name, _NOBODY)
        given = key.encode("utf-8", "surrogatepass")
        is_primary = hmac.compare_digest(rule.primary_key.encode(), given)
        is_secondary = hmac.compare_digest(rule.secondary_key.encode(), given)
        if not (is_primary | is_secondary) or rule is _NOBODY:
            raise Unauthorized("The name or key of the rule is wrong.")
        return Grant((), rule.rights, None, rule.name, RuleKey(namespace, (), rule.name, key))

    def _is_host_of(self, audience: Audience, namespace: NamespaceRules) -> bool:
        # A bare "orders" may be meant as an entity. Taken for an unknown host it would fall to the default namespace
        # with an empty path, and so cover everything: a host without scheme and port has to be a known one.
        if not audience.is_qualified and audience.host != "localhost" and not self._is_known(audience.host):
            return False
        return self.namespace_of(audience.host) is namespace

    def _is_known(self, host: str) -> bool:
        return host in self._by_host or host.partition(".")[0] in self._by_host


class Grants:
    """What one connection may do, by audience; a renewal replaces the grant of the same audience.

    Attributes:
        changes: Grows with each grant that comes or ends.
        entities: Lower-case segments of the entities whose own access rules have signed any of them.
    """

    __slots__ = ("_by_audience", "_login", "changes", "entities")

    def __init__(self) -> None:
        self.changes = 0
        self.entities: set[tuple[str, ...]] = set()
        self._by_audience: dict[tuple[str, ...], Grant] = {}
        self._login: Grant | None = None

    def set_login(self, grant: Grant) -> None:
        """Keep what the login itself gave (SASL PLAIN); it lasts as long as the connection."""
        self._login = grant
        self.changes += 1

    def add(self, audience: str, grant: Grant) -> Grant:
        """Keep the grant of one put-token and return it, narrowed to the audience that was asked for.

        Raises:
            Unauthorized: The token covers neither the audience nor a part of it, or there are GRANTS_MAX already.
        """
        path, grant = narrowed(audience, grant)
        if path not in self._by_audience and len(self._by_audience) >= GRANTS_MAX:
            raise Unauthorized(f"The connection holds {GRANTS_MAX} tokens already. Open another connection.")
        self._by_audience[path] = grant
        if grant.signer is not None and grant.signer.path:
            self.entities.add(grant.signer.path)
        self.changes += 1
        return grant

    def allows(self, segments: Sequence[str], right: int, now_ms: int) -> bool:
        """Return whether any grant that has not expired gives ``right`` on these lower-case segments."""
        if self._login is not None and _has(self._login.rights, right):
            return True
        wanted = tuple(segments)
        if self._gives(wanted, right, now_ms):
            return True
        return SHARE in wanted and self._gives(without_share(wanted), right, now_ms)

    def _gives(self, wanted: tuple[str, ...], right: int, now_ms: int) -> bool:
        # The exact audience and its parents: as many look-ups as segments, however many grants there are.
        for length in range(len(wanted), -1, -1):
            grant = self._by_audience.get(wanted[:length])
            if grant is not None and _is_good(grant, right, now_ms) and grant.covers(wanted):
                return True
        return False

    def who(self, segments: Sequence[str], right: int, now_ms: int) -> str:
        """Name of what gives ``right`` there, the most specific first; empty when nothing does."""
        wanted = without_share(segments)
        for length in range(len(wanted), -1, -1):
            grant = self._by_audience.get(wanted[:length])
            if grant is not None and _is_good(grant, right, now_ms):
                return grant.who
        return self._login.who if self._login is not None else ""

    def names(self) -> list[str]:
        """Names of all that gives any right, each once, in the order of the alphabet."""
        grants = [*self._by_audience.values(), *([] if self._login is None else [self._login])]
        return sorted({grant.who for grant in grants})

    def next_expiry(self) -> int | None:
        """Return the last ms of the grant that ends first, or None when none ends."""
        ends = [grant.expires_ms for grant in self._by_audience.values() if grant.expires_ms is not None]
        return min(ends) if ends else None

    def drop_expired(self, now_ms: int) -> bool:
        """Forget grants that have ended; return whether there were any, so that links must be looked at again."""
        ended = [
            audience
            for audience, grant in self._by_audience.items()
            if grant.expires_ms is not None and grant.expires_ms < now_ms
        ]
        for audience in ended:
            del self._by_audience[audience]
            self.changes += 1
        return bool(ended)

    def check_again(self, path: tuple[str, ...] | None) -> bool:
        """Take away what the keys of grants do not give any more; return whether anything was.

        ``path``: the entity whose access rules have changed; empty for those of the namespace, None for all.
        """
        is_less = False
        for audience, grant in list(self._by_audience.items()):
            rights = _rights_now(grant, path)
            if rights != grant.rights:
                is_less |= rights is None or bool(grant.rights & ~rights)
                self._change(grant, rights)
                if rights is None:
                    del self._by_audience[audience]
        if self._login is not None:
            rights = _rights_now(self._login, path)
            if rights != self._login.rights:
                is_less |= rights is None or bool(self._login.rights & ~rights)
                self._change(self._login, rights)
                if rights is None:
                    self._login = None
        return is_less

    def _change(self, grant: Grant, rights: int | None) -> None:
        self.changes += 1
        grant.rights = rights or 0

    @property
    def has_login(self) -> bool:
        """Whether the login itself has given anything."""
        return self._login is not None

    @property
    def is_empty(self) -> bool:
        """Whether the connection has neither a login nor any grant."""
        return self._login is None and not self._by_audience


def narrowed(audience: str, grant: Grant) -> tuple[tuple[str, ...], Grant]:
    """Return the path of an audience, and what a grant gives of it.

    Raises:
        Unauthorized: The grant is for something else.
    """
    path = parse_audience(audience).path
    if grant.covers(path):
        return path, Grant(path, grant.rights, grant.expires_ms, grant.who, grant.signer)
    if grant.path[: len(path)] != path:
        raise Unauthorized("The token does not cover the audience it was put for. Make it for this entity.")
    return path, grant


def token_expired(expires_ms: int) -> Unauthorized:
    """Return the error for a token that was good until then, without any grace; the cloud's words."""
    when = datetime.fromtimestamp(min(expires_ms, _YEAR_9999_MS) / 1000, UTC)
    text = when.strftime("%Y-%m-%dT%H:%M:%SZ")
    return Unauthorized(f"ExpiredToken: The token is expired. Expiration time: '{text}'. Put a fresh one.", EXPIRED)


def _rights_now(grant: Grant, path: tuple[str, ...] | None) -> int | None:
    signer = grant.signer
    if signer is None or (path is not None and signer.path != path):
        return grant.rights
    return signer.rights_now()


def parse_audience(text: str) -> Audience:
    """Return the meaning of an audience or of a token's ``sr``.

    Raises:
        Unauthorized: It is not UTF-8 when percent-decoded, or its path holds ``.`` or ``..``.

    Source:
        Azure: shared access signatures, steps 1 to 3.
    """
    return _kept_audience(text) if len(text) <= KEPT_LENGTH_MAX else _parse_audience(text)


def _parse_audience(text: str) -> Audience:
    try:
        plain = unquote(text, errors="strict").lower()
    except UnicodeDecodeError:
        raise Unauthorized("The audience is not UTF-8.", INVALID_AUDIENCE) from None
    scheme, separator, rest = plain.partition("://")
    has_scheme = bool(separator) and scheme.isascii() and scheme.isalpha()
    if has_scheme:
        plain = rest
    plain = plain.partition("?")[0].partition("#")[0]
    host, _, path = plain.partition("/")
    segments = [segment for segment in path.split("/") if segment]
    if "." in segments or ".." in segments:
        raise Unauthorized("The audience holds '.' or '..'.", INVALID_AUDIENCE)
    if len(segments) > 1 and segments[0] == "$hc":
        segments = segments[1:]
    name = _without_port(host)
    return Audience(name, tuple(_without_operation(segments)), has_scheme or name != host)


_kept_audience: Final = lru_cache(KEPT_TOKENS)(_parse_audience)


def _without_operation(segments: list[str]) -> list[str]:
    if len(segments) > 1 and segments[-1] in _OPERATION_SEGMENTS:
        return segments[:-1]
    # "x/messages", "x/messages/head" and "x/messages/<number>/<token>" are operations on x. As a whole path, or as the
    # name of a subscription, "messages" is an entity: cutting it there would widen the grant to the namespace or to
    # the topic's other subscriptions.
    for index in range(1, len(segments)):
        if segments[index] != "messages" or (index > 1 and segments[index - 1] == "subscriptions"):
            continue
        rest = segments[index + 1 :]
        if (not rest or rest == ["head"] or len(rest) == 2) and not any(part.startswith("$") for part in rest):
            return segments[:index]
    return segments


def _without_port(host: str) -> str:
    # Nearly every host is a name alone.
    return _cut_port(host) if ":" in host else host


def _cut_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].lstrip("[")
    parts = host.split(":")
    # Legacy clients append a second port; all of them go, but an IPv6 address without brackets stays whole.
    return parts[0] if all(part.isdigit() for part in parts[1:]) and parts[0] else host


def _has(rights: int, right: int) -> bool:
    return bool(rights & right) or bool(rights & Right.MANAGE)


def _is_good(grant: Grant, right: int, now_ms: int) -> bool:
    return _has(grant.rights, right) and (grant.expires_ms is None or now_ms <= grant.expires_ms)


def identity_of(token: str) -> str:
    """Whom a bearer token that was verified speaks for: an object, application or subject id, for the audit log."""
    try:
        part = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        found = next((claims[name] for name in ("oid", "appid", "azp", "client_id", "sub") if claims.get(name)), "")
    except (ValueError, IndexError, AttributeError):
        found = ""
    return str(found)[:IDENTITY_LENGTH_MAX]
