"""Both stores do the same for any sequence of calls; the one in memory is the reference."""

from __future__ import annotations

from hypothesis import settings

from kits.two_stores import TwoStores

TwoStores.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


class TestBothStoresBehaveTheSameWay(TwoStores.TestCase):  # type: ignore[name-defined, misc]
    """Run by unittest's collector; hypothesis makes the sequences."""
