"""ClusterAccount: what was acknowledged and what came out, of flows through a cluster; for use by threads."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

#: What is shown of a list of faults.
SHOWN = 10


class ClusterAccount:
    """By flow and message id.

    A message is *lost* if it was acknowledged and never came out. It is *doubled* if it is two messages: two sequence
    numbers came out under its id, though the entity detects duplicates. One message that is received again is a
    *repeat*: its lock was lost with a server, and that is what locks allow.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._acknowledged: dict[str, set[str]] = defaultdict(set)
        self._places: dict[tuple[str, str], set[int]] = defaultdict(set)
        self._repeats = 0
        self._last: dict[str, int] = {}
        self._faults: Counter[str] = Counter()
        self._details: list[str] = []

    def acknowledged(self, flow: str, *ids: str) -> None:
        """These are the broker's from now on."""
        with self._lock:
            self._acknowledged[flow].update(ids)

    def received(self, flow: str, message_id: str, number: int) -> None:
        """A message came out under a sequence number."""
        with self._lock:
            places = self._places[flow, message_id]
            if number in places:
                self._repeats += 1
            elif places:
                self._fault("doubled", f"{flow}/{message_id}: {sorted(places)} and {number}")
            places.add(number)

    def in_session(self, session: str, number: int) -> None:
        """The message of this number in its session was received; the next one may only come after it."""
        with self._lock:
            last = self._last.get(session, -1)
            if number > last + 1:
                self._fault("disordered", f"{session}: {number} after {last}")
            self._last[session] = max(last, number)

    def early(self, what: str) -> None:
        """A scheduled message came before its time."""
        with self._lock:
            self._fault("early", what)

    def _fault(self, kind: str, detail: str) -> None:
        self._faults[kind] += 1
        if len(self._details) < SHOWN:
            self._details.append(f"{kind} {detail}")

    def counts(self) -> dict[str, int]:
        """Acknowledged messages by flow."""
        with self._lock:
            return {flow: len(ids) for flow, ids in self._acknowledged.items()}

    def missing(self) -> list[str]:
        """What was acknowledged and has not come out."""
        with self._lock:
            return [
                f"{flow}/{one}"
                for flow, ids in self._acknowledged.items()
                for one in ids
                if not self._places.get((flow, one))
            ]

    def report(self) -> dict[str, int]:
        """The counts of a result."""
        missing = len(self.missing())
        with self._lock:
            return {
                "acknowledged": sum(map(len, self._acknowledged.values())),
                "received": len(self._places),
                "repeats": self._repeats,
                "lost": missing,
                **{kind: self._faults[kind] for kind in ("doubled", "disordered", "early")},
            }

    def details(self) -> list[str]:
        """The first faults, and what is missing, in words."""
        with self._lock:
            found = list(self._details)
        return found + [f"lost {one}" for one in self.missing()[:SHOWN]]
