"""``duobus audit``: read the audit log of a data folder."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Final

import click

from duobus.cli.options import instant
from duobus.cli.output import Printer
from duobus.cli.remote import OUTPUTS
from duobus.telemetry.audit_log import read_audit

_COLUMNS: Final = ("at", "operation", "kind", "path", "who", "from", "outcome")

_EXAMPLE: Final = """
\b
Example:
  duobus audit --data bus --path orders --since 2026-01-31
  duobus audit --data bus --operation delete -o json
"""


@click.command(name="audit", epilog=_EXAMPLE)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Data folder of the server, which may run or not.",
)
@click.option("--path", help="Only changes of this queue, topic, subscription or rule, and of what is below it.")
@click.option("--who", help="Only changes by this access rule or identity.")
@click.option("--from", "origin", help="Only changes from this network address.")
@click.option("--operation", type=click.Choice(("create", "update", "delete")), help="Only this.")
@click.option("--since", type=instant, help="Only from this time on.")
@click.option("--until", type=instant, help="Only before this time.")
@click.option("--failed", is_flag=True, help="Only changes that were refused, or whose outcome is unknown.")
@click.option("--count", type=click.IntRange(1), help="Only the latest changes, at most this many.")
@click.option(
    "-o",
    "--output",
    "output",
    type=click.Choice(OUTPUTS),
    help="Form of what is printed; by default table on a terminal, else jsonl.",
)
def command(data: Path, output: str | None, count: int | None, **wanted: Any) -> None:
    """Read who changed which entity or rule, when, from where, and what came of it."""
    with Printer(output, _COLUMNS) as printer:
        found = (record for record in read_audit(data / "audit") if _is_wanted(record, wanted))
        if count is None:
            printer.print(found)
        else:
            printer.print(list(found)[-count:])


def _is_wanted(record: dict[str, Any], wanted: dict[str, Any]) -> bool:
    path = wanted["path"]
    if path is not None:
        low, key = str(record["path"]).lower(), path.lower().strip("/")
        if low != key and not low.startswith(key + "/"):
            return False
    for name, member in (("who", "who"), ("origin", "from"), ("operation", "operation")):
        if wanted[name] is not None and record.get(member) != wanted[name]:
            return False
    if wanted["failed"] and record["outcome"] == "done":
        return False
    at = datetime.fromisoformat(record["at"])
    is_late = wanted["since"] is None or at >= wanted["since"]
    return is_late and (wanted["until"] is None or at < wanted["until"])
