"""Checkers: what every run of the broker must obey, read from its history.

``check`` runs them all; each checker is a function from Facts to Violations and may be run alone. Time is linear in
the history, but for sorting. An operation without an answer branches its own message only, never the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING

from simulation.checkers import (
    dead_letters,
    duplicates,
    forwarding,
    locks,
    messages,
    order,
    sends,
    sessions,
    survey,
    transactions,
)
from simulation.checkers.facts import EntityRules, Facts, Setup, Violation

if TYPE_CHECKING:
    from simulation.history.events import History

__all__ = ["CHECKERS", "EntityRules", "Facts", "InvariantViolated", "Setup", "Violation", "check", "require"]

#: Invariant number to its checker.
CHECKERS: dict[int, Callable[[Facts], Iterator[Violation]]] = {
    1: messages.no_acknowledged_loss,
    2: locks.exclusive_lock,
    3: locks.lock_fencing,
    4: sessions.session_order,
    5: duplicates.duplicate_window,
    6: order.delivery_count,
    7: messages.sequence_numbers,
    8: transactions.all_or_nothing,
    9: sends.fragment_isolation,
    11: messages.ping_never_delivered,
    13: messages.receive_and_delete,
    14: forwarding.forwarded_once,
    15: messages.never_early,
    16: messages.no_invention,
    17: locks.completed_is_final,
    18: locks.honest_settlement,
    19: order.release_to_the_front,
    20: order.link_loss_releases,
    21: order.deferral,
    22: messages.time_to_live,
    23: dead_letters.dead_letter_closure,
    25: sends.key_to_fragment,
    26: sends.keyless_balance,
    27: sends.keyless_reroute,
    28: sends.keyed_to_dead_fragment,
    29: order.nothing_waits_in_vain,
    30: survey.peek,
    32: survey.counters,
    34: transactions.one_key,
    35: transactions.nothing_before_the_commit,
    36: sessions.session_lock,
    37: sessions.session_lock_loss,
    38: sends.send_outcome,
    39: sends.presettled_send,
    41: forwarding.hop_limit,
}


class InvariantViolated(AssertionError):
    """A run broke invariants; ``violations`` has all of them."""

    def __init__(self, violations: list[Violation]) -> None:
        super().__init__("\n".join(map(str, violations[:10])))
        self.violations = violations


def check(history: History, setup: Setup | None = None, only: Collection[int] | None = None) -> list[Violation]:
    """Return every violation in ``history``, by invariant and then by time.

    Args:
        history: The run.
        setup: What the entities were and what the run was allowed; defaults when omitted.
        only: Numbers of the invariants to check; all when omitted.
    """
    facts = Facts(history, setup or Setup())
    return [found for number, checker in CHECKERS.items() if only is None or number in only for found in checker(facts)]


def require(history: History, setup: Setup | None = None, only: Collection[int] | None = None) -> None:
    """Do nothing when ``history`` is right.

    Raises:
        InvariantViolated: It is not; the text shows the first ten violations.
    """
    violations = check(history, setup, only)
    if violations:
        raise InvariantViolated(violations)
