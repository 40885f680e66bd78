"""The access rules of a namespace or of one entity: read, shown with their keys, and changed.

A duobus has requests for that, which change one rule and are in the audit log as such. Elsewhere the rules of a queue
or topic are a part of its description, which the administration client replaces as a whole; the rules of a namespace
are out of reach of every access key there.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Entropy
from duobus.console.namespace.failures import NamespaceError
from duobus.console.namespace.sdk_forms import entity_form, sdk_properties

if TYPE_CHECKING:
    from duobus.console.namespace.client import NamespaceClient

RIGHTS: Final = ("Listen", "Send", "Manage")
#: Which of the two keys is replaced.
WHICH: Final = ("primary", "secondary")

#: A rule as the description of an entity has it.
_Rule = dict[str, Any]


class AccessRules:
    """The rules of one place.

    Args:
        namespace: The namespace.
        entity: Path of a queue or topic; empty for the namespace itself.
        entropy: For keys of rules that no duobus makes.
    """

    def __init__(self, namespace: NamespaceClient, entity: str = "", entropy: Entropy | None = None) -> None:
        self._namespace = namespace
        self._entity = entity
        self._entropy = entropy or Entropy()

    async def listed(self) -> list[dict[str, Any]]:
        """The rules, without keys.

        Raises:
            NamespaceError: The namespace refuses, or does not answer; so do all methods here.
        """
        if not self._namespace.is_duobus:
            return [{"name": rule["keyName"], "rights": rule["rights"]} for rule in await self._described()]
        found = await self._ask("GET")
        # Without an entity the server tells of the rules of all of them.
        return [rule for rule in found if self._entity or rule["entity"] is None]

    async def keys(self, name: str) -> tuple[str, str]:
        """The primary and the secondary key of a rule."""
        if self._namespace.is_duobus:
            rule = await self._ask("GET", name)
        else:
            rule = _named(await self._described(), name, self._entity)
        return rule["primaryKey"], rule["secondaryKey"]

    async def add(self, name: str, rights: list[str]) -> None:
        """Add a rule with two new keys."""
        if self._namespace.is_duobus:
            await self._ask("PUT", name, rights=",".join(rights))
            return

        def added(rules: list[_Rule]) -> list[_Rule]:
            if any(rule["keyName"] == name for rule in rules):
                raise NamespaceError(HTTPStatus.CONFLICT, f"{self._entity} has an access rule {name} already.")
            keys = {f"{which}Key": self._entropy.access_key() for which in WHICH}
            return [*rules, {"keyName": name, "rights": _whole(rights), **keys}]

        await self._describe(added)

    async def set_rights(self, name: str, rights: list[str]) -> None:
        """Give a rule these rights in place of those that the rule has; its keys stay."""
        if self._namespace.is_duobus:
            await self._ask("POST", name, "rights", rights=",".join(rights))
        else:
            await self._change(name, {"rights": _whole(rights)})

    async def rotate(self, name: str, which: str) -> None:
        """Replace one of the two keys of a rule by a new one."""
        if self._namespace.is_duobus:
            await self._ask("POST", name, "rotate", which=which)
        else:
            await self._change(name, {f"{which}Key": self._entropy.access_key()})

    async def remove(self, name: str) -> None:
        """Remove a rule."""
        if self._namespace.is_duobus:
            await self._ask("DELETE", name)
            return

        def removed(rules: list[_Rule]) -> list[_Rule]:
            old = _named(rules, name, self._entity)
            return [rule for rule in rules if rule is not old]

        await self._describe(removed)

    # -- by the requests of duobus ----------------------------------------------------------------------------

    async def _ask(self, method: str, *parts: str, **query: str) -> Any:
        if self._entity:
            query["entity"] = self._entity
        return await self._namespace.operation(method, "/".join(("/$duobus/keys", *parts)), query=query)

    # -- by the description of the entity ---------------------------------------------------------------------

    async def _read(self) -> tuple[str, Any]:
        if not self._entity:
            raise NamespaceError(
                HTTPStatus.CONFLICT,
                "The access rules of this namespace are out of reach of access keys: its owner changes them in the "
                "portal. Those of a queue or topic are on its own page.",
            )
        administration = self._namespace.administration
        async with self._namespace.telling(f"queue or topic {self._entity}"):
            try:
                return "queue", await administration.get_queue(self._entity)
            except AttributeError:
                # The SDK takes the description of a topic for that of a queue, and finds nothing in it.
                return "topic", await administration.get_topic(self._entity)

    async def _described(self) -> list[_Rule]:
        kind, about = await self._read()
        rules: list[_Rule] = entity_form(kind, about, with_keys=True).get("authorizationRules", [])
        return rules

    async def _describe(self, changed: Callable[[list[_Rule]], list[_Rule]]) -> None:
        kind, about = await self._read()
        rules = changed(entity_form(kind, about, with_keys=True).get("authorizationRules", []))
        about.authorization_rules = sdk_properties(kind, {"authorizationRules": rules}).get("authorization_rules", [])
        async with self._namespace.telling(f"{kind} {self._entity}"):
            await getattr(self._namespace.administration, f"update_{kind}")(about)

    async def _change(self, name: str, values: _Rule) -> None:
        def changed(rules: list[_Rule]) -> list[_Rule]:
            old = _named(rules, name, self._entity)
            return [rule | values if rule is old else rule for rule in rules]

        await self._describe(changed)


def _named(rules: list[_Rule], name: str, entity: str) -> _Rule:
    for rule in rules:
        if rule["keyName"] == name:
            return rule
    raise NamespaceError(HTTPStatus.NOT_FOUND, f"{entity} has no access rule {name}.")


def _whole(rights: list[str]) -> list[str]:
    """Rights as a description has them: whoever has Manage has the other two as well."""
    return list(RIGHTS) if "Manage" in rights else rights
