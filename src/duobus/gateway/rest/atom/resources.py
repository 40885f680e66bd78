"""What a management request is about: the path, searched from the right (Azure: Service Bus REST API)."""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.gateway.rest.request_target import Target

NAMESPACE: Final = "namespace"
QUEUES: Final = "queues"
TOPICS: Final = "topics"
ENTITY: Final = "entity"
SUBSCRIPTIONS: Final = "subscriptions"
SUBSCRIPTION: Final = "subscription"
RULES: Final = "rules"
RULE: Final = "rule"


class Resource(NamedTuple):
    """One thing that is managed, or a list; names in the client's spelling."""

    kind: str
    entity: str = ""
    subscription: str = ""
    rule: str = ""


def resource_of(target: Target) -> Resource:
    """Return what a target means; whether its names can exist is not looked at.

    Names of queues and topics may hold slashes, so the keywords are looked for from the right.
    """
    names, lower = target.segments, target.lower
    if lower == ("$namespaceinfo",):
        return Resource(NAMESPACE)
    if len(lower) == 2 and lower[0] == "$resources" and lower[1] in {QUEUES, TOPICS}:
        return Resource(lower[1])
    # Before 'subscriptions' there is a topic, of one segment at least.
    if len(lower) >= 5 and (lower[-4], lower[-2]) == (SUBSCRIPTIONS, RULES):
        return Resource(RULE, "/".join(names[:-4]), names[-3], names[-1])
    if len(lower) >= 4 and (lower[-3], lower[-1]) == (SUBSCRIPTIONS, RULES):
        return Resource(RULES, "/".join(names[:-3]), names[-2])
    if len(lower) >= 3 and lower[-2] == SUBSCRIPTIONS:
        return Resource(SUBSCRIPTION, "/".join(names[:-2]), names[-1])
    if len(lower) >= 2 and lower[-1] == SUBSCRIPTIONS:
        return Resource(SUBSCRIPTIONS, "/".join(names[:-1]))
    return Resource(ENTITY, "/".join(names))
