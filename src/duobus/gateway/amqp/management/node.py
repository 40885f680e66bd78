"""The ``$management`` node of an entity (Azure: AMQP request-response operations).

One function per operation, in a table.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from duobus.broker import (
    ABANDON,
    COMPLETE,
    COUNT_BITS,
    DEAD_LETTER,
    DEAD_LETTER_OUTCOME,
    DEFER,
    MAIN,
    TRANSFER_DEAD_LETTER,
    FragmentHandle,
    Queue,
    QueuedMessage,
    SessionReceiver,
    SettleBatch,
    SettleDetail,
    lock_lost,
    session_lock_lost,
)
from duobus.codec import Array, Int, Symbol, Timestamp, encode_named, tag_of
from duobus.codec.sections import DATA, find_section
from duobus.errors import (
    ArgumentInvalid,
    ArgumentOutOfRange,
    EntityDisabled,
    MessageTooLarge,
    NotAllowed,
    NotImplementedYet,
    OperationTimeout,
    QuotaExceeded,
    ServiceBusError,
    SessionLockLost,
    Unauthorized,
)
from duobus.gateway.amqp.arguments import demand, integer_of, items_of, text_of
from duobus.gateway.amqp.entity_status import demand_operation
from duobus.gateway.amqp.management import claim_operations, rule_operations, scheduling
from duobus.gateway.amqp.management.request_node import Request, RequestLink, RequestNode
from duobus.gateway.amqp.management.scheduling import NUMBERS_MAX, numbers_of
from duobus.gateway.amqp.mapping import HeadMaker, Rest
from duobus.gateway.waits import ResultWaiter
from duobus.model.address import Address
from duobus.model.batches import DeliveryBatch
from duobus.model.descriptions import Right
from duobus.model.metering import PEEK, RECEIVE, RENEW, SETTLE, operations_of

#: When a client names no time (JavaScript never does), and the most that one may ask for.
TIMEOUT_DEFAULT_MS, TIMEOUT_MAX_MS = 60_000, 600_000
#: A reply of peek stays below it, however many messages are asked for (PE20).
PEEK_BYTES_MAX = 256 * 1024
PEEK_MESSAGES_MAX = 1000
#: Messages that one request may delete: Premium's limit (Azure: AMQP request-response operations).
DELETED_MAX = 4000
#: A purge answers after this long and says whether more is left: sooner than any client gives up.
PURGE_MS = 5_000
#: Sessions of one page of get-message-sessions (Python asks for 100).
SESSIONS_PAGE_MAX = 1000
#: In the body of get-message-sessions by another server, and of its answer: how many sessions were looked at.
TELL_NUMBER = "duobus:number"
#: The instant that asks for sessions with active messages or a state, whenever that was set (Azure: AMQP
#: request-response operations; docs/reference/errata.md); later ones are no times of .NET.
ACTIVE_SESSIONS_MS = 253_402_300_799_000

#: Where a condition's HTTP status is another over AMQP (Azure: AMQP request-response operations).
_STATUS = {MessageTooLarge: 403, QuotaExceeded: 403, NotAllowed: 400, EntityDisabled: 400}

_DISPOSITIONS = {
    "completed": COMPLETE,
    "abandoned": ABANDON,
    "defered": DEFER,
    "deferred": DEFER,
    "suspended": DEAD_LETTER_OUTCOME,
}

Answer = tuple[int, Any]
Operation = Callable[["ManagementNode", dict[Any, Any]], Awaitable[Answer]]
#: An operation that is part of a transaction: what waits for its answer, or why it is none.
Participation = ServiceBusError | Callable[[], Awaitable[Answer]]


class ManagementNode(RequestNode):
    """Management of one queue, or of one of its sub-queues, for one connection."""

    queue: Queue

    def __init__(self, peer: Any, name: str, queue: Queue, address: Address) -> None:
        super().__init__(peer, name)
        self.queue = queue
        self.address = address
        #: Messages of the main sub-queue belong to sessions, and are their holders' alone.
        self._needs_session = queue.description.requires_session and address.sub_queue == MAIN
        self.entity_changed()

    def entity_changed(self) -> None:
        """Take from the queue's properties what replies are made with."""
        default_ttl = self.queue.description.default_message_time_to_live_ms
        ttl_ms = None if self.address.sub_queue else default_ttl
        self._heads, self._removed_heads = HeadMaker(ttl_ms, locks=True), HeadMaker(ttl_ms, locks=False)

    def handle(self, request: Request, link: RequestLink) -> None:
        """Answer in a task of the connection: an operation may have to wait for a commit."""
        # What belongs to a transaction joins it at once: its discharge may be the next that arrives.
        participation = None if request.txn_id is None else self._join(request, request.txn_id)
        self.peer.spawn(self._answer(request, participation), request.weight)

    def _join(self, request: Request, txn_id: bytes) -> Participation:
        """Make an operation part of a transaction (AMQP 1.0 part 4, 4.4).

        What waits for its answer, or why it cannot be.
        """
        transactions = self.peer.transactions
        try:
            transactions.find(txn_id)
            try:
                name, body, _ = self._allowed(request)
                if name == "com.microsoft:schedule-message":
                    return scheduling.join_schedule(self, body, txn_id)
                if name == "com.microsoft:cancel-scheduled-message":
                    scheduling.join_cancel(self, body, txn_id)
                    return _done
                if name != "com.microsoft:update-disposition":
                    raise NotImplementedYet(
                        f"'{name}' cannot be part of a transaction. Settle, schedule and cancel in it; ask for all "
                        "else outside of it."
                    )
                commands = self._settlements(body, None)
            except ServiceBusError as error:
                transactions.doom(txn_id, error)
                raise
            transactions.add_settlements(txn_id, self.queue, commands, self.address.sub_queue)
        except ServiceBusError as error:
            return error
        return _done

    async def _answer(self, request: Request, participation: Participation | None) -> None:
        properties: dict[str, Any]
        try:
            if isinstance(participation, ServiceBusError):
                raise participation
            limit_ms = request.properties.get("com.microsoft:server-timeout")
            limit_ms = limit_ms if isinstance(limit_ms, int) and limit_ms > 0 else TIMEOUT_DEFAULT_MS
            try:
                async with asyncio.timeout(min(limit_ms, TIMEOUT_MAX_MS) / 1000):
                    status, body = await (self._do(request) if participation is None else self.guarded(participation()))
            except TimeoutError:
                raise OperationTimeout(f"The operation did not end within the {limit_ms} ms given.") from None
        except ServiceBusError as error:
            # Whoever hears that a piece was not done must not get the rest done without it (I34).
            self.peer.transactions.doom(request.txn_id, error)
            described = self.peer.error(error, self.queue.path)
            status, body = _STATUS.get(type(error), error.http_status), None
            properties = {
                "statusCode": Int(status),
                "statusDescription": described.description,
                "errorCondition": Symbol(described.condition),
            }
        else:
            properties = {"statusCode": Int(status), "statusDescription": "OK" if status == 200 else "No content"}
            if status == 204:
                is_sessions = request.text("operation") == "com.microsoft:get-message-sessions"
                condition = "com.microsoft:session-not-found" if is_sessions else "com.microsoft:message-not-found"
                properties["errorCondition"] = Symbol(condition)
        tracking = request.text("com.microsoft:tracking-id")
        if tracking is not None:
            properties["com.microsoft:tracking-id"] = tracking
        self.reply(request, properties, body)

    async def _do(self, request: Request) -> Answer:
        _, body, function = self._allowed(request)
        return await self.guarded(function(self, body))

    def _allowed(self, request: Request) -> tuple[str, dict[Any, Any], Operation]:
        """The operation that a request asks for, and may ask for.

        Raises:
            ServiceBusError: There is none, it is not this client's, or it has no body.
        """
        name = request.text("operation") or ""
        operation = _OPERATIONS.get(name)
        if operation is None:
            raise NotImplementedYet(f"'{name}' is no operation that '{self.name}' has in this version.")
        rule_operations.demand_known(self.queue, name, is_sub_queue=self.address.sub_queue != MAIN)
        function, right = operation
        if not self.peer.allows(self.address.segments(), right):
            raise Unauthorized(
                f"Unauthorized access. '{right.name.title() if right.name else right}' claim(s) are required to "
                f"perform this operation. Resource: '{self.queue.path}'. Put a token that has it."
            )
        demand_operation(self.queue, name)
        body: dict[Any, Any] = demand(request.body, dict, "The body of the request must be a map.")
        throttle = self.peer.throttle
        if throttle is not None and name in _COUNTED and not throttle.admit_whole(_messages_in(name, body)):
            raise throttle.refusal()
        return name, self._with_session(request), function

    def _with_session(self, request: Request) -> dict[Any, Any]:
        """The body with the session that it is about: Go names only the link that holds it."""
        body: dict[Any, Any] = request.body
        if not self._needs_session or body.get("session-id") is not None:
            return body
        link = self.peer.session_link_named(self.queue, request.text("associated-link-name"))
        return body if link is None else {**body, "session-id": link.session_id}

    # -- locks --------------------------------------------------------------------------------------------------

    async def _renew_lock(self, body: dict[Any, Any]) -> Answer:
        if self._needs_session:
            raise NotAllowed("The lock of a session's message lasts as long as the session's. Renew that one.")
        until: list[Timestamp] = []
        by_fragment = self._locks_of(body)
        for (handle, prefix), locks in by_fragment.items():
            if not handle.holds(self.queue.source_no, prefix, locks):
                raise lock_lost()
        ends: dict[tuple[FragmentHandle, bytes], int] = {}
        for (handle, prefix), locks in by_fragment.items():
            end = handle.renew(self.queue.source_no, prefix, locks)
            if end is None:
                raise lock_lost()
            ends[handle, prefix] = end
        for token in tokens_of(body):
            handle, prefix, _ = self.queue.find_lock(token)
            until.append(Timestamp(ends[handle, prefix]))
        self.peer.meter(self.queue, RENEW, len(until), 0, len(until), self.address.sub_queue)
        return 200, {"expirations": Array(Timestamp, until)}

    async def _update_disposition(self, body: dict[Any, Any]) -> Answer:
        waiting = ResultWaiter()
        commands = self._settlements(body, waiting)
        for command in commands:
            self.queue.settle(command)
        for command in await waiting.results(len(commands)):
            if command.error is not None:
                raise command.error
        number = sum(len(command.ranges) for command in commands)
        self.peer.meter(self.queue, SETTLE, number, 0, number, self.address.sub_queue)
        return 200, None

    def _settlements(self, body: dict[Any, Any], reply: ResultWaiter | None) -> list[SettleBatch]:
        """The commands that a disposition by token asks for, one per fragment."""
        status = body.get("disposition-status")
        outcome = next((outcome for name, outcome in _DISPOSITIONS.items() if name == status), None)
        if outcome is None:
            raise ArgumentInvalid(f"'{status}' is no disposition-status. Use one of {', '.join(_DISPOSITIONS)}.")
        properties = body.get("properties-to-modify")
        detail = SettleDetail(
            {str(key): value for key, value in properties.items()} if isinstance(properties, dict) else None,
            text_of(body, "deadletter-reason"),
            text_of(body, "deadletter-description"),
        )
        holder = self._holder(body)
        commands: list[SettleBatch] = []
        for (handle, prefix), locks in self._locks_of(body).items():
            ranges = [(lock, 1) for lock in locks]
            command = SettleBatch(handle, self.queue.source_no, reply, prefix=prefix, outcome=outcome, ranges=ranges)
            command.detail = detail
            command.strict = True
            command.holder = None if holder is None else holder.lock
            commands.append(command)
        return commands

    def _locks_of(self, body: dict[Any, Any]) -> dict[tuple[FragmentHandle, bytes], list[int]]:
        found: dict[tuple[FragmentHandle, bytes], list[int]] = {}
        for token in tokens_of(body):
            handle, prefix, lock = self.queue.find_lock(token)
            found.setdefault((handle, prefix), []).append(lock)
        return found

    # -- sessions -----------------------------------------------------------------------------------------------

    def _holder(self, body: dict[Any, Any]) -> SessionReceiver | None:
        """The receiver that holds the session of a request on this connection; None when the request names none.

        Raises:
            SessionLockLost: This connection does not hold the session (Azure: AMQP request-response operations).
        """
        session_id = text_of(body, "session-id")
        if session_id is None or not self._needs_session:
            return None
        link = self.peer.session_link(self.queue, session_id)
        if link is None:
            raise session_lock_lost(session_id)
        return link.receiver

    def _demand_holder(self, body: dict[Any, Any]) -> SessionReceiver:
        """The same for requests that are about a session.

        Raises:
            NotAllowed: The entity has no sessions.
            SessionLockLost: The request names neither a session nor a link that has one (Azure: AMQP request-response
            operations).
        """
        if not self._needs_session:
            raise NotAllowed(f"'{self.name}' has no sessions: the entity does not require them.")
        holder = self._holder(body)
        if holder is None:
            raise SessionLockLost(
                "Neither 'session-id' nor 'associated-link-name' says which session of this connection the request "
                "is about, or that session is lost. Accept the session again."
            )
        return holder

    async def _renew_session_lock(self, body: dict[Any, Any]) -> Answer:
        holder = self._demand_holder(body)
        until_ms = holder.handle.sessions.renew(holder.lock)
        self.peer.meter(self.queue, RENEW, 1, 0, 1, self.address.sub_queue)
        return 200, {"expiration": Timestamp(until_ms)}

    async def _get_session_state(self, body: dict[Any, Any]) -> Answer:
        holder = self._demand_holder(body)
        return 200, {"session-state": await holder.handle.sessions.state(holder.lock)}

    async def _set_session_state(self, body: dict[Any, Any]) -> Answer:
        holder = self._demand_holder(body)
        state = body.get("session-state")
        if state is not None:
            demand(state, bytes, "'session-state' must be binary, or null to clear it.")
        waiting = ResultWaiter()
        # Empty is none: Go sends that for nil (Azure: AMQP request-response operations).
        self.queue.set_session_state(holder.handle, holder.lock, state or None, waiting)
        (command,) = await waiting.results(1)
        if command.error is not None:
            raise command.error
        return 200, None

    async def _get_message_sessions(self, body: dict[Any, Any]) -> Answer:
        if not self._needs_session:
            raise NotAllowed(f"'{self.name}' has no sessions: the entity does not require them.")
        since = integer_of(body, "last-updated-time", ACTIVE_SESSIONS_MS)
        skip = integer_of(body, "skip", 0)
        top = integer_of(body, "top", SESSIONS_PAGE_MAX)
        if skip < 0 or top < 1:
            raise ArgumentInvalid("'skip' must be at least 0, 'top' at least 1.")
        is_every = since >= ACTIVE_SESSIONS_MS
        page: list[str] = []
        before, top, number = skip, min(top, SESSIONS_PAGE_MAX), 0
        for some in self.queue.lists_of_sessions(None if is_every else since):
            page += some[before : before + top - len(page)]
            before = max(0, before - len(some))
            number += len(some)
            if len(page) >= top:
                break
            # There may be a million of them, and all of them be skipped: others have a turn (I62).
            await asyncio.sleep(0)
        told = {"skip": Int(skip + len(page)), "sessions-ids": Array(str, page)}
        if body.get(TELL_NUMBER) is True:
            # Who asks puts several lists together, and has to know how many there are when the page is not full.
            return 200, {**told, TELL_NUMBER: Int(number)}
        return (200, told) if page else (204, None)

    # -- reading ------------------------------------------------------------------------------------------------

    async def _peek(self, body: dict[Any, Any]) -> Answer:
        first = integer_of(body, "from-sequence-number", 0)
        limit = integer_of(body, "message-count", 1)
        if limit < 1:
            raise ArgumentInvalid("'message-count' must be at least 1.")
        limit = min(limit, PEEK_MESSAGES_MAX)
        session_id = text_of(body, "session-id")
        key = text_of(body, "partition-key")
        found = await self.queue.peek(self.address.sub_queue, max(first, 0), limit, PEEK_BYTES_MAX, session_id, key)
        is_bodiless = body.get("omit-message-body") is True
        messages: list[tuple[bytes, Rest]] = []
        sizes: list[int] = []
        size = 0
        looked_at = self._heads.looked_at
        for handle, queued in found:
            head, bare = looked_at(queued, handle.number)
            if is_bodiless:
                bare = bare[: find_section(bytes(bare), DATA)[0]]
            length = len(head) + len(bare)
            size += length
            if messages and size > PEEK_BYTES_MAX:
                break
            messages.append((head, bare))
            sizes.append(length)
        # A peek that finds nothing is an operation like a receive that ends with nothing.
        self.peer.meter(
            self.queue, PEEK, len(sizes), sum(sizes), sum(map(operations_of, sizes)) or 1, self.address.sub_queue
        )
        return (200, {"messages": encode_named("message", messages)}) if messages else (204, None)

    async def _receive_by_number(self, body: dict[Any, Any]) -> Answer:
        numbers = numbers_of(body)
        mode = integer_of(body, "receiver-settle-mode", 1)
        holder = self._demand_holder(body) if self._needs_session else None
        order: dict[int, dict[str, Any]] = {}
        if mode == 0:
            waiting = ResultWaiter()
            expected = self.queue.remove_deferred(self.address.sub_queue, numbers, waiting, holder)
            for command in await waiting.results(expected):
                if command.error is not None:
                    raise command.error
                for queued in command.messages:
                    head, payload = self._removed_heads.with_metadata(queued, command.handle.number, 0)
                    order[_number(command.handle, queued)] = {"message": head + payload}
        else:
            for batch in self.queue.lock_deferred(self.address.sub_queue, numbers, holder):
                order.update(self._locked(batch))
        messages = [order[number] for number in numbers]
        size = sum(len(message["message"]) for message in messages)
        operations = sum(operations_of(len(message["message"])) for message in messages)
        self.peer.meter(self.queue, RECEIVE, len(messages), size, operations, self.address.sub_queue)
        return 200, {"messages": messages}

    def _locked(self, batch: DeliveryBatch) -> dict[int, dict[str, Any]]:
        found = {}
        for offset, message in enumerate(batch.messages):
            token = uuid.UUID(bytes_le=tag_of(batch.prefix, batch.first_lock + offset))
            head, payload = self._heads.with_metadata(message, batch.fragment.number, batch.locked_until_ms, token)
            found[_number(batch.fragment, message)] = {"message": head + payload, "lock-token": token}
        return found


