"""Loggers are a process's, and with it those of all tests that run there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: Those that the programs of this project silence for as long as they live: what they start, and what they kill, would
#: fill the terminal.
SILENCED: Final = ("azure", "asyncio")


@contextmanager
def loggers_as_before() -> Iterator[None]:
    """Give the loggers of others back as they were found, whoever silences them meanwhile.

    Which tests share a process changes from run to run, so that one that hears nothing fails once in a while.
    """
    found = [(logger, logger.propagate, logger.handlers[:]) for logger in map(logging.getLogger, SILENCED)]
    try:
        yield
    finally:
        for logger, propagate, handlers in found:
            logger.propagate = propagate
            logger.handlers[:] = handlers
