"""The power of the simulations, measured with planted bugs: each has a recorded seed that catches it.

``make sim-bugs WORLD=all`` finds new seeds when a change of the code makes some of these miss.
"""

import json
from pathlib import Path

import pytest
from test_invariants_covered import SEEN_AS

from kits.seeds import needs_clean_run, one_each
from simulation.campaign import WORLDS, findings, sign_of

#: World and bug to a seed, and the sign by which it shows.
RECORD = json.loads((Path(__file__).parent / "catching_seeds.json").read_text())
RECORDED = sorted((world, bug) for world, bugs in RECORD.items() for bug in bugs)


def test_every_planted_bug_has_a_recorded_seed() -> None:
    assert {world: set(bugs) for world, bugs in RECORD.items()} == {
        name: set(world.bugs) for name, world in WORLDS.items()
    }
    assert SEEN_AS.keys() <= RECORD["queues"].keys()


@pytest.mark.parametrize(
    ("how", "sign"),
    [
        ("I1: 1-3 was acknowledged and never came out of parted", "I1"),
        ("message 48 (accepted) has [('all', '')], not [] (I24)", "I24"),
        ("UnhandledFailure: store contract broken (1 in all): ContractBroken('put twice')", "ContractBroken"),
        ("27 of 40: n17 and n10 both hand out of store 2", "# of #: n# and n# both hand out of store #"),
        ("TimeoutError: ", "TimeoutError"),
        ("AttributeError: 'list' object has no attribute 'values'", None),
        ("UnhandledFailure: Exception in callback finish(): KeyError(1)", None),
    ],
)
def test_a_finding_is_known_by_its_invariant_and_never_by_an_error_of_python(how: str, sign: str | None) -> None:
    assert sign_of(how) == sign


@pytest.mark.parametrize(("world", "bug"), one_each(RECORDED))
def test_the_recorded_seed_catches_this_planted_bug(world: str, bug: str) -> None:
    seed, sign = RECORD[world][bug]
    signs = [sign_of(how) for how in findings(world, bug, seed)]
    assert signs[:1] == [sign]
    if world == "queues" and bug in SEEN_AS:
        assert SEEN_AS[bug] in signs


@pytest.mark.parametrize(
    ("world", "seed"),
    one_each(
        sorted({(world, seed) for world, bug in RECORDED if needs_clean_run(world, seed := RECORD[world][bug][0])})
    ),
)
def test_a_recorded_seed_is_clean_without_its_bug(world: str, seed: int) -> None:
    assert findings(world, None, seed) == []
