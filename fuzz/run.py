"""Fuzz one target: ``python fuzz/run.py --target frames --seconds 60 [--seed 7]``.

With atheris installed the search is guided by coverage; without, seeds are mutated at random. A finding is kept
under ``.build/fuzz/findings`` and makes the exit status 1. New inputs go to ``.build/fuzz``, never into the corpus.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
WORK = HERE.parent / ".build" / "fuzz"

TARGET_NAMES = (
    "frames",
    "codec",
    "sasl",
    "cbs",
    "management",
    "coordinator",
    "rules",
    "bearer",
    "heads",
    "journals",
    "relay",
)
SIZE_MAX = 65_536
_INTERESTING = (0, 1, 7, 8, 0x3F, 0x40, 0x45, 0x7F, 0x80, 0xC0, 0xD0, 0xF0, 0xFF)


def seeds_of(target: str) -> list[bytes]:
    """The corpus of a target, never empty."""
    found = [path.read_bytes() for path in sorted((HERE / "corpus" / target).glob("*"))]
    return found or [b"\x00"]


def mutations(target: str, seed: int) -> Iterator[bytes]:
    """Inputs without end: the seeds themselves, then what random changes make of them."""
    pool = seeds_of(target)
    yield from pool
    chance = random.Random(f"{target}-{seed}")
    while True:
        data = bytearray(chance.choice(pool))
        for _ in range(1 + min(int(chance.expovariate(0.4)), 20)):
            _change(data, chance, pool)
        yield bytes(data[:SIZE_MAX])


def _change(data: bytearray, chance: random.Random, pool: list[bytes]) -> None:
    start = chance.randrange(len(data) + 1)
    stop = min(len(data), start + chance.choice((1, 1, 2, 4, 8, 64)))
    kind = chance.randrange(7)
    if kind == 0:
        data[start:stop] = chance.randbytes(stop - start)
    elif kind == 1 and stop > start:
        data[start] = chance.choice(_INTERESTING)
    elif kind == 2:
        del data[start:stop]
    elif kind == 3:
        data[start:start] = data[start:stop] * chance.choice((1, 2, 50))
    elif kind == 4:
        other = chance.choice(pool)
        cut = chance.randrange(len(other) + 1)
        data[start:] = other[cut:]
    elif kind == 5:
        data[start:stop] = chance.choice((0, 8, 255, 65_535, 2**31, 2**32 - 1)).to_bytes(4, "big")
    elif stop > start:
        data[start] ^= 1 << chance.randrange(8)


def blind(target: str, run: Callable[[bytes], None], seconds: float, seed: int, most: int | None = None) -> int:
    """Random mutation for a time, or for ``most`` inputs if these come first; returns the number of inputs tried.

    What ``run`` raises goes to the caller.
    """
    end = time.monotonic() + seconds
    tried = 0
    for data in mutations(target, seed):
        try:
            run(data)
        except BaseException:
            keep(target, data)
            raise
        tried += 1
        if tried == most or time.monotonic() > end:
            break
    return tried


def keep(target: str, data: bytes) -> Path:
    """Keep the input of a finding."""
    folder = WORK / "findings"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target}-{sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def guided(target: str, seconds: int, seed: int) -> None:
    """Coverage-guided search; does not return, the exit status tells."""
    import atheris

    with atheris.instrument_imports(include=["duobus"]):
        from fuzz.targets import TARGETS, check
    inputs = WORK / "inputs" / target
    inputs.mkdir(parents=True, exist_ok=True)
    (WORK / "findings").mkdir(parents=True, exist_ok=True)
    run = TARGETS[target]
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={SIZE_MAX}",
        f"-artifact_prefix={WORK / 'findings'}/{target}-",
        "-print_final_stats=1",
        "-timeout=10",
        "-verbosity=1",
        *([f"-seed={seed}"] if seed else []),
    ]
    # Instrumented code runs several times slower than what is measured elsewhere.
    atheris.Setup([sys.argv[0], *options, str(inputs), str(HERE / "corpus" / target)], lambda data: check(run, data, 8))
    atheris.Fuzz()


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--target", choices=TARGET_NAMES)
    what.add_argument("--list", action="store_true", help="print the targets, one a line")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", choices=("auto", "atheris", "random"), default="auto")
    options = parser.parse_args()
    if options.list:
        print("\n".join(TARGET_NAMES))
        return 0
    if options.engine != "random":
        with contextlib.suppress(ImportError) if options.engine == "auto" else contextlib.nullcontext():
            guided(options.target, options.seconds, options.seed)
    from fuzz.targets import TARGETS, check

    run = TARGETS[options.target]
    tried = blind(options.target, lambda data: check(run, data), options.seconds, options.seed)
    print(f"{options.target}: {tried} inputs, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
