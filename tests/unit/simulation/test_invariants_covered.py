"""Which checker and which planted bug stands for each invariant of queues and topics, and what else shows it.

An invariant without a checker of its own in the simulation names the tests that stand for it. A name that no longer
exists fails here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from simulation.checkers import CHECKERS
from simulation.mutants import entity_life as planted_life
from simulation.mutants import idle as planted_idle
from simulation.mutants import topics as planted_topics
from simulation.mutants.queues import MUTANTS
from simulation.scenarios import fairness as sim_fair
from simulation.scenarios import fragment_moves as sim_moves

TESTS = Path(__file__).parents[2]

LIFE, FANOUT = "entity_life.check_life", "fanout.check_fanout"
STATES, BROWSING = "unit/fragment/test_fragment_states.py", "unit/broker/test_peeking_over_fragments.py"
LENDING, MOVING = "unit/broker/test_credit_scheduler.py", "unit/broker/test_moving.py"
DRILL = "test_a_store_lost_in_traffic_costs_its_fragments_only_and_comes_back_with_everything"
FAIR = "test_a_message_is_in_the_next_commit_or_the_one_after_whatever_others_send"
ENTITY_LIFE, OVERLOAD = "unit/broker/test_entity_life.py", "unit/broker/test_overload.py"


class Shown(NamedTuple):
    """What stands for an invariant.

    Attributes:
        checker: Function of a module of ``simulation.checkers``; "" for none of its own.
        bugs: Planted bugs that break it.
        tests: Path and name of tests beside the simulation; needed where there is no checker.
        because: Why the simulation has no checker; needed where it has none.
    """

    checker: str
    bugs: tuple[str, ...] = ()
    tests: tuple[tuple[str, str], ...] = ()
    because: str = ""


INVARIANTS: dict[int, Shown] = {
    4: Shown("sessions.session_order", ("session-newest-first",)),
    5: Shown(
        "duplicates.duplicate_window",
        ("history-lost-at-restart", "history-outlives-its-run", "window-begun-anew"),
    ),
    8: Shown(
        "transactions.all_or_nothing",
        ("transaction-in-two-commits", "ambiguous-discharge-guessed", "lost-lock-in-transaction"),
    ),
    9: Shown(
        "sends.fragment_isolation",
        ("outage-refuses-keyless", "outage-spreads"),
        tests=(("integration/cli/test_drills.py", DRILL),),
    ),
    14: Shown(
        "forwarding.forwarded_once",
        ("forwarded-without-record", "dedup-lost-at-restart", "forgotten-too-early"),
    ),
    15: Shown(
        "messages.never_early",
        ("scheduled-too-early",),
        tests=((STATES, "test_a_scheduled_message_gets_a_new_number_at_its_time"),),
    ),
    21: Shown("order.deferral", ("deferred-comes-again",)),
    22: Shown(
        "messages.time_to_live",
        ("expired-stays", "expired-the-other-way"),
        tests=((STATES, "test_the_shorter_of_own_and_default_life_counts"),),
    ),
    # That a dead letter has the body of its message is part of I16, which looks at every delivery.
    23: Shown(
        "dead_letters.dead_letter_closure",
        ("dead-letter-expires", "reason-lost", "dead-letter-without-record"),
        tests=(
            (STATES, "test_a_dead_letter_cannot_be_dead_lettered_again"),
            (STATES, "test_dead_letters_never_wear_out_however_often_they_are_abandoned"),
        ),
    ),
    24: Shown(FANOUT, ("copy-left-out", "subscription-passed-over", "tombstone-for-one-copy")),
    27: Shown("sends.keyless_reroute", ("tombstones-forgotten",)),
    28: Shown("sends.keyed_to_dead_fragment", ("keyed-sent-elsewhere", "keyed-refused-for-good")),
    29: Shown(
        "order.nothing_waits_in_vain",
        ("credit-counted-twice", "offer-forgotten"),
        tests=(
            (LENDING, "test_a_fragment_that_is_away_holds_nobody_up"),
            ("integration/cli/test_drills.py", DRILL),
        ),
    ),
    30: Shown(
        "survey.peek",
        ("peek-steps-too-far", "peek-counts", "peek-sees-one-fragment"),
        tests=(
            (BROWSING, "test_peek_steps_over_all_fragments_in_order_and_meets_each_message_once"),
            (BROWSING, "test_a_peek_shows_nothing_that_is_not_durable_yet"),
            (STATES, "test_peek_shows_every_state_of_a_sub_queue_and_changes_nothing"),
        ),
    ),
    31: Shown(
        "",
        ("fragment-open-in-both", "nothing-cleared-up"),
        tests=((MOVING, "test_a_crash_at_any_point_leaves_it_in_one_store"),),
        because="What is left is looked at when a run of `sim_moves` is over, in the stores and not in the history.",
    ),
    32: Shown(
        "survey.counters",
        ("expired-not-counted-back", "deferred-not-counted-back"),
        tests=(
            (STATES, "test_numbers_follow_every_change_of_state"),
            (STATES, "test_another_life_has_the_same_messages_in_the_same_states"),
        ),
    ),
    33: Shown(LIFE, ("quota-not-counted-back", "quota-ignored")),
    34: Shown("transactions.one_key", ("refused-piece-left-out",)),
    35: Shown("transactions.nothing_before_the_commit", ("sent-before-discharge", "scheduled-before-discharge")),
    36: Shown("sessions.session_lock", ("session-handed-out-twice", "session-state-lost-at-restart")),
    37: Shown(
        "sessions.session_lock_loss",
        ("former-holder-honoured",),
        tests=(("unit/simulation/checkers/test_checkers_sessions.py", "test_a_former_holder_that_settles_is_caught"),),
    ),
    # All or none of a batch is seen as the loss of an acknowledged message (I1).
    40: Shown("messages.no_acknowledged_loss", ("batch-half-stored",)),
    41: Shown("forwarding.hop_limit", ("hops-not-counted",)),
    42: Shown(
        "idle.auto_delete",
        ("peek-is-no-use", "receivers-not-seen", "idle-since-it-was-made", "rows-left-behind", "never-looked-again"),
        tests=(
            (ENTITY_LIFE, "test_a_queue_that_nobody_uses_is_deleted_everywhere_when_its_time_has_passed"),
            (ENTITY_LIFE, "test_a_queue_is_not_deleted_while_nobody_can_look_into_it"),
        ),
    ),
    56: Shown(
        "messages.no_acknowledged_loss",
        ("store-kept-open", "no-sync"),
        tests=(("acceptance/faults/test_failing_and_slow_syncs.py", "test_nothing_is_acknowledged_while_syncs_fail"),),
    ),
    57: Shown(
        "",
        tests=(
            ("unit/storage/test_bit_flips.py", "test_no_single_flipped_bit_lets_an_altered_message_out"),
            (
                "acceptance/faults/test_flipped_bits.py",
                "test_a_message_with_a_flipped_bit_is_reported_and_the_others_are_delivered",
            ),
        ),
        because="Checksums belong to the stores; the simulated disk says itself what it has damaged.",
    ),
    62: Shown(
        "",
        ("first-come-first-served",),
        tests=(
            (
                "unit/simulation/test_fair_seeds.py",
                "test_a_message_is_in_the_next_commit_or_the_one_after_whatever_others_send",
            ),
            (OVERLOAD, "test_the_fragment_of_a_hot_key_is_busy_while_the_others_go_on"),
            ("integration/hostile/test_bursts.py", "test_a_neighbour_is_served_in_the_middle_of_a_burst"),
        ),
        because="`sim_fair` counts commits and bytes in the broker and not in the history. Virtual time has no "
        "processor: every turn of the loop lasts nothing. `make neighbours` measures it.",
    ),
}


@cache
def _names(path: Path) -> frozenset[str]:
    found = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in found if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


@pytest.mark.parametrize("number", sorted(INVARIANTS))
def test_what_stands_for_an_invariant_exists(number: int) -> None:
    shown = INVARIANTS[number]
    assert shown.checker or (shown.tests and shown.because)
    if shown.checker:
        module, _, name = shown.checker.partition(".")
        folder = Path(planted_life.__file__).parents[1] / "checkers"
        assert name in _names(folder / f"{module}.py")
    if number in CHECKERS:
        assert shown.checker == f"{CHECKERS[number].__module__.rpartition('.')[2]}.{CHECKERS[number].__name__}"
    planted = {
        **MUTANTS,
        **planted_idle.BUGS,
        **planted_life.BUGS,
        **planted_topics.BUGS,
        **sim_fair.BUGS,
        **sim_moves.BUGS,
    }
    assert set(shown.bugs) <= planted.keys()
    assert shown.bugs or not shown.checker
    for path, name in shown.tests:
        assert name in _names(TESTS / path), f"{path} has no {name}"


#: Bugs that nothing else would have caught, or not as what they are; ``test_planted_bugs`` looks for these invariants.
SEEN_AS = {bug: f"I{number}" for number in (9, 15, 21, 22, 23, 28, 29, 30, 32, 37) for bug in INVARIANTS[number].bugs}
