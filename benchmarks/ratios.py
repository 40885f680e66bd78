"""How duobus compares with the peers that were measured in the same run: a ratio per round, and of the medians.

Above 1 is better for `rate`, where duobus stands above the line; below 1 is better for `cpu`, `send_p50`, `send_p99`.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.report import MEAN_OF, geometric_mean

RABBITMQ = "rabbitmq-quorum"
_ARTEMIS = {"A100": 1.3, "A1000": 1.8, "B": 1.5, "C1x1": 1.5, "C4x4": 1.5, "D": 1.0, "mean": 1.5}
FLOORS = {
    ("duobus-plain", RABBITMQ): {"A100": 1.65, "A1000": 2.2, "B": 4.5, "C1x1": 3.25, "C4x4": 3.4},
    ("duobus-postgres", RABBITMQ): {"A100": 1.1, "A1000": 1.4, "C1x1": 1.6, "C4x4": 1.6},
    ("duobus-plain", "artemis"): _ARTEMIS,
    ("duobus-plain", "artemis-aio"): _ARTEMIS,
}
"""By configuration and peer, what the ratio of rates has to reach in plain Python; `mean` is the geometric mean."""

FIGURES = ("rate", "cpu", "send_p50", "send_p99")
"""What is compared: rate, processor time, and the time until a send is accepted."""

Samples = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def _figure(sample: Mapping[str, Any], name: str) -> float | None:
    if name == "cpu":
        total = sample.get("cpu_us", {}).get("total")
        return None if total is None else float(total)
    found = sample.get("rate" if name == "rate" else f"{name}_ms")
    return None if found is None else float(found)


def compare(own: Sequence[Mapping[str, Any]], peer: Sequence[Mapping[str, Any]], name: str) -> dict[str, float] | None:
    """Return the spread of a figure's ratio, own to peer.

    Args:
        own: samples of one workload.
        peer: the peer's samples of it; those of one `round` belong together.
        name: one of FIGURES; `cpu` is in microseconds per message.

    Returns:
        `median`, the ratio of the medians over the rounds that both have; `min` and `max` of the rounds' ratios; and
        `rounds`, how many. None if they share no round, or a figure is not there or too small to be measured.
    """
    known = _pairs(own, peer, name)
    if not known:
        return None
    each = [mine / other for mine, other in known]
    whole = median(mine for mine, _ in known) / median(other for _, other in known)
    return {"median": whole, "min": min(each), "max": max(each), "rounds": len(each)}


def rounds(own: Sequence[Mapping[str, Any]], peer: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """Return the ratio of each round that both have, own to peer; see `compare`."""
    return [mine / other for mine, other in _pairs(own, peer, name)]


def _pairs(own: Sequence[Mapping[str, Any]], peer: Sequence[Mapping[str, Any]], name: str) -> list[tuple[float, float]]:
    theirs = {sample["round"]: _figure(sample, name) for sample in peer}
    pairs = [(_figure(sample, name), theirs.get(sample["round"])) for sample in own]
    return [(mine, other) for mine, other in pairs if mine and other]


def ratios(samples: Samples, peer: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Compare everybody with `peer`: by configuration, workload and figure, the spread of `compare`."""
    result: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for own, workloads in samples.items():
        if own == peer:
            continue
        result[own] = {}
        for workload, mine in workloads.items():
            found = {name: compare(mine, samples[peer].get(workload, ()), name) for name in FIGURES}
            known = {name: spread for name, spread in found.items() if spread is not None}
            if known:
                result[own][workload] = known
    return result


def of_peers(samples: Samples, peers: Sequence[str]) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
    """Compare duobus with each of several peers, which are not compared with each other; by peer, see `ratios`."""
    own = {name: workloads for name, workloads in samples.items() if name not in peers}
    return {peer: ratios({**own, peer: samples[peer]}, peer) for peer in peers}


TWINS = {"duobus-compiled": "duobus-plain", "duobus-compiled-parted": "duobus-parted"}
"""Configurations that differ in nothing but the compiled twin."""


FILES = {"duobus-postgres": "duobus-plain", "duobus-compiled-postgres": "duobus-compiled"}
"""Configurations that differ in nothing but where the store is."""


TLS = {"duobus-tls": "duobus-plain"}
"""Configurations that differ in nothing but TLS."""