# -- removing messages without receiving them -------------------------------------------------------------------


async def _batch_delete(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Delete available messages that were enqueued before a time (Azure: AMQP request-response operations)."""
    limit = integer_of(body, "message-count", None)
    if not 1 <= limit <= DELETED_MAX:
        raise ArgumentOutOfRange(f"'message-count' is {limit}; it must be from 1 to {DELETED_MAX}.")
    before = demand(body.get("enqueued-time-utc"), Timestamp, "'enqueued-time-utc' must be a timestamp.")
    session_id = None
    if body.get("session-id") is not None:
        if not node.queue.description.requires_session or node.address.sub_queue:
            # Taking no notice of it would delete the messages of other sessions.
            raise NotAllowed("There are no sessions here. Leave 'session-id' out.")
        session_id = text_of(body, "session-id")
    removed = await node.queue.batch_delete(node.address.sub_queue, limit, int(before), session_id)
    node.peer.meter(node.queue, SETTLE, removed, 0, removed, node.address.sub_queue)
    return (200, {"message-count": Int(removed)}) if removed else (204, None)


async def _purge(node: ManagementNode, body: dict[Any, Any]) -> Answer:
    """Remove everything that nobody holds: an extension, for the service has none.

    Listen is enough, as for a batch delete and over HTTP: who may receive and remove one message after the other may do
    so at once. At an entity's own node its dead letters go too; at a sub-queue's node only what is there.
    """
    if body.get("session-id") is not None:
        # Taking no notice of it would delete the messages of other sessions.
        raise NotAllowed("A purge removes the messages of all sessions. Leave 'session-id' out, or use batch delete.")
    sub_queue = node.address.sub_queue
    sub_queues = (sub_queue,) if sub_queue else (MAIN, DEAD_LETTER, TRANSFER_DEAD_LETTER)
    clock = node.peer.server.clock
    end_ms = clock.monotonic_ms() + PURGE_MS
    cleared = await node.queue.purge(sub_queues, lambda: clock.monotonic_ms() >= end_ms)
    node.peer.meter(node.queue, SETTLE, cleared.removed, 0, cleared.removed, sub_queue)
    return 200, {
        "message-count": int(cleared.removed),
        "locked-count": int(cleared.locked),
        "is-complete": cleared.is_complete,
    }


async def _done() -> Answer:
    """The answer of what needs nothing but its transaction's commit."""
    return 200, None


_OPERATIONS: dict[str, tuple[Operation, Right]] = {
    "com.microsoft:renew-lock": (ManagementNode._renew_lock, Right.LISTEN),
    "com.microsoft:update-disposition": (ManagementNode._update_disposition, Right.LISTEN),
    "com.microsoft:renew-session-lock": (ManagementNode._renew_session_lock, Right.LISTEN),
    "com.microsoft:get-session-state": (ManagementNode._get_session_state, Right.LISTEN),
    "com.microsoft:set-session-state": (ManagementNode._set_session_state, Right.LISTEN),
    "com.microsoft:get-message-sessions": (ManagementNode._get_message_sessions, Right.LISTEN),
    "com.microsoft:peek-message": (ManagementNode._peek, Right.LISTEN),
    "com.microsoft:receive-by-sequence-number": (ManagementNode._receive_by_number, Right.LISTEN),
    "com.microsoft:schedule-message": (scheduling.schedule, Right.SEND),
    "com.microsoft:cancel-scheduled-message": (scheduling.cancel, Right.SEND),
    "com.microsoft:batch-delete-messages": (_batch_delete, Right.LISTEN),
    "com.microsoft:add-rule": (rule_operations.add_rule, Right.MANAGE),
    "com.microsoft:remove-rule": (rule_operations.remove_rule, Right.MANAGE),
    "com.microsoft:enumerate-rules": (rule_operations.enumerate_rules, Right.LISTEN),
    "duobus:purge-messages": (_purge, Right.LISTEN),
    "duobus:claim": (claim_operations.claim, Right.LISTEN),
    "duobus:settle-claim": (claim_operations.settle, Right.LISTEN),
    "duobus:release-claim": (claim_operations.release, Right.LISTEN),
    "duobus:list-claims": (claim_operations.list_claims, Right.LISTEN),
}


#: Operations that the rate of a namespace counts, with the member that lists their messages: those that send or read.
#: Whoever settles, renews or deletes makes room, and is never held up.
_COUNTED = {
    "com.microsoft:peek-message": "",
    "com.microsoft:receive-by-sequence-number": "sequence-numbers",
    "com.microsoft:schedule-message": "messages",
}


def _messages_in(operation: str, body: dict[Any, Any]) -> int:
    """How many messages a request counts as; a peek is one."""
    return len(items_of(body.get(_COUNTED[operation]))) or 1


def tokens_of(body: dict[Any, Any]) -> list[bytes]:
    """Lock tokens as they stand in delivery tags: .NET byte order."""
    items = items_of(body.get("lock-tokens"))
    if not 0 < len(items) <= NUMBERS_MAX:
        raise ArgumentInvalid(f"'lock-tokens' must be an array of 1 to {NUMBERS_MAX} UUIDs.")
    return [demand(item, uuid.UUID, "'lock-tokens' must hold UUIDs.").bytes_le for item in items]


def _number(handle: FragmentHandle, message: QueuedMessage) -> int:
    return handle.number << COUNT_BITS | message.count
