"""What the checkers know: the history sorted by operation, message, token and time, made once per check."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from simulation.history.events import (
    ABANDON,
    COMPLETE,
    DEAD_LETTERED,
    DEFER,
    RELEASE,
    Admitted,
    AskedFor,
    CancelBegin,
    Crash,
    Delivery,
    DischargeBegin,
    Drained,
    Event,
    Expired,
    Fail,
    FragmentsDown,
    FragmentsLate,
    FragmentsUp,
    History,
    Info,
    KeylessLate,
    LinkLost,
    LockEnded,
    NumberTold,
    Ok,
    Peeked,
    PlacementTurn,
    Quarantined,
    RenewBegin,
    SendBegin,
    SettleBegin,
    StrayOutcome,
    WaitedInVain,
)
from simulation.history.session_events import SessionAccepted, SessionReleased, SessionRenewBegin, StateBegin, StateRead
from simulation.history.survey_events import Surveyed

Begin = SendBegin | SettleBegin | RenewBegin | CancelBegin | DischargeBegin | SessionRenewBegin | StateBegin

#: Outcomes after which a message may be delivered again.
RETURNING = (ABANDON, RELEASE, DEFER, DEAD_LETTERED)
#: Outcomes after which a message is never delivered again from the same state.
FINAL = (COMPLETE, DEAD_LETTERED, DEFER)

#: (entity, sub-queue, sequence number)
Place = tuple[str, str, int]


class EntityRules:
    """What one entity was set up to do.

    Attributes:
        max_delivery_count: Deliveries from the main queue at most.
        lock_ms: Lock duration; None leaves renewals unchecked (I3).
        ttl_ms: The entity's own time to live, None for none.
        dead_letter_on_expiry: Whether expired messages move to the dead-letter queue.
        copies_at: Where a message sent to it must surface: subscriptions, or a forward's destination; None: itself.
        fragments: Numbers of all its fragments; None leaves outages of parts of it unchecked (I9, I27, I28).
        window_ms: For how long it remembers message ids; None: no duplicate detection (I5).
        dead_letters_at: The entity to which its dead letters are forwarded; None: they stay (I1).
        is_sent_via: Transactions send to it via another entity (I34).
        is_circle: It forwards to itself, so that its messages are found in its transfer dead-letter queue (I41).
    """

    __slots__ = (
        "copies_at",
        "dead_letter_on_expiry",
        "dead_letters_at",
        "fragments",
        "is_circle",
        "is_sent_via",
        "lock_ms",
        "max_delivery_count",
        "ttl_ms",
        "window_ms",
    )

    def __init__(
        self,
        *,
        max_delivery_count: int = 10,
        lock_ms: int | None = None,
        ttl_ms: int | None = None,
        dead_letter_on_expiry: bool = False,
        copies_at: tuple[str, ...] | None = None,
        fragments: tuple[int, ...] | None = None,
        window_ms: int | None = None,
        dead_letters_at: str | None = None,
        is_circle: bool = False,
        is_sent_via: bool = False,
    ) -> None:
        self.max_delivery_count = max_delivery_count
        self.lock_ms = lock_ms
        self.ttl_ms = ttl_ms
        self.dead_letter_on_expiry = dead_letter_on_expiry
        self.copies_at = copies_at
        self.fragments = fragments
        self.window_ms = window_ms
        self.dead_letters_at = dead_letters_at
        self.is_circle = is_circle
        self.is_sent_via = is_sent_via


class Setup:
    """What a run was, and what it is allowed.

    Attributes:
        entities: Path to rules; a path that is missing has default rules.
        lost_fragments: (entity, fragment) destroyed for good: their messages may be gone (I1).
        purged: uids removed by an explicit rule (I1).
        permitted_duplicates: uids that may have more copies than sends, a tombstone having aged out (I27).
        link_loss_ms: Time within which the broker must notice a dead connection (I20); None leaves it unchecked.
        lateness_ms: How late a scheduled message may come; set it only when receivers idled (I15).
        expiry_slack_ms: How late the broker may act on the end of a lock (I19).
        reroute_ms: How long a keyless send may take when fragments are down (I27).
        answer_ms: How long any send may wait for its outcome (I38); None leaves it unchecked.
        concurrent_senders: Senders at work at the same time (I26).
        closed_loop: Whether senders waited for outcomes, so that shares of fragments must be even (I26).
    """

    __slots__ = (
        "answer_ms",
        "closed_loop",
        "concurrent_senders",
        "entities",
        "expiry_slack_ms",
        "lateness_ms",
        "link_loss_ms",
        "lost_fragments",
        "permitted_duplicates",
        "purged",
        "reroute_ms",
    )

    def __init__(
        self,
        entities: dict[str, EntityRules] | None = None,
        *,
        lost_fragments: frozenset[tuple[str, int]] = frozenset(),
        purged: frozenset[str] = frozenset(),
        permitted_duplicates: frozenset[str] = frozenset(),
        link_loss_ms: int | None = None,
        lateness_ms: int | None = None,
        expiry_slack_ms: int = 1000,
        reroute_ms: int = 15_000,
        answer_ms: int | None = None,
        concurrent_senders: int = 1,
        closed_loop: bool = False,
    ) -> None:
        self.entities = entities or {}
        self.lost_fragments = lost_fragments
        self.purged = purged
        self.permitted_duplicates = permitted_duplicates
        self.link_loss_ms = link_loss_ms
        self.lateness_ms = lateness_ms
        self.expiry_slack_ms = expiry_slack_ms
        self.reroute_ms = reroute_ms
        self.answer_ms = answer_ms
        self.concurrent_senders = concurrent_senders
        self.closed_loop = closed_loop

    def rules(self, entity: str) -> EntityRules:
        """Return the rules of an entity."""
        return self.entities.get(entity, _DEFAULT_RULES)


_DEFAULT_RULES = EntityRules()


class Violation:
    """One broken invariant: its number, what is wrong, and the events that show it."""

    __slots__ = ("events", "invariant", "text")

    def __init__(self, invariant: int, text: str, *events: Event) -> None:
        self.invariant = invariant
        self.text = text
        self.events = events

    def __str__(self) -> str:
        return "\n    ".join([f"I{self.invariant}: {self.text}", *map(repr, self.events)])

    def __repr__(self) -> str:
        return f"Violation(I{self.invariant}, {self.text!r})"


class Operation:
    """The end or ends of one operation, and what was down meanwhile.

    Attributes:
        ends: Every answer seen; exactly one when all is well.
        down: Fragments that were down when it began.
        changes: How often outages had changed when it began.
        changes_at_end: The same when it ended.
    """

    __slots__ = ("changes", "changes_at_end", "down", "ends")

    def __init__(self, down: frozenset[tuple[str, int]], changes: int) -> None:
        self.ends: list[Ok | Fail | Info] = []
        self.down = down
        self.changes = changes
        self.changes_at_end = -1

    @property
    def ok(self) -> Ok | None:
        """The positive answer, if there was one."""
        return next((end for end in self.ends if isinstance(end, Ok)), None)

    @property
    def fail(self) -> Fail | None:
        """The negative answer, if there was one."""
        return next((end for end in self.ends if isinstance(end, Fail)), None)

    @property
    def info(self) -> Info | None:
        """The missing answer, if its absence was noted."""
        return next((end for end in self.ends if isinstance(end, Info)), None)

    @property
    def possible(self) -> bool:
        """Whether it may have had an effect: not refused."""
        return self.fail is None

    @property
    def steady(self) -> bool:
        """Whether no outage began or ended between begin and end."""
        return self.changes == self.changes_at_end


class Facts:
    """A history, sorted.

    Attributes:
        by_message: Deliveries of each message, in the order in which the broker made them.
        by_uid: Deliveries of each uid, in the order in which they were seen.
        by_token: First delivery with each token.
        operations: Every operation by number.
        sends: Every send in order; ``sends_of`` by uid, ``settles_of`` and ``renewals_of`` by token.
        sessions: What happened to sessions, in order; ``session_freed``: the last time, by entity, session and time of
            the grant.
        asked_for: The first request for a deferred message, by entity and number.
    """

    def __init__(self, history: History, setup: Setup) -> None:
        self.setup = setup
        self.operations: dict[int, Operation] = {}
        self.sends: list[SendBegin] = []
        self.settles: list[SettleBegin] = []
        self.renewals: list[RenewBegin] = []
        self.cancels: list[CancelBegin] = []
        self.discharges: list[DischargeBegin] = []
        self.sends_of: dict[str, list[SendBegin]] = defaultdict(list)
        self.settles_of: dict[bytes, list[SettleBegin]] = defaultdict(list)
        self.renewals_of: dict[bytes, list[RenewBegin]] = defaultdict(list)
        self.deliveries: list[Delivery] = []
        self.by_message: dict[Place, list[Delivery]] = defaultdict(list)
        self.by_uid: dict[str, list[Delivery]] = defaultdict(list)
        self.by_token: dict[bytes, Delivery] = {}
        self.admitted: dict[tuple[str, str, str | None], list[Admitted]] = defaultdict(list)
        self.peeks: list[Peeked] = []
        self.crashes: list[Crash] = []
        self.links_lost: list[LinkLost] = []
        self.link_lost: dict[str, LinkLost] = {}
        self.lock_ended: dict[bytes, LockEnded] = {}
        self.strays: list[StrayOutcome] = []
        self.waits: list[WaitedInVain] = []
        self.numbers_told: list[NumberTold] = []
        self.expiries: list[Expired] = []
        self.asked_for: dict[tuple[str, int], AskedFor] = {}
        self.quarantined: list[Quarantined] = []
        self.placements: list[PlacementTurn | FragmentsDown | FragmentsUp | FragmentsLate] = []
        self.keyless_late: list[KeylessLate] = []
        self.sessions: list[SessionAccepted | StateBegin | StateRead] = []
        self.session_renewals: list[SessionRenewBegin] = []
        self.session_freed: dict[tuple[str, str, int], SessionReleased] = {}
        self.surveys: list[Surveyed] = []
        self.drained: Drained | None = None
        # What is only kept, each kind in a row of its own.
        self._rows: dict[type[Event], list[Any]] = {
            Peeked: self.peeks,
            Crash: self.crashes,
            StrayOutcome: self.strays,
            Expired: self.expiries,
            Quarantined: self.quarantined,
            WaitedInVain: self.waits,
            KeylessLate: self.keyless_late,
            FragmentsLate: self.placements,
            NumberTold: self.numbers_told,
            SessionAccepted: self.sessions,
            StateRead: self.sessions,
        }
        self._down: set[tuple[str, int]] = set()
        self._changes = 0
        for event in history:
            self._sort_in(event)
        for deliveries in self.by_message.values():
            deliveries.sort(key=lambda d: (d.broker_ms, d.epoch, d.delivery_count, d.index))
        self._commits: dict[tuple[str, int], tuple[list[int], list[int]]] | None = None

    def _sort_in(self, event: Event) -> None:
        if isinstance(event, (Ok, Fail, Info)):
            operation = self.operations[event.op]
            operation.ends.append(event)
            operation.changes_at_end = self._changes
        elif isinstance(event, Begin):
            self.operations[event.op] = Operation(frozenset(self._down), self._changes)
            self._sort_in_begin(event)
        elif isinstance(event, Delivery):
            self.deliveries.append(event)
            self.by_message[event.entity, event.subqueue, event.seq].append(event)
            self.by_uid[event.uid].append(event)
            if event.token is not None:
                self.by_token.setdefault(event.token, event)
        else:
            self._sort_in_mark(event)

    def _sort_in_begin(self, event: Begin) -> None:
        if isinstance(event, SendBegin):
            self.sends.append(event)
            self.sends_of[event.uid].append(event)
        elif isinstance(event, SettleBegin):
            self.settles.append(event)
            self.settles_of[event.token].append(event)
        elif isinstance(event, RenewBegin):
            self.renewals.append(event)
            self.renewals_of[event.token].append(event)
        elif isinstance(event, DischargeBegin):
            self.discharges.append(event)
        elif isinstance(event, CancelBegin):
            self.cancels.append(event)
        elif isinstance(event, StateBegin):
            self.sessions.append(event)
        else:
            self.session_renewals.append(event)

    def _sort_in_mark(self, event: Event) -> None:
        match event:
            case FragmentsDown() | FragmentsUp():
                self._changes += 1
                self.placements.append(event)
                if isinstance(event, FragmentsDown):
                    self._down |= event.fragments
                else:
                    self._down -= event.fragments
            case LinkLost():
                self.links_lost.append(event)
                self.link_lost.setdefault(event.connection, event)
            case LockEnded():
                self.lock_ended.setdefault(event.token, event)
            case Drained():
                self.drained = event
            case PlacementTurn():
                self.placements.append(event)
            case Surveyed():
                self.surveys.append(event)
            case _:
                self._sort_in_notice(event)

    def _sort_in_notice(self, event: Event) -> None:
        row = self._rows.get(type(event))
        if row is not None:
            row.append(event)
        elif isinstance(event, Admitted):
            self.admitted[event.entity, event.uid, event.key].append(event)
        elif isinstance(event, SessionReleased):
            self.session_freed[event.entity, event.session, event.accepted_ms] = event
        elif isinstance(event, AskedFor):
            self.asked_for.setdefault((event.entity, event.seq), event)
        else:
            raise TypeError(f"no checker knows {event!r}")

    # --- questions that several checkers ask ---

    def end(self, begin: Begin) -> Operation:
        """Return how an operation ended."""
        return self.operations[begin.op]

    def copies_allowed(self, uid: str) -> int:
        """Return how many copies of a message may exist: one for each send that was not refused."""
        return sum(1 for begin in self.sends_of.get(uid, ()) if self.end(begin).possible)

    def lock_end_ms(self, delivery: Delivery) -> int:
        """Return when a lock ran out, granted renewals included."""
        ends = [delivery.locked_until_ms]
        for begin in self.renewals_of.get(delivery.token or b"", ()):
            ok = self.end(begin).ok
            if ok is not None and ok.locked_until_ms is not None:
                ends.append(ok.locked_until_ms)
        return max(ends)

    def next_of(self, delivery: Delivery) -> Delivery | None:
        """Return the next delivery of the same message from the same queue."""
        row = self.by_message[delivery.entity, delivery.subqueue, delivery.seq]
        position = row.index(delivery) + 1
        return row[position] if position < len(row) else None

    def crashes_of(self, delivery: Delivery) -> Iterator[Crash]:
        """Yield the crashes of the fragment from which a delivery came."""
        for crash in self.crashes:
            if crash.fragments is None or (delivery.entity, delivery.fragment) in crash.fragments:
                yield crash

    def crash_after(self, delivery: Delivery) -> Crash | None:
        """Return the first crash that forgot the delivery's lock, if there was one."""
        return next((crash for crash in self.crashes_of(delivery) if crash.broker_ms >= delivery.broker_ms), None)

    def crashed_between(self, earlier: Delivery, later: Delivery) -> bool:
        """Tell whether the fragment lost its memory between two deliveries."""
        crash = self.crash_after(earlier)
        return earlier.epoch != later.epoch or (crash is not None and crash.index < later.index)

    def committed(self, delivery: Delivery, before: Crash) -> bool:
        """Tell whether a commit of the fragment is known that began after ``delivery`` and ended before the crash."""
        if self._commits is None:
            self._commits = self._collect_commits()
        ok_indices, latest_begins = self._commits.get((delivery.entity, delivery.fragment), ([], []))
        position = bisect_left(ok_indices, before.index)
        return position > 0 and latest_begins[position - 1] > delivery.index

    def _collect_commits(self) -> dict[tuple[str, int], tuple[list[int], list[int]]]:
        """Return per fragment the indices of answers that prove a commit, and the latest begin up to each."""
        pairs: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for send in self.sends:
            ok, about = self.end(send).ok, self.setup.rules(send.entity)
            if about.is_circle or about.is_sent_via:
                # The answer tells of a commit elsewhere, and not of the one with which the message came here.
                continue
            if ok is not None and len(self.sends_of[send.uid]) == 1 and send.scheduled_ms is None:
                for place in {(d.entity, d.fragment) for d in self.by_uid.get(send.uid, ()) if accepted_by(d, send)}:
                    pairs[place].append((ok.index, send.index))
        for settle in self.settles:
            ok, settled = self.end(settle).ok, self.by_token.get(settle.token)
            # A release is answered without a commit: nothing of it has to be durable.
            if ok is not None and settled is not None and settle.outcome != RELEASE:
                pairs[settled.entity, settled.fragment].append((ok.index, settle.index))
        commits = {}
        for place, found in pairs.items():
            found.sort()
            latest = [found[0][1]]
            for _, begin in found[1:]:
                latest.append(max(latest[-1], begin))
            commits[place] = ([ok_index for ok_index, _ in found], latest)
        return commits


def accepted_by(delivery: Delivery, begin: SendBegin) -> bool:
    """Tell whether the message came from the entity to which it was sent, or a subscription of it: not forwarded."""
    return delivery.entity == begin.entity or delivery.entity.startswith(begin.entity + "/")
