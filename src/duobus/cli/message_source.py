"""Where messages of a command come from: the options that say so, and the receiver that they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceiver


def source_options(function: Any) -> Any:
    """Add the options that say where messages come from."""
    for option in (
        click.option(
            "--session-id",
            "--session",
            "session_id",
            help="Of this session; required where the entity requires sessions.",
        ),
        click.option("--dead-letter", is_flag=True, help="From the dead-letter queue."),
        click.option("--subscription", help="From this subscription; ENTITY is its topic."),
        click.argument("entity"),
    ):
        function = option(function)
    return function


def receiver_of(
    client: ServiceBusClient, entity: str, subscription: str | None, dead_letter: bool, **options: Any
) -> AbstractContextManager[ServiceBusReceiver]:
    """The receiver that the options mean, with further options of the SDK."""
    if dead_letter:
        options["sub_queue"] = "deadletter"
    options = {name: value for name, value in options.items() if value is not None}
    if subscription is None:
        return client.get_queue_receiver(entity, **options)
    return client.get_subscription_receiver(entity, subscription, **options)


def named(source: dict[str, Any]) -> str:
    """The entity that the options mean, as errors name it."""
    names = (source["entity"], source["subscription"])
    return "entity " + "/".join(name for name in names if name is not None)


#: What duobus and Azure say to a receiver that names no session where the entity requires one.
_NEEDS_SESSION: Final = "requires sessions to create a non-sessionful"


@contextmanager
def with_session_hint(source: dict[str, Any]) -> Iterator[None]:
    """Say which option is missing, where the server speaks of the filters of a link."""
    try:
        yield
    except click.ClickException as error:
        if _NEEDS_SESSION not in error.message:
            raise
        entity = named(source).removeprefix("entity ")
        subscription = f" --subscription {source['subscription']}" if source["subscription"] else ""
        listing = f"duobus session list {source['entity']}{subscription}"
        raise click.ClickException(
            f"{entity} requires sessions. Give --session-id, or receive with --next-session; {listing} lists them."
        ) from None
