"""Fixtures of the Qpid Proton client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit_proton import Proton, ProtonBus, build


@pytest.fixture(scope="session")
def proton() -> Proton:
    """Proton, built where it was not; skips where it cannot be."""
    return Proton(build())


@pytest.fixture(scope="session")
def proton_bus(proton: Proton, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtonBus]:
    """One broker for all programs; not started where they cannot run."""
    bus = ProtonBus(tmp_path_factory.mktemp("proton-bus"))
    with bus.process:
        yield bus
