"""The description of a hybrid connection: its properties and their limits (Azure: relay REST API)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from duobus.errors import ArgumentInvalid, ArgumentOutOfRange
from duobus.model.address import check_entity_name
from duobus.model.descriptions import (
    ACCESS_RULES_MAX,
    ACTIVE,
    DISABLED,
    USER_METADATA_LENGTH_MAX,
    AccessRule,
    Right,
    check_access_rule,
)

#: Kind of such an entity in the catalog and in errors.
RELAY: Final = "relay"

#: Which senders a hybrid connection takes.
ANY: Final = "any"
HTTP: Final = "http"
WEBSOCKET: Final = "websocket"
SENDERS: Final = (ANY, HTTP, WEBSOCKET)
STATUSES: Final = (ACTIVE, DISABLED)

#: The member that says whether senders need a token; it is fixed when a relay is created.
REQUIRES_CLIENT_AUTHORIZATION: Final = "requiresClientAuthorization"
_JSON: Final = {
    REQUIRES_CLIENT_AUTHORIZATION: "requires_client_authorization",
    "userMetadata": "user_metadata",
    "status": "status",
    "senders": "senders",
}


#: Members of what a server tells of a relay that nobody sets, or that are set apart from the others.
_TOLD: Final = frozenset(
    (
        *("name", "authorizationRules", "createdAt", "updatedAt"),
        *("listeners", "listening", "joined", "waiting", "requests", "messages", "bytes"),
    )
)


class HybridConnectionDescription(msgspec.Struct, frozen=True, kw_only=True):
    """All properties of a hybrid connection.

    Attributes:
        name: Its path.
        requires_client_authorization: Whether senders need a token; fixed when it is created.
        user_metadata: Any text of its owner.
        authorization_rules: Access rules of its own.
        status: ACTIVE or DISABLED.
        senders: Which senders it takes; an extension of this broker. Some listeners fail on the other kind.
        created_at_ms: When it was created.
        updated_at_ms: When its properties were changed last.
    """

    name: str
    requires_client_authorization: bool = True
    user_metadata: str | None = None
    authorization_rules: tuple[AccessRule, ...] = ()
    status: str = ACTIVE
    senders: str = ANY
    created_at_ms: int = 0
    updated_at_ms: int = 0


def check_relay(relay: HybridConnectionDescription) -> HybridConnectionDescription:
    """Return ``relay`` if it may be created.

    Raises:
        ArgumentOutOfRange: A text is too long, or there are too many access rules.
        ArgumentInvalid: The name, the status or an access rule is illegal.
    """
    check_entity_name(relay.name)
    if relay.status not in STATUSES:
        raise ArgumentInvalid(f"Status is {relay.status!r}; allowed are {', '.join(STATUSES)}.")
    if relay.senders not in SENDERS:
        raise ArgumentInvalid(f"Senders is {relay.senders!r}; allowed are {', '.join(SENDERS)}.")
    if relay.user_metadata is not None and len(relay.user_metadata) > USER_METADATA_LENGTH_MAX:
        raise ArgumentOutOfRange(
            f"UserMetadata has {len(relay.user_metadata)} characters; at most {USER_METADATA_LENGTH_MAX} are allowed."
        )
    if len(relay.authorization_rules) > ACCESS_RULES_MAX:
        raise ArgumentOutOfRange(f"A relay has at most {ACCESS_RULES_MAX} access rules.")
    for rule in relay.authorization_rules:
        check_access_rule(rule)
    if len({rule.name for rule in relay.authorization_rules}) < len(relay.authorization_rules):
        raise ArgumentInvalid("Two access rules have the same name.")
    return relay


def check_relay_update(
    kept: HybridConnectionDescription, wanted: HybridConnectionDescription
) -> HybridConnectionDescription:
    """Return what a hybrid connection becomes when it is changed to ``wanted``; raises as ``check_relay``."""
    if wanted.requires_client_authorization != kept.requires_client_authorization:
        raise ArgumentInvalid(
            "The value for the RequiresClientAuthorization property of an existing relay cannot be changed."
        )
    return check_relay(msgspec.structs.replace(wanted, name=kept.name, created_at_ms=kept.created_at_ms))


def relay_form(relay: HybridConnectionDescription, *, with_keys: bool = False) -> dict[str, Any]:
    """The description as the members of a JSON object; keys of access rules only when they are asked for."""
    form: dict[str, Any] = {"name": relay.name}
    form |= {name: getattr(relay, field) for name, field in _JSON.items()}
    if relay.authorization_rules:
        form["authorizationRules"] = [_rule_form(rule, with_keys=with_keys) for rule in relay.authorization_rules]
    return form


def _rule_form(rule: AccessRule, *, with_keys: bool) -> dict[str, Any]:
    rights = [(right.name or "").title() for right in Right if rule.rights & right]
    form: dict[str, Any] = {"keyName": rule.name, "rights": rights}
    return form | ({"primaryKey": rule.primary_key, "secondaryKey": rule.secondary_key} if with_keys else {})


def relay_document(form: Mapping[str, Any]) -> dict[str, Any]:
    """What a topology document has of a relay, out of what a server tells: the properties that are set, and keys."""
    found = {name: form[name] for name in ("name", *_JSON) if form.get(name) is not None}
    rules = [
        dict(rule, rights=sorted(rule["rights"])) for rule in form.get("authorizationRules", ()) if "primaryKey" in rule
    ]
    return found | ({"authorizationRules": rules} if rules else {})


def relay_of_form(
    name: str, form: dict[str, Any], kept: HybridConnectionDescription | None = None
) -> HybridConnectionDescription:
    """The description of which ``form`` has the members; what the form does not say stays as ``kept`` has it.

    A rule without keys keeps those that it had under its name.

    Raises:
        ArgumentInvalid: A member is not known, or is of another type.
    """
    unknown = sorted(form.keys() - _JSON.keys() - _TOLD)
    if unknown:
        raise ArgumentInvalid(f"There is no property {unknown[0]!r} of a relay.")
    start = kept or HybridConnectionDescription(name=name)
    given = {field: form[member] for member, field in _JSON.items() if member in form}
    rules = start.authorization_rules
    if "authorizationRules" in form:
        old = {rule.name: rule for rule in rules}
        rules = tuple(_rule_of(item, old) for item in _list(form["authorizationRules"]))
    values = msgspec.structs.asdict(start) | {"name": name, "authorization_rules": rules} | given
    try:
        return msgspec.convert(msgspec.to_builtins(values), HybridConnectionDescription)
    except msgspec.ValidationError as error:
        raise ArgumentInvalid(f"A property of the relay has a wrong type: {error}") from None


def _list(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ArgumentInvalid("The access rules of a relay are a list of objects.")
    return value


def _rule_of(item: dict[str, Any], old: dict[str, AccessRule]) -> AccessRule:
    name = item.get("keyName")
    kept = old.get(name) if isinstance(name, str) else None
    primary = item.get("primaryKey") or (kept.primary_key if kept else "")
    secondary = item.get("secondaryKey") or (kept.secondary_key if kept else "")
    try:
        rights = sum({int(Right[str(right).upper()]) for right in item.get("rights", ())})
    except (KeyError, TypeError):
        raise ArgumentInvalid("The rights of an access rule are out of Listen, Send and Manage.") from None
    if not (isinstance(name, str) and isinstance(primary, str) and isinstance(secondary, str)):
        raise ArgumentInvalid("An access rule has a keyName, rights and two keys.")
    return AccessRule(name=name, primary_key=primary, secondary_key=secondary, rights=rights)
