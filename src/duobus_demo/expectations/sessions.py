"""What was put into sessions and what came out of them: order and state, beside the counts of the message account.

Each session's state says how many of its messages were applied, with a digest over all of them. Its receiver sets the
state first and completes the message then. So a message that comes again because the broker died in between is known
as applied, and the last state tells whether every message had its effect exactly once, in order.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from duobus_demo.corpus import Outgoing


class Applied(NamedTuple):
    """What a session's state tells.

    Attributes:
        messages: How many were applied.
        digest: Over their bodies, in order; hexadecimal.
    """

    messages: int = 0
    digest: str = ""

    def after(self, position: int, body: bytes) -> Applied:
        """The state once the message at ``position`` is applied."""
        return Applied(position + 1, hashlib.sha256(self.digest.encode() + body).hexdigest())

    def encode(self) -> bytes:
        """As it is kept in the broker."""
        return json.dumps(self._asdict()).encode()


def decode_state(state: bytes | None) -> Applied | None:
    """Read a session's state, which was never set at first; None when it is none of ours."""
    if state is None:
        return Applied()
    try:
        members = json.loads(state)
        return Applied(int(members["messages"]), str(members["digest"]))
    except (ValueError, KeyError, TypeError):
        return None


class SessionExpectations:
    """The sessions of one run; every method may be called from any thread.

    Args:
        sessions: Session id to its messages, in the order in which they are sent.
    """

    def __init__(self, sessions: Mapping[str, Sequence[Outgoing]]) -> None:
        self.sessions = sessions
        self._lock = threading.Lock()
        self._places = {
            message.message_id: (session_id, position)
            for session_id, messages in sessions.items()
            for position, message in enumerate(messages)
        }
        self._known: dict[str, Applied] = dict.fromkeys(sessions, Applied())
        self._tried: dict[str, Applied] = {}
        self._last_numbers: dict[str, int] = {}
        self._locked: set[str] = set()
        self._counts: Counter[str] = Counter()
        self._faults: list[str] = []

    # -- what receivers do --------------------------------------------------------------------------------------

    def accepted(self, session_id: str, state: bytes | None) -> Applied:
        """A receiver has a session, and read its state: it must be what was set last."""
        found = decode_state(state)
        with self._lock:
            allowed = [self._known[session_id]]
            if session_id in self._tried:
                # Whether it was set nobody knows, until now.
                allowed.append(self._tried.pop(session_id))
            if found not in allowed:
                self._fault("states_lost", f"the state of '{session_id}' is {state!r}, not {allowed[0].encode()!r}")
            self._known[session_id] = found or Applied()
            self._last_numbers.pop(session_id, None)
            self._locked.add(session_id)
            self._counts["accepted"] += 1
            return self._known[session_id]

    def left(self, session_id: str) -> None:
        """The receiver has given the session up, or lost it."""
        with self._lock:
            self._locked.discard(session_id)

    def position(self, message_id: str, session_id: str, number: int, applied: int) -> int:
        """A message came: its place in its session. It has to be the next, or one that was applied before."""
        with self._lock:
            home, position = self._places.get(message_id, ("", -1))
            if home != session_id:
                self._fault("out_of_order", f"'{message_id}' came in session '{session_id}'")
            elif position > applied:
                self._fault("out_of_order", f"'{message_id}' came before {position - applied} others")
            elif number <= self._last_numbers.get(session_id, -1):
                self._fault("out_of_order", f"'{message_id}' has the number {number} of an earlier one")
            elif position < applied:
                self._counts["applied_before"] += 1
            self._last_numbers[session_id] = number
            return position

    def setting(self, session_id: str, state: Applied) -> None:
        """The state of a session is about to be set."""
        with self._lock:
            self._tried[session_id] = state

    def was_set(self, session_id: str) -> None:
        """It was acknowledged."""
        with self._lock:
            self._known[session_id] = self._tried.pop(session_id)
            self._counts["states_set"] += 1

    # -- how it stands ------------------------------------------------------------------------------------------

    @property
    def locked(self) -> int:
        """Number of sessions that receivers have now."""
        return len(self._locked)

    @property
    def is_done(self) -> bool:
        """Whether every message of every session is known to be applied."""
        with self._lock:
            return all(self._known[session_id].messages == len(found) for session_id, found in self.sessions.items())

    def expected(self, session_id: str) -> Applied:
        """The state of a session all messages of which had their effect once and in order."""
        state = Applied()
        for position, message in enumerate(self.sessions[session_id]):
            state = state.after(position, message.read())
        return state

    def read_back(self, session_id: str, state: bytes | None) -> None:
        """The last look at a session: its state must tell of all its messages."""
        if decode_state(state) == self.expected(session_id):
            with self._lock:
                self._counts["states_right"] += 1

    def report(self) -> dict[str, int]:
        """The counts, as members of a result."""
        names = ("accepted", "states_set", "applied_before", "out_of_order", "states_lost", "states_right")
        with self._lock:
            return {"sessions": len(self.sessions), **{name: self._counts[name] for name in names}}

    def faults(self) -> list[str]:
        """What went wrong first."""
        with self._lock:
            return list(self._faults)

    def _fault(self, name: str, text: str) -> None:
        self._counts[name] += 1
        if len(self._faults) < 10:
            self._faults.append(text)
