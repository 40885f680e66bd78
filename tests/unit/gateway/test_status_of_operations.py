"""What a queue's status leaves of ``$management``."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duobus.errors import EntityDisabled
from duobus.gateway.amqp.entity_status import demand_operation
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED, SEND_DISABLED

TAKING = ("peek-message", "receive-by-sequence-number", "batch-delete-messages")


def queue(status: str) -> Any:
    return SimpleNamespace(kind="queue", path="q", description=SimpleNamespace(status=status))


@pytest.mark.parametrize("name", TAKING)
def test_what_takes_or_shows_messages_needs_a_queue_that_lets_receive(name: str) -> None:
    demand_operation(queue(ACTIVE), f"com.microsoft:{name}")
    demand_operation(queue(SEND_DISABLED), f"com.microsoft:{name}")
    for status in (RECEIVE_DISABLED, "Disabled"):
        with pytest.raises(EntityDisabled, match=status):
            demand_operation(queue(status), f"com.microsoft:{name}")


@pytest.mark.parametrize("name", ["renew-lock", "update-disposition"])
def test_locks_that_are_held_stay_good_whatever_the_status(name: str) -> None:
    demand_operation(queue("Disabled"), f"com.microsoft:{name}")
