"""``duobus queue purge`` and ``duobus subscription purge``: remove messages without receiving them.

Messages go by the management operation *batch delete*, which Azure has, too; ``--all`` takes the purge of duobus, which
removes what no receiver could have, as well.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import click

from duobus.cli.options import instant
from duobus.cli.output import Printer
from duobus.cli.remote import Remote, remote_command
from duobus.clock import Clock

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

#: Messages that one request removes at most, here and on Azure.
_REQUEST_MAX: Final = 4_000
_DEAD_LETTERS: Final = "$DeadLetterQueue"

_DONE: Final = 200
#: Statuses of an answer that has nothing to tell.
_EMPTY: Final = (202, 204)


def purge_command(kind: str, parents: Sequence[str], example: str) -> click.Command:
    """Return the command.

    Args:
        kind: queue or subscription.
        parents: Arguments in front of the name.
        example: What follows the command in its example.
    """

    def run(remote: Remote, output: str | None, **given: Any) -> None:
        path = tuple(given.pop(name) for name in (*parents, "name"))
        _run(remote, output, kind, path, **given)

    made = remote_command()(run)
    for option in (
        click.option("--yes", "-y", "is_sure", is_flag=True, help="Do not ask."),
        click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing."),
        click.option("--before", metavar="TIME", type=instant, help="Only what was enqueued before this time."),
        click.option(
            "--all",
            "takes_all",
            is_flag=True,
            help="Everything that no receiver holds: deferred and scheduled messages and dead letters, too.",
        ),
        click.option("--dead-letters", "takes_dead", is_flag=True, help="The dead letters, too."),
        *(click.argument(name) for name in reversed((*parents, "name"))),
    ):
        made = option(made)
    text = (
        f"Remove the active messages of a {kind}, and tell how many. Messages that a receiver holds stay, and so do "
        "deferred and scheduled ones."
    )
    epilog = f"\b\nExample:\n  duobus {kind} purge {example}"
    return click.command("purge", help=text, short_help=f"Remove the messages of a {kind}.", epilog=epilog)(made)


def _run(
    remote: Remote,
    output: str | None,
    kind: str,
    path: tuple[str, ...],
    *,
    takes_dead: bool,
    takes_all: bool,
    before: datetime | None,
    dry_run: bool,
    is_sure: bool,
) -> None:
    if takes_all and before is not None:
        raise click.UsageError("--all takes messages of every age: leave --before out.")
    what = f"{kind} {'/'.join(path)}"
    messages = "all messages" if takes_all else "the active messages and dead letters" if takes_dead else "the messages"
    if dry_run:
        _tell_counts(remote, output, what, path, takes_dead=takes_dead, takes_all=takes_all, is_part=before is not None)
        return
    if not is_sure:
        if not sys.stdin.isatty():
            raise click.UsageError(f"Give --yes to purge the {what}, or --dry-run.")
        click.confirm(f"Remove {messages} of the {what}?", abort=True, err=True)
    purge = _Purge(path)
    try:
        # A request that is sent again tells nothing of what the first one removed.
        with remote.messaging(what, retries=0) as client:
            if takes_all:
                purge.take_all(client)
            else:
                purge.take_active(client, before, takes_dead=takes_dead)
    except BaseException:
        if any(purge.counts.values()):
            click.echo(f"Before the failure: {purge.text}. The last request may have removed more.", err=True)
        raise
    with Printer(output, is_one=True) as printer:
        printer.print([{"name": path[-1], **purge.counts}])
    click.echo(f"{purge.text}.", err=True)
    if purge.counts.get("locked"):
        raise SystemExit(7)


def _tell_counts(
    remote: Remote,
    output: str | None,
    what: str,
    path: tuple[str, ...],
    *,
    takes_dead: bool,
    takes_all: bool,
    is_part: bool,
) -> None:
    """Say how many messages there are, which is as many as would go, or more."""
    with remote.administration(what) as client:
        name = "get_queue_runtime_properties" if len(path) == 1 else "get_subscription_runtime_properties"
        found = getattr(client, name)(*path)
    counts = {"removed": found.total_message_count if takes_all else found.active_message_count}
    if takes_dead and not takes_all:
        counts["deadLettersRemoved"] = found.dead_letter_message_count
    with Printer(output, is_one=True) as printer:
        printer.print([{"name": path[-1], **counts}])
    number = sum(counts.values())
    click.echo(f"Would remove{' at most' if is_part else ''}: {number}.", err=True)


class _Purge:
    """The removal from one entity.

    Attributes:
        counts: What was removed for certain.
    """

    def __init__(self, path: tuple[str, ...]) -> None:
        self._entity = path[0] if len(path) == 1 else f"{path[0]}/Subscriptions/{path[1]}"
        self.counts: dict[str, int] = {"removed": 0}

    @property
    def text(self) -> str:
        """What was removed, and what is left."""
        dead, locked = self.counts.get("deadLettersRemoved"), self.counts.get("locked")
        told = f"Removed: {self.counts['removed']}"
        told += "" if dead is None else f", dead letters {dead}"
        return told if locked is None else f"{told}. Held by receivers: {locked}"

    def take_active(self, client: ServiceBusClient, before: datetime | None, *, takes_dead: bool) -> None:
        """Remove active messages, and dead letters if they are asked for, by batch delete."""
        # Without a time, messages that are sent meanwhile stay, or a purge beside a sender would not end.
        until_ms = Clock().now_ms() if before is None else int(before.timestamp() * 1000)
        self._delete(client, self._entity, "removed", until_ms)
        if takes_dead:
            self._delete(client, f"{self._entity}/{_DEAD_LETTERS}", "deadLettersRemoved", until_ms)

    def _delete(self, client: ServiceBusClient, node: str, count: str, until_ms: int) -> None:
        from azure.servicebus._pyamqp.types import AMQPTypes

        body = {
            "message-count": {"TYPE": AMQPTypes.int, "VALUE": _REQUEST_MAX},
            "enqueued-time-utc": {"TYPE": AMQPTypes.timestamp, "VALUE": until_ms},
        }
        self.counts[count] = 0
        with _management(client, node) as ask:
            while answer := ask(b"com.microsoft:batch-delete-messages", body):
                self.counts[count] += int(answer[b"message-count"])

    def take_all(self, client: ServiceBusClient) -> None:
        """Remove everything that nobody holds, by the purge that only duobus has."""
        is_complete = False
        with _management(client, self._entity) as ask:
            while not is_complete:
                # The SDK sends an empty map as no body at all.
                answer = ask(b"duobus:purge-messages", {"session-id": None})
                removed = int(answer.get(b"message-count", 0))
                self.counts["removed"] += removed
                self.counts["locked"] = int(answer.get(b"locked-count", 0))
                # A request ends after some seconds. When nothing was removed in that time, a store is away.
                is_complete = bool(answer.get(b"is-complete", True))
                if not is_complete and not removed:
                    raise click.ClickException("A messaging store is away, so that not all messages could be removed.")


@contextmanager
def _management(client: Any, node: str) -> Iterator[Callable[[bytes, Mapping[str, Any]], Mapping[bytes, Any]]]:
    """What sends a request to a management node and returns the body of the answer, empty when there is none.

    The SDK has no public way to an operation that the SDK does not know. Its handler for lists of sessions needs no
    link to the entity, and so works for entities with and without sessions; a test holds this use of it.
    """

    def ask(operation: bytes, body: Mapping[str, Any]) -> Mapping[bytes, Any]:
        found: Mapping[bytes, Any] = handler._mgmt_request_response_with_retry(
            operation, body, _answer_of, keep_alive_associated_link=False
        )
        return found

    with closing(client._create_session_browser(node)) as handler:
        yield ask


def _answer_of(status: int, message: Any, description: Any, amqp_transport: Any) -> Mapping[bytes, Any]:
    if status == _DONE:
        found: Mapping[bytes, Any] = amqp_transport.get_message_value(message) or {}
        return found
    if status in _EMPTY:
        return {}
    condition = (message.application_properties or {}).get(b"errorCondition")
    text = description.decode("utf-8", "replace") if isinstance(description, bytes) else str(description or "")
    amqp_transport.handle_amqp_mgmt_error(logging.getLogger("azure"), "The purge failed:", condition, text, status)
    raise AssertionError(status)  # the line above raises
