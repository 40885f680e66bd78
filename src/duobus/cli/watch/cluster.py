"""``duobus cluster``: the servers that share a catalog, and which of them has which messaging store."""

from __future__ import annotations

import threading
from typing import Any, Final

import click

from duobus.cli.output import Commands, Printer
from duobus.cli.remote import Remote, operate, remote_command
from duobus.clock import Clock

_STATUS: Final = """
\b
Example:
  duobus cluster status
  duobus cluster status --stores -o table
"""
_MOVE: Final = """
\b
Example:
  duobus cluster move 3 bus2.example:5300
  duobus cluster move 3 zone=a
  duobus cluster move 3 any
"""
_DRAIN: Final = """
\b
Example:
  duobus cluster drain bus2.example:5300
  duobus cluster drain bus2.example:5300 --undo
"""
_SERVERS: Final = ("server", "state", "sinceMs", "version", "weight", "labels", "load", "stores")
_STORES: Final = ("store", "server", "state", "sinceMs", "leaseLeftMs", "preference", "isDisplaced", "place")
_MOVES: Final = ("entity", "fragment", "from", "to", "state")
#: How long a command waits for what it has asked for.
WAIT_MS: Final = 60_000
#: Pause between two looks, in seconds.
_POLL_S: Final = 0.2


@click.group(cls=Commands)
def command() -> None:
    """Tell which server has which messaging store; move stores, drain servers.

    Any server of the cluster can be asked. What is asked for is in the catalog, for all servers.
    """


@command.command(epilog=_STATUS)
@click.option("--stores", "of_stores", is_flag=True, help="The stores instead of the servers.")
@click.option("--moves", "of_moves", is_flag=True, help="Fragments on their way between stores, instead.")
@remote_command()
def status(remote: Remote, of_stores: bool, of_moves: bool, output: str | None) -> None:
    """List the servers with their stores, or the stores with their servers.

    Times are by the clock of the catalog's database. The load of a server is the number of processors that it uses,
    as a mean of the last seconds.
    """
    if of_stores and of_moves:
        raise click.UsageError("Give one of --stores and --moves.")
    found = operate(remote, "GET", "cluster")
    name, columns = ("moves", _MOVES) if of_moves else ("stores", _STORES) if of_stores else ("servers", _SERVERS)
    rows: list[dict[str, Any]] = found[name]
    with Printer(output, columns) as printer:
        printer.print(rows)
    for address in found["drainedAndAway"]:
        click.echo(f"{address} is drained, and away. duobus cluster drain {address} --undo forgets that.", err=True)


@command.command(epilog=_MOVE)
@click.argument("store", type=click.IntRange(1))
@click.argument("where")
@click.option("--no-wait", is_flag=True, help="Return at once, and not when the store is there.")
@remote_command()
def move(remote: Remote, store: int, where: str, no_wait: bool, output: str | None) -> None:
    """Keep a messaging store at a server, or at one of those with a label; any: wherever the servers' weights put it.

    WHERE is the address or host of a server, a label as in zone=a, or any.

    Links to the store's entities are detached once, and the SDKs attach again. When the server is away, another one has
    the store until the server is back.
    """
    found = operate(remote, "POST", "cluster/moves", {"store": str(store), "to": where})

    def row() -> dict[str, Any]:
        return next(one for one in found["stores"] if one["store"] == store)

    end_ms = Clock().monotonic_ms() + WAIT_MS
    while not no_wait and (row()["isDisplaced"] or row()["state"] != "held"):
        found = _later(remote, end_ms, f"Store {store} is not there yet; the wish stands. duobus cluster status tells.")
    with Printer(output, _STORES, is_one=True) as printer:
        printer.print([row()])


@command.command(epilog=_DRAIN)
@click.argument("server")
@click.option("--undo", is_flag=True, help="Let the server have stores again.")
@click.option("--no-wait", is_flag=True, help="Return at once, and not when the server has no stores.")
@remote_command()
def drain(remote: Remote, server: str, undo: bool, no_wait: bool, output: str | None) -> None:
    """Have a server give its messaging stores to the others. It goes on serving clients, by way of these.

    The drain outlives restarts of the server. If all servers are drained, they keep the stores.
    """
    found = operate(remote, "DELETE" if undo else "POST", "cluster/drains", {"server": server})

    def is_named(one: dict[str, Any]) -> bool:
        return server.lower() in (one["server"].lower(), one["amqp"].lower(), one["server"].rpartition(":")[0].lower())

    end_ms = Clock().monotonic_ms() + WAIT_MS
    while not (no_wait or undo):
        rows = [one for one in found["servers"] if is_named(one)]
        if not any(one["stores"] for one in rows) or all(one["state"] == "drained" for one in found["servers"]):
            break
        found = _later(remote, end_ms, f"{server} has stores still; the drain stands. duobus cluster status tells.")
    rows = [one for one in found["servers"] if is_named(one)]
    with Printer(output, _SERVERS, is_one=bool(rows)) as printer:
        printer.print(rows)


def _later(remote: Remote, end_ms: int, late: str) -> Any:
    if Clock().monotonic_ms() > end_ms:
        raise click.ClickException(f"{late} Waited for {WAIT_MS // 1000} seconds.")
    threading.Event().wait(_POLL_S)
    return operate(remote, "GET", "cluster")
