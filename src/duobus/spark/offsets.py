"""Offsets of the two modes, as Spark keeps them: small, and byte for byte the same for the same content.

Spark compares offsets as text, copies them into every progress event, and gives them back after a restart. An offset
that is read from a checkpoint is checked like any other input.
"""

from __future__ import annotations

import base64
import binascii
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from duobus.spark.errors import CheckpointError

VERSION: Final = 1
#: The count within a sequence number; above it stands the fragment.
COUNT_BITS: Final = 48
COUNT_MASK: Final = (1 << COUNT_BITS) - 1
#: A larger claim is kept compressed.
PLAIN_BYTES_MAX: Final = 4_096
#: Of a claim that is unpacked; a million messages with every second one missing take a tenth of it.
UNPACKED_BYTES_MAX: Final = 64 << 20
#: Messages of one claim.
CLAIM_MAX: Final = 2_000_000
#: Characters of the name of a stream.
STREAM_MAX: Final = 64
#: Claims at a broker that one batch is made of.
PARTS_MAX: Final = 1_000


class Key(NamedTuple):
    """The place of claimed messages: an entity, and one of its sessions if it has sessions."""

    entity: str
    session: str | None = None


#: Sequence numbers, and what tells whose deferral a message's is (``mark_of``).
Numbers = dict[int, int]
Claim = dict[Key, Numbers]


#: Below it stands the delivery count of a mark.
_LIFE_SHIFT: Final = 32


def mark_of(deliveries: int, life: int) -> int:
    """The record of a received message: its delivery count, and the life of its fragment, 0 when not known.

    A broker that is killed may forget its last deliveries, so a fragment may hand the same message out with the same
    count again in its next life, after a restart; within one life it does not (decision 0038).
    """
    return life << _LIFE_SHIFT | deliveries


def deliveries_of(mark: int) -> int:
    """The delivery count of a mark."""
    return mark & (1 << _LIFE_SHIFT) - 1


def life_of(mark: int) -> int:
    """The life of a mark, or 0."""
    return mark >> _LIFE_SHIFT


