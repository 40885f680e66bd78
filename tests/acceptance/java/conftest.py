"""Fixtures of the Java client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kit_java import Java, JavaBus, build


@pytest.fixture(scope="session")
def java() -> Java:
    """The programs, built where they were not; skips where they cannot be."""
    return Java(build())


@pytest.fixture(scope="session")
def java_bus(java: Java, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBus]:
    """One broker for all programs; not started where they cannot run."""
    bus = JavaBus(tmp_path_factory.mktemp("java-bus"))
    with bus.process:
        yield bus
