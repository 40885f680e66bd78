"""A client of the SDK whose senders and receivers close at once.

The synchronous SDK keeps each connection alive by a thread that sleeps a second at a time, and its ``close`` waits for
that thread: half a second on the average for whatever is closed, be it one dead letter, one session or one batch. The
thread is a daemon and ends by itself at its next look, so there is nothing to wait for.
"""

from __future__ import annotations

from typing import Any, TypeVar

from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

Link = TypeVar("Link", ServiceBusSender, ServiceBusReceiver)


class PromptClient(ServiceBusClient):
    """Hands out what the SDK's client does, closing promptly."""

    def get_queue_sender(self, *given: Any, **named: Any) -> ServiceBusSender:
        """As the SDK has it."""
        return _prompt(super().get_queue_sender(*given, **named))

    def get_topic_sender(self, *given: Any, **named: Any) -> ServiceBusSender:
        """As the SDK has it."""
        return _prompt(super().get_topic_sender(*given, **named))

    def get_queue_receiver(self, *given: Any, **named: Any) -> ServiceBusReceiver:
        """As the SDK has it."""
        return _prompt(super().get_queue_receiver(*given, **named))

    def get_subscription_receiver(self, *given: Any, **named: Any) -> ServiceBusReceiver:
        """As the SDK has it."""
        return _prompt(super().get_subscription_receiver(*given, **named))


def _prompt(link: Link) -> Link:
    whole = link.close

    def close() -> None:
        release_thread(getattr(link, "_handler", None))
        whole()

    link.close = close  # type: ignore[method-assign]
    return link


def release_thread(handler: Any) -> None:
    """Let the thread that keeps a connection alive go, so that closing does not wait for it.

    Args:
        handler: The SDK's own object below a sender or receiver; None before it was opened. An SDK that has no such
            thread, or names it otherwise, closes as it likes.
    """
    if getattr(handler, "_keep_alive_thread", None) is not None and hasattr(handler, "_shutdown"):
        handler._shutdown = True
        handler._keep_alive_thread = None
