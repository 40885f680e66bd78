"""Drills in tests: a test makes stores of its broker fail or hang, and records what its clients saw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from typing import TYPE_CHECKING, Final

from duobus.clock import Clock
from duobus.errors import StoreUnavailable
from duobus.testing.client_report import ClientReport

if TYPE_CHECKING:
    from duobus.testing.namespace import Broker

#: How long a store may take to be away, and to be back.
CHANGE_S: Final = 30.0
_PAUSE_S: Final = 0.02


class Drill:
    """The messaging stores of a test's broker.

    Attributes:
        report: Records what the clients of the test saw, and sums it up.
    """

    def __init__(self, broker: Broker) -> None:
        self.report = ClientReport(Clock())
        self._broker = broker
        self._told: set[int] = set()

    def stores(self) -> dict[int, str]:
        """State of each store by its number: ``open``, ``opening`` or ``failed``."""
        found: dict[str, str] = self._broker.call("stores")
        return {int(number): state for number, state in found.items()}

    def fragments(self, namespace: str, path: str) -> dict[int, int]:
        """Store of each fragment of a queue or topic, by the fragment's number.

        Raises:
            EntityNotFound: There is no such entity.
        """
        found: dict[str, int] = self._broker.call("fragments", namespace, path)
        return {int(number): store for number, store in found.items()}

    def fail(self, store: int) -> None:
        """Make every call of a store fail, like a disk that is gone; the store is away from the next call on.

        Raises:
            EntityNotFound: There is no such store.
        """
        self._tell(store, "failing")

    def stall(self, store: int) -> None:
        """Make a store answer no call, like a disk that hangs; the store is away when a call has waited for a second.

        Raises:
            EntityNotFound: There is no such store.
        """
        self._tell(store, "stalling")

    def heal(self, store: int | None = None) -> None:
        """End the drill of a store, or of all stores; on return everything that was in the stores is there again.

        Raises:
            StoreUnavailable: A store did not come back.
        """
        stores = sorted(self._told) if store is None else [store]
        for number in stores:
            self._broker.call("drill", number, "healthy")
            self._told.discard(number)
        pause = Event()
        states: dict[int, str] = {}
        for _ in range(int(CHANGE_S / _PAUSE_S)):
            states = self.stores()
            if all(states[number] == "open" for number in stores):
                return
            pause.wait(_PAUSE_S)
        raise StoreUnavailable(f"The stores {stores} did not come back within {CHANGE_S:g} s: {states}.")

    @contextmanager
    def away(self, store: int, how: str = "fail") -> Iterator[None]:
        """Keep a store away for as long as the context lasts; ``how`` is ``fail`` or ``stall``."""
        {"fail": self.fail, "stall": self.stall}[how](store)
        try:
            yield
        finally:
            self.heal(store)

    def _tell(self, store: int, mode: str) -> None:
        self._broker.call("drill", store, mode)
        self._told.add(store)
