"""SimulatedClient: an AMQP client over the project's own engine, in virtual time, that writes down what it sees.

It does what an application does through an SDK: sends, receives, settles, asks ``$management``; every operation ends
in ok, fail or info in the history. Bytes are real: the broker's AMQP server parses and writes them.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from duobus.amqp import (
    ACCEPTED,
    RELEASED,
    DeliveryState,
    Dispositions,
    EngineMisuse,
    Error,
    Link,
    Modified,
    Rejected,
    Source,
    Target,
    Transfers,
)
from duobus.codec import (
    BATCH_FORMAT,
    Array,
    Symbol,
    UInt,
    application_properties,
    build_message,
    decode,
    scan,
)
from duobus.codec.sections import VALUE, find_section
from simulation.history import events as h
from simulation.history.survey_events import path_of
from simulation.world.connection import ANSWER_S, SimulatedConnection
from simulation.world.message import PING, Message, Received, body_of, delivery_count, digest, key_of

if TYPE_CHECKING:
    pass

_OUTCOMES: dict[str, DeliveryState] = {
    h.COMPLETE: ACCEPTED,
    h.ABANDON: Modified(True, None, None),
    h.RELEASE: RELEASED,
    h.DEFER: Modified(True, True, None),
    h.DEAD_LETTERED: Rejected(Error("com.microsoft:dead-letter", "poison", {"DeadLetterReason": "poison"})),
}
_MANAGED = {h.COMPLETE: "completed", h.ABANDON: "abandoned", h.DEFER: "defered", h.DEAD_LETTERED: "suspended"}


class SimulatedClient(SimulatedConnection):
    """A client that sends, receives, settles and asks management nodes."""

    # -- sending ------------------------------------------------------------------------------------------------

    async def send(
        self, link: Link, entity: str, messages: list[Message], *, batch: bool = False, settled: bool = False
    ) -> bool:
        """Send messages in one write, one transfer each or one for all; whether all were accepted."""
        await self._credit(link, 1 if batch else len(messages))
        waiting: list[tuple[list[int], asyncio.Future[DeliveryState | None] | None]] = []
        payloads = [message.encode() for message in messages]
        ops = [self._begin_send(entity, message, settled=settled) for message in messages]
        groups = (
            [(ops, build_message(None, None, data=payloads, annotations=key_of(messages[0])))]
            if batch
            else [([op], payload) for op, payload in zip(ops, payloads, strict=True)]
        )
        try:
            for numbers, payload in groups:
                self._tag += 1
                tag = self._tag.to_bytes(4, "big")
                delivery_id = link.send_one(tag, payload, settled, BATCH_FORMAT if batch else 0)
                future: asyncio.Future[DeliveryState | None] | None = None
                if not settled:
                    future = asyncio.get_running_loop().create_future()
                    self._sends[delivery_id] = future
                waiting.append((numbers, future))
        except EngineMisuse:
            # The link is gone, or its credit is used up: what was not written was not sent.
            for numbers, _ in groups[len(waiting) :]:
                for op in numbers:
                    # Nobody answers a settled one; that it was not sent is the client's own affair.
                    unsent = h.Fail(op, "client:no-credit", "TrackingId:client", transient=True)
                    self.world.history.append(h.Info(op) if settled else unsent)
        self._flush()
        outcomes = await asyncio.gather(*(self._end_send(numbers, future) for numbers, future in waiting))
        return len(waiting) == len(groups) and all(outcomes)

    def _begin_send(self, entity: str, message: Message, *, settled: bool, transaction: str | None = None) -> int:
        op = self.world.history.next_op()
        key = self.world.placing_key(entity, message.key, message.uid, ping=message.ping)
        self.world.history.append(
            h.SendBegin(
                op,
                self.name,
                self.name,
                entity,
                message.uid,
                digest(message.body),
                key=key,
                fragment=self.world.fragment_of(entity, key),
                settled=settled,
                ping=message.ping,
                scheduled_ms=message.scheduled_ms,
                ttl_ms=message.ttl_ms,
                transaction=transaction,
            )
        )
        return op

    async def _end_send(self, ops: list[int], future: asyncio.Future[DeliveryState | None] | None) -> bool:
        history = self.world.history
        if future is None:
            for op in ops:
                history.append(h.Info(op))
            return True
        state = await self._answer(ops, future)
        if state is None:
            return False
        for op in ops:
            if isinstance(state, Rejected):
                error = state.error or Error("amqp:internal-error", "")
                if error.condition == "com.microsoft:timeout":
                    history.append(h.Info(op, h.UNKNOWN))
                    continue
                busy = error.condition in ("com.microsoft:server-busy", "amqp:internal-error")
                history.append(h.Fail(op, error.condition, error.description or "", transient=busy))
            else:
                history.append(h.Ok(op))
        return state is ACCEPTED

    async def _answer(self, ops: list[int], future: asyncio.Future[Any]) -> Any:
        try:
            return await asyncio.wait_for(future, ANSWER_S)
        except (ConnectionError, TimeoutError) as error:
            reason = h.TIMED_OUT if isinstance(error, TimeoutError) else h.LOST_LINK
            for op in ops:
                self.world.history.append(h.Info(op, reason))
            return None

    def _on_dispositions(self, event: Dispositions) -> None:
        waiting = self._sends if event.role else self._settles
        for first, last, _, state in event.ranges:
            for delivery_id in range(first, last + 1):
                future = waiting.pop(delivery_id, None)
                if future is not None and not future.done():
                    future.set_result(state)
                elif future is None and event.role:
                    self.world.history.append(h.StrayOutcome(self.name, delivery_id))

    # -- receiving ----------------------------------------------------------------------------------------------

    def _on_transfers(self, event: Transfers) -> None:
        where = self._entities.get(event.link)
        for index, payload in enumerate(event.payloads):
            if where is None:
                self._on_reply(payload)
                continue
            delivery = self._delivery(payload, where, event.settled)
            self.world.history.append(delivery)
            self.received.append(Received(event.link, event.first_delivery_id + index, delivery))
        self.arrived.set()

    def _delivery(self, payload: bytes, where: tuple[str, str], removed: bool) -> h.Delivery:
        entity, subqueue = where
        found = scan(payload)
        annotations = found.annotations or {}
        seq = int(annotations[Symbol("x-opt-sequence-number")])
        until = int(annotations.get(Symbol("x-opt-locked-until"), 0))
        grant = self.world.grant(entity, seq, until)
        bare = payload[found.bare :]
        reason = application_properties(bare).get("DeadLetterReason")
        return h.Delivery(
            entity,
            seq,
            str(found.message_id),
            digest(body_of(bare)),
            None if removed else grant.token,
            until,
            delivery_count(payload) + 1,
            self.name,
            self.name,
            grant.broker_ms,
            mode=h.RECEIVE_AND_DELETE if removed else h.PEEK_LOCK,
            subqueue=subqueue,
            epoch=grant.epoch,
            enqueued_ms=int(annotations[Symbol("x-opt-enqueued-time")]),
            reason=reason,
            ping=found.content_type == PING,
        )

    def _begin_settlement(self, item: Received, outcome: str, *, management: bool) -> tuple[int, bytes]:
        """Note that a delivery is about to be settled: the operation and the lock token."""
        if item in self.received:
            self.received.remove(item)
        token = item.event.token
        assert token is not None
        op = self.world.history.next_op()
        self.world.history.append(h.SettleBegin(op, self.name, token, outcome, management=management))
        return op, token

    async def settle(self, item: Received, outcome: str, *, management: bool = False, asks_on: bool = False) -> bool:
        """Settle a delivery, and give one more credit in the same write; whether the broker said yes."""
        op, token = self._begin_settlement(item, outcome, management=management)
        if management:
            body = {
                "disposition-status": _MANAGED[outcome],
                "lock-tokens": Array(uuid.UUID, [uuid.UUID(bytes_le=token)]),
            }
            return (
                await self._managed(op, item.event.entity, item.event.subqueue, "update-disposition", body) is not None
            )
        session = self._session
        if not self.alive or session is None:
            self.world.history.append(h.Info(op))
            return False
        future: asyncio.Future[DeliveryState | None] = asyncio.get_running_loop().create_future()
        self._settles[item.delivery_id] = future
        session.disposition(True, item.delivery_id, item.delivery_id, _OUTCOMES[outcome], False)
        if asks_on:
            item.link.grant(item.link.credit + 1)
        self._flush()
        state = await self._answer([op], future)
        if state is None:
            return False
        if isinstance(state, Rejected) and state.error is not None:
            transient = state.error.condition == "com.microsoft:server-busy"
            if transient:
                # Whether the commit with the settlement reached the disk is not known.
                self.world.history.append(h.Info(op))
            else:
                self.world.history.append(h.Fail(op, state.error.condition, state.error.description or ""))
            return False
        self.world.history.append(h.Ok(op))
        return True

    def settle_unanswered(self, item: Received, outcome: str) -> None:
        """Send a disposition that says ``settled``: the broker sends no answer to it."""
        op, _ = self._begin_settlement(item, outcome, management=False)
        if self.alive and self._session is not None:
            self._session.disposition(True, item.delivery_id, item.delivery_id, _OUTCOMES[outcome], True)
            self._flush()
        self.world.history.append(h.Info(op))

    # -- management ---------------------------------------------------------------------------------------------

    def _on_reply(self, payload: bytes) -> None:
        found = scan(payload)
        bare = payload[found.bare :]
        answer = application_properties(bare)
        start, value, _ = find_section(bare, VALUE)
        body = None if start == value else decode(bare, value)[0]
        future = self._requests.pop(found.correlation_id, None)  # type: ignore[arg-type]
        if future is not None and not future.done():
            condition = f"{answer.get('errorCondition', '')} {answer.get('statusDescription', '')}"
            future.set_result((int(answer["statusCode"]), condition, body))

    async def request(self, entity: str, operation: str, body: dict[str, Any]) -> tuple[int, str, Any]:
        """Ask the management node of an entity; raises ConnectionError or TimeoutError without an answer."""
        await self.manage(entity)
        return await asyncio.wait_for(self.ask_node(entity, operation, body), ANSWER_S)

    async def manage(self, entity: str) -> None:
        """See to it that the links to the management node of an entity are there."""
        node = f"{entity}/$management"
        session = self._session
        if not self.alive or session is None:
            raise ConnectionError(h.LOST_LINK)
        links = {link.name: link for link in session.links}
        requests, replies = links.get(f"q-{node}"), links.get(f"a-{node}")
        # An attach that had no answer in time leaves its link behind, and one of the two may be gone without the other.
        if replies is None:
            name = f"a-{node}"
            replies = await self._attach(session.attach_receiver(name, Source(address=node), Target(address=name)))
            replies.grant(100)
        elif not replies.credit:
            # Else the answers wait: a drain asks for more than a hundred deferred messages.
            replies.grant(100)
        if requests is None:
            requests = await self._attach(session.attach_sender(f"q-{node}", Source(address="x"), Target(address=node)))
            self._flush()
        await self._credit(requests, 1)

    def ask_node(
        self, entity: str, operation: str, body: dict[str, Any], state: DeliveryState | None = None
    ) -> asyncio.Future[tuple[int, str, Any]]:
        """Write a request on links that are there; what comes of it is (status, condition and text, body)."""
        node = f"{entity}/$management"
        session = self._session
        if not self.alive or session is None:
            raise ConnectionError(h.LOST_LINK)
        requests = next((link for link in session.links if link.name == f"q-{node}"), None)
        if requests is None:
            raise ConnectionError(h.LOST_LINK)
        number = uuid.UUID(bytes=self.world.rng.randbytes(16))
        payload = build_message(
            [number, None, None, None, f"a-{node}"],
            {"operation": f"com.microsoft:{operation}", "com.microsoft:server-timeout": UInt(15_000)},
            body_value=body,
        )
        future: asyncio.Future[tuple[int, str, Any]] = asyncio.get_running_loop().create_future()
        self._requests[number] = future
        self._tag += 1
        try:
            requests.send_one(self._tag.to_bytes(4, "big"), payload, True, state=state)
        except EngineMisuse as gone:
            raise ConnectionError(h.LOST_LINK) from gone
        self._flush()
        return future

    async def _managed(self, op: int, entity: str, subqueue: str, operation: str, body: dict[str, Any]) -> Any:
        """A request that is an operation of the history; its body when it succeeded, else None."""
        try:
            status, condition, answer = await self.request(path_of(entity, subqueue), operation, body)
        except (ConnectionError, TimeoutError) as error:
            self.world.history.append(h.Info(op, h.TIMED_OUT if isinstance(error, TimeoutError) else h.LOST_LINK))
            return None
        if status >= 500 or status == 408:
            self.world.history.append(h.Info(op))
            return None
        if status >= 300:
            name, _, text = condition.partition(" ")
            self.world.history.append(h.Fail(op, name, text))
            return None
        until = seq = None
        if isinstance(answer, dict) and "expirations" in answer:
            until = int(answer["expirations"].items[0])
        if isinstance(answer, dict) and "sequence-numbers" in answer:
            seq = int(answer["sequence-numbers"].items[0])
        self.world.history.append(h.Ok(op, seq=seq, locked_until_ms=until))
        return answer if answer is not None else {}

    async def renew(self, item: Received) -> None:
        """Renew the lock of a delivery."""
        token = item.event.token
        assert token is not None
        op = self.world.history.next_op()
        self.world.history.append(h.RenewBegin(op, self.name, token))
        body = {"lock-tokens": Array(uuid.UUID, [uuid.UUID(bytes_le=token)])}
        await self._managed(op, item.event.entity, item.event.subqueue, "renew-lock", body)

    async def schedule(self, entity: str, message: Message) -> int | None:
        """Schedule a message through the management node; its sequence number when it was accepted."""
        op = self._begin_send(entity, message, settled=False)
        body = {"messages": [{"message-id": message.uid, "message": message.encode()}]}
        answer = await self._managed(op, entity, h.MAIN, "schedule-message", body)
        return int(answer["sequence-numbers"].items[0]) if answer else None

    async def cancel(self, entity: str, seq: int) -> None:
        """Cancel a scheduled message."""
        op = self.world.history.next_op()
        self.world.history.append(h.CancelBegin(op, self.name, entity, seq))
        await self._managed(op, entity, h.MAIN, "cancel-scheduled-message", {"sequence-numbers": Array(int, [seq])})

    async def peek(self, entity: str, first: int = 1, count: int = 50) -> list[tuple[int, str]]:
        """Peek; returns (sequence number, uid) of what was shown."""
        status, _, body = await self.request(
            entity, "peek-message", {"from-sequence-number": first, "message-count": count}
        )
        shown = []
        for entry in body["messages"] if status == 200 else []:
            found = scan(entry["message"])
            annotations = found.annotations or {}
            seq = int(annotations[Symbol("x-opt-sequence-number")])
            state = int(annotations.get(Symbol("x-opt-message-state"), 0))
            uid = str(found.message_id)
            ping = found.content_type == PING
            self.world.history.append(h.Peeked(entity, seq, uid, state, self.world.broker_ms(), ping=ping))
            shown.append((seq, uid))
        return shown

    async def receive_deferred(self, entity: str, seq: int) -> Received | None:
        """Fetch a deferred message by number, locked; None when the broker refuses."""
        self.world.history.append(h.AskedFor(entity, seq))
        body = {"sequence-numbers": Array(int, [seq]), "receiver-settle-mode": UInt(1)}
        status, _, answer = await self.request(entity, "receive-by-sequence-number", body)
        if status != 200:
            return None
        entry = answer["messages"][0]
        delivery = self._delivery(entry["message"], (entity, h.MAIN), False)
        delivery.mode = h.DEFERRED
        delivery.token = entry["lock-token"].bytes_le
        self.world.history.append(delivery)
        assert self._session is not None
        # Its link may be gone by now, and the lock runs out.
        return Received(self._session.links[0], -1, delivery) if self._session.links else None
