"""``AuthorizationRules`` of a queue or topic (Azure: Service Bus REST API)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom.xml import writer as xml
from duobus.gateway.rest.atom.xml.fields import Fields
from duobus.gateway.rest.atom.xml.reader import Element
from duobus.model.access_rules import RULE_NAME
from duobus.model.descriptions import AccessRule, Right

#: In the order in which they are written.
_RIGHTS: Final = {"Manage": Right.MANAGE, "Send": Right.SEND, "Listen": Right.LISTEN}
#: Longest key text; generated ones have 44 characters.
KEY_LENGTH_MAX: Final = 256

KeyMaker = Callable[[], str]


def read_access_rules(description: Element, kept: Sequence[AccessRule], new_key: KeyMaker) -> tuple[AccessRule, ...]:
    """Return the rules that a description asks for; keys that it leaves out are generated.

    Args:
        description: The description's element.
        kept: The entity's rules so far: a key that is left out keeps its text.
        new_key: Makes a key text.

    Raises:
        ArgumentInvalid: A name, key or right cannot be.
    """
    node = description.find("AuthorizationRules")
    if node is None:
        return ()
    known = {rule.name: rule for rule in kept}
    return tuple(_read_rule(child, known, new_key) for child in node.children if child.name == "AuthorizationRule")


def _read_rule(node: Element, known: dict[str, AccessRule], new_key: KeyMaker) -> AccessRule:
    fields = Fields(node)
    name = fields.word("KeyName", "")
    if not RULE_NAME.fullmatch(name):
        raise ArgumentInvalid(f"The KeyName {name[:64]!r} of an access rule must be letters, digits and . _ ~ - only.")
    old = known.get(name)
    primary = fields.text("PrimaryKey") or (old.primary_key if old else new_key())
    secondary = fields.text("SecondaryKey") or (old.secondary_key if old else new_key())
    if max(len(primary), len(secondary)) > KEY_LENGTH_MAX:
        raise ArgumentInvalid(f"A key of the access rule {name!r} has more than {KEY_LENGTH_MAX} characters.")
    rights = 0
    listed = node.find("Rights")
    for child in () if listed is None else listed.children:
        if child.text.strip() not in _RIGHTS:
            raise ArgumentInvalid(
                f"{child.text[:64]!r} is no right of the access rule {name!r}; use Manage, Send or Listen."
            )
        rights |= int(_RIGHTS[child.text.strip()])
    return AccessRule(
        name=name,
        primary_key=primary,
        secondary_key=secondary,
        rights=rights,
        created_at_ms=fields.instant("CreatedTime"),
        modified_at_ms=fields.instant("ModifiedTime"),
    )


def write_access_rules(rules: Sequence[AccessRule]) -> str:
    """Return the element; empty when there are none. Times are those that a client has sent, if it has."""
    return "<AuthorizationRules>" + "".join(_write_rule(rule) for rule in rules) + "</AuthorizationRules>"


def _write_rule(rule: AccessRule) -> str:
    rights = "".join(xml.element("AccessRights", name) for name, right in _RIGHTS.items() if rule.rights & right)
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{rights}</Rights>"
        + (xml.instant("CreatedTime", rule.created_at_ms) if rule.created_at_ms else "")
        + (xml.instant("ModifiedTime", rule.modified_at_ms) if rule.modified_at_ms else "")
        + xml.element("KeyName", rule.name)
        + xml.element("PrimaryKey", rule.primary_key)
        + xml.element("SecondaryKey", rule.secondary_key)
        + "</AuthorizationRule>"
    )
