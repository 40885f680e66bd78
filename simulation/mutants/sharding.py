"""Mistakes of queues over the stores of all servers, to be found: ``python -m simulation.campaign --world spread``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest import mock

from duobus.cluster.sharding import shard_choice
from duobus.cluster.sharding.sessions import SessionSearch


@contextmanager
def session_at_any_owner() -> Iterator[None]:
    """A session that a client names is asked for at whichever shard has its turn: two owners give it."""
    original, turns = SessionSearch.__init__, count()

    def init(self: SessionSearch, *arguments: Any) -> None:
        original(self, *arguments)
        if self.wanted is not None:
            self._order = [next(turns) % len(self.sharded_entity.shares)]

    with mock.patch.object(SessionSearch, "__init__", init):
        yield


@contextmanager
def duplicates_by_turns() -> Iterator[None]:
    """A message with an id and no key goes to any shard, where nobody knows of its duplicate."""
    with mock.patch.object(shard_choice, "message_id", return_value=None):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "session-at-any-owner": session_at_any_owner,
    "duplicates-by-turns": duplicates_by_turns,
}