@dataclass(frozen=True, slots=True)
class ClaimOffset:
    """One batch of the mode ``claim``.

    Attributes:
        at: The namespace; the numbers are valid in this namespace only.
        batch: Number of the batch, counted in the checkpoint.
        claim: The messages that the batch claims, without those of earlier batches.
        counted: By how much a deferral raises the delivery count; None: not known when the offset was written.
        until_ms: When the last lock of the received messages ends; None: not known.
        stream: Name of the stream, in the ids of its claims at a broker that claims; None: none was given yet.
        parts: Claims at such a broker that the batch is made of; 0: its messages were received and deferred.
    """

    at: str
    batch: int = 0
    claim: Claim = field(default_factory=dict)
    counted: int | None = None
    until_ms: int | None = None
    stream: str | None = None
    parts: int = 0

    def claim_id(self, batch: int, part: int) -> str:
        """The id of one of the claims that a batch of this stream is made of."""
        return f"{self.stream}/{batch}/{part}"

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes down."""
        form: dict[str, Any] = {"v": VERSION, "at": self.at, "b": self.batch}
        if self.counted is not None:
            form["d"] = self.counted
        if self.until_ms is not None:
            form["u"] = self.until_ms
        if self.stream is not None:
            form["i"] = self.stream
        if self.parts:
            form["p"] = self.parts
        content = _packed(self.claim)
        # Measured as Spark's runner writes it, with spaces.
        if len(json.dumps(content)) > PLAIN_BYTES_MAX:
            text = json.dumps(content, separators=(",", ":"))
            form["z"] = base64.b64encode(zlib.compress(text.encode(), 6)).decode("ascii")
        else:
            form["c"] = content
        return form

    @classmethod
    def from_json(cls, form: Any) -> ClaimOffset:
        """Read one back.

        Raises:
            CheckpointError: It is none.
        """
        try:
            _expect(isinstance(form, dict), "no object")
            _expect("n" not in form, "an offset of readMode=browse")
            _expect(form.get("v") == VERSION, f"of version {form.get('v')!r}")
            at, batch, counted = form["at"], form["b"], form.get("d")
            _expect(isinstance(at, str) and _is_count(batch), "without a namespace or a batch")
            _expect(counted in (None, 0, 1), "with an unknown 'd'")
            until_ms = form.get("u")
            _expect(until_ms is None or _is_count(until_ms), "with a 'u' that is no time")
            stream, parts = form.get("i"), form.get("p", 0)
            _expect(stream is None or (isinstance(stream, str) and 0 < len(stream) <= STREAM_MAX), "with a wrong 'i'")
            _expect(_is_count(parts) and parts <= PARTS_MAX and (stream is not None or not parts), "with a wrong 'p'")
            content = _unzipped(form["z"]) if "z" in form else form["c"]
            return cls(at, batch, _unpacked(content), counted, until_ms, stream, parts)
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"The checkpoint holds an offset that is none of readMode=claim: {error}. Give the stream a checkpoint "
                "of its own; nothing was settled."
            ) from None


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise ValueError(f"it is {otherwise}")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def by_fragment(numbers: Iterable[int]) -> dict[int, list[int]]:
    """Group sequence numbers by their fragments."""
    found: dict[int, list[int]] = {}
    for number in sorted(numbers):
        found.setdefault(number >> COUNT_BITS, []).append(number)
    return found


def runs(numbers: Iterable[int]) -> list[int]:
    """Pack ascending numbers into pairs: the gap since the end of the run before, and the length of the run."""
    pairs: list[int] = []
    end = 0
    for number in numbers:
        if pairs and number == end:
            pairs[-1] += 1
        else:
            pairs += (number - end, 1)
        end = number + 1
    return pairs


def expand(pairs: list[int]) -> list[int]:
    """Unpack what ``runs`` packed; raise ValueError for anything else."""
    _expect(isinstance(pairs, list) and len(pairs) % 2 == 0, "no list of pairs")
    _expect(all(_is_count(item) for item in pairs), "a list with something else than counts")
    _expect(sum(pairs[1::2]) <= CLAIM_MAX, f"a claim of more than {CLAIM_MAX} messages")
    numbers: list[int] = []
    end = 0
    for gap, length in zip(pairs[::2], pairs[1::2], strict=True):
        numbers.extend(range(end + gap, end + gap + length))
        end += gap + length
    _expect(end <= COUNT_MASK + 1, "a number beyond those that there are")
    return numbers


def _packed_numbers(numbers: Mapping[int, int]) -> dict[str, Any]:
    fragments: dict[str, Any] = {}
    for fragment, members in by_fragment(numbers).items():
        pairs = runs(number & COUNT_MASK for number in members)
        counts: list[int] = []
        for number in members:
            if counts and counts[-2] == numbers[number]:
                counts[-1] += 1
            else:
                counts += (numbers[number], 1)
        # Almost always all of them are delivered for the first time.
        fragments[str(fragment)] = pairs if counts[::2] == [0] else {"n": pairs, "k": counts}
    return dict(sorted(fragments.items()))


def _packed(claim: Claim) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key in sorted(claim, key=lambda key: (key.entity, key.session is not None, key.session or "")):
        if not claim[key]:
            continue
        numbers = _packed_numbers(claim[key])
        if key.session is None:
            content[key.entity] = numbers
        else:
            content.setdefault(key.entity, {"sessions": {}})["sessions"][key.session] = numbers
    return content


def _unzipped(text: Any) -> Any:
    try:
        unpacker = zlib.decompressobj()
        plain = unpacker.decompress(base64.b64decode(text, validate=True), UNPACKED_BYTES_MAX)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"damaged: {error}") from None
    _expect(unpacker.eof, "cut off, or too large")
    return json.loads(plain)


def _unpacked(content: Any) -> Claim:
    _expect(isinstance(content, dict), "a claim that is no object")
    claim: Claim = {}
    for entity, fragments in content.items():
        _expect(isinstance(fragments, dict), f"a claim of '{entity}' that is no object")
        if "sessions" in fragments:
            for session, members in fragments["sessions"].items():
                claim[Key(entity, session)] = _unpacked_numbers(members)
        else:
            claim[Key(entity)] = _unpacked_numbers(fragments)
    return claim


def _unpacked_numbers(fragments: Any) -> Numbers:
    numbers: Numbers = {}
    for name, members in fragments.items():
        fragment = int(name)
        _expect(0 <= fragment < 1 << 16, f"a fragment {fragment}")
        is_counted = isinstance(members, dict)
        found = expand(members["n"] if is_counted else members)
        counts = _expanded_counts(members["k"], len(found)) if is_counted else [0] * len(found)
        for number, count in zip(found, counts, strict=True):
            numbers[fragment << COUNT_BITS | number] = count
    return numbers


def _expanded_counts(pairs: Any, length: int) -> list[int]:
    _expect(isinstance(pairs, list) and len(pairs) % 2 == 0 and all(map(_is_count, pairs)), "no list of counts")
    _expect(sum(pairs[1::2]) == length, "a list of counts that does not fit its numbers")
    counts: list[int] = []
    for count, times in zip(pairs[::2], pairs[1::2], strict=True):
        counts.extend([count] * times)
    return counts


@dataclass(frozen=True, slots=True)
class BrowseOffset:
    """The position of the mode ``browse``.

    Attributes:
        at: The namespace.
        nexts: By entity and fragment, the first number that was not read.
        origins: The first number of a fragment that the offset before this one does not name.
    """

    at: str
    nexts: dict[str, dict[int, int]] = field(default_factory=dict)
    origins: dict[str, dict[int, int]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return what Spark writes down."""
        form = {"v": VERSION, "at": self.at, "n": _sorted(self.nexts)}
        if self.origins:
            form["from"] = _sorted(self.origins)
        return form

    @classmethod
    def from_json(cls, form: Any) -> BrowseOffset:
        """Read one back.

        Raises:
            CheckpointError: It is none.
        """
        try:
            _expect(isinstance(form, dict) and form.get("v") == VERSION, "of another version")
            _expect("n" in form, "an offset of readMode=claim" if "b" in form else "without numbers")
            return cls(str(form["at"]), nexts_of(form["n"]), nexts_of(form.get("from", {})))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"The checkpoint holds an offset that is none of readMode=browse: {error}. Give the stream a "
                "checkpoint of its own."
            ) from None


def _sorted(numbers: dict[str, dict[int, int]]) -> dict[str, dict[str, int]]:
    return {
        entity: {str(fragment): numbers[entity][fragment] for fragment in sorted(numbers[entity])}
        for entity in sorted(numbers)
    }


def nexts_of(content: Any) -> dict[str, dict[int, int]]:
    """Read ``{"<entity>": {"<fragment>": number}}``; raise ValueError for anything else."""
    _expect(isinstance(content, dict), "no object")
    found: dict[str, dict[int, int]] = {}
    for entity, fragments in content.items():
        _expect(isinstance(fragments, dict), f"nothing of the form fragment to number, for '{entity}'")
        found[entity] = {}
        for fragment, number in fragments.items():
            _expect(_is_count(number) and number >> COUNT_BITS in (int(fragment), int(fragment) + 1), "a wrong number")
            found[entity][int(fragment)] = number
    return found
