"""A real broker process for tests that use the official SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from duobus.testing.server import ServerProcess, queues_config

#: Queues of the shared broker; tests that need an empty one take one of their own name from here.
QUEUES = {
    "plain": {},
    "partitioned": {"EnablePartitioning": True},
    "example": {},
    "example-async": {"EnablePartitioning": True},
}


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running ``duobus serve`` with QUEUES; ``ready`` holds the members of its ready file."""
    with ServerProcess(tmp_path_factory.mktemp("server"), config=queues_config(QUEUES)) as process:
        yield process
        # What clients left open is not waited for.
        process.kill()
