"""``duobus store``: the messaging stores of a server, and drills with them."""

from __future__ import annotations

from pathlib import Path

import click

from duobus.cli.output import Commands, Printer
from duobus.cli.remote import OUTPUTS, Remote, operate, remote_command

_COLUMNS = ("store", "state", "drill", "fragments", "commits", "failures", "quarantined", "place", "reason")

_DATA = click.Path(exists=True, file_okay=False, path_type=Path)

_REPLACE = """
\b
Example:
  duobus store replace 2 --data ./bus
"""

_ADOPT = """
\b
Example:
  duobus store adopt --data ./bus --dry-run
  duobus store adopt --data ./bus
  duobus store adopt --data ./bus --store postgresql://bus@db.example.com/bus
"""

_ADDRESS = """
\b
Example:
  duobus store address 2 postgresql://bus@db2.example.com/bus --data ./bus
"""

_CLOCK = """
\b
Example:
  duobus store clock --data ./bus --reset
  duobus store clock --join postgresql://db.internal/bus --reset
"""

_LIST = """
\b
Example:
  duobus store list -o table
"""


@click.group(cls=Commands)
def command() -> None:
    """List messaging stores; fail, stall and heal them in a drill."""


@command.command(name="list", epilog=_LIST)
@remote_command()
def list_stores(remote: Remote, output: str | None) -> None:
    """List the messaging stores and their states."""
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
@click.option("--although-readable", is_flag=True, help="Give the store up although it can still be read.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON list.")
def replace(number: int, data: Path, although_readable: bool, is_sure: bool, is_json: bool) -> None:
    """Give a messaging store up for good and go on without what it held. The server must not be running.

    An outage needs nothing of this: a store that comes back brings everything with it.
    """
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.replacement import give_up

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


@command.command(name="adopt", epilog=_ADOPT)
@click.option("--data", required=True, type=_DATA, help="The data folder.")
@click.option(
    "--store",
    "addresses",
    multiple=True,
    metavar="URL",
    help="Messaging store in PostgreSQL, postgresql://user@host/database, or all of this server in that database."
    " Repeatable.",
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Only say what the catalog would be.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(OUTPUTS),
    help="Form of what is printed; by default table on a terminal, else jsonl.",
)
def adopt(data: Path, addresses: tuple[str, ...], is_dry: bool, output: str | None) -> None:
    """Rebuild a lost catalog from the messaging stores. The server must not be running.

    A catalog that does not fit its stores is kept beside the new one.
    """
    from duobus.clock import Clock
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.offline.catalog_rebuild import adopt as rebuild
    from duobus.storage.postgres.address import parse

    try:
        adoption = rebuild(data, Clock(), places=tuple(map(parse, addresses)), is_dry=is_dry)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    with Printer(output, ("namespace", "entity", "kind", "state", "fragments", "stores")) as printer:
        printer.print(
            {
                "namespace": row.namespace,
                "entity": row.path,
                "kind": row.kind,
                "state": row.state,
                "fragments": len(row.slots),
                "stores": ",".join(map(str, sorted({slot.store_id for slot in row.slots}))),
            }
            for row in adoption.contents.entities
        )
    for store in adoption.away:
        click.echo(f"Messaging store {store.store_id} ({store.path}) was not found; what it holds is away.", err=True)
    for store_id, entity_id, number in adoption.unknown:
        click.echo(
            f"Messaging store {store_id} holds fragment {number} of entity {entity_id}, of which nothing else is known;"
            " it is left alone.",
            err=True,
        )
    spaces = len(adoption.contents.namespaces)
    done = "would be rebuilt" if is_dry else "was rebuilt"
    click.echo(
        f"The catalog {done} from stores {', '.join(map(str, adoption.stores))}: {len(adoption.contents.entities)} "
        f"entities, and the access rules of {spaces} namespaces.",
        err=True,
    )


@command.command(name="accept-loss", epilog="\b\nExample:\n  duobus store accept-loss 2 --data ./bus")
@click.argument("number", type=click.IntRange(1))
@click.option("--data", required=True, type=_DATA, help="The data folder.")
@click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask.")
def accept_loss(number: int, data: Path, is_sure: bool) -> None:
    """Take a store without its log, or an older copy of it, that the server refuses. The server must not be running.

    Accepted messages that stood in what is gone are lost by this. Put it back instead if it can be found.
    """
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.offline import maintenance as offline

    if not is_sure:
        click.confirm(f"Take messaging store {number} of {data} as it is, and lose what is missing?", abort=True)
    try:
        offline.accept_loss(data, number)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Messaging store {number} is taken as it is. Start the server.")


