"""Finding the server that runs on a data folder of this machine: where it listens, and a key that opens it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from duobus.cli.failures import Refused, Unreachable


class RunningServer(NamedTuple):
    """How a server on this machine is reached, without TLS: what is said to it does not leave the machine.

    Attributes:
        connection_string: Of a rule with the right Manage.
        connection_string_tls: The same for TLS, or None where the server has no certificates.
        admin_url: Where entities are managed.
        ca: The authority that its certificate is of, where it has made one itself, or None.
    """

    connection_string: str
    connection_string_tls: str | None
    admin_url: str
    ca: Path | None


def server_of(data: Path) -> RunningServer:
    """Find the server that runs on a data folder.

    Raises:
        Unreachable: None runs there, or it has not said where it listens.
        Refused: The record of the server belongs to another user.
    """
    from duobus.server.server_record import FILE_NAME, read_server_record
    from duobus.storage.folder_lock import holder_of

    try:
        holder = holder_of(data)
        found = read_server_record(data)
    except PermissionError as error:
        raise Refused(
            f"{error.filename or data / FILE_NAME} belongs to another user. Give this command as the user that the "
            "server runs as, or with --connection-string."
        ) from None
    if holder is None:
        killed = f" The last one there, with process id {found['pid']}, was killed." if found else ""
        raise Unreachable(f"No server runs on {data}.{killed} Start one: duobus serve --data {data}")
    if found is None:
        raise Unreachable(
            f"{data} is in use by {holder}, which has not said where it listens: it starts or stops at this moment, or "
            "is of an earlier version. Try again in a few seconds, or say with --connection-string where it is."
        )
    return RunningServer(
        str(found["connection_string"]),
        found.get("connection_string_tls"),
        str(found["admin_url"]),
        Path(found["ca"]) if found.get("ca") else None,
    )
