"""Whole servers over one catalog: killed, stopped, drained, cut off, with clocks that jump (I1 to I4, I55, I58)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from duobus.broker import MessageBroker
from duobus.cluster.directory import Directory
from duobus.cluster.scale_unit import ClusteredScaleUnit
from simulation.scenarios.servers import SERVERS, run

#: Seeds that have found something: a store that was opened while it was given back; a session that was held when the
#: lease of its store ended, which left the store with two servers. Of those that forward: a forwarder that gave
#: messages back when its lease had ended, and left the store with two message brokers; a store that was lost while it
#: was opened, whose server said of its messages that they are gone.
#: And a store whose lease was handed over to its own database while it was being opened, which nobody opened then.
FINDERS = (1, 8, 71, 170, 311, 520)
#: Of those in which nothing must be wrong; CI has no time for all of them, which ``make sim WORLD=servers`` runs.
CLEAN_SEEDS = range(100, 112)


@pytest.mark.slow
@pytest.mark.parametrize("seed", CLEAN_SEEDS)
def test_no_message_is_lost_and_no_lock_shared_whatever_befalls_the_servers(seed: int) -> None:
    outcome = run(seed)
    assert outcome.wrong == []
    assert outcome.events > 100
    # Owners have changed, or the run has tried nothing.
    assert outcome.moved > SERVERS


@pytest.mark.slow
@pytest.mark.parametrize("seed", FINDERS)
def test_what_a_seed_of_servers_has_found_stays_mended(seed: int) -> None:
    assert run(seed).wrong == []


def test_a_fault_of_the_program_while_a_store_is_opened_does_not_leave_it_unserved() -> None:
    """It is logged, and opening is tried again: as long as the lease lasts no other server would do it."""
    original, faults = ClusteredScaleUnit.adopt, iter((KeyError(24), RuntimeError("planted"), KeyError(7)))

    async def adopt(self: ClusteredScaleUnit, broker: MessageBroker, directory: Directory) -> None:
        fault = next(faults, None)
        if fault is not None:
            raise fault
        await original(self, broker, directory)

    with patch.object(ClusteredScaleUnit, "adopt", adopt):
        assert run(3).wrong == []
    assert next(faults, None) is None


def test_the_same_seed_of_servers_gives_the_same_run() -> None:
    assert run(7).digest == run(7).digest
