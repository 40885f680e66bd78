"""``duobus store``: the messaging stores of a server, and drills with them."""

from __future__ import annotations

import click

from duobus.cli.operating import operate
from duobus.cli.printing import Printer
from duobus.cli.remote import Remote, remote_command

_COLUMNS = ("store", "state", "drill", "fragments", "commits", "failures", "quarantined", "reason")

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


_add_drill("fail", "Make every call of a store fail, as a disk that is gone.")
_add_drill("stall", "Make a store answer nothing, as a disk that hangs; what it is told to write it still writes.")
_add_drill("heal", "End a drill: the store is opened again and its fragments are recovered.")
