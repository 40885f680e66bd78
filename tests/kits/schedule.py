"""Which process runs which tests, and in which order, when several share them (``--dist loadgroup``).

Tests are handed out in pieces. A piece is a group, whose tests share what is slow to start, or a test that shares
nothing, or some quick tests of one file. Long pieces come first, by the times in ``tests/durations.tsv``, so that
nothing long is left for the end, when the other processes have nothing to do any more. A run of all tests writes the
times that it took into ``.build/durations.tsv``, to be copied there when the order has become bad.

Where all tests run, the processors are to have something to do from the beginning to the end. So some processes run the
unit tests, which compute and wait for nothing. These processes yield the processor to the others (``UNIT_NICE``) and
fill what those leave while they wait for servers, disks and timers. They take quick tests of the rest, too, as soon as
less of the unit tests is left than of the rest, so that there are unit tests of all lengths to the end. Of the other
processes one takes quick tests from the beginning, for long ones compute more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

#: A process that runs tests of all folders as they come, those of ``tests/unit`` and some others, or no unit tests.
ALL, UNIT, REST = "all", "unit", "rest"
#: Of so many processes one runs the unit tests; fewer are not parted.
UNIT_EVERY: Final = 4
#: How far the processes of unit tests yield. They keep half of what a process of the others gets: with a third, a
#: test of eight seconds has taken 120 on a small machine, and was ended.
UNIT_NICE: Final = 3
#: Pieces that take longer, in seconds, are handed out first, the longest of them before the others.
LONG_S: Final = 2.0
#: A piece of quick tests has at most so many.
QUICK_TESTS: Final = 8
#: Which pieces of a part.
_LONG, _QUICK = 0, 1
DURATIONS: Final = Path(__file__).parents[1] / "durations.tsv"


class Node(Protocol):
    """What is asked of a process that runs tests."""

    workerinput: dict[str, Any]

    def send_runtest_some(self, indices: Sequence[int]) -> None:
        """Let it run these tests of its collection behind those that it has."""

    def shutdown(self) -> None:
        """Let it end when it has run what it has."""

    @property
    def shutting_down(self) -> bool:
        """Whether it ends, or has ended."""


class Piece(NamedTuple):
    """Tests that one process runs in a row."""

    name: str
    tests: tuple[str, ...]
    seconds: float = 0.0

    @property
    def is_long(self) -> bool:
        """Whether it is worth to be begun early."""
        return self.seconds >= LONG_S


def piece_name(test: str) -> str:
    """The group of a test, by which durations are kept too, or the test itself."""
    return test.rpartition("@")[2] if test.rfind("@") > test.rfind("]") else test


def pieces_of(tests: Iterable[str], durations: Mapping[str, float]) -> list[Piece]:
    """Part tests into pieces: the long ones by their length, then the others in the order in which they were collected.

    Args:
        tests: As they were collected.
        durations: Seconds by name of a piece; what is not in it is quick.
    """
    groups: dict[str, list[str]] = {}
    for test in tests:
        name = piece_name(test)
        if name == test and durations.get(name, 0.0) < LONG_S:
            # Quick tests that share nothing: as many of a file as one process gets at once.
            file, number = test.partition("::")[0], 0
            while len(groups.setdefault(name := f"{file} {number}", [])) >= QUICK_TESTS:
                number += 1
        groups.setdefault(name, []).append(test)
    pieces = [Piece(name, tuple(members), durations.get(name, 0.0)) for name, members in groups.items()]
    return sorted(pieces, key=lambda piece: -piece.seconds if piece.is_long else 0.0)


def read_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Seconds by name of a piece; nothing where nothing was measured."""
    if not path.exists():
        return {}
    rows = (line.split("\t") for line in path.read_text("utf-8").splitlines())
    return {name: float(seconds) for seconds, name in rows}


def write_durations(durations: Mapping[str, float], path: Path) -> None:
    """Keep the long ones, the longest first."""
    rows = sorted((-seconds, name) for name, seconds in durations.items() if seconds >= LONG_S)
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{-seconds:.0f}\t{name}\n" for seconds, name in rows), "utf-8")


def _weight(pieces: Iterable[Piece]) -> float:
    """About how long some pieces take, in seconds."""
    return sum(max(piece.seconds, 1.0) for piece in pieces)


def parts_of(processes: int, *, everything: bool) -> list[str]:
    """What each of so many processes runs, when everything is to be run or only some folders."""
    units = processes // UNIT_EVERY if everything else 0
    return [UNIT] * units + [REST] * (processes - units) if units else [ALL] * processes


class Places:
    """Gives each process its part, and that of one that has crashed to the one that takes its place."""

    def __init__(self, parts: Sequence[str]) -> None:
        self._free = list(parts)

    def give(self, node: Node) -> None:
        """Tell a process, before it begins, what it runs."""
        node.workerinput["part"] = self._free.pop(0)

    def take_back(self, node: Node) -> None:
        """A process has crashed."""
        self._free.append(node.workerinput["part"])


