"""Namespace: entities by name. It resolves an address once, when a link attaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duobus.broker.queue import Queue
from duobus.broker.throttle import Throttle
from duobus.errors import NotImplementedYet
from duobus.model.address import Address, not_found
from duobus.model.description import AccessRule


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

    def access_rules(self, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        """The access rules of the entities on the way to a resource, each with its entity's lower-case segments."""
        for length in range(1, len(segments) + 1):
            path = tuple(segments[:length])
            queue = self.queues.get("/".join(path))
            for rule in () if queue is None else queue.description.authorization_rules:
                yield path, rule

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
        if queue.unbuilt:
            asked = ", ".join(queue.unbuilt)
            raise NotImplementedYet(
                f"The queue '{queue.path}' asks for {asked}, which this version of duobus does not serve. "
                "Create it without, or use a version that has it."
            )
        return queue
