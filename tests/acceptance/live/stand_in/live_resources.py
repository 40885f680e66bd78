"""What makes and removes entities for the tests: Azure Resource Manager's part, done by the broker's own HTTP side.

The environment names the namespace (``LIVE_NAMESPACE``), the suffix of its host (``SERVICEBUS_ENDPOINT_SUFFIX``), its
key (``LIVE_KEY``) and, for the emulator's form, ``LIVE_EMULATOR=1``.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import SimpleNamespace

from azure.core.exceptions import ResourceNotFoundError
from azure.servicebus.management import AccessRights, AuthorizationRule, ServiceBusAdministrationClient

#: Access rules of the namespace that the configuration of the broker has, by their rights.
RULES = {("Listen",): "listens", ("Send",): "sends", ("Listen", "Manage", "Send"): "RootManageSharedAccessKey"}


def connection_string(rule: str, key: str, entity: str = "") -> str:
    """For a rule of the namespace, or of an entity."""
    host = os.environ["LIVE_NAMESPACE"] + os.environ["SERVICEBUS_ENDPOINT_SUFFIX"]
    text = f"Endpoint=sb://{host}/;SharedAccessKeyName={rule};SharedAccessKey={key}"
    if entity:
        text += f";EntityPath={entity}"
    return text + (";UseDevelopmentEmulator=true" if os.environ.get("LIVE_EMULATOR") else "")


#: What tests have called rules of the namespace, and keys of rules of queues; each preparer makes a client of its own.
_RULE_OF_NAME: dict[str, str] = {}
_KEY_OF_RULE: dict[tuple[str, str], str] = {}


def _named(name):
    return SimpleNamespace(name=name, id=name)


def _keys(rule, key, entity=""):
    return SimpleNamespace(
        primary_connection_string=connection_string(rule, key, entity), key_name=rule, primary_key=key
    )


def _administration():
    host = os.environ["LIVE_NAMESPACE"] + os.environ["SERVICEBUS_ENDPOINT_SUFFIX"]
    root = (
        f"Endpoint=sb://{host}/;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey={os.environ['LIVE_KEY']}"
    )
    return ServiceBusAdministrationClient.from_connection_string(root)


def _without(what, *names):
    """Remove an entity; a test may have done so already."""
    with _administration() as administration, suppress(ResourceNotFoundError):
        getattr(administration, what)(*names)


class Resources:
    """Has the operations that the tests' preparers use."""

    def __init__(self):
        self.namespaces, self.queues = _Namespaces(), _Queues()
        self.topics, self.subscriptions = _Topics(), _Subscriptions()


class _Namespaces:
    """There is one already, and it stays; so do its rules."""

    def __init__(self):
        self._of_name = _RULE_OF_NAME

    def begin_create_or_update(self, _group, _name, _parameters):
        return SimpleNamespace(result=lambda: _named(os.environ["LIVE_NAMESPACE"]))

    def delete(self, _group, _name):
        pass

    def create_or_update_authorization_rule(self, _group, _namespace, name, rule):
        self._of_name[name] = RULES[tuple(sorted(str(right.value) for right in rule.rights))]
        return _named(name)

    def delete_authorization_rule(self, _group, _namespace, name):
        self._of_name.pop(name, None)

    def list_keys(self, _group, _namespace, name):
        return _keys(self._of_name.get(name, name), os.environ["LIVE_KEY"])


class _Queues:
    def __init__(self):
        self._keys = _KEY_OF_RULE

    def create_or_update(self, _group, _namespace, name, queue):
        with _administration() as administration:
            administration.create_queue(name, **vars(queue))
        return _named(name)

    def delete(self, _group, _namespace, name):
        _without("delete_queue", name)

    def create_or_update_authorization_rule(self, _group, _namespace, queue, name, rule):
        self._keys[queue, name] = "0123456789abcdef0123456789abcdef0123456789a="
        with _administration() as administration:
            properties = administration.get_queue(queue)
            properties.authorization_rules = [
                AuthorizationRule(
                    type="SharedAccessAuthorizationRule",
                    key_name=name,
                    claim_type="SharedAccessKey",
                    claim_value="None",
                    primary_key=self._keys[queue, name],
                    secondary_key=self._keys[queue, name],
                    rights=[AccessRights(right.value) for right in rule.rights],
                )
            ]
            administration.update_queue(properties)
        return _named(name)

    def delete_authorization_rule(self, _group, _namespace, queue, name):
        self._keys.pop((queue, name), None)

    def list_keys(self, _group, _namespace, queue, name):
        return _keys(name, self._keys[queue, name], queue)


class _Topics:
    def create_or_update(self, _group, _namespace, name, _parameters):
        with _administration() as administration:
            administration.create_topic(name)
        return _named(name)

    def delete(self, _group, _namespace, name):
        _without("delete_topic", name)


class _Subscriptions:
    def create_or_update(self, _group, _namespace, topic, name, subscription):
        with _administration() as administration:
            administration.create_subscription(topic, name, **vars(subscription))
        return _named(name)

    def delete(self, _group, _namespace, topic, name):
        _without("delete_subscription", topic, name)