def of_tls(samples: Samples) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Compare a broker that is reached over TLS with the same one without, as `ratios` does."""
    return _beside(samples, TLS)


def of_twins(samples: Samples) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """Compare each compiled configuration with its plain one, as `ratios` does, where both were measured."""
    return _beside(samples, TWINS)


def of_postgres(samples: Samples) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """The same for stores in PostgreSQL and those in files."""
    return _beside(samples, FILES)


def _beside(samples: Samples, pairs: Mapping[str, str]) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for own, other in pairs.items():
        if own in samples and other in samples:
            found |= ratios({own: samples[own], other: samples[other]}, other)
    return found


BEFORE = "before-"
"""What stands before the name of a configuration that runs the sources of an earlier commit."""


def of_before(samples: Samples) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Compare each configuration with the same one of an earlier commit, where both were measured.

    Returns:
        By configuration, workload and figure (see FIGURES) the ratio of each round, new to earlier, in the order of the
        rounds.
    """
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for own, workloads in samples.items():
        kind, _, configuration = own.partition("-")
        earlier = samples.get(f"{kind}-{BEFORE}{configuration}")
        if earlier is None:
            continue
        for workload, mine in workloads.items():
            figures = {name: rounds(mine, earlier.get(workload, ()), name) for name in FIGURES}
            found.setdefault(own, {})[workload] = {name: each for name, each in figures.items() if each}
    return found


WATCHED = {"duobus-consoles": "duobus-plain"}
"""Configurations that differ in nothing but the consoles that are open."""


def of_watched(samples: Samples) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Compare a broker that people look at with the same one alone, as `of_before` does."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    for own, other in WATCHED.items():
        for workload, mine in samples.get(own, {}).items():
            theirs = samples.get(other, {}).get(workload, ())
            figures = {name: rounds(mine, theirs, name) for name in ("cpu", "rate")}
            found.setdefault(own, {})[workload] = {name: each for name, each in figures.items() if each}
    return {own: loads for own, loads in found.items() if any(loads.values())}


def paired_table(found: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], earlier: str) -> str:
    """Lay out the result of `of_before`: the median of the rounds' ratios, their range, and each of them.

    The last line of a configuration has the geometric mean of the workloads' medians.
    """
    lines = [f"ratio to {earlier}: median of the rounds [min..max], then each round"]
    for own, workloads in found.items():
        for figure in ("cpu", "rate", "send_p50", "send_p99"):
            medians = []
            for workload, figures in workloads.items():
                each = figures.get(figure, ())
                if each:
                    medians.append(median(each))
                    spread = f"{medians[-1]:.3f} [{min(each):.2f}..{max(each):.2f}]"
                    lines.append(f"{own}  {figure:8}  {workload:6} {spread}  {' '.join(f'{one:.2f}' for one in each)}")
            if medians:
                mean = geometric_mean(medians)
                lines.append(f"{own}  {figure:8}  mean   {mean:.3f}")
    return "\n".join(lines)


def floor(own: str, peer: str, workload: str) -> float | None:
    """Return what the ratio of rates must reach, for `mean` that of the geometric mean; None without a demand."""
    return FLOORS.get((own, peer), {}).get(workload)


def table(found: Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]], peer: str) -> str:
    """Lay out the result of `ratios` as plain text, with the floors and the geometric mean where all five are there."""
    head = (f"ratio to {peer}", "load", "rate", "[min..max]", "floor", "", "cpu", "[min..max]", "send p50", "send p99")
    rows: list[tuple[str, ...]] = [head]
    for own, workloads in found.items():
        rows += [_row(own, peer, workload, figures) for workload, figures in workloads.items()]
        rates = [workloads[name]["rate"]["median"] for name in MEAN_OF if "rate" in workloads.get(name, {})]
        if len(rates) == len(MEAN_OF):
            mean = geometric_mean(rates)
            rows.append((own, "mean", f"{mean:.2f}", "", *_verdict(floor(own, peer, "mean"), mean), "", "", "", ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [
        [cell.ljust(w) if at < 2 else cell.rjust(w) for at, (cell, w) in enumerate(zip(r, widths, strict=True))]
        for r in rows
    ]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _row(own: str, peer: str, workload: str, figures: Mapping[str, Mapping[str, float]]) -> tuple[str, ...]:
    rate = figures.get("rate")
    return (
        own,
        workload,
        *_spread(rate),
        *_verdict(floor(own, peer, workload), None if rate is None else rate["median"]),
        *_spread(figures.get("cpu")),
        _spread(figures.get("send_p50"))[0],
        _spread(figures.get("send_p99"))[0],
    )


def _verdict(wanted: float | None, found: float | None) -> tuple[str, str]:
    """Return the floor and whether it is met, both empty where nothing is demanded."""
    if wanted is None:
        return "", ""
    return f"{wanted:.2f}", "" if found is None else "met" if found >= wanted else "below"


def _spread(figure: Mapping[str, float] | None) -> tuple[str, str]:
    if figure is None:
        return "-", ""
    return f"{figure['median']:.2f}", f"[{figure['min']:.2f}..{figure['max']:.2f}]"
