"""``duobus syphon``: from the backlog queues of a pair to the entities that the messages were meant for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import queue
import signal
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import click

from duobus.cli.output import json_of

if TYPE_CHECKING:
    from azure.servicebus.aio import ServiceBusClient

    from duobus.ha.events import Event

#: Lines that wait to be printed, some 200 bytes each.
LINES_MAX: Final = 10_000
#: Seconds that the last lines have at the end.
PRINT_S: Final = 1.0

_EXAMPLE = """
\b
Example:
  export DUOBUS_PRIMARY='Endpoint=sb://contoso.servicebus.windows.net/;...'
  export DUOBUS_SECONDARY='Endpoint=sb://contoso-backup.servicebus.windows.net/;...'
  duobus syphon --json

\b
Any number may run side by side. SIGTERM or Ctrl-C ends it; what it had received and not delivered comes again when
its locks end. Exit status: 0 ended by a signal; 1 it cannot work, with the reason.
"""


@click.command(name="syphon", epilog=_EXAMPLE)
@click.option(
    "--primary",
    envvar="DUOBUS_PRIMARY",
    required=True,
    show_envvar=True,
    help="Connection string of the namespace to deliver to (Send). Better given in the environment.",
)
@click.option(
    "--secondary",
    envvar="DUOBUS_SECONDARY",
    required=True,
    show_envvar=True,
    help="Connection string of the namespace with the backlog queues (Listen).",
)
@click.option("--primary-name", help="Name of the primary in the paths; by default the first label of its host name.")
@click.option(
    "--backlog-queues", type=click.IntRange(1, 1000), default=10, show_default=True, help="How many backlog queues."
)
@click.option(
    "--poll",
    type=click.IntRange(1, 3600),
    default=900,
    show_default=True,
    help="Seconds that a receive waits for messages; each is an operation that Azure bills.",
)
@click.option(
    "--ttl-mode",
    type=click.Choice(("restart", "remaining")),
    default="restart",
    show_default=True,
    help="Whether times to live start anew, or count from when the message was diverted.",
)
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object per event.")
def command(
    primary: str, secondary: str, primary_name: str | None, backlog_queues: int, poll: int, ttl_mode: str, is_json: bool
) -> None:
    """Carry messages from the backlog queues of a pair to where they were meant for, until it is ended."""
    try:
        from azure.servicebus.aio import ServiceBusClient
    except ImportError as error:
        raise click.ClickException("The syphon needs the SDK: pip install 'duobus[ha]'") from error
    from duobus.ha.sdk import prompt_client

    def client(role: str, text: str) -> ServiceBusClient:
        try:
            return prompt_client(ServiceBusClient.from_connection_string(text))
        except ValueError as error:
            # Without the text itself, which holds a key.
            raise click.ClickException(f"The connection string of the {role} is not one: {error}") from None

    there, behind = client("primary", primary), client("secondary", secondary)
    asyncio.run(_run(there, behind, primary_name, backlog_queues, timedelta(seconds=poll), ttl_mode, is_json))


async def _run(
    primary: ServiceBusClient,
    secondary: ServiceBusClient,
    primary_name: str | None,
    backlog_queues: int,
    poll: timedelta,
    ttl_mode: str,
    is_json: bool,
) -> None:
    from duobus.ha.aio import backlog_queues as backlog
    from duobus.ha.aio.syphon import Syphon
    from duobus.ha.errors import BacklogUnavailable
    from duobus.ha.events import Reporter
    from duobus.ha.metrics import metrics_of

    printer = _Printer(is_json)
    reporter = Reporter(printer.tell, metrics_of(str(primary.fully_qualified_namespace)))
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    async with primary, secondary:
        name = primary_name or backlog.name_of(primary)
        try:
            queues = await backlog.provide(secondary, None, backlog.paths(name, backlog_queues), reporter)
        except BacklogUnavailable as error:
            raise click.ClickException(f"{error} Is --primary-name {name!r} right?") from error
        syphon = Syphon(primary, secondary, queues, ttl_mode=ttl_mode, poll=poll, reporter=reporter)
        with contextlib.suppress(asyncio.CancelledError):
            await syphon.run()
    printer.close()


class _Printer:
    """Prints events, one a line, from a thread of its own.

    A pipe whose reader does not read holds up whoever writes to it. Here that is the thread: messages are carried on,
    and a signal still ends the command. Lines that find no room are left out, and the next one that is printed says how
    many.
    """

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json
        self._lines: queue.Queue[str | None] = queue.Queue(LINES_MAX)
        self._left_out = 0
        try:
            # Not through the stream: at its end the interpreter would wait for a thread that writes to that.
            self._file = sys.stdout.fileno()
        except (AttributeError, OSError, ValueError):
            self._file = -1  # closed, or none
        self._thread = threading.Thread(target=self._run, name="duobus printer", daemon=True)
        self._thread.start()

    def tell(self, event: Event) -> None:
        """Print an event, soon."""
        if event.is_routine or self._file < 0:
            return
        members = dataclasses.asdict(event)
        try:
            if self._left_out:
                self._lines.put_nowait(self._line("EventsLeftOut", {"events": self._left_out}))
                self._left_out = 0
            self._lines.put_nowait(self._line(type(event).__name__, members))
        except queue.Full:
            self._left_out += 1

    def close(self) -> None:
        """Print what is left, if that does not take long."""
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=PRINT_S)
        self._thread.join(PRINT_S)

    def _line(self, name: str, members: dict[str, object]) -> str:
        if self._is_json:
            return json_of({"event": name, **members})
        return f"{name}  " + "  ".join(f"{key}={value}" for key, value in members.items() if value != "")

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            left = f"{line}\n".encode("utf-8", "backslashreplace")
            try:
                while left:
                    left = left[os.write(self._file, left) :]
            except BrokenPipeError:
                self._file = -1  # nobody will read any more
                return
            except OSError:
                continue  # a full disk may have room for the next one
