"""Links of the SDK that close at once.

The SDK keeps each connection alive by a thread or a task that sleeps a second at a time, and its ``close`` waits for
the end of that sleep: half a second on the average for each link, even for one ping, dead letter, session or batch. The
thread or task notices the end of the connection by itself, so ``close`` need not wait for it.

A receiver that closes drains its link, so that it can give back what is on its way to it. The SDK throws the answer of
the broker away and waits instead until nothing has come twice, for 0.2 s each time. Nothing comes behind the answer.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar
from weakref import ref

from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage

Link = TypeVar("Link")
Client = TypeVar("Client")

_MAKERS: Final = ("get_queue_sender", "get_topic_sender", "get_queue_receiver", "get_subscription_receiver")
_MARK: Final = "_closes_promptly"
#: Place of the field ``drain`` in a flow of AMQP 1.0, part 2.7.4.
_DRAIN: Final = 8


def prompt_client(client: Client) -> Client:
    """Change a client of the SDK, of either kind, so that its links close at once; return the client."""
    if not hasattr(client, _MARK):
        for name in _MAKERS:
            if hasattr(client, name):
                setattr(client, name, _handing_out(client, name))
        setattr(client, _MARK, True)
    return client


def prompt(link: Link) -> Link:
    """Change a sender or receiver of the SDK, of either kind, so that it closes at once; return the link.

    An object that is not of the SDK, or was changed before, stays as it is.
    """
    if hasattr(link, _MARK) or not hasattr(link, "_handler"):
        return link
    whole: Any = type(link).close  # type: ignore[attr-defined]
    # An object that refers to itself would keep its socket until the collector comes by.
    there = ref(link)

    @wraps(whole)
    def close() -> Any:
        it: Any = there()
        release_thread(it._handler)
        end_drain_at_answer(it._handler)
        return whole(it)

    @wraps(whole)
    async def close_async() -> None:
        await close()

    link.close = close_async if inspect.iscoroutinefunction(whole) else close  # type: ignore[attr-defined]
    setattr(link, _MARK, True)
    return link


def release_thread(handler: Any) -> None:
    """Detach the thread or task that keeps a connection alive, so that closing does not wait for it.

    Args:
        handler: The SDK's own object below a sender or receiver; None before it was opened. An SDK that has no such
            thread, or names it otherwise, closes as it likes.
    """
    keeper = getattr(handler, "_keep_alive_thread", None)
    if keeper is None or not hasattr(handler, "_shutdown"):
        return
    handler._shutdown = True
    handler._keep_alive_thread = None
    if isinstance(keeper, asyncio.Future):
        # In a loop that ends it would be destroyed while it sleeps; what it reads is shielded from this.
        keeper.cancel()


def end_drain_at_answer(handler: Any) -> None:
    """Have the drain of a receiver that closes end when the broker has answered it.

    Args:
        handler: As of ``release_thread``. Where the SDK hears of answers otherwise, it waits as it likes.
    """
    heard = getattr(getattr(handler, "_link", None), "_incoming_flow", None)
    if heard is None:
        return

    def hears(frame: Any) -> Any:
        if frame[_DRAIN]:
            raise _Drained
        return heard(frame)

    handler._link._incoming_flow = hears


class _Drained(Exception):
    """A drain was answered: what is left is to give back what came before."""


def _handing_out(client: object, name: str) -> Callable[..., Any]:
    whole, there = getattr(type(client), name), ref(client)

    @wraps(whole)
    def make(*given: Any, **named: Any) -> Any:
        return prompt(whole(there(), *given, **named))

    return make


# The messages of whatever ``send_messages`` takes.


def listed(message: Any) -> list[ServiceBusMessage | AmqpAnnotatedMessage]:
    """Return the messages of a message, a mapping, a batch, or an iterable of these, as a list."""
    if isinstance(message, (ServiceBusMessage, AmqpAnnotatedMessage)):
        return [message]
    if isinstance(message, Mapping):
        return [ServiceBusMessage(**message)]
    if isinstance(message, ServiceBusMessageBatch):
        # The SDK has no public way to look into a batch; a test holds this one.
        return list(message._messages)
    return [listed(one)[0] for one in message]