class Schedule:
    """Hands pieces out to processes; what pytest-xdist calls a scheduler.

    Args:
        parts: What the processes run, one for each.
        durations: Seconds by name of a piece.
        tell_total: Told the number of tests of all parts when they are known.

    Attributes:
        took: Seconds by name of a piece, of all tests that were run.
    """

    def __init__(
        self, parts: Sequence[str], durations: Mapping[str, float], tell_total: Callable[[int], None] = lambda _: None
    ) -> None:
        self._parts = tuple(parts)
        self._durations = durations
        self._tell_total = tell_total
        self.took: dict[str, float] = {}
        #: By part, what no process has been given yet, long pieces and quick ones; None before all have told what they
        #: have collected.
        self._left: dict[str, list[deque[Piece]]] | None = None
        #: By part, how much there was of both at the beginning.
        self._whole: dict[str, list[float]] = {}
        #: By process: what it has been given and has not run, by place in its collection: the test and its piece.
        self._pending: dict[Any, dict[int, tuple[str, Piece]]] = {}
        self._collected: dict[Any, list[str]] = {}
        self._places: dict[Any, dict[str, int]] = {}

    # -- what the session of pytest-xdist asks for -------------------------------------------------------------------

    @property
    def nodes(self) -> list[Any]:
        """The processes that live."""
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every process that there was at the beginning has collected its tests."""
        return self._left is not None or len(self._collected) >= len(self._parts)

    @property
    def has_pending(self) -> bool:
        """Whether a test was not run yet."""
        return any(self._pending.values()) or self._has_left()

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left to be handed out, and each process only waits to hear so before its last test."""
        if self._left is None or self._has_left():
            return False
        return all(len(tests) < 2 for tests in self._pending.values())

    def add_node(self, node: Node) -> None:
        """A process has begun."""
        self._pending[node] = {}

    def remove_node(self, node: Node) -> str | None:
        """A process has ended; the test in which it did, when it had not run all that it was given."""
        pending = list(self._pending.pop(node).values())
        if not pending or self._left is None:
            return None
        (crashed, _), *others = pending
        for piece, members in groupby(reversed(others), key=lambda pair: pair[1]):
            tests = tuple(test for test, _ in reversed(list(members)))
            self._left[self._part(node)][0].appendleft(piece._replace(tests=tests))
        self._feed_all()
        return crashed

    def add_node_collection(self, node: Node, collection: Sequence[str]) -> None:
        """A process has collected these tests."""
        for other, tests in self._collected.items():
            if self._part(other) == self._part(node) and tests != list(collection):
                raise RuntimeError(
                    "two processes have collected different tests, or the same in another order: "
                    + ", ".join(sorted(set(tests).symmetric_difference(collection))[:5])
                )
        self._collected[node] = list(collection)
        self._places[node] = {test: place for place, test in enumerate(collection)}

    def mark_test_complete(self, node: Node, item_index: int, duration: float = 0) -> None:
        """A process has run a test."""
        test, _ = self._pending[node].pop(item_index)
        self.took[piece_name(test)] = self.took.get(piece_name(test), 0.0) + duration
        self._feed(node)

    def schedule(self) -> None:
        """Hand out what can be handed out."""
        if self._left is None:
            by_part = {self._part(node): tests for node, tests in self._collected.items()}
            self._tell_total(max(map(len, by_part.values())))
            if REST in by_part:
                rest = set(by_part[REST])
                by_part[UNIT] = [test for test in by_part[UNIT] if test not in rest]
            self._left = {}
            for part, tests in by_part.items():
                pieces = pieces_of(tests, self._durations)
                self._left[part] = [deque(piece for piece in pieces if piece.is_long is long) for long in (True, False)]
                self._whole[part] = list(map(_weight, self._left[part]))
        self._feed_all()

    def mark_test_pending(self, item: str) -> None:
        """No test is run twice."""
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Node, indices: Sequence[int]) -> None:
        """Nothing is taken back."""
        raise NotImplementedError

    # -- handing out -------------------------------------------------------------------------------------------------

    def _has_left(self) -> bool:
        return any(any(kinds) for kinds in (self._left or {}).values())

    def _feed_all(self) -> None:
        for node in self._pending:
            if node in self._places:
                self._feed(node)

    def _feed(self, node: Node) -> None:
        """Give a process what it runs next. It begins with a test only when it knows which one comes behind it."""
        if node.shutting_down:
            return
        pending = self._pending[node]
        while len(pending) < 2:
            piece = self._next(node)
            if piece is None:
                node.shutdown()
                return
            places = [self._places[node][test] for test in piece.tests]
            pending.update((place, (test, piece)) for place, test in zip(places, piece.tests, strict=True))
            node.send_runtest_some(places)

    def _next(self, node: Node) -> Piece | None:
        """A long piece, as long as there are any; but not behind another one, where it would wait for its end.

        A process of unit tests takes from their long and their quick ones alike.
        """
        assert self._left is not None
        own = self._part(node)
        with_long = [
            other for other, given in self._pending.items() if any(piece.is_long for _, piece in given.values())
        ]
        if own == UNIT:
            kinds = [(UNIT, _LONG), (UNIT, _QUICK)]
            kinds.sort(key=lambda kind: (kind[1] == _LONG and node in with_long, self._share_done(*kind)))
            of_rest = [(REST, _QUICK), (REST, _LONG)]
            is_ahead = self._share_done(UNIT, _LONG, _QUICK) > self._share_done(REST, _LONG, _QUICK)
            kinds = of_rest + kinds if is_ahead else kinds + of_rest
        else:
            others = self._parts.count(REST) - 1
            is_enough = own == REST and 0 < others <= sum(self._part(other) == REST for other in with_long)
            kinds = [(own, _LONG), (own, _QUICK)]
            if is_enough or node in with_long:
                kinds.reverse()
        for part, kind in kinds:
            if pieces := self._left[part][kind]:
                return pieces.popleft()
        return None

    def _share_done(self, part: str, *kinds: int) -> float:
        """How much of a part's pieces was handed out, from 0 to 1."""
        assert self._left is not None
        left, whole = self._left[part], self._whole[part]
        total = sum(whole[kind] for kind in kinds)
        return 1 - sum(_weight(left[kind]) for kind in kinds) / total if total else 1.0

    @staticmethod
    def _part(node: Node) -> str:
        return str(node.workerinput["part"])
