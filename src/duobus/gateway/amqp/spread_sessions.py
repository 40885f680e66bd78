"""SpreadSession: a client accepts a session of a queue that is spread.

A session that is named belongs to the share of its id. The next available one may be anywhere: all owners are asked at
once, the first that has one answers the client, and the others are told that nobody waits any more; a session that is
given in that very moment is free again at once. From then on it is a link that is passed to one owner.
"""

from __future__ import annotations

from typing import Any, Final

from duobus.amqp import Error as AmqpError
from duobus.amqp import Link, Source, Target, Transfers
from duobus.broker import string_key
from duobus.errors import DetachForced, OperationTimeout
from duobus.gateway.amqp.essence import essence
from duobus.gateway.amqp.passing_links import PassedLink, PassedSession
from duobus.gateway.amqp.session_link import TIMEOUT, WAIT_DEFAULT_MS, WAIT_MAX_MS, wanted_session
from duobus.gateway.amqp.spread_links import ATTACH_MS, PASSING, Branch, SpreadLink

#: After the time that the client gives, for owners that don't answer.
_LATE_MS: Final = 1_000


class SessionBranch(Branch):
    """What is asked of one owner; the one that answers first is the client's link from then on."""

    __slots__ = ()

    def attach(self, upstream: Any, session: PassedSession) -> None:
        """See Branch; in the client's own words."""
        whole, remote = self.whole, self.link.remote
        if remote is None or self.uplink is not None or whole.branches.get(self.index) is not self:
            return
        self._upstream, self.session = upstream, session
        source = remote.source
        self.uplink = session.owner.attach_receiver(
            # Its own name, by which requests of the client may speak of it (contract 10.7).
            remote.name,
            Source(address=whole.address_of(self.index), filter=getattr(source, "filter", None)),
            remote.target if isinstance(remote.target, Target) else Target(address="front"),
            snd_settle_mode=2 if remote.snd_settle_mode is None else remote.snd_settle_mode,
            rcv_settle_mode=remote.rcv_settle_mode or 0,
            properties=remote.properties,
        )
        self.uplink.context = self
        self.uplink.tags = []

    def owner_flow(self) -> None:
        """See PassedLink: credit is this owner's alone."""
        PassedLink.owner_flow(self)

    def owner_transfers(self, event: Transfers) -> None:
        """Likewise."""
        PassedLink.owner_transfers(self, event)


class SpreadSession(SpreadLink):
    """See the module.

    Attributes:
        chosen: The branch that has the session; None before.
    """

    __slots__ = ("_asked", "_end_ms", "_refusal", "chosen")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.chosen: Branch | None = None
        remote = self.link.remote
        assert remote is not None
        _, session_id = wanted_session(getattr(remote.source, "filter", None))
        every = range(len(self.spread.shares))
        #: The shares that are asked, and those of them that have not answered yet.
        self._asked = set(every) if session_id is None else {self.spread.of_key(string_key(session_id))}
        wait_ms = (remote.properties or {}).get(TIMEOUT)
        is_given = isinstance(wait_ms, int) and not isinstance(wait_ms, bool)
        given_ms = min(max(int(wait_ms or 0), 0), WAIT_MAX_MS) if is_given else WAIT_DEFAULT_MS
        self._end_ms = (ATTACH_MS if session_id is not None else given_ms) + _LATE_MS
        self._refusal: AmqpError | None = None

    def start(self) -> None:
        """Ask the owners."""
        for index in sorted(self._asked):
            self._look_for(index)

    def branch_of(self, index: int, door: str) -> Branch:
        """See SpreadLink."""
        return SessionBranch(self, index, door)

    def tick(self, monotonic_ms: int) -> None:
        """See SpreadLink."""
        if self.is_over:
            return
        self._since_ms = monotonic_ms if self._since_ms < 0 else self._since_ms
        for index in [self.chosen.index] if self.chosen is not None else sorted(self._asked):
            if not self.is_over:
                self._look_for(index)
        if not self.is_over and self.chosen is None and monotonic_ms - self._since_ms >= self._end_ms:
            self._end_with(OperationTimeout(f"No session of '{self.path}' became free in time. Try again."))

    def opened(self, branch: Branch, size_max: int | None) -> None:
        """An owner has given a session."""
        remote, found = self.link.remote, None if branch.uplink is None else branch.uplink.remote
        if self.chosen is not None or self.is_over or remote is None or found is None:
            branch.close()
            return
        self.chosen = branch
        for other in [one for one in self.branches.values() if one is not branch]:
            other.close()
        self.branches = {branch.index: branch}
        source = found.source
        if isinstance(source, Source) and isinstance(remote.source, Source):
            source.address = remote.source.address
        self._is_accepted = self.link.accept(
            source=source,
            target=remote.target,
            max_message_size=size_max,
            properties=found.properties,
            initial_delivery_count=found.initial_delivery_count or 0,
        )
        if not self._is_accepted:
            self._close()
            return
        self.link.remote = essence(remote)
        branch.flow()
        self.peer.write_soon()

    def ended(self, branch: Branch, error: AmqpError | None) -> None:
        """An owner has refused, or has ended the link that it gave."""
        if self.branches.get(branch.index) is not branch:
            return
        del self.branches[branch.index]
        if self.is_over:
            return
        if branch is self.chosen:
            if error is None:
                self._end_with(DetachForced(f"A part of '{self.path}' moves to another server. Attach again."))
            else:
                self._end(error.condition, error.description, error.info)
        elif error is not None and str(error.condition) not in PASSING:
            self._asked.discard(branch.index)
            self._refusal = error
            if not self._asked:
                self._end(error.condition, error.description, error.info)

    def flow(self) -> None:
        """See PassedLink."""
        if self.chosen is not None:
            self.chosen.flow()

    def pump(self) -> None:
        """See PassedLink."""
        if self.chosen is not None:
            self.chosen.pump()

    def branch_flow(self, branch: Branch) -> None:
        """Nothing is shared among owners here."""

    def stop(self) -> None:
        """Nothing is taken from a client that receives."""


def asks_for_session(link: Link) -> bool:
    """Whether an attach asks for a session."""
    source: Any = None if link.remote is None else link.remote.source
    return wanted_session(getattr(source, "filter", None))[0]
