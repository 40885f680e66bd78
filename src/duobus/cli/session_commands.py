"""``duobus session``: the sessions of a queue or subscription, and their states."""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.output import Column, Commands, Printer, Record
from duobus.cli.remote import Remote, remote_command

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusSession

#: Sessions that are printed at a time; the SDK asks for as many.
_PAGE: Final = 100
#: Seconds to wait for a session of which the id is given: nobody holds it, or the server refuses at once.
_ACCEPT_S: Final = 10

_TABLE: Final = (Column("sessionId", "session"),)

_LIST: Final = """
\b
Example:
  duobus session list orders
  duobus session list prices --subscription alerts -o tsv
"""

_SHOW: Final = """
\b
Example:
  duobus session show orders customer-7
"""

_SET_STATE: Final = """
\b
Example:
  duobus session set-state orders customer-7 'step 2'
  duobus session set-state orders customer-7 < state.bin
  duobus session set-state orders customer-7 --clear
"""

_subscription = click.option("--subscription", help="Of this subscription; ENTITY is its topic.")


@click.group(name="session", cls=Commands, no_args_is_help=True)
def command() -> None:
    """List the sessions of a queue or subscription; show and set their states."""


def entity_text(entity: str, subscription: str | None) -> str:
    """Return a queue or subscription as errors name it."""
    return f"entity {entity}" if subscription is None else f"entity {entity}/{subscription}"


@command.command(name="list", epilog=_LIST)
@click.argument("entity")
@_subscription
@remote_command(has_endpoint=False)
def list_(remote: Remote, output: str | None, entity: str, subscription: str | None) -> None:
    """List the sessions that have messages or a state."""
    number = 0
    with (
        remote.messaging(entity_text(entity, subscription)) as client,
        Printer(output, ("sessionId",), table=_TABLE, gathers=True) as printer,
    ):
        found = _sessions(client, entity, subscription)
        while page := list(islice(found, _PAGE)):
            printer.print({"sessionId": name} for name in page)
            number += len(page)
    click.echo(f"Sessions: {number}.", err=True)


def _sessions(client: ServiceBusClient, entity: str, subscription: str | None) -> Iterator[str]:
    """The ids of sessions, each once: a page can repeat one of the page before, when a session between them ended."""
    if subscription is None:
        found = client.list_queue_sessions(entity)
    else:
        found = client.list_subscription_sessions(entity, subscription)
    seen: set[str] = set()
    for name in found:
        if name not in seen:
            seen.add(name)
            yield name


@command.command(name="show", epilog=_SHOW)
@click.argument("entity")
@click.argument("session")
@_subscription
@remote_command(has_endpoint=False)
def show(remote: Remote, output: str | None, entity: str, session: str, subscription: str | None) -> None:
    """Show the state of a session. The session is locked meanwhile; a session that another client holds is refused."""
    with _accepted(remote, entity, subscription, session) as held:
        state = held.get_state()
    with Printer(output, is_one=True) as printer:
        printer.print([_record_of(session, state)])


@command.command(name="set-state", epilog=_SET_STATE)
@click.argument("entity")
@click.argument("session")
@click.argument("state", required=False)
@_subscription
@click.option("--clear", is_flag=True, help="Let the session have no state.")
@remote_command(has_endpoint=False)
def set_state(
    remote: Remote,
    output: str | None,
    entity: str,
    session: str,
    state: str | None,
    subscription: str | None,
    clear: bool,
) -> None:
    """Set the state of a session: to STATE, or to what standard input has.

    The session is locked meanwhile; a session that another client holds is refused.
    """
    if clear and state is not None:
        raise click.UsageError("Give STATE or --clear, not both.")
    if state is None and not clear and sys.stdin.isatty():
        click.echo("What follows is the state; Ctrl-D ends it.", err=True)
    value = b"" if clear else sys.stdin.buffer.read() if state is None else state.encode("utf-8", "surrogateescape")
    with _accepted(remote, entity, subscription, session) as held:
        # The SDK sends an absent state as an empty one, and both clear the state.
        held.set_state(value)
        found = held.get_state()
    with Printer(output, is_one=True) as printer:
        printer.print([_record_of(session, found)])


@contextmanager
def _accepted(remote: Remote, entity: str, subscription: str | None, session: str) -> Iterator[ServiceBusSession]:
    """A session that this command holds."""
    what = entity_text(entity, subscription)
    with remote.messaging(what) as client:
        options: dict[str, Any] = {"session_id": session, "max_wait_time": _ACCEPT_S}
        if subscription is None:
            receiver = client.get_queue_receiver(entity, **options)
        else:
            receiver = client.get_subscription_receiver(entity, subscription, **options)
        with receiver:
            yield receiver.session


def _record_of(session: str, state: bytes | str | None) -> Record:
    """What is printed of a session: its state as text, or in base64 where the state is no text."""
    if not state:
        return {"sessionId": session, "state": None}
    if isinstance(state, str):
        return {"sessionId": session, "state": state}
    try:
        return {"sessionId": session, "state": state.decode()}
    except UnicodeDecodeError:
        return {"sessionId": session, "stateBase64": base64.b64encode(state).decode()}
