"""What one synced append costs, by the ways the system offers: ``python -m prototypes.journal.syncs``."""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
from statistics import median
from time import perf_counter

SIZES = (1_300, 110_000, 1_100_000)
SEGMENT = 32 << 20


def laid_out(path: str) -> int:
    """Return a file of zeros that are on the disk."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    for start in range(0, SEGMENT, 1 << 20):
        os.pwrite(fd, bytes(1 << 20), start)
    os.fsync(fd)
    return fd


def measure(name: str, size: int, write) -> None:  # noqa: ANN001
    """Print wall and processor time of one append."""
    offset = 0
    times = []
    number = max(40, min(1500, (256 << 20) // size))
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(number):
        if offset + size + 8192 > SEGMENT:
            offset = 0
        began = perf_counter()
        offset = write(offset)
        times.append(perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name:34} {size:9,} B  p50 {median(times) * 1e6:7.0f} us  processor {cpu / number * 1e6:7.0f} us")


def main() -> None:
    """Measure each way with each size."""
    with tempfile.TemporaryDirectory() as folder:
        grown = os.open(f"{folder}/grown", os.O_RDWR | os.O_CREAT)
        fd = laid_out(f"{folder}/a")
        direct = os.open(f"{folder}/a", os.O_RDWR | os.O_DIRECT | os.O_DSYNC)
        end = 0
        for size in SIZES:
            data = os.urandom(size)

            def growing(offset: int) -> int:
                nonlocal end
                os.pwrite(grown, data, end)  # noqa: B023
                os.fdatasync(grown)
                end += len(data)  # noqa: B023
                return 0

            def two_calls(offset: int) -> int:
                os.pwrite(fd, data, offset)  # noqa: B023
                os.fdatasync(fd)
                return offset + len(data)  # noqa: B023

            def one_call(offset: int) -> int:
                os.pwritev(fd, [data], offset, os.RWF_DSYNC)  # noqa: B023
                return offset + len(data)  # noqa: B023

            def sectors(offset: int) -> int:
                length = -(-len(data) // 4096) * 4096  # noqa: B023
                os.pwrite(fd, data + bytes(length - len(data)), offset)  # noqa: B023
                os.fdatasync(fd)
                return offset + length

            room = mmap.mmap(-1, -(-size // 4096) * 4096)

            def past_the_cache(offset: int) -> int:
                room[: len(data)] = data  # noqa: B023
                os.pwritev(direct, [room], offset)  # noqa: B023
                return offset + len(room)  # noqa: B023

            measure("file that grows, pwrite+fdatasync", size, growing)
            measure("laid out, pwrite+fdatasync", size, two_calls)
            measure("laid out, pwritev RWF_DSYNC", size, one_call)
            measure("laid out, 4 KiB steps", size, sectors)
            measure("laid out, O_DIRECT|O_DSYNC", size, past_the_cache)


if __name__ == "__main__":
    main()
