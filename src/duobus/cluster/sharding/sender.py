"""ShardedSender: a client sends to a sharded queue. Messages with a key go to its shard, others in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from duobus.amqp import Rejected, TransactionalState, Transfers
from duobus.cluster.proxy.entity_link import MOVING_S
from duobus.cluster.sharding.link import ShardedLink, ShardLink
from duobus.cluster.sharding.shard_choice import ANY, shard_of, shard_of_batch, shard_via, shard_via_of_batch
from duobus.cluster.shards import ShardedEntityMap
from duobus.codec import BATCH_FORMAT
from duobus.errors import ServiceBusError, StoreUnavailable
from duobus.gateway.amqp.links.incoming_link import CREDIT

_MASK: Final = 0xFFFFFFFF


class _PendingSend:
    """Deliveries of the client that wait for the credit of one owner, that of any shard or that of their key's."""

    __slots__ = ("has_key", "ids", "is_batch", "payloads", "settled")

    def __init__(self, ids: list[int], payloads: list[bytes], *, settled: bool, is_batch: bool, has_key: bool) -> None:
        self.has_key = has_key
        self.ids = ids
        self.payloads = payloads
        self.settled = settled
        self.is_batch = is_batch

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        return sum(map(len, self.payloads))


class ShardedSender(ShardedLink):
    """See the module.

    The client has as much credit as the share with the most, so that one that is slow does not hold up the others;
    what is sent to a slow one waits here, and is part of that credit.

    When a shard's owner is lost, deliveries that it has not answered are rejected, since they may be stored. What has a
    key of that shard waits for the next owner, for MOVING_S at most; what has none goes elsewhere.
    """

    __slots__ = ("_gone_ms", "_number", "_turn", "_waiting")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._waiting: dict[int, deque[_PendingSend]] = {}
        # Shards that had an owner a moment ago, and when that was lost.
        self._gone_ms: dict[int, int] = {}
        self._number = 0
        self._turn = -1

    # -- from the client ----------------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """Divide what came in one read among the shards."""
        if event.state is not None:
            self._in_transaction(event)
            return
        is_batch = event.message_format == BATCH_FORMAT
        place, sharded_entity = self._place(event), self.sharded_entity
        groups: dict[int, tuple[list[int], list[bytes]]] = {}
        for index, payload in enumerate(event.payloads):
            delivery_id = (event.first_delivery_id + index) & _MASK
            try:
                ids, payloads = groups.setdefault(place(sharded_entity, payload), ([], []))
            except ServiceBusError as error:
                self._reject([delivery_id], event.settled, error)
                continue
            ids.append(delivery_id)
            payloads.append(payload)
        for share, (ids, payloads) in groups.items():
            self._give(
                share, _PendingSend(ids, payloads, settled=event.settled, is_batch=is_batch, has_key=share != ANY)
            )
        self.owners.proxied_messages += len(event.payloads)
        self.top_up()

    def _in_transaction(self, event: Transfers) -> None:
        """One delivery with a state: part of a transaction, which the owner of the fragment of its key does."""
        if not self.peer.router.send_via(self.link, event):
            self.take(event)
        self.top_up()

    def take(self, event: Transfers) -> None:
        """Pass one delivery of a transaction on, to the owner of the fragment of its key."""
        state = event.state
        try:
            share = self._place(event)(self.sharded_entity, event.payloads[0])
            shard_link = self._of_transaction(state) if share == ANY else self.branches.get(share)
            if shard_link is None or not shard_link.is_open:
                raise self._away(share)
        except ServiceBusError as error:
            if isinstance(state, TransactionalState):
                self.peer.transactions.doom(state.txn_id, error)
            self._reject([event.first_delivery_id], event.settled, error)
        else:
            shard_link.take(event)

    def _of_transaction(self, state: Any) -> ShardLink | None:
        """Where a message without a key goes: to the owner that does its transaction already, or the next in turn."""
        if not isinstance(state, TransactionalState):
            return self._next(1)
        remote = self.peer.transactions.find(state.txn_id).remote
        if remote is None:
            return self._next(1)
        there = [one for one in self.open_branches if one.does(remote.coordinator)]
        return there[0] if there else self._next(1)

    def _place(self, event: Transfers) -> Callable[[ShardedEntityMap, bytes], int]:
        is_batch = event.message_format == BATCH_FORMAT
        if self.asked_properties:
            # They are for another entity; this one only has to be asked at the right place.
            return shard_via_of_batch if is_batch else shard_via
        return shard_of_batch if is_batch else shard_of

    def _away(self, share: int) -> StoreUnavailable:
        """Why messages for a shard, or for any, are not taken."""
        if share == ANY:
            return StoreUnavailable(f"No part of '{self.path}' has a server now. Try again in a few seconds.")
        return StoreUnavailable(
            f"The part of '{self.path}' where messages with this key belong has no server now. Try again in a few "
            "seconds, or send without a key.",
            self.sharded_entity.slots_of(share),
        )

    def _give(self, share: int, what: _PendingSend) -> None:
        # One whose owner was just found waits for its answer.
        shard_link = self._next(len(what.ids)) if share == ANY else self.branches.get(share)
        if shard_link is not None:
            share = shard_link.index
        elif share == ANY:
            share = next(iter(self._gone_ms), ANY)
        if shard_link is None and share not in self._gone_ms:
            self._reject(what.ids, what.settled, self._away(share))
            return
        self._number += len(what.ids)
        self.peer.note_bytes(what.size)
        self._waiting.setdefault(share, deque()).append(what)
        if shard_link is not None:
            self._flush(shard_link)

    def _next(self, number: int) -> ShardLink | None:
        """The next shard in turn that is well and has credit for so much; else the one with the most (PE4, PE17)."""
        branches = [shard_link for shard_link in self.open_branches if not shard_link.is_busy] or self.open_branches
        if not branches:
            return None
        later = [shard_link for shard_link in branches if shard_link.index > self._turn]
        order = later + branches[: len(branches) - len(later)]
        for shard_link in order:
            assert shard_link.uplink is not None
            if shard_link.uplink.credit >= number and not self._waiting.get(shard_link.index):
                self._turn = shard_link.index
                return shard_link
        best = max(order, key=lambda shard_link: 0 if shard_link.uplink is None else shard_link.uplink.credit)
        self._turn = best.index
        return best

    def tick(self, monotonic_ms: int) -> None:
        """See ShardedLink; who was busy is tried again."""
        for shard_link in self.branches.values():
            shard_link.is_busy = False
        super().tick(monotonic_ms)
        for index, gone_ms in list(self._gone_ms.items()):
            if monotonic_ms - gone_ms >= MOVING_S * 1000:
                self._give_up(index)

    def outlives(self, shard_link: ShardLink) -> bool:
        """See ShardedLink; only a client that does transactions attaches again."""
        index = shard_link.index
        if shard_link.is_transactional and (shard_link.unanswered or self._waiting.get(index)):
            return False
        shard_link.reject_unanswered(f"a part of '{self.path}'")
        if shard_link.is_open:
            self._gone_ms[index] = self.peer.server.clock.monotonic_ms()
        self._give_again(index)
        return True

    def _give_again(self, index: int) -> None:
        """Have what waits for a shard that has no owner go elsewhere, or wait, or be refused."""
        waiting = self._waiting.pop(index, deque())
        self._number -= sum(len(what.ids) for what in waiting)
        self.peer.note_bytes(-sum(what.size for what in waiting))
        for what in waiting:
            self._give(index if what.has_key else ANY, what)

    def _give_up(self, index: int) -> None:
        """Refuse what waits for a shard that has had no owner for too long, and has a key of it."""
        del self._gone_ms[index]
        if index not in self.branches:
            self._give_again(index)
            self.top_up()
            self.peer.write_soon()

    def _flush(self, shard_link: ShardLink) -> None:
        """Pass on what waits for a shard, as far as its owner's credit goes."""
        uplink, session = shard_link.uplink, shard_link.session
        waiting = self._waiting.get(shard_link.index)
        if not waiting or uplink is None or session is None:
            return
        while waiting and uplink.credit > 0:
            what = waiting[0]
            number = 1 if what.is_batch else min(len(what.ids), uplink.credit)
            ids, payloads = what.ids[:number], what.payloads[:number]
            if what.is_batch:
                first = uplink.send_one(self._tag(1), payloads[0], what.settled, BATCH_FORMAT)
            else:
                start = self._counter
                self._tag(number)
                first = uplink.send_run(self._prefix, start, [b""] * number, payloads, what.settled)
            if what.settled:
                self.peer.note_bytes(-sum(map(len, payloads)))
            else:
                shard_link.unanswered += number
                for start, end in _neighbours(ids):
                    session.note_sent((first + start) & _MASK, ids[start], payloads[start:end], shard_link)
            self._number -= number
            if number == len(what.ids):
                waiting.popleft()
            else:
                del what.ids[:number], what.payloads[:number]
        shard_link.write()

    def _reject(self, ids: list[int], settled: bool, error: ServiceBusError) -> None:
        if not settled:
            state = Rejected(self.peer.error(error, self.path))
            for delivery_id in ids:
                self.link.settle(delivery_id, delivery_id, state)

    def flow(self) -> None:
        """A client that sends has no credit to give."""

    # -- credit -------------------------------------------------------------------------------------------------

    def top_up(self) -> None:
        """Give the client credit when it has used half of what there is."""
        credits = [shard_link.uplink.credit for shard_link in self.open_branches if shard_link.uplink is not None]
        promise = max(0, min(CREDIT, max(credits, default=0)) - self._number)
        if self._is_accepted and not self._is_stopping and self.link.credit <= promise // 2 and promise:
            self.link.grant(promise)
            self.peer.write_soon()

    def owner_flow(self) -> None:
        """See ProxiedLink."""
        self.top_up()

    def shard_flow(self, shard_link: ShardLink) -> None:
        """See ShardedLink."""
        self._flush(shard_link)
        self.top_up()

    def shard_gone(self) -> None:
        """See ShardedLink."""
        self.top_up()

    @property
    def owes(self) -> bool:
        """See ProxiedLink."""
        return self._number > 0 or any(shard_link.unanswered for shard_link in self.branches.values())

    def _close(self) -> None:
        size = sum(what.size for waiting in self._waiting.values() for what in waiting)
        self._waiting.clear()
        self._number = 0
        if size and not self.peer.is_gone:
            self.peer.note_bytes(-size)
        super()._close()


def _neighbours(ids: list[int]) -> Iterator[tuple[int, int]]:
    """(start, end) of the stretches in which ids count up by one."""
    start = 0
    for end in range(1, len(ids) + 1):
        if end == len(ids) or ids[end] != (ids[end - 1] + 1) & _MASK:
            yield start, end
            start = end
