"""The two ways to access rules: over the management API of a running server, and in the folder of a stopped one."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import click

from duobus.cli.data_folder import server_of
from duobus.cli.failures import Refused, failure
from duobus.cli.remote import Remote, ServerChoice, operate
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed, StoreTooNew
from duobus.model.access_rules import ADD, REMOVE, ROTATE, RuleChange, names_of
from duobus.model.descriptions import AccessRule

Record = dict[str, Any]

#: How this command calls itself in the lock of a data folder.
_HOLDER: Final = "duobus key"
#: Tries to get a folder that another command of this kind has, and seconds between them.
_TRIES: Final = 100
_TRY_S: Final = 0.05


class Door(Protocol):
    """A way to access rules. A record of a rule has its keys, one in a list has none."""

    def listed(self, entity: str | None) -> list[Record]:
        """The rules of an entity, or all of the namespace and of its entities."""

    def shown(self, entity: str | None, name: str) -> Record:
        """One rule."""

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """Change one rule; durable on return."""


class ServerDoor:
    """The management API of a running server."""

    def __init__(self, server: ServerChoice) -> None:
        """``server``: one that runs."""
        self._server = server
        self._remote = server.remote()

    def listed(self, entity: str | None) -> list[Record]:
        """See Door."""
        return [dict(one) for one in self._ask("GET", "keys", _query(entity))]

    def shown(self, entity: str | None, name: str) -> Record:
        """See Door."""
        return self._whole(self._ask("GET", f"keys/{name}", _query(entity)))

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """See Door."""
        method, path, query = "POST", f"keys/{change.name}/{change.verb}", {}
        if change.verb == ADD:
            method, path, query = "PUT", f"keys/{change.name}", {"rights": ",".join(names_of(change.rights))}
        elif change.verb == REMOVE:
            method, path = "DELETE", f"keys/{change.name}"
        elif change.verb == ROTATE:
            query = {"which": change.which}
        found = self._ask(method, path, query | _query(entity))
        return dict(found) if change.verb == REMOVE else self._whole(found)

    def _ask(self, method: str, path: str, query: dict[str, str]) -> Any:
        try:
            return operate(self._remote, method, path, query)
        except Refused:
            # The key that was found in the data folder may have been replaced since.
            again = self._server.remote()
            if again.text == self._remote.text:
                raise
            self._remote = again
            return operate(again, method, path, query)

    def _whole(self, found: Record) -> Record:
        """A rule with what applications connect by."""
        record = dict(found)
        found_by_folder = None if self._server.data is None else server_of(self._server.data)
        for which in ("primary", "secondary"):
            key = record[f"{which}Key"]
            record[f"{which}ConnectionString"] = self._remote.string_for(record["name"], key, record["entity"])
            if found_by_folder is not None and found_by_folder.connection_string_tls is not None:
                tls = Remote(found_by_folder.connection_string_tls, None, None)
                record[f"{which}ConnectionStringTls"] = tls.string_for(record["name"], key, record["entity"])
        if found_by_folder is not None and found_by_folder.ca is not None:
            record["ca"] = str(found_by_folder.ca)
        return record


def _query(entity: str | None) -> dict[str, str]:
    return {} if entity is None else {"entity": entity}


class FolderDoor:
    """The data folder of a server that does not run. It has the lock of the folder."""

    def __init__(self, rules: Any) -> None:
        """``rules``: see ``duobus.storage.offline.access_rules``."""
        self._rules = rules

    def listed(self, entity: str | None) -> list[Record]:
        """See Door."""
        return [_form(path, rule) for path, rule in self._rules.listed(entity)]

    def shown(self, entity: str | None, name: str) -> Record:
        """See Door."""
        return _whole_form(*self._rules.rule(entity, name))

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """See Door."""
        path, rule = self._rules.change(entity, change)
        return {"entity": path, "name": change.name} if rule is None else _whole_form(path, rule)


def _form(entity: str | None, rule: AccessRule) -> Record:
    return {
        "entity": entity,
        "name": rule.name,
        "rights": names_of(rule.rights),
        "createdMs": rule.created_at_ms or None,
        "modifiedMs": rule.modified_at_ms or None,
    }


def _whole_form(entity: str | None, rule: AccessRule) -> Record:
    return _form(entity, rule) | {"primaryKey": rule.primary_key, "secondaryKey": rule.secondary_key}


@contextmanager
def door_of(server: ServerChoice, namespace: str | None) -> Iterator[Door]:
    """The way to the access rules of a server.

    Raises:
        click.ClickException: There is none; or what is done within has failed.
    """
    if server.data is None:
        if namespace is not None:
            raise click.UsageError("--namespace goes with --data, and a server that does not run.")
        yield ServerDoor(server)
        return
    try:
        with _folder_door(server, server.data, namespace) as door:
            yield door
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    except ServiceBusError as error:
        raise failure(error.http_status, str(error)) from error


@contextmanager
def _folder_door(server: ServerChoice, data: Path, namespace: str | None) -> Iterator[Door]:
    from duobus.auth.sas_tokens import new_key
    from duobus.server.access.server_record import remove_stale_record
    from duobus.server.settings import EMULATOR_KEY
    from duobus.storage.folder_lock import FolderLock, holder_of
    from duobus.storage.offline.access_rules import stopped_rules

    clock, lock, pause = Clock(), FolderLock(data), threading.Event()
    for number in range(_TRIES):
        holder = holder_of(data)
        if holder is None or holder.startswith(_HOLDER):
            try:
                lock.take(_HOLDER, clock)
                break
            except ConfigurationError:
                # Another one has it now: a server that has just started, or a command like this one.
                if number == _TRIES - 1:
                    raise
                pause.wait(_TRY_S)
        else:
            if namespace is not None:
                raise click.UsageError("--namespace goes with a server that does not run.")
            yield ServerDoor(server)
            return
    try:
        with stopped_rules(
            data,
            namespace,
            new_key=partial(new_key, Entropy()),
            who=getpass.getuser(),
            clock=clock,
            emulator_key=EMULATOR_KEY,
        ) as rules:
            # Its key may be another one soon.
            remove_stale_record(data)
            yield FolderDoor(rules)
    finally:
        lock.release()
