"""Access rules: what a list of them becomes by one change, and what their keys sign (Azure: shared access signatures).

A rule has two keys, so that clients can move from one to the other without an outage: one key is replaced while clients
use the other.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from urllib.parse import quote

import msgspec

from duobus.errors import ArgumentInvalid, EntityAlreadyExists, EntityNotFound, NotAllowed
from duobus.model.descriptions import ALL_RIGHTS, AccessRule, Right, check_access_rules

#: Names that a client may give to a rule.
RULE_NAME: Final = re.compile(r"[A-Za-z0-9._~-]{1,256}")

#: The changes that a rule can undergo.
ADD: Final = "add"
ROTATE: Final = "rotate"
SWAP: Final = "swap"
RIGHTS: Final = "rights"
REMOVE: Final = "remove"

#: Which of the two keys is meant.
PRIMARY: Final = "primary"
SECONDARY: Final = "secondary"

_RIGHTS: Final = {"Listen": Right.LISTEN, "Send": Right.SEND, "Manage": Right.MANAGE}


class RuleChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one access rule.

    Attributes:
        verb: ADD, ROTATE (one key is replaced), SWAP (the two keys exchange their places), RIGHTS (the rule
            gets other rights and keeps its keys) or REMOVE.
        name: Name of the rule.
        rights: Right values added up, with ADD and RIGHTS.
        which: PRIMARY or SECONDARY, with ROTATE.
    """

    verb: str
    name: str
    rights: int = 0
    which: str = PRIMARY


def rights_of(names: Iterable[str]) -> int:
    """Return the rights of these names added up; Manage has the other two.

    Raises:
        ArgumentInvalid: There is none, or one of them is no right.
    """
    found = 0
    for name in names:
        right = _RIGHTS.get(name.strip().title())
        if right is None:
            raise ArgumentInvalid(f"{name[:64]!r} is no right; use Listen, Send or Manage.")
        found |= int(ALL_RIGHTS) if right is Right.MANAGE else int(right)
    if not found:
        raise ArgumentInvalid("An access rule needs at least one right: Listen, Send or Manage.")
    return found


def names_of(rights: int) -> list[str]:
    """Return the names of rights."""
    return [name for name, right in _RIGHTS.items() if rights & right]


def rule_named(rules: Iterable[AccessRule], name: str, place: str) -> AccessRule:
    """Return the rule of a name; ``place`` says in an error whose rules they are.

    Raises:
        EntityNotFound: There is none.
    """
    for rule in rules:
        if rule.name == name:
            return rule
    raise EntityNotFound(f"There is no access rule '{name[:256]}' of {place}. List the rules that there are.")


def changed(
    rules: Sequence[AccessRule],
    change: RuleChange,
    *,
    place: str,
    new_key: Callable[[], str],
    now_ms: int,
    keeps_manage: bool,
) -> tuple[AccessRule, ...]:
    """Return what rules become by a change.

    Args:
        rules: All rules of a namespace or entity.
        change: What is asked for.
        place: Whose rules they are, for errors.
        new_key: Makes a key text.
        now_ms: The time that a new or changed rule tells of itself.
        keeps_manage: Refuse what leaves no rule with the right Manage, without which nobody could add another.

    Raises:
        EntityNotFound: There is no rule of this name.
        EntityAlreadyExists: A rule to add is there already.
        ArgumentInvalid: A new rule cannot be.
        NotAllowed: The last rule with Manage would go.
    """
    if change.verb == ADD:
        if not RULE_NAME.fullmatch(change.name):
            raise ArgumentInvalid(
                f"The name {change.name[:64]!r} of an access rule must be 1 to 256 letters, digits and . _ ~ - only."
            )
        if any(rule.name == change.name for rule in rules):
            raise EntityAlreadyExists(
                f"The access rule '{change.name}' of {place} exists already. Replace one of its keys, or take another "
                "name."
            )
        rule = AccessRule(
            name=change.name,
            primary_key=new_key(),
            secondary_key=new_key(),
            rights=change.rights,
            created_at_ms=now_ms,
            modified_at_ms=now_ms,
        )
        wanted = (*rules, rule)
        check_access_rules(wanted)
        return wanted
    old = rule_named(rules, change.name, place)
    if change.verb in {REMOVE, RIGHTS}:
        left = tuple(rule for rule in rules if rule is not old)
        loses = old.rights & Right.MANAGE and not (change.verb == RIGHTS and change.rights & Right.MANAGE)
        if keeps_manage and loses and not any(rule.rights & Right.MANAGE for rule in left):
            raise NotAllowed(
                f"'{old.name}' is the last access rule of {place} with the right Manage, so it stays: without it "
                "nobody could manage anything. Add another rule with Manage first, or replace its keys."
            )
        if change.verb == REMOVE:
            return left
        new = msgspec.structs.replace(old, rights=change.rights, modified_at_ms=now_ms)
        return tuple(new if rule is old else rule for rule in rules)
    primary, secondary = old.primary_key, old.secondary_key
    if change.verb == SWAP:
        primary, secondary = secondary, primary
    elif change.which == PRIMARY:
        primary = new_key()
    else:
        secondary = new_key()
    new = msgspec.structs.replace(old, primary_key=primary, secondary_key=secondary, modified_at_ms=now_ms)
    return tuple(new if rule is old else rule for rule in rules)


def form_of(entity: str | None, rule: AccessRule, *, with_keys: bool = False) -> dict[str, object]:
    """A rule as it is told to people and programs; ``entity``: the path of its entity, None for the namespace."""
    found: dict[str, object] = {
        "entity": entity,
        "name": rule.name,
        "rights": names_of(rule.rights),
        "createdMs": rule.created_at_ms or None,
        "modifiedMs": rule.modified_at_ms or None,
    }
    return found | ({"primaryKey": rule.primary_key, "secondaryKey": rule.secondary_key} if with_keys else {})


def differences(before: Iterable[AccessRule], after: Iterable[AccessRule], name: str) -> dict[str, list[object]]:
    """The differences by a change of a rule, for the audit log: property to [before, after], with keys masked."""
    old, new = (next((rule for rule in rules if rule.name == name), None) for rules in (before, after))
    if old is None or new is None:
        return {} if new is None else {"rights": [None, names_of(new.rights)]}
    keys = ("primary_key", "secondary_key")
    told: dict[str, list[object]] = {key: ["***", "***"] for key in keys if getattr(old, key) != getattr(new, key)}
    return told | ({} if old.rights == new.rights else {"rights": [names_of(old.rights), names_of(new.rights)]})


def sign(key: str, resource: str, expiry: str) -> str:
    """Return the base64 signature over ``resource`` and ``expiry`` as they stand in the token.

    The key is the UTF-8 bytes of its text; it is not base64-decoded first (Azure: shared access signatures).
    """
    return signature_of(key, resource, expiry).decode()


def signature_of(key: str, resource: str, expiry: str) -> bytes:
    """The same as bytes."""
    signed = f"{resource}\n{expiry}".encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.digest(key.encode(), signed, hashlib.sha256))


def sign_token(uri: str, rule_name: str, key: str, expires_s: int) -> str:
    """Return a complete token for ``uri`` that is good until ``expires_s`` (seconds since the epoch)."""
    resource = quote(uri, safe="")
    signature = quote(sign(key, resource, str(expires_s)), safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expires_s}&skn={quote(rule_name, safe='')}"
