"""One-time addresses: what was promised under an unguessable id, until it is used or too late. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from duobus.gateway.relay.refusals import RelayRefusal

PromiseT = TypeVar("PromiseT")


class Rendezvous(Generic[PromiseT]):
    """What is waited for, by the id of its address.

    Args:
        draw: Gives ids that nobody guesses.
    """

    __slots__ = ("_draw", "_number", "_open")

    def __init__(self, draw: Callable[[], str]) -> None:
        self._draw = draw
        self._number = 0
        self._open: dict[str, tuple[PromiseT, int | None]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def promise(self, promise: PromiseT, until_ms: int | None) -> str:
        """Keep something until then (None: until it is withdrawn) and return its id, in the form of the service."""
        self._number += 1
        key = f"{self._draw()}_G{self._number % 1000}"
        self._open[key] = promise, until_ms
        return key

    def redeem(self, key: str, now_ms: int) -> PromiseT:
        """Take what was promised; nobody else gets it.

        Raises:
            RelayRefusal: The id is unknown, was used, or came too late.
        """
        found = self._open.pop(key, None)
        if found is None or (found[1] is not None and now_ms > found[1]):
            raise RelayRefusal(403, "The address of the rendezvous is unknown, was used already, or is too old.")
        return found[0]

    def withdraw(self, key: str) -> None:
        """Forget a promise; one that was taken is no error."""
        self._open.pop(key, None)
