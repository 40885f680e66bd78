"""``AuthorizationRules`` of a queue or topic (HTTP contract A.5.6)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from duobus.errors import ArgumentInvalid
from duobus.gateway.rest.atom import xml_writer as xml
from duobus.gateway.rest.atom.fields import Fields
from duobus.gateway.rest.atom.xml_reader import Element
from duobus.model.description import AccessRule, Right

#: In the order in which they are written.
_RIGHTS: Final = {"Manage": Right.MANAGE, "Send": Right.SEND, "Listen": Right.LISTEN}
_NAME: Final = re.compile(r"[A-Za-z0-9._~-]+")
#: Longest key text; generated ones have 44 characters.
KEY_LENGTH_MAX: Final = 256

KeyMaker = Callable[[], str]


def read_access_rules(
    description: Element, kept: Sequence[AccessRule], new_key: KeyMaker, now_ms: int
) -> tuple[AccessRule, ...]:
    """Return the rules that a description asks for; keys that it leaves out are generated.

    Args:
        description: The description's element.
        kept: The entity's rules so far: what has not changed keeps its times, and a key that is left out its text.
        new_key: Makes a key text.
        now_ms: For the times of what is new.

    Raises:
        ArgumentInvalid: A name, key or right cannot be.
    """
    node = description.find("AuthorizationRules")
    if node is None:
        return ()
    known = {rule.name: rule for rule in kept}
    return tuple(
        _read_rule(child, known, new_key, now_ms) for child in node.children if child.name == "AuthorizationRule"
    )


def _read_rule(node: Element, known: dict[str, AccessRule], new_key: KeyMaker, now_ms: int) -> AccessRule:
    fields = Fields(node)
    name = fields.word("KeyName", "")
    if not _NAME.fullmatch(name):
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
    wanted = AccessRule(name=name, primary_key=primary, secondary_key=secondary, rights=rights)
    if old is None:
        return msgspec.structs.replace(wanted, created_at_ms=now_ms, modified_at_ms=now_ms)
    wanted = msgspec.structs.replace(wanted, created_at_ms=old.created_at_ms, modified_at_ms=old.modified_at_ms)
    return wanted if wanted == old else msgspec.structs.replace(wanted, modified_at_ms=now_ms)


def write_access_rules(rules: Sequence[AccessRule], created_at_ms: int) -> str:
    """Return the element; empty when there are none. Rules without times of their own get the entity's."""
    return (
        "<AuthorizationRules>" + "".join(_write_rule(rule, created_at_ms) for rule in rules) + "</AuthorizationRules>"
    )


def _write_rule(rule: AccessRule, created_at_ms: int) -> str:
    rights = "".join(xml.element("AccessRights", name) for name, right in _RIGHTS.items() if rule.rights & right)
    return (
        '<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        "<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{rights}</Rights>"
        + xml.instant("CreatedTime", rule.created_at_ms or created_at_ms)
        + xml.instant("ModifiedTime", rule.modified_at_ms or created_at_ms)
        + xml.element("KeyName", rule.name)
        + xml.element("PrimaryKey", rule.primary_key)
        + xml.element("SecondaryKey", rule.secondary_key)
        + "</AuthorizationRule>"
    )
