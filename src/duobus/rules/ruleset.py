"""RuleSet: all rules of one topic, matched against a message in one pass (Azure: topic filters)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar, cast

from duobus.errors import QuotaExceeded
from duobus.model.metadata import MessageMetadata
from duobus.rules.effort import EFFORT_MAX, READ_COST, EffortExceeded, Meter, head_size
from duobus.rules.like import STEP
from duobus.rules.matching.index import Index
from duobus.rules.matching.result_cache import ResultCache
from duobus.rules.message_view import MessageView
from duobus.rules.rule import AlteredCopy, Match, Rule
from duobus.rules.system_properties import ENVELOPE
from duobus.rules.values import EvaluationError

K = TypeVar("K")

#: Bytes of a message up to which its properties cannot be long enough to count.
LONG_FROM: Final = 2_048
#: Looks at all of a long text that finding the places of its characters costs, for all rules together, at most.
LETTERS_STRAIN: Final = 256

#: Rules of one topic (Azure: quotas). True and false filters count as SQL: they are kinds of it.
SQL_RULES_MAX: Final = 2000
CORRELATION_RULES_MAX: Final = 100_000


class _Entry:
    """A rule at its source; compared by identity.

    Attributes:
        order: Grows with every rule that is added.
        alone: What a message gives that this rule takes, and no other.
    """

    __slots__ = ("alone", "order", "rule", "source")

    def __init__(self, source: int, rule: Rule, order: int) -> None:
        self.source = source
        self.rule = rule
        self.order = order
        self.alone = Match((source,))


class _Findings:
    """What was found for one message so far."""

    __slots__ = ("altered", "errors", "plain")

    def __init__(self, plain: Iterable[int]) -> None:
        self.plain = set(plain)
        self.altered: list[tuple[int, int, AlteredCopy]] = []
        # By source: (order, text); the first error in the order of the rules counts.
        self.errors: dict[int, tuple[int, str]] = {}

    def error(self, entry: _Entry, error: EvaluationError | EffortExceeded) -> None:
        text = f"Rule {entry.rule.name!r} cannot be evaluated: {error}."
        known = self.errors.get(entry.source)
        if known is None or entry.order < known[0]:
            self.errors[entry.source] = (entry.order, text)

    def take(self, entry: _Entry, message: MessageView) -> None:
        """Note that a rule matches."""
        action = entry.rule.action
        if action is None:
            self.plain.add(entry.source)
            return
        try:
            overlay = action.apply(message)
        except EvaluationError as error:
            self.error(entry, error)
            return
        self.altered.append((entry.source, entry.order, AlteredCopy(entry.source, entry.rule.name, overlay)))

    def match(self) -> Match:
        self.altered.sort(key=lambda found: found[:2])
        errors = {source: text for source, (_, text) in sorted(self.errors.items())} if self.errors else None
        return Match(tuple(sorted(self.plain)), [copy for _, _, copy in self.altered], errors)


class RuleSet:
    """The rules of all subscriptions of a topic that may receive, by source.

    It is changed rule by rule, at a cost that does not depend on how many there are. A message is matched against
    what it holds at that moment (I24: one committed version).

    Args:
        subscriptions: Source number to its rules; a source without rules gets nothing.
        new_id: Gives ``newid()`` its values.

    Attributes:
        meter: Counts what the rules do with long texts.
        strain: What they might do with each byte of a message's properties, at most; 0: they look at none.
    """

    # Rules are kept by how they are looked for: those that take everything and alter nothing are counted (_always),
    # those with equalities are in the index, the others are tried one by one (_tried).
    __slots__ = (
        "_always",
        "_always_sorted",
        "_cache",
        "_correlation",
        "_id_readers",
        "_index",
        "_indexed",
        "_names",
        "_new_id",
        "_order",
        "_readers",
        "_rules",
        "_sections",
        "_sql",
        "_text_strain",
        "_tried",
        "_tried_cost",
        "_tried_list",
        "_trivial",
        "_unsteady",
        "meter",
        "strain",
    )

    def __init__(
        self, subscriptions: Mapping[int, Iterable[Rule]] | None = None, *, new_id: Callable[[], uuid.UUID]
    ) -> None:
        self.meter = Meter()
        self.strain = self._text_strain = 0
        self._new_id = new_id
        self._rules: dict[int, dict[str, _Entry]] = {}
        self._order = 0
        self._always: dict[int, int] = {}
        self._always_sorted: tuple[int, ...] | None = ()
        self._tried: dict[_Entry, None] = {}
        self._tried_list: list[_Entry] | None = []
        # What it costs to try all of them, texts aside.
        self._tried_cost = 0
        self._index = Index()
        # Number of rules in the index, by source.
        self._indexed: dict[int, int] = {}
        # How many rules need which sections decoded, and all these sections.
        self._readers: dict[int, int] = {}
        self._sql = self._correlation = 0
        self._sections = 0
        # How many rules look at the message-id, and how many at what the cache does not look at.
        self._id_readers = self._unsteady = 0
        # How many rules look at a user property by its lower-case name, and (None) at any.
        self._names: dict[str | None, int] = {}
        self._cache = ResultCache(self._names)
        # Sources with one rule that takes everything, and nothing else.
        self._trivial = 0
        for source, rules in (subscriptions or {}).items():
            self.put(source, rules)

    @property
    def trivial(self) -> tuple[int, ...] | None:
        """All sources, ascending, when each has one true filter without action and nothing else; otherwise None.

        Then every message gives each of them one plain copy, and nobody has to look at it.
        """
        return self._sorted() if self._trivial == len(self._rules) else None

    @property
    def is_steady(self) -> bool:
        """Whether a message gives the same whenever it is looked at."""
        return not self._unsteady

    def may_exceed(self, payloads: Sequence[bytes], size: int) -> bool:
        """Whether the rules might do more for these messages than they may for one; ``size``: their bytes.

        One product tells in nearly all cases. Only where it does not, the messages themselves are looked at.
        """
        if self.strain * size <= EFFORT_MAX:
            return False
        return sum([self.strain_of(payload) for payload in payloads if len(payload) > LONG_FROM]) > EFFORT_MAX

    def strain_of(self, payload: bytes) -> int:
        """What the rules might do with the properties of a message, at most, as far as that can be told before."""
        return self.strain * head_size(payload) if self.strain else 0

    @property
    def at_once(self) -> int:
        """For how many plain messages, none of which is like another, the rules do what they may do for one."""
        return max(1, EFFORT_MAX // max(1, self._tried_cost))

    def _note_strain(self) -> None:
        letters = LETTERS_STRAIN if self._text_strain else 0
        self.strain = READ_COST + self._text_strain + letters if self._readers else 0

    def check_room(self, source: int, rule: Rule) -> None:
        """Whether a rule may be added; the set itself takes any number.

        Raises:
            QuotaExceeded: The topic has as many rules of this kind as it may have.
        """
        replaced = self._rules.get(source, {}).get(rule.name.lower())
        if replaced is not None and replaced.rule.is_correlation == rule.is_correlation:
            return
        if rule.is_correlation and self._correlation >= CORRELATION_RULES_MAX:
            raise QuotaExceeded(
                f"The topic has {CORRELATION_RULES_MAX} rules with a correlation filter, as many as it may have. "
                "Remove some first."
            )
        if not rule.is_correlation and self._sql >= SQL_RULES_MAX:
            raise QuotaExceeded(
                f"The topic has {SQL_RULES_MAX} rules with an SQL, true or false filter, as many as it may have. "
                "Remove some first, or use correlation filters."
            )

    def _count(self, rule: Rule, change: int) -> None:
        if rule.is_correlation:
            self._correlation += change
        else:
            self._sql += change

    def put(self, source: int, rules: Iterable[Rule] = ()) -> None:
        """Give a source these rules and no others; a source that is not known yet is added."""
        self.drop(source)
        self._rules[source] = {}
        for rule in rules:
            self.add(source, rule)

    def drop(self, source: int) -> None:
        """Take a source out: its subscription is gone, or may not receive now."""
        for name in list(self._rules.get(source, ())):
            self.remove(source, name)
        self._rules.pop(source, None)

    def add(self, source: int, rule: Rule) -> None:
        """Give a source one more rule, in the place of one of the same name.

        Raises:
            KeyError: There is no such source.
        """
        self.remove(source, rule.name)
        entries = self._rules[source]
        was_trivial = self._is_trivial(source)
        entry = entries[rule.name.lower()] = _Entry(source, rule, self._order)
        self._order += 1
        self._count(rule, 1)
        self._trivial += self._is_trivial(source) - was_trivial
        if not rule.is_false:
            self._include(entry)
        self._start_cache()

    def _include(self, entry: _Entry) -> None:
        """Put a rule where messages find it."""
        source, rule = entry.source, entry.rule
        if rule.is_true:
            self._always[source] = self._always.get(source, 0) + 1
            self._always_sorted = None
            return
        self._readers[rule.sections] = self._readers.get(rule.sections, 0) + 1
        self._sections |= rule.sections
        self._text_strain += rule.strain
        self._note_strain()
        self._id_readers += rule.reads_id
        self._unsteady += not rule.is_steady
        for name in (None,) if rule.names is None else rule.names:
            self._names[name] = self._names.get(name, 0) + 1
        if rule.equalities:
            self._index.add(rule.equalities, entry)
            self._indexed[source] = self._indexed.get(source, 0) + 1
        else:
            self._tried[entry] = None
            self._tried_list = None
            self._tried_cost += STEP * rule.steps

    def remove(self, source: int, name: str) -> None:
        """Take a rule from a source; nothing happens when there is none of this name.

        Raises:
            KeyError: There is no such source.
        """
        entries = self._rules[source]
        was_trivial = self._is_trivial(source)
        entry = entries.pop(name.lower(), None)
        if entry is None:
            return
        self._trivial += self._is_trivial(source) - was_trivial
        self._count(entry.rule, -1)
        if not entry.rule.is_false:
            self._exclude(entry)
        self._start_cache()

    def _exclude(self, entry: _Entry) -> None:
        """Undo ``_include``."""
        source, rule = entry.source, entry.rule
        if rule.is_true:
            _count_down(self._always, source)
            self._always_sorted = None
            return
        _count_down(self._readers, rule.sections)
        self._sections = 0
        for sections in self._readers:
            self._sections |= sections
        self._text_strain -= rule.strain
        self._note_strain()
        self._id_readers -= rule.reads_id
        self._unsteady -= not rule.is_steady
        for name in (None,) if rule.names is None else rule.names:
            _count_down(self._names, name)
        if rule.equalities:
            self._index.remove(rule.equalities, entry)
            _count_down(self._indexed, source)
        else:
            del self._tried[entry]
            self._tried_list = None
            self._tried_cost -= STEP * rule.steps

    def _start_cache(self) -> None:
        """What was kept is of no use any more: a rule came or went."""
        # Envelopes are read by actions alone here, whose copies are not kept; but all that may be unreadable counts.
        sections = 0 if self._unsteady else self._sections & ~ENVELOPE
        self._cache.start(sections, with_id=self._id_readers > 0)

    def match_payload(
        self, payload: bytes, metadata: MessageMetadata | None, enqueued_ms: int | None, sequence_number: int | None
    ) -> Match:
        """Return what ``match`` gives for the view of a message, which is only made when nothing like it was seen."""
        known = self._cache.find(payload)
        if known is not None:
            return known
        message = MessageView(payload, metadata, enqueued_ms, sequence_number)
        match = self.match(message)
        if message.is_quick:
            self._cache.keep(payload, match)
        return match

    def match_run(self, payloads: Sequence[bytes], enqueued_ms: int, first_number: int) -> list[Match]:
        """Return what ``match_payload`` gives for plain messages in a row; for like ones often the same object."""
        found = self._cache.find_run(payloads)
        if all(found):
            return cast("list[Match]", found)
        return [
            match or self.match_payload(payload, None, enqueued_ms, first_number + offset)
            for offset, (payload, match) in enumerate(zip(payloads, found, strict=True))
        ]

    def match(self, message: MessageView) -> Match:
        """Evaluate all rules on a message. Whatever the message holds, nothing is raised."""
        always = self._always_sorted
        if always is None:
            always = self._sorted()
        if not self._readers:
            return Match(always)
        message.new_id = self._new_id
        message.meter = self.meter
        tried = self._tried_list
        if tried is None:
            tried = self._tried_list = list(self._tried)
        try:
            message.need(self._sections)
        except EvaluationError as error:
            return self._match_unreadable(message, tried, _Findings(always), error)
        try:
            taken = [entry for entry in self._index.find(message) if entry.rule.test(message)]
            if not tried:
                if not taken:
                    return Match(always)
                if len(taken) == 1 and not always and taken[0].rule.action is None:
                    # What most messages give where rules tell subscriptions apart.
                    alone: Match = taken[0].alone
                    return alone
            return self._match_all(message, taken, tried, _Findings(always))
        except EffortExceeded as error:
            return self._given_up(tried, error)

    def _match_all(self, message: MessageView, taken: list[_Entry], tried: list[_Entry], found: _Findings) -> Match:
        for entry in taken:
            found.take(entry, message)
        if tried:
            self.meter.spent += self._tried_cost
            _try(tried, message, found)
        return found.match()

    def _given_up(self, tried: list[_Entry], error: EffortExceeded) -> Match:
        """What a message gives that is too much work: what takes everything gets it, all else has failed."""
        found = _Findings(self._sorted())
        for entry in tried:
            found.error(entry, error)
        for source in self._indexed:
            entry = next(entry for entry in self._rules[source].values() if entry.rule.equalities)
            found.error(entry, error)
        return found.match()

    def _match_unreadable(
        self, message: MessageView, tried: list[_Entry], found: _Findings, error: EvaluationError
    ) -> Match:
        """Match a message of which something cannot be decoded; rules that have no need of it hold as ever."""
        for entry in tried:
            try:
                message.need(entry.rule.sections)
                if entry.rule.test(message):
                    found.take(entry, message)
            except (EvaluationError, EffortExceeded) as failure:
                found.error(entry, failure)
        for source in self._indexed:
            entry = next(entry for entry in self._rules[source].values() if entry.rule.equalities)
            found.error(entry, error)
        return found.match()

    def _is_trivial(self, source: int) -> bool:
        entries = self._rules[source]
        return len(entries) == 1 and next(iter(entries.values())).rule.is_true

    def _sorted(self) -> tuple[int, ...]:
        if self._always_sorted is None:
            self._always_sorted = tuple(sorted(self._always))
        return self._always_sorted


def _try(entries: list[_Entry], message: MessageView, found: _Findings) -> None:
    """Evaluate these rules, one by one."""
    plain = found.plain
    for entry in entries:
        rule = entry.rule
        if not rule.can_fail:
            # A source that has its plain copy gains nothing from another rule that matches.
            if (rule.action is not None or entry.source not in plain) and rule.test(message):
                found.take(entry, message)
            continue
        try:
            matches = rule.test(message)
        except EvaluationError as error:
            found.error(entry, error)
            continue
        if matches:
            found.take(entry, message)


def _count_down(counts: dict[K, int], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
