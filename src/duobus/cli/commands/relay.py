"""``duobus relay``: relays, an ASGI application or a TCP port behind one, and the other end of such a port."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from duobus.cli.failures import NotFound, Refused, Unreachable
from duobus.cli.output import Commands, json_of
from duobus.cli.relay_entities import COMMANDS

if TYPE_CHECKING:
    from duobus.relay.aio import RelayPair, RelaySender
    from duobus.relay.asgi import Application
    from duobus.relay.endpoint import RelayEndpoint
    from duobus.relay.errors import RelayError
    from duobus.relay.events import Event

_EXAMPLE = """
\b
Example:
  export DUOBUS_RELAY='Endpoint=sb://HOST/;SharedAccessKeyName=...;SharedAccessKey=...;EntityPath=PATH'
  duobus relay create shop/web
  duobus relay serve shop:app
  duobus relay forward --local 127.0.0.1:8000
  duobus relay expose --listen 127.0.0.1:9000
"""
_END = """
\b
SIGTERM or Ctrl-C ends it. Exit status: 0 ended by a signal; 3 no such relay; 5 the key is refused; 6 the relay cannot
be reached when the command begins; 1 anything else. Once it has begun, it connects again by itself.
"""
_SERVE_EXAMPLE = (
    """
\b
Example:
  duobus relay serve shop:app
  duobus relay serve shop.web:application --json
"""
    + _END
)
_FORWARD_EXAMPLE = (
    """
\b
Example:
  duobus relay forward --local 127.0.0.1:8000
  duobus relay forward --local 127.0.0.1:22 --tcp-only --json
"""
    + _END
)
_EXPOSE_EXAMPLE = (
    """
\b
Example:
  duobus relay expose --listen 127.0.0.1:9000
  duobus relay expose --listen 127.0.0.1:2222 --json
