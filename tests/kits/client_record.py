"""A history of what clients observed, and its checker: it knows nothing else, neither logs nor tables of a broker.

What the record holds is judged when all is over:

- lost: a message was acknowledged and never received;
- repeated: a message was settled twice, each time with the broker's word for it, though it was sent once;
- doubled: two sequence numbers came out for what was sent as one message, by one send or under one message id;
- revived: a message was settled, and given to a receiver by a later grant: of all grants of a message only the last may
  be settled, else two clients held it at a time, or one got what was done;
- shared: one lock token was in two hands;
- unordered: of a session, an acknowledged message came behind one that was sent after it;
- early: a scheduled message came before its time;
- misruled: a message came where no rule lets it.

A send without an answer may have been stored, may be stored later, or never. Nothing is demanded of its messages: they
need not come, and they may come behind those that were sent after them.
"""

from __future__ import annotations

import threading
from typing import Any, Final

#: A message that was granted before another receiver settled it may be on its way for so long, in seconds: servers
#: are paused for 8 s at most and answer late for as long afterwards. It matters where broker time tells no order.
ON_ITS_WAY_S: Final = 30.0
#: Kinds of faults that a record can hold.
KINDS: Final = ("lost", "repeated", "doubled", "revived", "shared", "unordered", "early", "misruled")


class Grant:
    """A message in the hands of a receiver.

    Attributes:
        text: What was sent, with the place where it was received when it comes out at several.
        key: The entity and the sequence number: the message itself.
        order: When it was granted, in the broker's time; None where only the session is locked.
        token: Of its lock.
        session: The session and the number in it; None for a message without one.
        at_s: When the client had it, on the client's clock that only grows.
        early_s: How long before its time that was; negative afterwards, and 0 for what was not scheduled.
        is_misruled: No rule lets it come out where it did.
        settled_s: When the broker had said that it was completed; None before.
    """

    __slots__ = ("at_s", "early_s", "is_misruled", "key", "order", "session", "settled_s", "text", "token")

    def __init__(
        self,
        text: str,
        key: tuple[str, int],
        order: tuple[float, int] | None,
        token: str,
        *,
        session: tuple[str, int] | None = None,
        at_s: float = 0.0,
        early_s: float = 0.0,
        is_misruled: bool = False,
    ) -> None:
        self.text = text
        self.key = key
        self.order = order
        self.token = token
        self.session = session
        self.at_s = at_s
        self.early_s = early_s
        self.is_misruled = is_misruled
        self.settled_s: float | None = None

    @property
    def is_settled(self) -> bool:
        """Whether the broker has said that it was completed."""
        return self.settled_s is not None

    def row(self) -> dict[str, Any]:
        """Everything, for a file."""
        return {name: getattr(self, name) for name in self.__slots__}


class ClientRecord:
    """What was acknowledged, granted and settled; threads may use it together.

    Args:
        tolerance_s: How much before its time a scheduled message may come, in seconds.
        are_clocks_right: Whether the times of grants can be compared with each other. Where a server's clock is off,
            a store's broker time can go back when a lock was all that it gave meanwhile.
    """

    def __init__(self, *, tolerance_s: float = 0.0, are_clocks_right: bool = True) -> None:
        self.sent: set[str] = set()
        self.grants: list[Grant] = []
        self._tolerance_s = tolerance_s
        self._are_clocks_right = are_clocks_right
        self._received: set[str] = set()
        self._lock = threading.Lock()

    def note_sent(self, texts: list[str]) -> None:
        """These are acknowledged."""
        with self._lock:
            self.sent.update(texts)

    def note(self, grant: Grant) -> Grant:
        """A receiver has got a message; noted before it is completed, which may be done though its answer is lost."""
        with self._lock:
            self.grants.append(grant)
            self._received.add(grant.text)
        return grant

    @property
    def lost(self) -> set[str]:
        """Acknowledged, and not received yet."""
        with self._lock:
            return self.sent - self._received

    @property
    def counts(self) -> tuple[int, int]:
        """How many were acknowledged, and how many grants there were."""
        with self._lock:
            return len(self.sent), len(self.grants)

    def faults(self) -> dict[str, list[str]]:
        """What went wrong, by kind; empty when nothing did."""
        found = {
            "lost": sorted(self.lost),
            "repeated": self._repeated(),
            "doubled": self._doubled(),
            "revived": self._revived(),
            "shared": self._shared(),
            "unordered": self._unordered(),
            "early": [grant.text for grant in self.grants if grant.early_s > self._tolerance_s],
            "misruled": [grant.text for grant in self.grants if grant.is_misruled],
        }
        return {kind: texts for kind, texts in found.items() if texts}

    def about(self, texts: set[str]) -> list[dict[str, Any]]:
        """All grants of these messages, and of those with a token of theirs, in the order in which they were noted."""
        tokens = {grant.token for grant in self.grants if grant.text in texts}
        return [grant.row() for grant in self.grants if grant.token in tokens]

    def _repeated(self) -> list[str]:
        seen: set[str] = set()
        found = []
        for grant in self.grants:
            if grant.is_settled:
                if grant.text in seen:
                    found.append(grant.text)
                seen.add(grant.text)
        return found

    def _doubled(self) -> list[str]:
        keys: dict[str, set[tuple[str, int]]] = {}
        for grant in self.grants:
            keys.setdefault(grant.text, set()).add(grant.key)
        return [text for text, found in keys.items() if len(found) > 1]

    def _revived(self) -> list[str]:
        by_key: dict[tuple[str, int], list[Grant]] = {}
        for grant in self.grants:
            by_key.setdefault(grant.key, []).append(grant)
        found = []
        for grants in by_key.values():
            if grants[0].session is None and not self._are_clocks_right:
                latest_s = max(grant.at_s for grant in grants)
                found += [
                    grant.text
                    for grant in grants
                    if grant.settled_s is not None and latest_s - grant.settled_s > ON_ITS_WAY_S
                ]
                continue
            # Of a session's messages they were noted in order: only the receiver that holds it can have noted anything.
            ordered = grants if grants[0].order is None else sorted(grants, key=lambda grant: grant.order or (0.0, 0))
            found += [grant.text for grant in ordered[:-1] if grant.is_settled]
        return found

    def _shared(self) -> list[str]:
        tokens: set[str] = set()
        found = []
        for grant in self.grants:
            if grant.token in tokens:
                found.append(grant.text)
            tokens.add(grant.token)
        return found

    def _unordered(self) -> list[str]:
        """First deliveries of acknowledged messages that are behind a later one of their session."""
        last: dict[tuple[str, str], int] = {}
        known: set[str] = set()
        found = []
        for grant in self.grants:
            if grant.session is None or grant.text in known:
                continue
            known.add(grant.text)
            session, number = grant.session
            place = grant.key[0], session
            if number < last.get(place, -1) and grant.text in self.sent:
                found.append(grant.text)
            last[place] = max(last.get(place, -1), number)
        return found
