"""``duobus store``: the messaging stores of a server, and drills with them."""

from __future__ import annotations

from pathlib import Path

import click

from duobus.cli.operating import operate
from duobus.cli.printing import Printer
from duobus.cli.remote import Remote, remote_command

_COLUMNS = ("store", "state", "drill", "fragments", "commits", "failures", "quarantined", "place", "reason")

_REPLACE = """
\b
Example:
  duobus store replace 2 --data ./bus
"""

_LIST = """
\b
Example:
  duobus store list -o table
"""


@click.group()
def command() -> None:
    """List messaging stores; fail, stall and heal them in a drill."""


@command.command(name="list", epilog=_LIST)
@remote_command()
def list_stores(remote: Remote, output: str | None) -> None:
    """List the messaging stores and how they are."""
    with Printer(output, _COLUMNS) as printer:
        printer.print(operate(remote, "GET", "stores"))


def _add_drill(name: str, what: str) -> None:
    """One command: ``duobus store NAME NUMBER``."""

    @command.command(
        name=name,
        help=f"{what} The server must run with --allow-drills.",
        epilog=f"\b\nExample:\n  duobus store {name} 2",
    )
    @click.argument("number", type=click.IntRange(1))
    @remote_command()
    def drill(remote: Remote, number: int, output: str | None) -> None:
        with Printer(output, _COLUMNS, is_one=True) as printer:
            printer.print([operate(remote, "POST", f"stores/{number}/{name}")])


@command.command(name="replace", epilog=_REPLACE)
@click.argument("number", type=click.IntRange(1))
@click.option(
    "--data", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), help="The data folder."
)
@click.option("--although-readable", is_flag=True, help="Give it up although it can still be read.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON list.")
def replace(number: int, data: Path, although_readable: bool, is_sure: bool, is_json: bool) -> None:
    """Give a messaging store up for good and go on without what it held. The server must not be running.

    An outage needs nothing of this: a store that comes back brings everything with it.
    """
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.stores.giving_up import give_up

    if not is_sure:
        click.confirm(f"Give up messaging store {number} of {data} with every message in it, for good?", abort=True)
    try:
        losses = give_up(data, number, although_readable=although_readable)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    columns = ("namespace", "entity", "fragment", "newFragment", "firstSequenceNumber", "lastSequenceNumber")
    with Printer("json" if is_json else None, columns) as printer:
        printer.print(
            dict(
                zip(
                    columns,
                    (
                        loss.namespace,
                        loss.entity,
                        loss.fragment_no,
                        loss.new_fragment_no,
                        loss.first_number,
                        loss.last_number,
                    ),
                    strict=True,
                )
            )
            for loss in losses
        )


_add_drill("fail", "Make every call of a store fail, as a disk that is gone.")
_add_drill("stall", "Make a store answer nothing, as a disk that hangs; what it is told to write it still writes.")
_add_drill("heal", "End a drill: the store is opened again and its fragments are recovered.")
