"""``duobus fragment``: where the fragments of entities are, and moves of them."""

from __future__ import annotations

import threading
from typing import Any, Final

import click

from duobus.cli.output import Commands, Printer
from duobus.cli.remote import Remote, operate, remote_command

_COLUMNS = ("entity", "kind", "fragment", "store", "movesTo", "available", "messages", "bytes")

_LIST = """
\b
Example:
  duobus fragment list orders -o table
"""


_MOVE = """
\b
Example:
  duobus fragment move orders 3 --to 2
"""
_MOVED = ("entity", "fragment", "fragments", "from", "to", "state", "messages", "heldMs", "begunMs", "endedMs")
#: Pause between two looks at a move, in seconds.
_POLL_S: Final = 0.2


@click.group(cls=Commands)
def command() -> None:
    """Tell which fragment of an entity is on which messaging store, and move one."""


@command.command(name="list", epilog=_LIST)
@click.argument("entity", required=False)
@remote_command()
def list_fragments(remote: Remote, entity: str | None, output: str | None) -> None:
    """List the fragments of all queues and topics, or of one."""
    found = operate(remote, "GET", "fragments", {"entity": entity} if entity else {})
    with Printer(output, _COLUMNS) as printer:
        printer.print(found)
    if not found:
        click.echo("There are no fragments, since there are no queues and no topics.", err=True)


@command.command(name="move", epilog=_MOVE)
@click.argument("entity")
@click.argument("fragment", type=click.IntRange(0))
@click.option("--to", "store", required=True, type=click.IntRange(1), help="Number of the messaging store.")
@remote_command()
def move_fragment(remote: Remote, entity: str, fragment: int, store: int, output: str | None) -> None:
    """Move a fragment to another messaging store while its entity is in use.

    Between servers that share a catalog, all fragments that the entity has in that store go with it. Returns when they
    are there. Interrupting this command does not interrupt the move.
    """
    asked = {"entity": entity, "fragment": str(fragment), "to": str(store)}
    status: dict[str, Any] = operate(remote, "POST", "moves", asked)
    begun = {name: status[name] for name in ("entity", "fragment", "from", "to", "begunMs")}
    pause = threading.Event()
    while status["state"] == "running":
        pause.wait(_POLL_S)
        moves = operate(remote, "GET", "moves")
        found = next((one for one in moves if begun.items() <= one.items()), None)
        if found is None:
            raise click.ClickException(
                "The server knows nothing more of the move: was it started again? duobus fragment list tells where the "
                "fragment is."
            )
        status = found
    if status["state"] != "done":
        raise click.ClickException(f"The fragment was not moved: {status['reason']}. It is on store {begun['from']}.")
    with Printer(output, _MOVED, is_one=True) as printer:
        printer.print([status])
