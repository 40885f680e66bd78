"""Entities as clients know them: the shards of a partitioned entity that this server has are one entity here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from duobus.broker import transfer_message_count
from duobus.model.address import SHARE, whole_path

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.broker.entities.namespace import Namespace


class WholeEntity:
    """An entity and what this server has of it.

    Args:
        path: The entity's path, as clients know it.
        parts: The entity itself, or its shards in stores of this server; where several servers share the catalog, both,
            the entity first.

    Attributes:
        path: As given.
        parts: As given.
    """

    __slots__ = ("parts", "path")

    def __init__(self, path: str, parts: Sequence[Queue]) -> None:
        self.path = path
        self.parts = parts

    @property
    def about(self) -> Queue:
        """The part that tells what holds of the whole, such as its status."""
        return self.parts[0]

    def numbers(self) -> tuple[list[int], int]:
        """Messages by state, as ``Queue.numbers`` has them, and bytes, of all parts."""
        counts, sizes = zip(*(part.numbers() for part in self.parts), strict=True)
        return [sum(of_state) for of_state in zip(*counts, strict=True)], sum(sizes)

    def locked(self) -> int:
        """Messages of all parts that receivers hold locked."""
        return sum(part.locked() for part in self.parts)

    def to_forward(self) -> int:
        """Messages of all parts that are to be forwarded and have not left yet."""
        return sum(map(transfer_message_count, self.parts))


def whole_entities(home: Namespace, prefix: str = "") -> Iterator[WholeEntity]:
    """Each entity of a namespace once, those of which this server has shards only behind all others.

    A caller may pause between two of them: what is created meanwhile is not among them, and what is deleted has no
    parts any more and is left out.

    Args:
        home: The namespace.
        prefix: What the paths begin with, in small letters.
    """
    plain: list[Queue] = []
    shards: dict[str, list[Queue]] = {}
    # All of them in one turn, so nothing is done for an entity here that can be done when its turn comes.
    for entity in home.entities():
        if SHARE in entity.path:
            shards.setdefault(whole_path(entity.path).lower(), []).append(entity)
        elif not prefix or entity.path.lower().startswith(prefix):
            plain.append(entity)
    for entity in plain:
        yield from _served(home, entity.path, [entity, *shards.pop(entity.path.lower(), ())] if shards else [entity])
    for key, parts in shards.items():
        if key.startswith(prefix):
            yield from _served(home, whole_path(parts[0].path), parts)


def _served(home: Namespace, path: str, parts: Sequence[Queue]) -> Iterator[WholeEntity]:
    there = [part for part in parts if home.serves(part)]
    if there:
        yield WholeEntity(path, there)
