"""``duobus console``: a namespace in the browser."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from duobus.cli.remote import ServerChoice, remote_command
from duobus.errors import ArgumentInvalid, ConfigurationError

if TYPE_CHECKING:
    from duobus.console.process import Started

_FILE: Final = click.Path(dir_okay=False, path_type=Path)

_EXAMPLE: Final = """
\b
Example:
  duobus console --data ./bus --open
  DUOBUS_CONNECTION_STRING='Endpoint=sb://...' duobus console --port 8081

\b
Without a namespace, people bring a connection string to the sign-in page. For the namespace that is given here, and for
those of --profiles, the access code that the console prints is enough. SIGTERM or Ctrl-C stops the console.
"""


@click.command(name="console", epilog=_EXAMPLE)
@remote_command(has_output=False, is_chosen_later=True)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. Beyond this machine only behind a proxy with TLS: keys are typed in.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="HTTP; 0 for a free port."
)
@click.option("--public-url", metavar="URL", help="Address under which people reach the console through a proxy.")
@click.option("--profiles", type=_FILE, help="File with saved namespaces and their keys, made if missing; mode 0600.")
@click.option(
    "--pipelines",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with the states of pipelines on Spark, to show how far they are.",
)
@click.option("--ready-file", type=_FILE, help="Write address and access code here, once browsers can connect.")
@click.option("--open/--no-browser", "opens", default=False, help="Open the console in the browser of this machine.")
@click.option(
    "--stdin-ends",
    is_flag=True,
    help="Stop at the end of standard input, as when the program that started this is gone.",
)
@click.option("--json", "as_json", is_flag=True, help="Print address and access code as one line of JSON.")
def command(
    server: ServerChoice,
    host: str,
    port: int,
    public_url: str | None,
    profiles: Path | None,
    pipelines: Path | None,
    ready_file: Path | None,
    opens: bool,
    stdin_ends: bool,
    as_json: bool,
) -> None:
    """Serve a console for the browser: of a duobus, of Azure Service Bus or of the emulator."""
    try:
        from duobus.console.process import run_console
        from duobus.console.settings import ConsoleSettings
    except ImportError as error:
        raise click.ClickException("The console needs more packages: pip install 'duobus[console]'") from error
    connection_string, management_url = server.connection_string, server.endpoint
    if server.data is not None:
        remote = server.remote()
        connection_string, management_url = remote.text, remote.url
    settings = ConsoleSettings(
        host=host,
        port=port,
        connection_string=connection_string or None,
        management_url=management_url,
        ca=server.ca,
        profiles=profiles,
        pipelines=pipelines,
        public_url=public_url,
    )

    def announce(started: Started) -> None:
        if as_json:
            click.echo(started.as_json())
        elif connection_string or profiles is not None:
            click.echo(f"Console: {started.sign_in_url}")
            click.echo("The address signs in: whoever has it may do what the key of the namespace allows.")
        else:
            click.echo(f"Console: {started.url}")
        if opens:
            webbrowser.open(started.sign_in_url if connection_string or profiles is not None else started.url)

    try:
        asyncio.run(run_console(settings, announce, ready_file=ready_file, stdin_ends=stdin_ends))
    except (ArgumentInvalid, ConfigurationError) as error:
        raise click.ClickException(str(error)) from error
