"""Entities as clients know them: the shards of a partitioned entity that this server has are one entity here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from duobus.model.address import SHARE, whole_path

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.broker.entities.namespace import Namespace


class WholeEntity:
    """An entity and what this server has of it.

    Args:
        path: The entity's path, as clients know it.
        first: One of its parts.

    Attributes:
        path: As given.
        parts: The entity itself, or its shards in stores of this server; where several servers share the catalog, both.
    """

    __slots__ = ("parts", "path")

    def __init__(self, path: str, first: Queue) -> None:
        self.path = path
        self.parts = [first]

    @property
    def about(self) -> Queue:
        """The part that tells what holds of the whole, such as its status."""
        return next((part for part in self.parts if SHARE not in part.path), self.parts[0])


def whole_entities(home: Namespace) -> Iterator[WholeEntity]:
    """Each entity of a namespace once, a topic's subscriptions before the topic.

    A caller may pause between two of them: what is created meanwhile is not among them, and what is deleted has no
    parts any more and is left out.
    """
    found: dict[str, WholeEntity] = {}
    for entity in home.entities():
        path = whole_path(entity.path) if SHARE in entity.path else entity.path
        known = found.get(path.lower())
        if known is None:
            found[path.lower()] = WholeEntity(path, entity)
        else:
            known.parts.append(entity)
    for whole in found.values():
        whole.parts = [part for part in whole.parts if home.serves(part)]
        if whole.parts:
            yield whole
