"""A client that saturates one queue, and one that uses another in the same store; a planted bug (I62)."""

from __future__ import annotations

import pytest

from kits.seeds import CLEAN
from simulation.scenarios.fairness import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", CLEAN["fair"])
def test_a_message_is_in_the_next_commit_or_the_one_after_whatever_others_send(seed: int) -> None:
    watch = run(seed)
    assert watch.wrong == []
    # There was somebody to wait behind.
    assert watch.decided > 10
    assert watch.waiting > 50
