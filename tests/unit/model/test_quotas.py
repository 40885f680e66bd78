"""Quotas: the cloud's defaults, and how they are set."""

from __future__ import annotations

import pytest

from duobus.errors import ConfigurationError
from duobus.model.quotas import Quotas, parse_quotas


def test_the_defaults_are_the_clouds() -> None:
    made = parse_quotas(())
    assert made == Quotas()
    assert (made.connections, made.receivers, made.entities, made.partitioned_entities) == (5_000, 5_000, 10_000, 100)


def test_a_quota_is_set_by_its_name() -> None:
    made = parse_quotas(("connections=20000", "partitioned-entities=1"))
    assert (made.connections, made.partitioned_entities, made.entities) == (20_000, 1, 10_000)


@pytest.mark.parametrize(
    "text", ["", "connections", "connections=", "connections=0", "connections=-1", "connections=1e3", "links=3", "=3"]
)
def test_a_text_that_is_no_quota_is_refused_with_the_names_that_there_are(text: str) -> None:
    with pytest.raises(ConfigurationError, match="connections, receivers, entities, partitioned-entities"):
        parse_quotas((text,))
