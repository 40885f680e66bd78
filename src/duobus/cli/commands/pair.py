"""``duobus pair``: what the operator of a pair of namespaces asks: what waits, what is surplus, what it costs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from duobus.cli.output import Commands, Printer
from duobus.cli.remote import Remote, remote_command

_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
#: Longest time that an option takes: 30 days.
_SECONDS: Final = 2_592_000
_COUNT: Final = 1_000_000_000

_BACKLOG: Final = """
\b
Example:
  duobus pair backlog primary -o table
"""

_COST: Final = """
\b
Example:
  duobus pair cost --backlog-queues 10
  duobus pair cost --data ./primary --data ./secondary --json
"""


@click.group(name="pair", cls=Commands)
def command() -> None:
    """Tell what a pair of namespaces has in its backlog queues, and what it costs."""


@command.command(name="backlog", epilog=_BACKLOG)
@click.argument("primary_name", metavar="PRIMARY")
@click.option(
    "--backlog-queues", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many the pair uses."
)
@remote_command()
def backlog(remote: Remote, primary_name: str, backlog_queues: int, output: str | None) -> None:
    """List the backlog queues of PRIMARY in a secondary, and the surplus ones, which nobody fills or empties."""
    with remote.administration(f"primary '{primary_name}'") as client:
        from duobus.ha.aio.backlog_queues import backlogs_among, short_lock, short_lock_text

        found = backlogs_among(client.list_queues_runtime_properties(), primary_name, backlog_queues)
        locks = {queue.path: client.get_queue(queue.path).lock_duration for queue in found if queue.is_used}
    warnings = {path: short_lock_text(path, lock) for path in locks if (lock := short_lock(locks[path])) is not None}
    for text in warnings.values():
        click.echo(f"Warning: {text}", err=True)
    with Printer(output, ("queue", "use", "waiting", "dead")) as printer:
        printer.print(
            {
                "queue": queue.path,
                "use": "used" if queue.is_used else "surplus",
                "waiting": queue.waiting,
                "dead": queue.dead,
                "lockSeconds": locks[queue.path].total_seconds() if queue.path in locks else None,
                "warning": warnings.get(queue.path),
            }
            for queue in found
        )
    if not found:
        click.echo(f"There are no backlog queues of {primary_name}.", err=True)


@command.command(name="cost", epilog=_COST)
@click.option(
    "--backlog-queues", type=click.IntRange(1, 1000), default=10, show_default=True, help="Backlog queues of the pair."
)
@click.option(
    "--poll", type=click.IntRange(1, 3600), default=900, show_default=True, help="Seconds that a receive waits."
)
@click.option("--syphons", type=click.IntRange(0, 1000), default=1, show_default=True, help="Syphons side by side.")
@click.option(
    "--ping-interval", type=click.IntRange(1, 1800), default=60, show_default=True, help="Seconds between two pings."
)
@click.option(
    "--clients", type=click.IntRange(1, _COUNT), default=1, show_default=True, help="Paired clients; each pings."
)
@click.option(
    "--entities", type=click.IntRange(1, _COUNT), default=1, show_default=True, help="Entities that fail over."
)
@click.option(
    "--outage", type=click.IntRange(0, _SECONDS), default=0, show_default=True, help="Seconds of failover to count for."
)
@click.option(
    "--messages", type=click.IntRange(0, _COUNT), default=0, show_default=True, help="Messages diverted in that time."
)
@click.option(
    "--message-bytes", type=click.IntRange(0, _COUNT), default=1024, show_default=True, help="Size of each of them."
)
@click.option(
    "--data",
    "folders",
    multiple=True,
    type=_FOLDER,
    help="Data folder of a duobus server: also show what the server metered. Repeatable, for both servers of a pair.",
)
@click.option("--primary-name", help="Count the backlog queues of this primary only.")
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object instead of a table.")
def cost(folders: tuple[Path, ...], primary_name: str | None, is_json: bool, **given: int) -> None:
    """Compute the operations that a configuration brings, and those that servers metered."""
    from duobus.ha.cost import CostPlan, estimate

    plan = CostPlan(
        backlog_queues=given["backlog_queues"],
        poll_s=given["poll"],
        syphons=given["syphons"],
        ping_interval_s=given["ping_interval"],
        clients=given["clients"],
        entities=given["entities"],
        outage_s=given["outage"],
        messages=given["messages"],
        message_bytes=given["message_bytes"],
    )
    record = {name: _plain(value) for name, value in dataclasses.asdict(estimate(plan)).items()}
    if folders:
        record |= _metered(folders, primary_name)
    with Printer("json" if is_json else "table", is_one=True) as printer:
        printer.print([record])


def _metered(folders: Iterable[Path], primary_name: str | None) -> dict[str, Any]:
    """What servers metered, over all of the folders."""
    from duobus.ha.cost import used
    from duobus.telemetry.metering_log import MeteringLog

    for folder in folders:
        if not (folder / "metering").is_dir():
            raise click.ClickException(
                f"{folder} has no metering. A server writes it every minute and when it stops; --ephemeral keeps none."
            )
    found = used((record for folder in folders for record in MeteringLog(folder / "metering").read()), primary_name)
    hours = found.hours
    return {
        "metered_hours": round(hours, 2),
        "metered_polls": found.polls,
        "metered_polls_per_hour": _plain(round(found.polls / hours, 2)) if hours else 0,
        "metered_to_backlog": found.to_backlog,
        "metered_from_backlog": found.from_backlog,
        "metered_messages_to_backlog": found.messages_to_backlog,
        "metered_messages_from_backlog": found.messages_from_backlog,
        "metered_pings": found.pings,
        "metered_operations": found.operations,
    }


def _plain(value: float) -> float | int:
    """A whole number as one: 40 and not 40.0."""
    return int(value) if value == int(value) else value
