"""Which copies came out of which receive path, against those that had to.

A send whose outcome is unknown is repeated, so that a message may be published more than once. The publications are
told apart by the enqueued sequence number, which all copies of one share, over the hop too. Each of them has all of
its copies or none (I24), and each copy once (I14), whatever was killed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from duobus_demo.expectations.fanout_plan import Copy, ExpectedCopy

#: What is counted per receive path, and in all.
COUNTS = ("expected", "received", "duplicates", "lost", "altered", "wrong", "revived")

_EXAMPLES_MAX = 10


class ReceivedCopy(NamedTuple):
    """One message as a receiver got it.

    Attributes:
        copy: Which copy of which message.
        look: Its body and properties.
        number: Its sequence number.
        publication: Its enqueued sequence number.
    """

    copy: Copy
    look: ExpectedCopy
    number: int
    publication: int


class FanoutExpectations:
    """The copies of one run; every method may be called from any thread.

    Args:
        expected: By receive path, the copies that have to come out and how they look.
    """

    def __init__(self, expected: Mapping[str, Mapping[Copy, ExpectedCopy]]) -> None:
        self._expected = expected
        self._lock = threading.Lock()
        self._publications: dict[str, set[int]] = {}
        #: By receive path, copy and publication, the sequence numbers under which it came.
        self._numbers: dict[str, dict[tuple[Copy, int], set[int]]] = {receive_path: {} for receive_path in expected}
        self._taken: dict[str, set[tuple[Copy, int]]] = {receive_path: set() for receive_path in expected}
        self._completed: dict[str, set[int]] = {receive_path: set() for receive_path in expected}
        self._altered: dict[str, dict[Copy, str]] = {receive_path: {} for receive_path in expected}
        self._revived: Counter[str] = Counter()
        self._completed_over: Counter[str] = Counter()
        self._unsettled = 0
        self._settled = 0

    # -- what receivers do --------------------------------------------------------------------------------------

    def hold(self, count: int) -> None:
        """A receiver was given so many more messages, or has lost so many when negative."""
        with self._lock:
            self._unsettled += count

    def received(self, receive_path: str, delivery: ReceivedCopy) -> None:
        """A message was handed to the application."""
        wanted = self._expected[receive_path].get(delivery.copy)
        with self._lock:
            if delivery.number in self._completed[receive_path]:
                self._revived[receive_path] += 1
            self._publications.setdefault(delivery.copy.message_id, set()).add(delivery.publication)
            self._numbers[receive_path].setdefault((delivery.copy, delivery.publication), set()).add(delivery.number)
            difference = wanted.difference(delivery.look) if wanted is not None else ""
            if difference:
                self._altered[receive_path][delivery.copy] = difference

    def completed(self, receive_path: str, delivery: ReceivedCopy, transport: str) -> None:
        """A completion was acknowledged, on a connection of this kind: the copy must never come again."""
        with self._lock:
            self._taken[receive_path].add((delivery.copy, delivery.publication))
            self._completed[receive_path].add(delivery.number)
            self._completed_over[transport] += 1
            self._unsettled -= 1
            self._settled += 1

    def completion_unknown(self, receive_path: str, delivery: ReceivedCopy) -> None:
        """A completion raised: the copy may be gone, or may come again."""
        with self._lock:
            self._taken[receive_path].add((delivery.copy, delivery.publication))

    # -- how it stands ------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> int:
        """Number of messages that receivers have now and have not completed."""
        return self._unsettled

    @property
    def settled(self) -> int:
        """Number of completions that were acknowledged."""
        return self._settled

    @property
    def total(self) -> int:
        """Number of copies of a run in which no message is published twice."""
        return sum(map(len, self._expected.values()))

    def completions_over(self, transport: str) -> int:
        """Number of completions that were acknowledged on connections of this kind."""
        return self._completed_over[transport]

    def missing(self) -> dict[str, list[Copy]]:
        """Return the copies that nobody took over, by receive path.

        Of every publication of which a copy was seen, all have to come; and every message has to be published.
        """
        with self._lock:
            return {receive_path: self._missing(receive_path) for receive_path in self._expected}

    def report(self) -> dict[str, Any]:
        """Return the counts as members of a result: those of COUNTS in all, and by receive path.

        ``received`` counts copies, ``duplicates`` those of further publications of a message, ``wrong`` messages that
        should not be there: they went to the wrong place, or came twice of one publication.
        """
        missing = self.missing()
        with self._lock:
            receive_paths = {
                receive_path: {
                    "expected": len(expected),
                    "received": len({copy for copy, _ in self._taken[receive_path]} & expected.keys()),
                    "duplicates": self._duplicates(receive_path),
                    "lost": len(missing[receive_path]),
                    "altered": len(self._altered[receive_path]),
                    "wrong": self._wrong_count(receive_path),
                    "revived": self._revived[receive_path],
                }
                for receive_path, expected in self._expected.items()
            }
            totals = {name: sum(counts[name] for counts in receive_paths.values()) for name in COUNTS}
            return {**totals, "receive_paths": receive_paths}

    def examples(self) -> dict[str, list[str]]:
        """Return a few of what is lost, altered and wrong, in words."""
        missing = self.missing()
        with self._lock:
            found = {
                "missing": [
                    f"{receive_path}: {_words(copy)}" for receive_path, copies in missing.items() for copy in copies
                ],
                "altered_how": [
                    f"{receive_path}: {_words(copy)}: {how}"
                    for receive_path, copies in self._altered.items()
                    for copy, how in copies.items()
                ],
                "wrong_which": [
                    f"{receive_path}: {_words(copy)}"
                    for receive_path in self._expected
                    for copy in self._wrong(receive_path)
                ],
            }
        return {name: texts[:_EXAMPLES_MAX] for name, texts in found.items()}

    def _missing(self, receive_path: str) -> list[Copy]:
        taken = self._taken[receive_path]
        found: list[Copy] = []
        for copy in self._expected[receive_path]:
            publications = self._publications.get(copy.message_id)
            if publications is not None:
                found += [copy for publication in publications if (copy, publication) not in taken]
            else:
                found.append(copy)
        return found

    def _duplicates(self, receive_path: str) -> int:
        publications = Counter(copy for copy, _ in self._numbers[receive_path] if copy in self._expected[receive_path])
        return sum(count - 1 for count in publications.values())

    def _wrong(self, receive_path: str) -> dict[Copy, int]:
        found: Counter[Copy] = Counter()
        for (copy, _), numbers in self._numbers[receive_path].items():
            found[copy] += len(numbers) - (copy in self._expected[receive_path])
        return {copy: count for copy, count in found.items() if count}

    def _wrong_count(self, receive_path: str) -> int:
        return sum(self._wrong(receive_path).values())


def _words(copy: Copy) -> str:
    return f"{copy.message_id} by rule {copy.rule}" if copy.rule else copy.message_id
