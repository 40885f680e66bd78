"""Skewed keys: partitioned entities of which one fragment gets most of the messages (requirement PE14).

A key pins its messages to one fragment: few keys, or one that is in most messages, make a partitioned entity as slow,
and as easily lost, as a plain one. Nothing is counted for it: the numbers that fragments give to messages are compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from duobus.model.address import whole_path

if TYPE_CHECKING:
    from duobus.broker import ScaleUnit

#: Between two looks.
LOOK_S: Final = 60.0
#: An entity that got fewer messages than that since the last look says nothing.
MESSAGES_MIN: Final = 1_000
#: Times the mean that a fragment may get before the log warns: with 16 fragments, a quarter of all messages.
SKEW_WARNED: Final = 4.0
#: Looks after a warning before the same entity is warned of again: an hour.
QUIET_LOOKS: Final = 60

#: Namespace and path of an entity.
Where = tuple[str, str]


class SkewWatch:
    """Looks once a minute.

    Args:
        unit: Whose entities.
        warn: Told (namespace, path, fragment, skew) of what is worth a line of the log.

    Attributes:
        skews: The last look: entity to messages of its busiest fragment by the mean.
    """

    def __init__(self, unit: ScaleUnit, warn: Callable[[str, str, int, float], None]) -> None:
        self.skews: dict[Where, float] = {}
        self._unit = unit
        self._warn = warn
        self._counts: dict[int, dict[int, int]] = {}
        self._quiet: dict[Where, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Look from now on."""
        self.look()
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self.begin)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def look(self) -> None:
        """Compare what each fragment got since the last look."""
        self.skews = {}
        self._quiet = {where: left - 1 for where, left in self._quiet.items() if left > 1}
        before, self._counts = self._counts, {}
        for space in self._unit.namespaces.values():
            for entity in (*space.queues.values(), *space.topics.values()):
                if not entity.is_partitioned:
                    continue
                old = before.get(entity.entity_id, {})
                # A store that is away says nothing, and must not seem to have got everything when it is back.
                now = dict(old)
                for handle in entity.fragments:
                    if handle.fragment is not None:
                        now[handle.number] = handle.fragment.sources[0].next_count
                self._counts[entity.entity_id] = now
                got = {number: count - old[number] for number, count in now.items() if number in old}
                # Of shards of one entity the most skewed one speaks for it.
                self._judge((space.name, whole_path(entity.path)), got, len(entity.fragments))

    def _judge(self, where: Where, got: Mapping[int, int], fragments: int) -> None:
        total = sum(got.values())
        if total < MESSAGES_MIN:
            return
        busiest = max(got, key=lambda number: got[number])
        skew = got[busiest] * fragments / total
        self.skews[where] = max(skew, self.skews.get(where, 0.0))
        if skew > SKEW_WARNED and where not in self._quiet:
            self._quiet[where] = QUIET_LOOKS
            self._warn(*where, busiest, skew)
