"""Namespace: entities by name. It resolves an address once, when a link attaches."""

from __future__ import annotations

from duobus.broker.queue import Queue
from duobus.broker.throttle import Throttle
from duobus.errors import NotImplementedYet
from duobus.model.address import Address, not_found


class Namespace:
    """The entities of one namespace.

    Attributes:
        name: Its name, as configured.
        queues: Lower-case path to queue.
        unbuilt: Lower-case path to what this version stores and does not serve (a topic, say).
        throttle: Its rate, or None when it has no bound.
    """

    __slots__ = ("name", "queues", "throttle", "unbuilt")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[str, Queue] = {}
        self.unbuilt: dict[str, str] = {}
        self.throttle: Throttle | None = None

    def resolve(self, address: Address) -> Queue:
        """The queue of an address, whichever of its nodes is meant.

        Raises:
            EntityNotFound: There is none.
            NotImplementedYet: It is stored, but this version cannot serve it; no silent plain queue (issue 2).
        """
        queue = self.queues.get(address.key)
        if queue is None or address.subscription is not None:
            kind = self.unbuilt.get(address.key)
            if kind is not None:
                raise NotImplementedYet(f"'{address.path}' is a {kind}, which this version of duobus stores only.")
            raise not_found(f"sb://{self.name}/{address.path}")
        return queue
