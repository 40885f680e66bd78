"""``duobus doctor``: look at the machine, a data folder and a server, and say what to do."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from duobus.cli.output import Printer, chosen_query, clean, query_option
from duobus.cli.remote import OUTPUTS, Remote
from duobus.cli.watch.findings import FAILURE, OK, WARNING, Finding, exit_status, worst_first
from duobus.clock import Clock

_COLUMNS: Final = ("status", "subject", "found", "remedy")
_STYLES: Final = {FAILURE: "red", WARNING: "yellow", OK: "green"}
#: Where a server listens unless it is told otherwise: AMQP, AMQP over TLS, HTTP.
_PORTS: Final = (5672, 5671, 5300)

_EXAMPLE: Final = """
\b
Example:
  duobus doctor --data ./bus
  duobus doctor --data ./bus --strict -o json
  duobus doctor --connection-string "$DUOBUS_CONNECTION_STRING"
"""


@click.command(name="doctor", epilog=_EXAMPLE)
@click.option("--data", type=click.Path(path_type=Path), help="Data folder of the server, which may run or not.")
@click.option("--tls-cert", type=click.Path(path_type=Path), help="Certificate chain that the server is to use, PEM.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address that the server is to listen on.")
@click.option(
    "--port",
    "ports",
    type=click.IntRange(1, 65_535),
    multiple=True,
    help="Port that it is to listen on; 5672, 5671 and 5300 without. Repeatable.",
)
@click.option("--strict", "is_strict", is_flag=True, help="End with status 1 for warnings, too.")
@click.option(
    "--connection-string",
    envvar="DUOBUS_CONNECTION_STRING",
    show_envvar=True,
    help="Of a namespace of the server; without one, only its health is asked, or the emulator's on this machine.",
)
@click.option(
    "--endpoint", metavar="URL", help="Where the server's HTTP side is, as in http://localhost:5300, if elsewhere."
)
@click.option(
    "--ca",
    envvar="DUOBUS_CA",
    show_envvar=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificate authority to trust, PEM.",
)
@click.option(
    "--output",
    "-o",
    type=click.Choice(OUTPUTS),
    help="Form of what is printed; by default table on a terminal, else jsonl.",
)
@query_option
def command(
    data: Path | None,
    tls_cert: Path | None,
    host: str,
    ports: tuple[int, ...],
    is_strict: bool,
    connection_string: str | None,
    endpoint: str | None,
    ca: Path | None,
    output: str | None,
) -> None:
    """Look for what keeps a server from running well: on this machine, in its data folder, and in itself.

    Changes nothing, but for a small file in the data folder with which the disk is measured. Ends with status 1 when
    something has failed.
    """
    is_asked_for = connection_string is not None or endpoint is not None
    remote = Remote(connection_string, endpoint, ca)
    found = list(_look(remote, data, tls_cert, host, ports or _PORTS, is_asked_for=is_asked_for))
    if (output or ("table" if sys.stdout.isatty() else "")) == "table" and chosen_query() is None:
        _print_report(worst_first(found))
    else:
        with Printer(output, _COLUMNS) as printer:
            printer.print(finding._asdict() for finding in worst_first(found))
    sys.exit(exit_status(found, is_strict=is_strict))


def _print_report(found: Sequence[Finding]) -> None:
    """Print findings for people: what to do stands below what was found."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found:
        told = Text(clean(finding.found))
        if finding.remedy:
            told.append("\n" + clean(finding.remedy), "bold")
        table.add_row(Text(finding.status, _STYLES[finding.status]), clean(finding.subject), told)
    console = Console()
    console.print(table)
    numbers = Counter(finding.status for finding in found)
    console.print(", ".join(f"{numbers[status]} {status}" for status in _STYLES) + ".", style="bold")


def _look(
    remote: Remote, data: Path | None, tls_cert: Path | None, host: str, ports: tuple[int, ...], *, is_asked_for: bool
) -> Iterator[Finding]:
    # Here, so that --help loads none of it.
    from duobus.cli.watch.data_folder import certificate_findings, folder_findings, server_address, server_pid
    from duobus.cli.watch.machine import holder_of, machine_findings, of_port
    from duobus.cli.watch.server_side import server_findings

    clock = Clock()
    yield from machine_findings(None if data is None else server_pid(data))
    for port in ports:
        yield of_port(host, port, holder_of(host, port))
    if data is not None:
        yield from folder_findings(data, clock)
    if tls_cert is not None:
        yield from certificate_findings([tls_cert], clock, renews_itself=False)
    address = None if data is None or is_asked_for else server_address(data)
    if address is None:
        yield from server_findings(remote, clock, is_asked_for=is_asked_for)
    else:
        # The one on this data folder, whatever its ports; its key is in the connection string that nobody gave.
        local = Remote(None, f"http://{address}", None)
        yield from server_findings(local, clock, is_asked_for=True, has_key=False)
