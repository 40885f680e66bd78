"""Draw how the ratios to a peer have gone, over all results that hold some, as one SVG file.

    python benchmarks/plot.py                        benchmarks/results/*.json to benchmarks/results/ratios.svg
    python benchmarks/plot.py --output /tmp/a.svg    somewhere else
    python benchmarks/plot.py --peer artemis         the ratios to another peer, to ratios-artemis.svg

One panel for each workload; a dot for the ratio of the medians, a bar from the lowest to the highest round, a dashed
line for the floor. The SVG is written by hand: drawing a few lines is no reason for a dependency.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

if not __package__:
    # started as a file: Python put its folder on the path, not the root of the project
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.ratios import RABBITMQ, floor

RESULTS = Path(__file__).resolve().parent / "results"
COLOURS = ("#1f6fb4", "#c4571a", "#3b8a3e", "#7a4fa0")
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 300, 210
LEFT, TOP, RIGHT, BOTTOM = 34, 26, 10, 42
HEADER = 46


@dataclass(frozen=True)
class Entry:
    """One run.

    Attributes:
        when: when it began, ISO 8601.
        label: what stands under its column: the commit, with a `+` when files differed from it.
        peer: name of the peer.
        rates: by configuration and workload, `median`, `min` and `max` of the ratio of rates.
    """

    when: str
    label: str
    peer: str
    rates: Mapping[str, Mapping[str, Mapping[str, float]]]


def read(files: Iterable[Path], peer: str = RABBITMQ) -> list[Entry]:
    """Return the runs that compared with `peer`, the oldest first; others are skipped."""
    found = []
    for file in files:
        document = json.loads(file.read_text())
        ratios = _ratios_to(document, peer)
        if ratios is None:
            continue
        rates = {
            own: {name: figures["rate"] for name, figures in workloads.items() if "rate" in figures}
            for own, workloads in ratios.items()
        }
        label = document["commit"] + ("+" if document["changed"] else "")
        found.append(Entry(document["conditions"]["when"], label, peer, rates))
    return sorted(found, key=lambda entry: entry.when)


def _ratios_to(document: Mapping[str, Any], peer: str) -> Any:
    """Return the ratios of a run to a peer; files of runs with one peer at most have it in another place."""
    if document.get("peer", {}).get("name") == peer:
        return document.get("ratios")
    return document.get("peer_ratios", {}).get(peer)


def draw(history: Sequence[Entry]) -> str:
    """Return the SVG of runs against one peer.

    Raises:
        ValueError: there is no run, or they are against different peers, whose ratios are no history.
    """
    peers = {entry.peer for entry in history}
    if len(peers) != 1:
        raise ValueError("no results with ratios" if not peers else f"ratios to different peers: {sorted(peers)}")
    peer = peers.pop()
    workloads = list(dict.fromkeys(name for entry in history for rates in entry.rates.values() for name in rates))
    configurations = list(dict.fromkeys(own for entry in history for own in entry.rates))
    colours = {own: COLOURS[at % len(COLOURS)] for at, own in enumerate(configurations)}
    width = COLUMNS * PANEL_WIDTH
    height = HEADER + -(-len(workloads) // COLUMNS) * PANEL_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f"<title>Messages per second as a multiple of {escape(peer)}</title>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Messages per second as a multiple of {escape(peer)}</text>',
    ]
    for at, (own, colour) in enumerate(colours.items()):
        parts.append(f'<circle cx="{LEFT + 5 + at * 130}" cy="33" r="4" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 14 + at * 130}" y="37">{escape(own)}</text>')
    for at, workload in enumerate(workloads):
        x, y = at % COLUMNS * PANEL_WIDTH, HEADER + at // COLUMNS * PANEL_HEIGHT
        parts.append(f'<g transform="translate({x},{y})">')
        parts += _panel(history, workload, colours)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _panel(history: Sequence[Entry], workload: str, colours: Mapping[str, str]) -> list[str]:
    floors = {own: floor(own, history[0].peer, workload) for own in colours}
    values = [entry.rates.get(own, {}).get(workload, {}).get("max", 0.0) for entry in history for own in colours]
    top = max([1.0, *values, *(value for value in floors.values() if value is not None)]) * 1.1
    bottom_y, right_x = PANEL_HEIGHT - BOTTOM, PANEL_WIDTH - RIGHT
    step = (right_x - LEFT) / len(history)

    def height(value: float) -> float:
        return round(bottom_y - value / top * (bottom_y - TOP), 1)

    parts = [f'<text x="{LEFT}" y="{TOP - 8}" font-weight="bold">{escape(workload)}</text>']
    for value in _marks(top):
        parts.append(f'<path d="M{LEFT} {height(value)}H{right_x}" stroke="#dddddd"/>')
        parts.append(f'<text x="{LEFT - 5}" y="{height(value) + 4}" text-anchor="end">{value:g}</text>')
    for own, wanted in floors.items():
        if wanted is not None:
            line = f'd="M{LEFT} {height(wanted)}H{right_x}" stroke="{colours[own]}" stroke-dasharray="4 3"'
            parts.append(f"<path {line}><title>floor {wanted:g}</title></path>")
    for at, entry in enumerate(history):
        x = round(LEFT + (at + 0.5) * step, 1)
        parts.append(
            f'<text transform="translate({x + 3},{bottom_y + 6}) rotate(35)" font-size="9">{escape(entry.label)}</text>'
        )
    for number, (own, colour) in enumerate(colours.items()):
        # side by side, so that the bars of two configurations do not hide each other
        shift = (number - (len(colours) - 1) / 2) * min(8.0, step / 3)
        dots = [
            (round(LEFT + (at + 0.5) * step + shift, 1), entry.rates[own][workload])
            for at, entry in enumerate(history)
            if workload in entry.rates.get(own, {})
        ]
        line = " ".join(f"{x},{height(rate['median'])}" for x, rate in dots)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-opacity="0.5"/>')
        for x, rate in dots:
            words = f"{own} {workload}: {rate['median']:.2f} [{rate['min']:.2f}..{rate['max']:.2f}]"
            parts.append(f'<path d="M{x} {height(rate["min"])}V{height(rate["max"])}" stroke="{colour}"/>')
            dot = f'<circle cx="{x}" cy="{height(rate["median"])}" r="3.5" fill="{colour}">'
            parts.append(f"{dot}<title>{escape(words)}</title></circle>")
    return parts


def _marks(top: float) -> list[float]:
    """Return up to six round values from 0 up to `top`."""
    step = next(step for step in (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 1e9) if top / step <= 6)
    return [step * number for number in range(int(top / step) + 1)]


def main(arguments: list[str] | None = None) -> int:
    """Draw; return 0, or 1 when there is nothing to draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the JSON files")
    parser.add_argument("--output", type=Path, help="the SVG; ratios.svg in that folder by default")
    parser.add_argument(
        "--peer", default=RABBITMQ, help="name of the peer; others than RabbitMQ get a file of their own"
    )
    options = parser.parse_args(arguments)
    # those of this machine only are no part of the history
    files = [file for file in sorted(options.results.glob("*.json")) if not file.name.startswith("local")]
    try:
        picture = draw(read(files, options.peer))
    except ValueError as error:
        print(f"nothing to draw: {error} (benchmarks/run.py --peer rabbitmq makes them)", file=sys.stderr)
        return 1
    file = "ratios.svg" if options.peer == RABBITMQ else f"ratios-{options.peer}.svg"
    output = options.output or options.results / file
    output.write_text(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
