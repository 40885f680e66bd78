"""Entities that move between stores of different servers, which are killed, stopped and cut off meanwhile (0070)."""

from __future__ import annotations

import pytest

from kits.seeds import firsts, some
from simulation.scenarios.moves.between_servers import run, run_world


@pytest.mark.slow
@pytest.mark.parametrize("first", some(firsts("server-moves", 4)))
def test_nothing_is_lost_and_no_lock_shared_when_entities_move_whatever_befalls_their_servers(first: int) -> None:
    done = 0
    for seed in range(first, first + 4):
        outcome, world = run_world(seed)
        assert outcome.wrong == [], f"seed {seed}"
        done += world.moves["done"]
    # Entities have moved, or the runs have tried nothing.
    assert done > 0


def test_an_entity_that_came_while_its_store_failed_forwards_what_is_in_it() -> None:
    # Its fragments were opened by another attempt than the one that had its name known, and nothing in it began.
    assert run(3009).wrong == []


def test_the_same_seed_of_moves_between_servers_gives_the_same_run() -> None:
    assert run(6).digest == run(6).digest
