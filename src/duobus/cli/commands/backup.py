"""``duobus backup``: a running server copies what it keeps; what no server uses, this command copies itself."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, Final

import click

from duobus.cli.output import Meter, Printer
from duobus.cli.remote import Remote, ServerChoice, operate, remote_command

_EXAMPLE = """
\b
Example:
  duobus serve --data ./bus --backup-to ./backups
  duobus backup --data ./bus
  duobus backup --data ./bus --to ./backups/by-hand
"""
_POLL_S: Final = 0.2
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(name="backup", epilog=_EXAMPLE)
@click.option("--to", "folder", type=_FOLDER, help="With --data: copy the folder, which no server uses, to this one.")
@remote_command(is_chosen_later=True)
def command(server: ServerChoice, folder: Path | None, output: str | None) -> None:
    """Copy everything that a server keeps.

    A running server makes the copy itself, in the folder that it was given with --backup-to. Of a server that does not
    run, give its data folder with --data, and with --to an empty or new folder for the copy.
    """
    if folder is not None and server.data is None:
        raise click.UsageError("--to needs --data; a running server makes backups in the folder of its --backup-to.")
    found = _asked(server.remote()) if server.data is None or folder is None else _copied(server.data, folder)
    with Printer(output, is_one=True) as printer:
        printer.print([found])


def _asked(remote: Remote) -> dict[str, Any]:
    status: dict[str, Any] = operate(remote, "POST", "backup")
    name = status["backup"]
    pause = threading.Event()
    with Meter() as meter:
        while status.get("state") == "running" and status.get("backup") == name:
            meter.show(status["copied"], status["bytes"])
            pause.wait(_POLL_S)
            status = operate(remote, "GET", "backup")
    if status.get("backup") != name:
        raise click.ClickException(f"The server knows nothing more of the backup {name}: was it started again?")
    if status["state"] != "done":
        raise click.ClickException(f"The backup {name} failed: {status['reason']}")
    return status


def _copied(data: Path, folder: Path) -> dict[str, Any]:
    from duobus.clock import Clock
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.backup.copy import back_up_stopped

    try:
        with Meter() as meter:
            manifest = back_up_stopped(data, folder, Clock(), meter.show)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(
            f"{error}\nIf a server uses {data}, leave --to out: the server makes the copy itself."
        ) from error
    size = sum(file.bytes for file in manifest.files)
    return {
        "backup": folder.name,
        "state": "done",
        "reason": None,
        "bytes": size,
        "copied": size,
        "begunMs": manifest.begun_ms,
        "endedMs": manifest.ended_ms,
    }


# ``duobus restore``: a data folder from a backup.

_RESTORE = """
\b
Example:
  duobus restore --from ./backups/20260131T120000000Z --data ./bus
  duobus serve --data ./bus
"""


@click.command(name="restore", epilog=_RESTORE)
@click.option(
    "--from",
    "backup",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the backup.",
)
@click.option("--data", required=True, type=_FOLDER, help="The data folder to make, empty or new.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def restore(backup: Path, data: Path, is_json: bool) -> None:
    """Make a data folder from a backup. Nothing that was given out after the backup is given out again."""
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.backup.restore import restore as restored

    try:
        with Meter() as meter:
            manifest = restored(backup, data, meter.show)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    with Printer("json" if is_json else None, is_one=True) as printer:
        printer.print(
            [
                {
                    "begunMs": manifest.begun_ms,
                    "endedMs": manifest.ended_ms,
                    "stores": len(manifest.stores),
                    "rows": sum(state.rows for state in manifest.stores),
                    "bytes": sum(file.bytes for file in manifest.files),
                }
            ]
        )
