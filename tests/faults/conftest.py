"""Fixtures of the tests with faulty disks, frozen processes and silent connections."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.servicebus._pyamqp.client import AMQPClient

# The frame-level client of the conformance checks.
sys.path.append(str(Path(__file__).resolve().parents[1] / "conformance"))


@pytest.fixture(scope="session", autouse=True)
def no_keep_alive() -> Iterator[None]:
    """Leave out the SDK's keep-alive worker: every close waits for it, and it sleeps a second at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AMQPClient, "_keep_alive", lambda client: None)
        yield