@command.command(name="write-back", epilog="\b\nExample:\n  duobus store write-back --data ./bus")
@click.option("--data", required=True, type=_DATA, help="The data folder.")
def write_back(data: Path) -> None:
    """Bring the journals of all stores into their files, as a server does that is stopped. It must not be running.

    Needed after a kill, before a version of duobus that knows no journals is to read the stores.
    """
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.storage.offline import maintenance as offline

    try:
        written = offline.write_back(data)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    for number, had_journal in written.items():
        done = "holds what its journal held" if had_journal else "had no journal"
        click.echo(f"Messaging store {number} {done}.")


def _demand_either(data: Path | None, join: str | None) -> None:
    if (data is None) == (join is None):
        raise click.UsageError("Give either --data or --join.")


@command.command(name="clock", epilog=_CLOCK)
@click.option("--data", type=_DATA, help="The data folder.")
@click.option("--join", metavar="URL", help="The shared catalog, of joined servers.")
@click.option(
    "--store",
    "addresses",
    multiple=True,
    metavar="URL",
    help="Address of a messaging store in PostgreSQL, where it needs a password. Repeatable.",
)
@click.option("--reset", "is_reset", is_flag=True, help="Set times that are ahead of the machine's clock back to it.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON list.")
def clock(data: Path | None, join: str | None, addresses: tuple[str, ...], is_reset: bool, is_json: bool) -> None:
    """Show what time the stores have recorded, and set it back. No server may be running.

    Broker time never goes back by itself: after a start with a clock that was ahead it stays ahead. Messages that were
    enqueued meanwhile keep their times, and expire that much later.
    """
    from duobus.clock import Clock
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew
    from duobus.server.clock_record import NAME
    from duobus.storage.offline import maintenance as offline
    from duobus.storage.postgres.address import parse

    _demand_either(data, join)
    now_ms = Clock().now_ms()
    try:
        places = tuple(map(parse, addresses))
        if data is None:
            found = offline.shared_times(join or "", now_ms if is_reset else None, places)
        else:
            found = offline.set_times_back(data, now_ms, places) if is_reset else offline.recorded_times(data, places)
            if is_reset:
                (data / NAME).unlink(missing_ok=True)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    columns = ("store", "recordedMs", "aheadSeconds", "setBack")
    with Printer("json" if is_json else None, columns) as printer:
        printer.print(
            {
                "store": row.store,
                "recordedMs": row.broker_ms,
                "aheadSeconds": (row.broker_ms - now_ms) / 1000,
                "setBack": is_reset and row.broker_ms > now_ms,
            }
            for row in found
        )


@command.command(name="address", epilog=_ADDRESS)
@click.argument("number", type=click.IntRange(1))
@click.argument("address")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="The data folder.")
@click.option("--join", metavar="URL", help="The shared catalog, of joined servers.")
def address(number: int, address: str, data: Path | None, join: str | None) -> None:
    """Change the address of a messaging store in PostgreSQL. No server may be running with --data.

    The store has to be there already: this moves nothing.
    """
    from duobus.errors import ConfigurationError, StoreFailed, StoreTooNew

    _demand_either(data, join)
    try:
        before, now = _change_address(number, address, data, join)
    except (ConfigurationError, StoreFailed, StoreTooNew) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"Messaging store {number} is at {now} (before: {before}).")


def _change_address(number: int, address: str, data: Path | None, join: str | None) -> tuple[str, str]:
    from duobus.clock import Clock
    from duobus.errors import ConfigurationError
    from duobus.storage.catalog.interface import Catalog
    from duobus.storage.catalog.sqlite import SqliteCatalog
    from duobus.storage.folder_lock import FolderLock
    from duobus.storage.offline.maintenance import change_address, shared_catalog

    lock = None
    catalog: Catalog
    if data is None:
        catalog = shared_catalog(join or "")
    else:
        if not (data / "catalog.db").exists():
            raise ConfigurationError(f"{data} is no data folder of duobus: it has no catalog.db.")
        lock = FolderLock(data)
        lock.take("duobus store address", Clock())
        catalog = SqliteCatalog(data / "catalog.db")
    try:
        return change_address(catalog, number, address)
    finally:
        catalog.close()
        if lock is not None:
            lock.release()


_add_drill("fail", "Make every call of a store fail, as a disk that is gone.")
_add_drill("stall", "Make a store answer nothing, as a disk that hangs; what it is told to write it still writes.")
_add_drill("heal", "End a drill: the store is opened again and its fragments are recovered.")
