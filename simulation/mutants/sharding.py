"""Mistakes of queues over the stores of all servers, to be found: ``python -m simulation.campaign --world spread``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from unittest import mock

from duobus.cluster.sharding import shard_choice
from duobus.cluster.sharding.entities import ShardedEntities
from duobus.cluster.sharding.idle import ShardIdleness, ToldIdle
from duobus.cluster.sharding.sessions import SessionSearch
from duobus.cluster.sharding.topics import ShardedTopicLife
from duobus.model.address import sharded_entity_of
from duobus.storage.catalog_rows import DELETING, INTENT, LIVE, EntityRow
from simulation.mutants.servers import lost_send_refused


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


@contextmanager
def subscription_missing_in_a_shard() -> Iterator[None]:
    """A subscription is answered as created when the first shard has it."""

    def finish(self: ShardedEntities, wish: EntityRow, parts: Sequence[EntityRow | None]) -> None:
        if wish.state == DELETING and not any(parts):
            self._unit.catalog.finish_delete(wish.entity_id)
        elif wish.state == INTENT and any(part is not None and part.state == LIVE for part in parts):
            self._begin(wish)

    with mock.patch.object(ShardedEntities, "_finish_subscription", finish):
        yield


@contextmanager
def rule_changed_in_one_shard() -> Iterator[None]:
    """A rule is added or removed in the shard whose owner sees to it first; nobody waits for the others."""
    put = ShardedTopicLife.put_subscription
    done: set[tuple[str, int]] = set()

    def put_first(self: ShardedTopicLife, subscription: Any, about: Any) -> None:
        change = about.name, about.updated_at_ms
        if sharded_entity_of(subscription.path.lower()) is None or change not in done:
            done.add(change)
            put(self, subscription, about)

    with (
        mock.patch.object(ShardedTopicLife, "put_subscription", put_first),
        mock.patch.object(ShardedEntities, "_holds", return_value=True),
    ):
        yield


@contextmanager
def idleness_not_taken_back() -> Iterator[None]:
    """A shard that was told as idle is used, and the catalog goes on saying that it is idle."""

    def take_back(self: ShardIdleness, shard: Any, told: ToldIdle) -> None:
        told.is_over = True
        self._unit.idle_watch.begin(shard)
        shard.idle.note()

    with mock.patch.object(ShardIdleness, "_take_back", take_back):
        yield


BUGS: Final[dict[str, Callable[[], Any]]] = {
    "session-at-any-owner": session_at_any_owner,
    "duplicates-by-turns": duplicates_by_turns,
    "subscription-missing-in-a-shard": subscription_missing_in_a_shard,
    "rule-changed-in-one-shard": rule_changed_in_one_shard,
    "idleness-not-taken-back": idleness_not_taken_back,
    "lost-send-of-a-shard-refused": lost_send_refused,
}
