"""What happened between two looks at a namespace: rates, and which entities were busy."""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.console.observation.readings import EntityCounts, Reading

_SECOND_MS: Final = 1_000
#: Counts that begin at the start of the server.
_COUNTERS: Final = ("sent", "received", "settled")


class Rates(NamedTuple):
    """Messages per second; None where nobody knows.

    Attributes:
        sent, received, settled: What clients did.
        growth: By how much the number of active messages grew; negative while the number shrinks.
    """

    sent: float | None
    received: float | None
    settled: float | None
    growth: float | None


UNKNOWN_RATES: Final = Rates(None, None, None, None)


class BusyEntity(NamedTuple):
    """One entity with its rates between two looks."""

    path: str
    counts: EntityCounts
    rates: Rates


def seconds_between(before: Reading | None, after: Reading) -> float | None:
    """The time between two looks at the same run of a server; None when there is no such time."""
    if before is None or before.started_ms != after.started_ms:
        return None
    elapsed_ms = after.elapsed_ms - before.elapsed_ms
    return elapsed_ms / _SECOND_MS if elapsed_ms > 0 else None


def rates_between(before: Reading | None, after: Reading) -> Rates:
    """The rates of the whole namespace."""
    seconds = seconds_between(before, after)
    if before is None or seconds is None:
        return UNKNOWN_RATES
    sums = [[0, 0, 0], [0, 0, 0]]
    is_counted = any(counts.sent is not None for counts in after.entities.values())
    for path, counts in after.entities.items():
        # An entity that is new has sent nothing before; one that is gone is in neither sum.
        was = before.entities.get(path, counts._replace(sent=0, received=0, settled=0))
        for index, name in enumerate(_COUNTERS):
            sums[0][index] += getattr(was, name) or 0
            sums[1][index] += getattr(counts, name) or 0
    growth = _difference(before.total("active"), after.total("active"), seconds, least=None)
    if not is_counted:
        return Rates(None, None, None, growth)
    sent, received, settled = (_difference(sums[0][index], sums[1][index], seconds) for index in range(3))
    return Rates(sent, received, settled, growth)


def busiest(before: Reading | None, after: Reading, most: int) -> list[BusyEntity]:
    """The entities with the most traffic, and after these the fullest; those with nothing at all are left out."""
    seconds = seconds_between(before, after)
    found = []
    for path, counts in after.entities.items():
        was = before.entities.get(path) if before is not None and seconds is not None else None
        rates = UNKNOWN_RATES
        if was is not None and seconds is not None:
            rates = Rates(
                _difference(was.sent, counts.sent, seconds),
                _difference(was.received, counts.received, seconds),
                _difference(was.settled, counts.settled, seconds),
                _difference(was.active, counts.active, seconds, least=None),
            )
        if _weight(rates, counts) > (0, 0):
            found.append(BusyEntity(path, counts, rates))
    return sorted(found, key=lambda one: (_weight(one.rates, one.counts), one.path), reverse=True)[:most]


def _weight(rates: Rates, counts: EntityCounts) -> tuple[float, int]:
    traffic = (rates.sent or 0) + (rates.received or 0)
    if rates.sent is None:
        traffic = abs(rates.growth or 0)
    return traffic, counts.active + counts.dead + (counts.locked or 0) + counts.scheduled


def _difference(before: int | None, after: int | None, seconds: float, least: float | None = 0.0) -> float | None:
    if before is None or after is None:
        return None
    found = (after - before) / seconds
    return found if least is None else max(least, found)