"""
    + _END
)


#: A relay that has not answered for so long is told to be out of reach, while the command goes on trying.
_FIRST_TRY_S = 5.0


@click.group(name="relay", cls=Commands, epilog=_EXAMPLE)
def command() -> None:
    """Create, list, show, update and delete relays; serve applications and ports behind them, and reach these."""


for _entity_command in COMMANDS:
    command.add_command(_entity_command)


def _common(function: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(
        (
            click.option(
                "--relay",
                envvar="DUOBUS_RELAY",
                required=True,
                show_envvar=True,
                help="Connection string with EntityPath. Better given in the environment.",
            ),
            click.option(
                "--relay-backup",
                envvar="DUOBUS_RELAY_BACKUP",
                show_envvar=True,
                help="Connection string of a second endpoint of the same service; both are then a pair.",
            ),
            click.option("--ca", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Trust this CA."),
            click.option("--json", "is_json", is_flag=True, help="Print one JSON object per event."),
        )
    ):
        function = option(function)
    return function


_retries = click.option(
    "--retry-total",
    type=click.IntRange(0, 20),
    default=5,
    show_default=True,
    help="Times that the command tries again to register when it begins: after 0, 1, 2, 5, 10, then every 30 s.",
)


@command.command(name="serve", epilog=_SERVE_EXAMPLE)
@click.argument("application", metavar="MODULE:APP")
@_retries
@_common
def serve(
    application: str, retry_total: int, relay: str, relay_backup: str | None, ca: Path | None, is_json: bool
) -> None:
    """Serve an ASGI application behind a relay."""
    app = _application(application)
    endpoints = _endpoints(relay, relay_backup)

    async def run(printer: _Printer) -> None:
        from duobus.relay.aio import PairListener, RelayListener
        from duobus.relay.asgi import AsgiService, LifespanFailed

        try:
            async with AsgiService(app) as service:
                given: dict[str, Any] = {
                    "tls": _tls(ca),
                    "on_event": printer.event,
                    "on_stream": service.on_stream,
                    "on_connection": service.on_connection,
                }
                listener: Any = (
                    PairListener(endpoints, **given) if len(endpoints) > 1 else RelayListener(endpoints[0], **given)
                )
                async with listener:
                    await _begin(listener, printer, retry_total, application=application)
        except LifespanFailed as error:
            raise click.ClickException(f"The application did not start: {error}") from error

    _run(run, is_json)


@command.command(name="forward", epilog=_FORWARD_EXAMPLE)
@click.option("--local", required=True, metavar="HOST:PORT", help="The port of this machine to put behind the relay.")
@click.option("--tcp-only", is_flag=True, help="Refuse HTTP requests; without it they are sent to the port as HTTP.")
@_retries
@_common
def forward(
    local: str,
    tcp_only: bool,
    retry_total: int,
    relay: str,
    relay_backup: str | None,
    ca: Path | None,
    is_json: bool,
) -> None:
    """Put a TCP port of this machine behind a relay."""
    host, port = _port(local)
    endpoints = _endpoints(relay, relay_backup)

    async def run(printer: _Printer) -> None:
        from duobus.relay.aio import PairListener, RelayListener
        from duobus.relay.tunnel import LocalPort

        target = LocalPort(host, port, printer.tell)
        given: dict[str, Any] = {
            "tls": _tls(ca),
            "on_event": printer.event,
            "on_stream": None if tcp_only else target.on_stream,
            "on_connection": target.on_connection,
        }
        listener: Any = PairListener(endpoints, **given) if len(endpoints) > 1 else RelayListener(endpoints[0], **given)
        try:
            async with listener:
                await _begin(listener, printer, retry_total, local=f"{host}:{port}")
        finally:
            await target.close()

    _run(run, is_json)


@command.command(name="expose", epilog=_EXPOSE_EXAMPLE)
@click.option("--listen", required=True, metavar="HOST:PORT", help="Where to take connections; port 0 for a free one.")
@_common
def expose(listen: str, relay: str, relay_backup: str | None, ca: Path | None, is_json: bool) -> None:
    """Take TCP connections on a port, and carry each through a relay to where ``forward`` runs."""
    host, port = _port(listen)
    endpoints = _endpoints(relay, relay_backup)

    async def run(printer: _Printer) -> None:
        from duobus.relay.aio import RelayPair, RelaySender
        from duobus.relay.tunnel import expose

        senders = [RelaySender(endpoint, tls=_tls(ca)) for endpoint in endpoints]
        sender: RelayPair | RelaySender = RelayPair(senders, on_event=printer.event) if len(senders) > 1 else senders[0]
        async with sender:
            try:
                server = await expose(host, port, sender.connect, printer.tell)
            except OSError as error:
                raise click.ClickException(
                    f"{host}:{port} cannot be listened on: {error.strerror}. Choose another port."
                ) from error
            async with server:
                bound = server.sockets[0].getsockname()
                printer.print("listening", address=f"{bound[0]}:{bound[1]}", relay=endpoints[0].name)
                await asyncio.Event().wait()

    _run(run, is_json)


# -- what the commands share ------------------------------------------------------------------------------------------


class _Printer:
    """Prints events, one a line, and what fails to standard error where people read."""

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json

    def print(self, event: str, **members: Any) -> None:
        """Print an event."""
        if self._is_json:
            click.echo(json_of({"event": event, **members}))
        else:
            click.echo(f"{event}  " + "  ".join(f"{name}={value}" for name, value in members.items() if value != ""))
        sys.stdout.flush()

    def event(self, event: Event) -> None:
        """Print an event of a listener or a pair."""
        self.print(type(event).__name__, **dataclasses.asdict(event))

    def tell(self, what: str, text: str) -> None:
        """Print what became of one connection."""
        self.print(what, error=text)

    def waiting(self, relay: str, error: str, seconds: int) -> None:
        """Say that the command has not begun yet, and how long it tries."""
        if self._is_json:
            self.print("waiting", relay=relay, error=error, seconds=seconds)
        else:
            click.echo(f"Cannot reach {relay}, trying again for {seconds} s. {error}", err=True)


async def _begin(listener: Any, printer: _Printer, retry_total: int, **members: Any) -> None:
    """Wait until a listener is registered, say so, and stay; say at once when the relay cannot be reached."""
    from duobus.relay.aio.listener import DELAYS_S
    from duobus.relay.errors import RelayError

    wait = listener.wait_up if hasattr(listener, "wait_up") else listener.wait_online
    delays = [*DELAYS_S, *[DELAYS_S[-1]] * retry_total]
    seconds = sum(delays[:retry_total])
    try:
        try:
            await wait(_FIRST_TRY_S, tries=1)
        except RelayError as error:
            failure = _failure(error)
            if not retry_total or not isinstance(failure, Unreachable):
                raise
            printer.waiting(_name_of(listener), str(error), round(seconds))
            await wait(seconds + _FIRST_TRY_S, tries=1 + retry_total)
    except RelayError as error:
        raise _failure(error) from error
    printer.print("ready", **members)
    await asyncio.Event().wait()


def _name_of(listener: Any) -> str:
    """Host and path of an endpoint, or of both."""
    return " and ".join(one.endpoint.name for one in getattr(listener, "listeners", [listener]))


def _failure(error: RelayError) -> click.ClickException:
    from duobus.relay.errors import ConnectFailed, ConnectionDropped, RelayRefused, RelayTimeout

    if isinstance(error, RelayRefused):
        kinds = {401: Refused, 403: Refused, 404: NotFound}
        text = f"{error} Make it with: duobus relay create." if error.status == 404 else str(error)
        return kinds.get(error.status, click.ClickException)(text)
    is_unreachable = isinstance(error, (ConnectFailed, ConnectionDropped, RelayTimeout))
    return (Unreachable if is_unreachable else click.ClickException)(str(error))


def _run(function: Callable[[_Printer], Coroutine[Any, Any, None]], is_json: bool) -> None:
    async def until_signal() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        try:
            await function(_Printer(is_json))
        except asyncio.CancelledError:
            return

    asyncio.run(until_signal())


def _endpoints(relay: str, backup: str | None) -> Sequence[RelayEndpoint]:
    from duobus.relay.endpoint import RelayEndpoint

    try:
        return [RelayEndpoint.from_connection_string(text) for text in (relay, backup) if text]
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _port(text: str) -> tuple[str, int]:
    from duobus.relay.tunnel import parse_port

    try:
        return parse_port(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _tls(ca: Path | None) -> ssl.SSLContext | None:
    try:
        return None if ca is None else ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise click.UsageError(f"--ca {ca} is no certificate in PEM: {error.reason}.") from None


def _application(text: str) -> Application:
    name, _, attribute = text.partition(":")
    if not name or not attribute:
        raise click.UsageError(f"{text!r} names no application; write MODULE:APP, such as shop:app.")
    # As the interpreter does for a script: the folder in which the command was called.
    sys.path.insert(0, "")
    try:
        found: Any = import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        raise click.UsageError(f"There is no module {error.name!r} here. Is the command in the right folder?") from None
    except AttributeError:
        raise click.UsageError(f"The module {name!r} has no {attribute!r}.") from None
    if not callable(found):
        raise click.UsageError(f"{text!r} is no application: it cannot be called.")
    app: Application = found
    return app
