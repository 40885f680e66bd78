"""Work on the messages of a sharded queue (``POST /{entity}/$desk``): shard after shard, each by its owner.

A chunk is of one fragment, and names the sequence number to go on from; so it is worked on by the shard that has the
first number, or by the next one that has something. Messages that are brought go to the shard of their key.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from duobus.broker import COUNT_BITS, string_key
from duobus.broker.entities.message_ids import message_id
from duobus.cluster.shards import ShardedEntityMap
from duobus.errors import StoreUnavailable
from duobus.gateway.rest.dead_letters.endpoint import SEGMENT
from duobus.model.json.plan import LIMIT_DEFAULT, LIST, RESTORE, SEND, DeadLetterPlan, Item, read_plan

#: Sends a body on to a path of a shard, by its number; None when it has no server.
SendBody = Callable[[int, str, bytes], Awaitable[web.Response | None]]

_JSON: Final = "application/json"


class _Refused(Exception):
    """A shard has refused.

    Attributes:
        answer: What it has answered.
    """

    def __init__(self, answer: web.Response) -> None:
        super().__init__()
        self.answer = answer


class ShardedDeadLetters:
    """One request about the messages of a sharded queue.

    Args:
        sharded: The queue.
        rest: What follows its path, as segments: of a sub-queue.
        send: Sends a body on.
    """

    def __init__(self, sharded: ShardedEntityMap, rest: tuple[str, ...], send: SendBody) -> None:
        self._sharded = sharded
        self._rest = rest
        self._send = send
        self._turn = 0

    async def answer(self, body: bytes) -> web.Response:
        """The answer of all shards that it concerns.

        Raises:
            ServiceBusError: It is refused.
        """
        # Whoever gets it first checks all of it; here it is only taken apart.
        plan, members = read_plan(body), json.loads(body)
        try:
            if plan.action in (RESTORE, SEND):
                found = await self._bring(plan, members)
            else:
                found = await self._work(plan, members)
        except _Refused as refused:
            return refused.answer
        return web.Response(body=json.dumps(found).encode(), content_type=_JSON)

    async def _ask(self, index: int, members: dict[str, Any]) -> dict[str, Any] | None:
        path = "/".join((self._sharded.shares[index].path, *self._rest, SEGMENT))
        answer = await self._send(index, quote(f"/{path}"), json.dumps(members).encode())
        if answer is None:
            return None
        if answer.status != 200:
            raise _Refused(answer)
        found: dict[str, Any] = json.loads(answer.body if isinstance(answer.body, bytes) else b"{}")
        return found

    # -- what is there ------------------------------------------------------------------------------------------

    async def _work(self, plan: DeadLetterPlan, members: dict[str, Any]) -> dict[str, Any]:
        numbers = plan.numbers
        first = plan.first if not numbers else max(plan.first, min(numbers))
        total: dict[str, Any] = {}
        for index in self._from(first):
            limit = int(members.get("limit") or LIMIT_DEFAULT) - int(total.get("matched", 0))
            # All are asked for what had been there at the same instant.
            asked = {**members, "first": first, "limit": limit, "before": total.get("before", members.get("before"))}
            answer = await self._ask(index, asked)
            if answer is None:
                answer = self._absent(plan, index, total)
                if answer is None:
                    total["next"] = first
                    return total
            _add(total, answer)
            if total["next"] is None and index + 1 < len(self._sharded.shares):
                total["next"] = first = self._sharded.shares[index + 1].slots[0].fragment_no << COUNT_BITS
                if numbers is not None and first > max(numbers, default=0):
                    total["next"] = None
                    break
                if plan.action == LIST and total["matched"] < plan.limit:
                    continue
                if not total["matched"]:
                    continue
            break
        return total

    def _absent(self, plan: DeadLetterPlan, index: int, total: dict[str, Any]) -> dict[str, Any] | None:
        """What is said of a shard that has no server; None: what was found before it.

        Raises:
            StoreUnavailable: Nothing was found before it.
        """
        if plan.is_partial:
            away = [slot.fragment_no for slot in self._sharded.shares[index].slots]
            return {"action": plan.action, "examined": 0, "matched": 0, "next": None, "unavailable": away}
        if total.get("matched"):
            return None
        raise StoreUnavailable(
            f"A part of '{self._sharded.row.path}' has no server now. Try again in a few seconds.",
            self._sharded.slots_of(index),
        )

    def _from(self, first: int) -> list[int]:
        least = first >> COUNT_BITS
        return [i for i, share in enumerate(self._sharded.shares) if share.slots[-1].fragment_no >= least]

    # -- what is brought ----------------------------------------------------------------------------------------

    async def _bring(self, plan: DeadLetterPlan, members: dict[str, Any]) -> dict[str, Any]:
        """Divide the items among the shards; each tells by index what became of its own."""
        parts: dict[int, list[int]] = {}
        for position, item in enumerate(plan.items):
            parts.setdefault(self._place(plan, item), []).append(position)
        total: dict[str, Any] = {"action": plan.action, "matched": 0}
        for index, positions in parts.items():
            items = [self._named(index, members["items"][position]) for position in positions]
            answer = await self._ask(index, {**members, "items": items})
            if answer is None:
                answer = self._not_brought(plan, index, positions)
            for name in ("moved", "skipped", "refused"):
                for one in answer.get(name, ()):
                    one["index"] = positions[one["index"]]
            _add(total, answer)
        return total

    def _place(self, plan: DeadLetterPlan, item: Item) -> int:
        sharded = self._sharded
        key = item.metadata.session_id or item.metadata.partition_key
        if key is not None:
            return sharded.of_key(string_key(key))
        if plan.action == RESTORE:
            found = sharded.of_number(item.number >> COUNT_BITS) if item.number else None
            return 0 if found is None else found
        known = message_id(item.payload) if sharded.about.requires_duplicate_detection else None
        if known is not None:
            return sharded.of_key(known)
        self._turn += 1
        return self._turn % len(sharded.shares)

    def _named(self, index: int, item: dict[str, Any]) -> dict[str, Any]:
        """An item whose message went back to the queue itself: in the words of the shard that has it."""
        moved = item.get("movedTo")
        if not isinstance(moved, dict) or str(moved.get("entity")).lower() != self._sharded.row.path.lower():
            return item
        return {**item, "movedTo": {**moved, "entity": self._sharded.shares[index].path}}

    def _not_brought(self, plan: DeadLetterPlan, index: int, positions: list[int]) -> dict[str, Any]:
        reason = f"The part of '{self._sharded.row.path}' where it belongs has no server now. Try again."
        told = [
            {"index": at, "sequenceNumber": plan.items[position].number, "reason": reason}
            for at, position in enumerate(positions)
        ]
        name = "skipped" if plan.action == RESTORE else "refused"
        return {"matched": len(positions), name: told, **({} if plan.action == RESTORE else {"sent": 0})}


def _add(total: dict[str, Any], answer: dict[str, Any]) -> None:
    """Put what one shard tells to what others have told."""
    for name, value in answer.items():
        if isinstance(value, list):
            total[name] = [*total.get(name, ()), *value]
        elif isinstance(value, int) and name not in ("next", "before"):
            total[name] = total.get(name, 0) + value
        elif name == "next" or name not in total:
            total[name] = value
