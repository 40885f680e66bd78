"""Pages of a SQLite file that are free: the operating system need not keep them in memory.

Who drains a deep backlog reads each page of it once, deletes its rows, and never looks at it again. All of it would go
through the page cache, one fresh page of memory after the other, while those behind lie there for nothing. Given back
at once, the same few are used again and again, and nobody else's are pushed out. On a guest whose host takes unused
memory away, fresh memory was ten times as dear as the reading (decision 0026).

The file says itself which pages are free: a list of trunk pages, each with the numbers of up to 2,000 others, the last
ones freed in front. It is read beside the commits and without a lock. What is wrong in it costs time, for pages that
have to be read once more, and never a byte: clean pages alone are given back.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Callable
from itertools import pairwise
from struct import Struct
from typing import Final

#: Trunk pages that are looked at: 64 MiB of pages of 8 KiB. More than are freed from one look to the next, so that
#: those which were still to be written come up again.
TRUNKS_MAX: Final = 4
_HEADER_BYTES: Final = 40
_PAGE_SIZE_AT: Final = 16
_FIRST_TRUNK_AT: Final = 32
_PAGE_SIZE: Final = Struct(">H").unpack_from
_NUMBER: Final = Struct(">I").unpack_from
#: Of a trunk: the next one, and how many numbers follow.
_TRUNK: Final = Struct(">II")


def forget(fd: int) -> None:
    """Give back the memory that holds freed pages of a database file, as far as they are clean."""
    if not hasattr(os, "posix_fadvise"):
        return
    try:
        for offset, length in ranges(lambda at, number: os.pread(fd, number, at)):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)
    except OSError:
        # Advice only: who needs such a page meets the fault.
        return


def ranges(read: Callable[[int, int], bytes]) -> list[tuple[int, int]]:
    """Return offset and length of what was freed last, neighbours joined, ascending.

    Args:
        read: Returns the bytes of the file from an offset on, so many or as many as there are.
    """
    header = read(0, _HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return []
    # A size of 64 KiB does not fit its two bytes.
    size = _PAGE_SIZE(header, _PAGE_SIZE_AT)[0]
    size = 1 << 16 if size == 1 else size
    numbers = array("I")
    trunk = _NUMBER(header, _FIRST_TRUNK_AT)[0]
    for _ in range(TRUNKS_MAX):
        page = read((trunk - 1) * size, size) if trunk else b""
        if len(page) < max(size, _TRUNK.size):
            break
        following, leaves = _TRUNK.unpack_from(page)
        if _TRUNK.size + 4 * leaves > size:
            # In use again since.
            break
        found = array("I", page[_TRUNK.size : _TRUNK.size + 4 * leaves])
        if sys.byteorder == "little":
            found.byteswap()
        numbers.append(trunk)
        numbers.extend(found)
        trunk = following
    pages = sorted(filter(None, numbers))
    if not pages:
        return []
    gaps = [(last, first) for last, first in pairwise(pages) if first - last > 1]
    firsts = [pages[0], *(first for _, first in gaps)]
    lasts = [*(last for last, _ in gaps), pages[-1]]
    return [((first - 1) * size, (last - first + 1) * size) for first, last in zip(firsts, lasts, strict=True)]
