"""How the messages of a batch are divided into tasks. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.spark.offsets import COUNT_BITS, COUNT_MASK, Claim, by_fragment, expand, runs

#: Tasks of a batch at least, if it has as many fragments and nothing else is asked for: each costs some 50 ms.
TASKS_DEFAULT: Final = 4


class Piece(NamedTuple):
    """Messages of one fragment, or of one session, that one task reads in order.

    Attributes:
        entity: Name of the entity, as in offsets.
        session: Id of the session, or None.
        fragment: Number of the fragment.
        packed: Numbers of the messages within the fragment, as ``offsets.runs`` packs them.
    """

    entity: str
    session: str | None
    fragment: int
    packed: list[int]

    def numbers(self) -> list[int]:
        """The sequence numbers."""
        return [self.fragment << COUNT_BITS | count for count in expand(self.packed)]


def split(claim: Claim, most: int, least_tasks: int | None) -> list[list[Piece]]:
    """Divide a claim into tasks, each a list of pieces.

    Args:
        claim: The messages to read.
        most: Most messages of a task; a session is never divided.
        least_tasks: Number of tasks wanted; None: one for each fragment, up to ``TASKS_DEFAULT``.
    """
    groups = [
        (key, fragment, numbers)
        for key in sorted(claim, key=lambda key: (key.entity, key.session or ""))
        for fragment, numbers in sorted(by_fragment(claim[key]).items())
    ]
    total = sum(len(numbers) for _, _, numbers in groups)
    if not total:
        return []
    wanted = least_tasks if least_tasks is not None else min(len(groups), TASKS_DEFAULT)
    size = max(1, min(most, -(-total // max(wanted, 1))))
    pieces: list[tuple[int, Piece]] = []
    for key, fragment, numbers in groups:
        step = len(numbers) if key.session is not None else size
        for at in range(0, len(numbers), step):
            part = numbers[at : at + step]
            packed = runs(number & COUNT_MASK for number in part)
            pieces.append((len(part), Piece(key.entity, key.session, fragment, packed)))
    return _packed_into(pieces, max(wanted, -(-total // size)))


def _packed_into(pieces: list[tuple[int, Piece]], tasks: int) -> list[list[Piece]]:
    """Give each piece, the largest first, to the task that has the least; small fragments share one."""
    loads = [0] * min(tasks, len(pieces))
    found: list[list[Piece]] = [[] for _ in loads]
    for size, piece in sorted(pieces, key=lambda item: -item[0]):
        which = loads.index(min(loads))
        loads[which] += size
        found[which].append(piece)
    return found
