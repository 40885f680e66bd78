"""The power of the simulation, measured with planted bugs: each has a recorded seed that catches it.

``make sim-bugs`` finds new seeds when a change of the code makes one of these miss.
"""

import pytest

from duobus.testing.planted import BUGS
from duobus.testing.simulation import caught, run

CATCHING_SEEDS = {
    "acknowledge-before-commit": 2,
    "token-valid-after-restart": 1,
    "expired-token-completes": 1,
    "key-placed-by-hash": 2,
    "ping-delivered": 2,
    "deferred-comes-again": 1,
    "removed-after-transfer": 392,
    "highest-count-not-persisted": 5,
    "delivery-count-reset": 1,
    "no-sync": 4,
    "abandoned-to-the-tail": 3,
    "tombstones-forgotten": 16,
    "batch-half-stored": 1,
    "store-kept-open": 1,
    "lock-not-exclusive": 2,
    "history-lost-at-restart": 24,
    "history-outlives-its-run": 54,
    "window-begun-anew": 88,
    "transaction-in-two-commits": 10,
    "settled-before-discharge": 3,
    "sent-before-discharge": 3,
    "lost-lock-in-transaction": 27,
    "ambiguous-discharge-guessed": 55,
    "refused-piece-left-out": 3,
    "number-told-and-not-kept": 3,
    "scheduled-before-discharge": 7,
    "cancelled-before-discharge": 15,
    "forwarded-without-record": 9,
    "ledger-lost-at-restart": 39,
    "removed-before-accepted": 9,
    "forward-in-two-commits": 9,
    "forgotten-too-early": 10,
    "hops-not-counted": 9,
    "via-not-durable": 59,
    "session-handed-out-twice": 13,
    "session-state-lost-at-restart": 2,
    "session-newest-first": 2,
    "scheduled-too-early": 2,
    "expired-stays": 1,
    "expired-the-other-way": 1,
    "dead-letter-expires": 25,
    "reason-lost": 1,
    "dead-letter-without-record": 2,
    "peek-steps-too-far": 2,
    "peek-counts": 1,
    "peek-sees-one-fragment": 3,
    "expired-not-counted-back": 1,
    "deferred-not-counted-back": 16,
    "former-holder-honoured": 61,
    "credit-counted-twice": 38,
    "offer-forgotten": 1,
    "outage-refuses-keyless": 10,
    "outage-spreads": 2,
    "keyed-sent-elsewhere": 2,
    "keyed-refused-for-good": 2,
}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_the_recorded_seed_catches_this_planted_bug(bug: str) -> None:
    assert caught(bug, CATCHING_SEEDS[bug]) is not None


@pytest.mark.parametrize("seed", sorted(set(CATCHING_SEEDS.values())))
def test_a_recorded_seed_is_clean_without_its_bug(seed: int) -> None:
    assert not run(seed).violations
