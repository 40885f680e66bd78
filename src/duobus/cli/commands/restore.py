"""``duobus restore``: a data folder from a backup."""

from __future__ import annotations

from pathlib import Path

import click

from duobus.cli.meter import Meter
from duobus.cli.output import Printer

_EXAMPLE = """
\b
Example:
  duobus restore --from ./backups/20260131T120000000Z --data ./bus
  duobus serve --data ./bus
"""
_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(name="restore", epilog=_EXAMPLE)
@click.option(
    "--from",
    "backup",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the backup.",
)
@click.option("--data", required=True, type=_FOLDER, help="The data folder to make, empty or new.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object.")
def command(backup: Path, data: Path, is_json: bool) -> None:
    """Make a data folder from a backup. Nothing that was given out after the backup is given out again."""
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.backup.restore import restore

    try:
        with Meter() as meter:
            manifest = restore(backup, data, meter.show)
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
