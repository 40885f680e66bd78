"""Stand-in of ours for the test helpers that Microsoft keeps in no registry: their names, for tests against duobus.

It records and scrubs nothing. Each test gets entities of its own: what upstream keeps from one test to the next is made
anew. Values come from the environment; ``live_resources`` says which.
"""

from __future__ import annotations

import functools
import inspect
import os
import uuid
from types import SimpleNamespace

import live_resources

from .resource_testcase import RESOURCE_GROUP_PARAM
from .sanitizers import add_general_regex_sanitizer, set_custom_default_matcher


class AzureTestError(Exception):
    """A resource could not be made."""


class ReservedResourceNameError(AzureTestError):
    """A resource may not have this name."""


class FakeResource(SimpleNamespace):
    """A resource with ``name`` and ``id``."""


class AzureRecordedTestCase:
    """Base class of tests; there is nothing to record."""

    @staticmethod
    def await_prepared_test(function):
        """Leave a coroutine as it is: ``live_plugin`` runs it."""
        return function


class AzureMgmtRecordedTestCase(AzureRecordedTestCase):
    """The same for tests that manage resources."""


def get_credential(is_async=False, **_kwargs):
    """The identity of this machine, which the broker's token endpoint gives out."""
    if is_async:
        from azure.identity.aio import ManagedIdentityCredential
    else:
        from azure.identity import ManagedIdentityCredential
    return ManagedIdentityCredential()


def get_region_override(default="westus"):
    """The region; there is none."""
    return default


def recorded_by_proxy(function):
    """Leave a test as it is."""
    return function


def _accepted(function, given):
    """Those of the given arguments that a function takes."""
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return given
    return {name: value for name, value in given.items() if name in {one.name for one in parameters}}


def _wrapped(function, supply, clear):
    """A test whose further arguments ``supply`` makes, and ``clear`` removes."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def test(self, *args, **given):
            made = supply(self, given)
            try:
                return await function(self, *args, **_accepted(function, {**given, **made}))
            finally:
                clear(given, made)

    else:

        @functools.wraps(function)
        def test(self, *args, **given):
            made = supply(self, given)
            try:
                return function(self, *args, **_accepted(function, {**given, **made}))
            finally:
                clear(given, made)

    test.is_live = True
    return test


class PowerShellPreparer:
    """Gives a test the values that the environment has, under the names that stand in ``fakes``."""

    def __init__(self, _directory, **fakes):
        self._names = fakes

    def __call__(self, function):
        def supply(_test, _given):
            return {name: os.environ.get(name.upper(), fake) for name, fake in self._names.items()}

        test = _wrapped(function, supply, lambda _given, _made: None)
        # What is supplied here is nothing that pytest should look for.
        signature = inspect.signature(function)
        kept = [one for one in signature.parameters.values() if one.name not in self._names]
        test.__signature__ = signature.replace(parameters=kept)
        return test


class AzureMgmtPreparer:
    """Base class of what makes a resource before a test and removes it afterwards."""

    def __init__(
        self,
        name_prefix="",
        random_name_length=24,
        disable_recording=True,
        playback_fake_resource=None,
        client_kwargs=None,
        random_name_enabled=True,
    ):
        self.name_prefix = name_prefix
        self.random_name_length = random_name_length
        self.random_name_enabled = random_name_enabled
        self.client_kwargs = client_kwargs or {}
        self.is_live = True
        self.moniker = self.resource_moniker = name_prefix
        self.resource = None
        self.resource_random_name = None
        self.client = None
        self.test_class_instance = None

    def set_cache(self, *_key):
        """Nothing is kept from one test to the next."""

    def create_mgmt_client(self, _kind, **_kwargs):
        """What manages resources."""
        return live_resources.Resources()

    def __call__(self, function):
        def supply(test, given):
            self.test_class_instance = test
            self._name = self.resource_random_name or f"{self.name_prefix}{uuid.uuid4().hex[:12]}"
            return self.create_resource(self._name, **given)

        def clear(given, made):
            self.remove_resource(self._name, **{**given, **made})

        return _wrapped(function, supply, clear)


class _NoResourceGroup(AzureMgmtPreparer):
    def create_resource(self, name, **_kwargs):
        return {RESOURCE_GROUP_PARAM: FakeResource(name=name, id=name)}

    def remove_resource(self, name, **_kwargs):
        pass


CachedResourceGroupPreparer = RandomNameResourceGroupPreparer = ResourceGroupPreparer = _NoResourceGroup

__all__ = [
    "RESOURCE_GROUP_PARAM",
    "AzureMgmtPreparer",
    "AzureMgmtRecordedTestCase",
    "AzureRecordedTestCase",
    "AzureTestError",
    "CachedResourceGroupPreparer",
    "FakeResource",
    "PowerShellPreparer",
    "RandomNameResourceGroupPreparer",
    "ReservedResourceNameError",
    "ResourceGroupPreparer",
    "add_general_regex_sanitizer",
    "get_credential",
    "get_region_override",
    "recorded_by_proxy",
    "set_custom_default_matcher",
]
