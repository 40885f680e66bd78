"""Delivery tags, which are lock tokens: 16 bytes, of which the last eight count.

    | prefix of a fragment's life, 8 bytes | lock counter, 8 digits of 7 bits, the highest first |

Each digit stands in a byte of its own below 0x80, so that two tags of one prefix differ after a lossy UTF-8 decoding,
too: there are clients that know deliveries by the text of their tags. Inside of the broker a lock counter is a plain
number; what is consecutive here is consecutive there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

#: Lock counters that a tag has room for.
COUNTERS: Final = 1 << 56
#: Bytes of a tag.
TAG_SIZE: Final = 16
#: The bits that no digit has.
_NO_DIGIT: Final = 0x8080808080808080


def digits(counter: int) -> int:
    """Return a lock counter, modulo ``COUNTERS``, as the number whose eight bytes stand in a tag."""
    spaced = (counter & 0x0FFFFFFF) | (counter & 0xFFFFFFF0000000) << 4
    spaced = (spaced & 0x00003FFF00003FFF) | (spaced & 0x0FFFC0000FFFC000) << 2
    return (spaced & 0x007F007F007F007F) | (spaced & 0x3F803F803F803F80) << 1


def counter_of(found: int) -> int:
    """Return the lock counter of ``digits``; -1 when that is none, since a byte is above 0x7F."""
    if found & _NO_DIGIT:
        return -1
    packed = (found & 0x007F007F007F007F) | (found & 0x7F007F007F007F00) >> 1
    packed = (packed & 0x00003FFF00003FFF) | (packed & 0x3FFF00003FFF0000) >> 2
    return (packed & 0x0FFFFFFF) | (packed & 0x0FFFFFFF00000000) >> 4


def digit_runs(first: int, number: int) -> Sequence[int]:
    """Return ``digits`` of ``number`` consecutive lock counters, with a step in Python for each 128 of them."""
    start = digits(first)
    room = 0x80 - (start & 0x7F)
    if number <= room:
        return range(start, start + number)
    found = list(range(start, start + room))
    while len(found) < number:
        start = digits(first + len(found))
        found += range(start, start + min(0x80, number - len(found)))
    return found


def tag_of(prefix: bytes, counter: int) -> bytes:
    """Return the tag of 16 bytes of a lock counter under a prefix of 8 bytes."""
    return prefix + digits(counter).to_bytes(8, "big")


def tag_counter(tag: bytes) -> int:
    """Return the lock counter of a tag; -1 when it is not one of ours."""
    return counter_of(int.from_bytes(tag[8:], "big")) if len(tag) == 16 else -1


def runs_of_tags(tags: Sequence[bytes]) -> list[tuple[bytes, int, int]] | None:
    """Return (prefix, first counter, number) of each run of tags that have one prefix and count up by one.

    None when one of the tags is not of this form.
    """
    number = len(tags)
    whole = b"".join(tags)
    if len(whole) != number * TAG_SIZE or set(map(len, tags)) != {TAG_SIZE}:
        return None
    found = struct.unpack(f">{2 * number}Q", whole)
    prefixes, last_halves = found[::2], found[1::2]
    runs: list[tuple[bytes, int, int]] = []
    start = 0
    while start < number:
        counter = counter_of(last_halves[start])
        if counter < 0:
            return None
        left = number - start
        if prefixes.count(prefixes[start]) == number and last_halves[start:] == tuple(digit_runs(counter, left)):
            end = number
        else:
            end = start + 1
            while end < number and prefixes[end] == prefixes[start]:
                if last_halves[end] != digits(counter + end - start):
                    break
                end += 1
        runs.append((prefixes[start].to_bytes(8, "big"), counter, end - start))
        start = end
    return runs


def in_guid_order(prefix: bytes) -> bytes:
    """Return the first eight bytes of a tag as they begin the uuid of the same token; the other eight are equal."""
    return prefix[3::-1] + prefix[5:3:-1] + prefix[7:5:-1]
