"""A test that silences loggers silences them for itself."""

from __future__ import annotations

import logging

import pytest

from duobus_demo.clients import silence_sdk_logs
from kits.loggers import SILENCED, loggers_as_before


@pytest.mark.parametrize("name", SILENCED)
def test_what_a_demonstration_silences_is_heard_again_by_the_next_test(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    handlers = logging.getLogger(name).handlers[:]
    with loggers_as_before():
        silence_sdk_logs()
        logging.getLogger(name).error("silent")
    logging.getLogger(name).error("heard")
    assert caplog.messages == ["heard"]
    assert logging.getLogger(name).handlers == handlers
