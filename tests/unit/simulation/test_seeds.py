"""The whole broker in virtual time: seeds, each a scenario of its own with faults, must obey every invariant.

These are 40; ``test_planted_bugs.py`` runs those recorded seeds without their bugs that are none of them, and
``make sim`` runs as many as one likes.
"""

import pytest

from kits.seeds import firsts, some
from simulation.run import run

SEEDS_PER_TEST = 10


@pytest.mark.parametrize("first", some(firsts("queues", SEEDS_PER_TEST)))
def test_no_seed_breaks_an_invariant_of_the_delivery_core(first: int) -> None:
    for seed in some(range(first, first + SEEDS_PER_TEST)):
        result = run(seed)
        assert not result.violations, f"make sim SEED={seed}: {result.violations[0]}"


def test_the_same_seed_gives_the_same_run_to_the_byte() -> None:
    first, second = run(50), run(50)
    assert len(first.history) > 100
    assert first.digest == second.digest


def test_different_seeds_give_different_runs_of_course() -> None:
    assert run(51).digest != run(52).digest


def test_a_client_waits_for_credit_before_it_sends() -> None:
    assert not run(2130).violations


def test_a_request_link_whose_pair_is_gone_is_not_attached_twice() -> None:
    assert not run(2658).violations


def test_a_run_that_one_life_deleted_is_not_counted_by_the_next() -> None:
    assert not run(1982).violations


@pytest.mark.parametrize("seed", [1116, 1369, 2885])
def test_who_takes_for_good_does_not_wait_for_a_slow_store_while_another_has_something(seed: int) -> None:
    assert not run(seed).violations


def test_a_link_that_ends_before_its_settlement_is_answered_leaves_its_messages_to_others() -> None:
    assert not run(3732).violations
