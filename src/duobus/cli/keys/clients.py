"""The two ways to access rules: the management API of a server that runs, and the data folder of a stopped one."""

from __future__ import annotations

import getpass
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import click

from duobus.cli.data_folder import server_of
from duobus.cli.failures import Refused, failure
from duobus.cli.remote import Remote, ServerChoice, operate
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError, ServiceBusError, StoreFailed, StoreTooNew
from duobus.model.access_rules import ADD, REMOVE, ROTATE, RuleChange, form_of, names_of

if TYPE_CHECKING:
    from duobus.storage.offline.access_rules import StoppedRules

Record = dict[str, Any]

#: How this command calls itself in the lock of a data folder.
_HOLDER: Final = "duobus key"
#: Tries to get a folder that another command of this kind has, and seconds between them.
_TRIES: Final = 100
_TRY_S: Final = 0.05
_AS_OWNER: Final = "Give this command as the user that the server runs as."


class RuleClient(Protocol):
    """A way to access rules. A record of a rule has its keys, one in a list has none."""

    def listed(self, entity: str | None) -> list[Record]:
        """The rules of an entity, or all of the namespace and of its entities."""

    def shown(self, entity: str | None, name: str) -> Record:
        """One rule."""

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """Change one rule; durable on return."""


class RunningServerRules:
    """The management API of a running server."""

    def __init__(self, server: ServerChoice) -> None:
        """``server``: one that runs."""
        self._server = server
        self._remote = server.remote()

    def listed(self, entity: str | None) -> list[Record]:
        """See RuleClient."""
        return [dict(one) for one in self._ask("GET", "keys", _query(entity))]

    def shown(self, entity: str | None, name: str) -> Record:
        """See RuleClient."""
        return self._whole(self._ask("GET", f"keys/{name}", _query(entity)))

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """See RuleClient."""
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
        while True:
            try:
                return operate(self._remote, method, path, query)
            except Refused:
                # The key that was found in the data folder may have been replaced since, by other commands like this.
                again = self._server.remote()
                if again.text == self._remote.text:
                    raise
                self._remote = again

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


class StoppedServerRules:
    """The data folder of a server that does not run; the caller has the lock of the folder."""

    def __init__(self, rules: StoppedRules) -> None:
        """``rules``: the access rules in the catalog of that folder."""
        self._rules = rules

    def listed(self, entity: str | None) -> list[Record]:
        """See RuleClient."""
        return [form_of(path, rule) for path, rule in self._rules.listed(entity)]

    def shown(self, entity: str | None, name: str) -> Record:
        """See RuleClient."""
        return form_of(*self._rules.rule(entity, name), with_keys=True)

    def change(self, entity: str | None, change: RuleChange) -> Record:
        """See RuleClient."""
        path, rule = self._rules.change(entity, change)
        return {"entity": path, "name": change.name} if rule is None else form_of(path, rule, with_keys=True)


@contextmanager
def rules_of(server: ServerChoice, namespace: str | None) -> Iterator[RuleClient]:
    """The way to the access rules of a server.

    Raises:
        click.ClickException: There is none; or what is done within has failed.
    """
    if server.data is None:
        if namespace is not None:
            raise click.UsageError("--namespace goes with --data, and a server that does not run.")
        yield RunningServerRules(server)
        return
    try:
        with _rules_at(server, server.data, namespace) as rules:
            yield rules
    except PermissionError as error:
        raise Refused(f"{error.filename or server.data} belongs to another user. {_AS_OWNER}") from error
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    except ServiceBusError as error:
        raise failure(error.http_status, str(error)) from error


def _user() -> str:
    """Who gives the command, for the audit log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # In a container a user may have a number alone.
        return str(os.geteuid())


@contextmanager
def _rules_at(server: ServerChoice, data: Path, namespace: str | None) -> Iterator[RuleClient]:
    from duobus.server.server_record import remove_stale_record
    from duobus.server.settings import EMULATOR_KEY
    from duobus.storage.folder_lock import FolderLock, holder_of
    from duobus.storage.offline.access_rules import stopped_rules

    if data.stat().st_uid != os.geteuid() and holder_of(data) is None:
        # What this command would write there, the server could not write any more.
        raise Refused(f"{data} belongs to another user, and no server runs on it. {_AS_OWNER}")
    clock, lock, pause = Clock(), FolderLock(data), threading.Event()
    for number in range(_TRIES):
        holder = holder_of(data)
        if holder is None or holder.startswith(_HOLDER):
            try:
                lock.take(_HOLDER, clock)
                break
            except ConfigurationError:
                # Another process has the lock now: a server that has just started, or a command like this one.
                if number == _TRIES - 1:
                    raise
                pause.wait(_TRY_S)
        else:
            if namespace is not None:
                raise click.UsageError("--namespace goes with a server that does not run.")
            yield RunningServerRules(server)
            return
    try:
        with stopped_rules(
            data,
            namespace,
            new_key=Entropy().access_key,
            who=_user(),
            clock=clock,
            emulator_key=EMULATOR_KEY,
        ) as rules:
            # The key in the record may be replaced by what follows.
            remove_stale_record(data)
            yield StoppedServerRules(rules)
    finally:
        lock.release()
