"""Which entity a request below ``/$duobus`` is about: several servers send it on to the one that has it."""

from __future__ import annotations

import pytest

from duobus.gateway.rest.keys.endpoint import entity_of
from duobus.gateway.rest.request_target import parse_target


@pytest.mark.parametrize(
    ("target", "entity"),
    [
        ("/$duobus/locks?entity=Orders/East", ("orders", "east")),
        ("/$duobus/sessions?entity=t%2FSubscriptions%2Fs", ("t", "subscriptions", "s")),
        ("/$duobus/try-rule?entity=t/Subscriptions/s", ("t", "subscriptions", "s")),
        ("/$duobus/keys/mine?entity=q", ("q",)),
        ("/$duobus/locks", None),
        ("/$duobus/locks?entity=/", None),
        ("/$duobus/moves?entity=q", None),
        ("/$duobus/history?entity=q", None),
        ("/q/messages?entity=p", None),
    ],
)
def test_requests_about_one_entity_name_it(target: str, entity: tuple[str, ...] | None) -> None:
    assert entity_of(parse_target(target)) == entity
