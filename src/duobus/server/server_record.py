"""Where a running server listens and which key opens it, in its data folder, for commands on the same machine.

The file has mode 0600, as the catalog beside it has, which holds the same keys. A server removes the file at a clean
stop. A server that was killed leaves it behind: then nobody has the lock of the folder.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from duobus.errors import ConfigurationError
from duobus.model.descriptions import AccessRule, Right
from duobus.server.settings import ReadyFile
from duobus.storage.catalog_rows import DEFAULT_RULE_NAME

#: Name of the file in the data folder.
FILE_NAME: Final = "server.json"


class ServerRecord(ReadyFile):
    """The record of one server, with the members of the ready file."""

    def __init__(self, data: Path) -> None:
        super().__init__(data / FILE_NAME)


def read_server_record(data: Path) -> dict[str, Any] | None:
    """The members of the record in a data folder; None when there is none that can be understood.

    Raises:
        PermissionError: It belongs to another user.
    """
    try:
        found = json.loads((data / FILE_NAME).read_text())
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None
    is_known = isinstance(found, dict) and {"pid", "connection_string", "admin_url"} <= found.keys()
    return found if is_known else None


def remove_stale_record(data: Path) -> None:
    """Remove the record of a server that was killed, whose key may be another by now; the caller has the lock."""
    try:
        (data / FILE_NAME).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{data / FILE_NAME} cannot be removed: {error.strerror}.") from error


def managing_rule(rules: tuple[AccessRule, ...]) -> AccessRule:
    """The rule that commands on the same machine use: the default one, or else the first with the right Manage."""
    able = [rule for rule in rules if rule.rights & Right.MANAGE]
    named = [rule for rule in able if rule.name == DEFAULT_RULE_NAME]
    return (named or able or list(rules))[0]
