"""``$management`` of a sharded entity: each request goes to the owners of the shards that it is about.

Lock tokens and sequence numbers name a fragment, and so a shard; messages to be scheduled have a key or may go
anywhere; a peek goes through the shards in the order of their numbers. What concerns one shard is proxied and
answered byte for byte, its ids apart; what concerns several is parted, and the answers are put together. Rules are
changed by this server, in all shards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Link
from duobus.broker import COUNT_BITS, string_key
from duobus.cluster.proxy.link import ProxiedLink
from duobus.cluster.sharding import claims
from duobus.cluster.sharding.sessions import ShardSessionLink
from duobus.cluster.sharding.shard_choice import ANY, shard_of, the_one
from duobus.cluster.sharding.shard_management import Reply, ShardManagement, ShardManagementLink
from duobus.cluster.shards import ShardedEntityMap
from duobus.codec import Array, Int, Symbol, Timestamp, build_message, decode
from duobus.codec.sections import VALUE, find_section
from duobus.errors import (
    ArgumentInvalid,
    MessageLockLost,
    MessageNotFound,
    NotImplementedYet,
    OperationTimeout,
    ServiceBusError,
    StoreUnavailable,
    Unauthorized,
)
from duobus.gateway.amqp.arguments import integer_of
from duobus.gateway.amqp.links.link import about_entity, summarize_attach
from duobus.gateway.amqp.management import rule_operations
from duobus.gateway.amqp.management.node import (
    PEEK_BYTES_MAX,
    PEEK_MESSAGES_MAX,
    SESSIONS_PAGE_MAX,
    TELL_NUMBER,
    TIMEOUT_DEFAULT_MS,
    TIMEOUT_MAX_MS,
    tokens_of,
)
from duobus.gateway.amqp.management.request_node import REQUEST_BYTES_MAX, ReplyLink, Request, RequestLink, RequestNode
from duobus.gateway.amqp.management.scheduling import numbers_of
from duobus.model.address import SUB_QUEUE_SEGMENTS, Address, not_found
from duobus.model.descriptions import SUBSCRIPTION, Right

if TYPE_CHECKING:
    from duobus.broker import Queue
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer


class _Answered(Exception):
    """An owner has refused; its answer is the client's.

    Attributes:
        rest: The answer, from its application properties on.
    """

    def __init__(self, rest: bytes) -> None:
        super().__init__()
        self.rest = rest


class ShardedManagementNode(RequestNode):
    """The node of one connection.

    Attributes:
        address: Of the entity, or of a sub-queue of it.
        queue: The entity, as this server knows it, when its rules are changed.
    """

    queue: Queue

    def __init__(
        self,
        peer: Peer,
        address: Address,
        sharded_entity: ShardedEntityMap,
        owners: OwnerDirectory,
        connect: Callable[[str], UpstreamConnection],
    ) -> None:
        self.address = address
        super().__init__(peer, "/".join((*address.segments(), "$management")))
        self._sharded = sharded_entity
        self._owners = owners
        self._connect = connect
        self._nodes: dict[int, ShardManagement] = {}
        self._prefix = peer.server.entropy.token(8).hex()
        self._attempts = 0
        self._turn = 0

    def parts(self) -> list[ProxiedLink]:
        """See ProxiedLink."""
        return [end for node in self._nodes.values() for end in node.ends]

    def serve(self, link: Link, segments: tuple[str, ...]) -> None:
        """Accept one of a client's links to this node."""
        remote = link.remote
        assert remote is not None
        if link.is_sender:
            link.accept(properties=about_entity(self._sharded.kind))
            self.peer.add_endpoint(link, ReplyLink(self.peer, link, self, segments))
        else:
            requests = RequestLink(self.peer, link, self, segments)
            link.accept(max_message_size=REQUEST_BYTES_MAX, properties=about_entity(self._sharded.kind))
            self.peer.add_endpoint(link, requests)
            requests.start()
        if self.peer.transactions.has_coordinators:
            # What belongs to a transaction cannot wait until an owner is found.
            self._open_all(link)
        link.remote = summarize_attach(remote)

    def _open_all(self, link: Link) -> None:
        for index in range(len(self._sharded.shares)):
            with suppress(StoreUnavailable):
                self._node(index, link)

    # -- requests -----------------------------------------------------------------------------------------------

    def handle(self, request: Request, link: RequestLink) -> None:
        """Answer in a task of the connection."""
        # What belongs to a transaction joins it at once: its discharge may be the next that arrives (I34).
        participation = None if request.txn_id is None else self._join(request, request.txn_id, link.link)
        self.peer.spawn(self._answer(request, link.link, participation), request.weight)

    def _join(self, request: Request, txn_id: bytes, link: Link) -> asyncio.Future[Reply] | ServiceBusError:
        """Have an operation done as part of a transaction by the owner of one shard: its answer, or why it is not."""
        transactions = self.peer.transactions
        try:
            transactions.find(txn_id)
            try:
                index = self._shard_of(request)
                properties = self._properties_of(request)
                rest = build_message(None, properties, body_value=request.body)
                return self._node(index, link).ask_in(txn_id, rest, self.address.path)
            except ServiceBusError as error:
                transactions.doom(txn_id, error)
                raise
        except ServiceBusError as error:
            return error

    def _shard_of(self, request: Request) -> int:
        """The one shard of an operation that is part of a transaction.

        Raises:
            ServiceBusError: There is none, or several.
        """
        name, body, sharded = request.text("operation") or "", request.body, self._sharded
        if name not in _IN_TRANSACTIONS:
            raise NotImplementedYet(
                f"'{name}' cannot be part of a transaction. Settle, schedule and cancel in it; ask for all else "
                "outside of it."
            )
        if not isinstance(body, dict):
            raise ArgumentInvalid("The body of the request must be a map.")
        if name == "com.microsoft:schedule-message":
            index = the_one(self._shards_of_entries(body), "request")
            # Without a key its owner refuses it, as on one server (PE15).
            return self._next() if index == ANY else index
        if name == "com.microsoft:update-disposition":
            found = {sharded.of_number(int.from_bytes(token[:2], "big")) for token in tokens_of(body)}
            missing: ServiceBusError = MessageLockLost("The lock token is not one of this entity.")
        else:
            found = {sharded.of_number(number >> COUNT_BITS) for number in numbers_of(body)}
            missing = MessageNotFound("No message has one of the sequence numbers.")
        wanted = [index for index in found if index is not None]
        if None in found or not wanted:
            raise missing
        return the_one(wanted, "transaction")

    async def _answer(
        self, request: Request, link: Link, participation: asyncio.Future[Reply] | ServiceBusError | None
    ) -> None:
        try:
            if isinstance(participation, ServiceBusError):
                raise participation
            limit_ms = request.properties.get("com.microsoft:server-timeout")
            limit_ms = limit_ms if isinstance(limit_ms, int) and limit_ms > 0 else TIMEOUT_DEFAULT_MS
            try:
                async with asyncio.timeout(min(limit_ms, TIMEOUT_MAX_MS) / 1000):
                    rest = (
                        await self.guarded(self._do(request, link))
                        if participation is None
                        else (await participation)[1]
                    )
            except TimeoutError:
                raise OperationTimeout(f"The operation did not end within the {limit_ms} ms given.") from None
        except ServiceBusError as error:
            # Whoever hears that a piece was not done must not get the rest done without it (I34).
            self.peer.transactions.doom(request.txn_id, error)
            described = self.peer.error(error, self.address.path)
            properties: dict[str, Any] = {
                "statusCode": Int(error.http_status),
                "statusDescription": described.description,
                "errorCondition": Symbol(described.condition),
            }
            rest = build_message(None, properties, body_value=None)
        self.relay(request, rest)

    def relay(self, request: Request, rest: bytes) -> None:
        """Send an answer, from its application properties on."""
        target = self._reply_link(request)
        if target is not None:
            fields = [None, None, request.scan.reply_to, None, None, request.scan.message_id]
            target.send(build_message(fields) + rest)

    async def _do(self, request: Request, link: Link) -> bytes:
        name = request.text("operation") or ""
        sharded_entity = self._owners.sharded_entity_of(self.peer.namespace or "", self.address.entity_key)
        if sharded_entity is None:
            raise not_found(f"sb://{self.peer.namespace}/{self.address.path}")
        self._sharded = sharded_entity
        body = request.body
        if not isinstance(body, dict):
            raise ArgumentInvalid("The body of the request must be a map.")
        operation = _OPERATIONS.get(name)
        if operation is not None:
            return await operation(self, request, link, body)
        # Whatever else there is concerns properties that all shards have in common, or is refused by any of them.
        return await self._of_one(self._next(), request, link, body)

    async def _of_one(self, index: int, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        return (await self._ask(index, request, link, body))[1]

    async def _ask(self, index: int, request: Request, link: Link, body: dict[Any, Any]) -> Reply:
        return await self._node(index, link).ask(build_message(None, self._properties_of(request), body_value=body))

    def _properties_of(self, request: Request) -> dict[str, Any]:
        """What the owner is told beside the body; it knows the link of a session by another name."""
        held = self._held(request)
        if held is None or held.uplink is None:
            return request.properties
        return {**request.properties, "associated-link-name": held.uplink.name}

    def _node(self, index: int, link: Link) -> ShardManagement:
        """The node of a shard, where it is now.

        Raises:
            StoreUnavailable: It moves.
        """
        server_address = self._owners.address_of(self._sharded.store_of(index))
        node = self._nodes.get(index)
        if node is not None and (node.is_gone or node.server != server_address or node.is_broken):
            node.lost("")
            node = None
        if node is None:
            if ":" not in server_address:
                raise StoreUnavailable(
                    f"A part of '{self.address.path}' has no server now. Try again in a few seconds."
                )
            self._attempts += 1
            own = self._sharded.shares[index].path
            address = "/".join((own, *SUB_QUEUE_SEGMENTS[self.address.sub_queue], "$management"))
            node = self._nodes[index] = ShardManagement(
                self.peer, address, server_address, f"{self._prefix}-{self._attempts}"
            )
            node.ends = [ShardManagementLink(node, link, self._owners) for _ in range(2)]
            for end in node.ends:
                self._connect(server_address).attach(end)
        return node

    def _next(self) -> int:
        """The next shard in turn that has a server."""
        number = len(self._sharded.shares)
        for step in range(1, number + 1):
            index = (self._turn + step) % number
            if ":" in self._owners.address_of(self._sharded.store_of(index)):
                self._turn = index
                return index
        return self._turn

    # -- operations ---------------------------------------------------------------------------------------------

    async def _by_lock(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Renew or settle by lock token."""
        found: dict[int, list[int]] = {}
        items = tokens_of(body)
        for position, token in enumerate(items):
            index = self._sharded.of_number(int.from_bytes(token[:2], "big"))
            if index is None:
                raise MessageLockLost("The lock token is not one of this entity. Receive the message again.")
            found.setdefault(index, []).append(position)
        given = body["lock-tokens"]
        values = given.items if isinstance(given, Array) else given
        kind = given.kind if isinstance(given, Array) else None
        if len(found) == 1:
            return await self._of_one(next(iter(found)), request, link, body)
        ends: dict[int, Any] = {}
        for index, positions in found.items():
            part = [values[position] for position in positions]
            reply = await self._ask(index, request, link, {**body, "lock-tokens": Array(kind, part) if kind else part})
            if reply[0].get("statusCode") != 200:
                return reply[1]
            expirations = _body_of(reply[1]).get("expirations")
            if expirations is not None:
                ends.update(zip(positions, _items(expirations), strict=True))
        until = [ends[position] for position in sorted(ends)]
        return _ok({"expirations": Array(Timestamp, until)} if until else None)

    async def _of_session(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """What is about one session: at the shard of its id, where this connection holds it."""
        held = self._held(request)
        session_id = body.get("session-id")
        if held is not None and session_id is None:
            session_id = held.session_id
        if not isinstance(session_id, str):
            # Any owner says what is wrong with it.
            return await self._of_one(self._next(), request, link, body)
        index = self._sharded.of_key(string_key(session_id))
        return await self._of_one(index, request, link, {**body, "session-id": session_id})

    def _held(self, request: Request) -> ShardSessionLink | None:
        """The link on which the client holds a session, as the request names it; None when it names none."""
        name = request.text("associated-link-name")
        if name is None or not self._sharded.about.requires_session:
            return None
        return next(
            (
                endpoint
                for one, endpoint in self.peer.endpoints()
                if one.name == name
                and isinstance(endpoint, ShardSessionLink)
                and endpoint.segments == self.address.segments()
            ),
            None,
        )

    async def _sessions(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Ids of sessions, from one shard after the other."""
        skip, top = integer_of(body, "skip", 0), integer_of(body, "top", SESSIONS_PAGE_MAX)
        if skip < 0 or top < 1:
            raise ArgumentInvalid("'skip' must be at least 0, 'top' at least 1.")
        page: list[Any] = []
        before, top = skip, min(top, SESSIONS_PAGE_MAX)
        for index in range(len(self._sharded.shares)):
            asked = {**body, "skip": Int(before), "top": Int(top - len(page)), TELL_NUMBER: True}
            properties, rest = await self._ask(index, request, link, asked)
            if properties.get("statusCode") != 200:
                return rest
            answer = _body_of(rest)
            page += _items(answer.get("sessions-ids"))
            if len(page) >= top:
                break
            before = max(0, before - int(answer.get(TELL_NUMBER) or 0))
        if not page:
            return _nothing("com.microsoft:session-not-found")
        return _ok({"skip": Int(skip + len(page)), "sessions-ids": Array(str, page)})

    async def _claims(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """What concerns claims: each is made of those of all shards under its id."""

        async def ask(index: int, asked: dict[Any, Any]) -> dict[Any, Any]:
            properties, rest = await self._ask(index, request, link, asked)
            if properties.get("statusCode") == 503:
                raise StoreUnavailable(str(properties.get("statusDescription")))
            if properties.get("statusCode") != 200:
                raise _Answered(rest)
            return _body_of(rest)

        shards = [[slot.fragment_no for slot in share.slots] for share in self._sharded.shares]
        try:
            return _ok(await _CLAIMS[request.text("operation") or ""](ask, shards, body))
        except _Answered as refused:
            return refused.rest

    async def _by_number(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Receive deferred messages, or cancel scheduled ones."""
        numbers = numbers_of(body)
        found: dict[int, list[int]] = {}
        for number in numbers:
            index = self._sharded.of_number(number >> COUNT_BITS)
            if index is None:
                raise MessageNotFound(f"No message has the sequence number {number}.")
            found.setdefault(index, []).append(number)
        if len(found) == 1:
            return await self._of_one(next(iter(found)), request, link, body)
        messages: dict[int, Any] = {}
        for index, part in found.items():
            reply = await self._ask(index, request, link, {**body, "sequence-numbers": Array(int, part)})
            if reply[0].get("statusCode") != 200:
                return reply[1]
            messages.update(zip(part, _body_of(reply[1]).get("messages") or (), strict=False))
        return _ok({"messages": [messages[number] for number in numbers]} if messages else None)

    async def _schedule(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Messages of one request are stored together: in one shard."""
        index = the_one(self._shards_of_entries(body), "request")
        return await self._of_one(self._next() if index == ANY else index, request, link, body)

    def _shards_of_entries(self, body: dict[Any, Any]) -> list[int]:
        """The shards of the messages that are to be scheduled."""
        entries = body.get("messages")
        messages = (
            [entry.get("message") for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
        )
        return [shard_of(self._sharded, one) if isinstance(one, bytes) else ANY for one in messages]

    async def _peek(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Messages in order of sequence number, from one shard after the other; one that is away is passed over."""
        first, limit = max(integer_of(body, "from-sequence-number", 0), 0), integer_of(body, "message-count", 1)
        if limit < 1:
            raise ArgumentInvalid("'message-count' must be at least 1.")
        limit = min(limit, PEEK_MESSAGES_MAX)
        messages: list[Any] = []
        size = 0
        away: StoreUnavailable | None = None
        for index in self._to_look_at(first, body):
            asked = {**body, "message-count": Int(limit - len(messages))}
            try:
                properties, rest = await self._ask(index, request, link, asked)
                if properties.get("statusCode") == 503:
                    raise StoreUnavailable(str(properties.get("statusDescription")))
            except StoreUnavailable as error:
                away = error
                continue
            if properties.get("statusCode") not in (200, 204):
                return rest
            found = (_body_of(rest).get("messages") or []) if properties.get("statusCode") == 200 else []
            messages += found
            size += sum(len(one["message"]) for one in found)
            # A shard that gives less than it was asked for has no more, unless the reply was full.
            if len(messages) >= limit or size > PEEK_BYTES_MAX // 2:
                break
        if away is not None and not messages:
            raise away
        return _ok({"messages": messages}) if messages else _nothing()

    def _to_look_at(self, first: int, body: dict[Any, Any]) -> list[int]:
        """The shards that may have something from a sequence number on."""
        least = first >> COUNT_BITS
        found = [i for i, share in enumerate(self._sharded.shares) if share.slots[-1].fragment_no >= least]
        session_id = body.get("session-id")
        if isinstance(session_id, str) and self._sharded.about.requires_session:
            index = self._sharded.of_key(string_key(session_id))
            return [index] if index in found else []
        return found

    async def _rule(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Add or remove a rule, in every shard of a subscription's topic."""
        if self._sharded.kind != SUBSCRIPTION or self.address.sub_queue:
            # Any owner says what is wrong with it.
            return await self._of_one(self._next(), request, link, body)
        if not self.peer.allows(self.address.segments(), Right.MANAGE):
            raise Unauthorized(
                "Unauthorized access. 'Manage' claim(s) are required to perform this operation. "
                f"Resource: '{self._sharded.about.name}'. Put a token that has it."
            )
        self.queue = self.peer.server.unit.namespace(self.peer.namespace or "").resolve(self.address)
        await _RULES[request.text("operation") or ""](self, body)
        return _ok(None)

    async def _each(self, request: Request, link: Link, body: dict[Any, Any]) -> bytes:
        """Delete messages: from one shard after the other, so many in all."""
        is_purge = request.text("operation") == "duobus:purge-messages"
        limit = integer_of(body, "message-count", 1)
        totals = {"message-count": 0, "locked-count": 0}
        is_complete = True
        for index in range(len(self._sharded.shares)):
            asked = body if is_purge else {**body, "message-count": Int(limit - totals["message-count"])}
            properties, rest = await self._ask(index, request, link, asked)
            if properties.get("statusCode") not in (200, 204):
                return rest
            answer = _body_of(rest) if properties.get("statusCode") == 200 else {}
            for name in totals:
                totals[name] += int(answer.get(name) or 0)
            is_complete = is_complete and answer.get("is-complete") is not False
            if not is_purge and totals["message-count"] >= limit:
                break
        if is_purge:
            return _ok({**totals, "is-complete": is_complete})
        removed = totals["message-count"]
        return _ok({"message-count": Int(removed)}) if removed else _nothing()


_Operation = Callable[[ShardedManagementNode, Request, Link, dict[Any, Any]], Coroutine[Any, Any, bytes]]
_OPERATIONS: Final[dict[str, _Operation]] = {
    "com.microsoft:renew-lock": ShardedManagementNode._by_lock,
    "com.microsoft:update-disposition": ShardedManagementNode._by_lock,
    "com.microsoft:receive-by-sequence-number": ShardedManagementNode._by_number,
    "com.microsoft:cancel-scheduled-message": ShardedManagementNode._by_number,
    "com.microsoft:schedule-message": ShardedManagementNode._schedule,
    "com.microsoft:peek-message": ShardedManagementNode._peek,
    "com.microsoft:batch-delete-messages": ShardedManagementNode._each,
    "duobus:purge-messages": ShardedManagementNode._each,
    "com.microsoft:renew-session-lock": ShardedManagementNode._of_session,
    "com.microsoft:get-session-state": ShardedManagementNode._of_session,
    "com.microsoft:set-session-state": ShardedManagementNode._of_session,
    "com.microsoft:get-message-sessions": ShardedManagementNode._sessions,
    "com.microsoft:add-rule": ShardedManagementNode._rule,
    "com.microsoft:remove-rule": ShardedManagementNode._rule,
}
_RULES: Final = {
    "com.microsoft:add-rule": rule_operations.add_rule,
    "com.microsoft:remove-rule": rule_operations.remove_rule,
}
_IN_TRANSACTIONS: Final = frozenset(
    ("com.microsoft:update-disposition", "com.microsoft:schedule-message", "com.microsoft:cancel-scheduled-message")
)
_CLAIMS: Final = {
    "duobus:claim": claims.claim,
    "duobus:settle-claim": claims.free,
    "duobus:release-claim": claims.free,
    "duobus:list-claims": claims.list_claims,
}
_OPERATIONS.update(dict.fromkeys(_CLAIMS, ShardedManagementNode._claims))


def _ok(body: Any) -> bytes:
    return build_message(None, {"statusCode": Int(200), "statusDescription": "OK"}, body_value=body)


def _nothing(condition: str = "com.microsoft:message-not-found") -> bytes:
    properties = {
        "statusCode": Int(204),
        "statusDescription": "No content",
        "errorCondition": Symbol(condition),
    }
    return build_message(None, properties, body_value=None)


def _items(value: Any) -> list[Any]:
    return list(value.items if isinstance(value, Array) else value)


def _body_of(rest: bytes) -> dict[Any, Any]:
    start, value, _ = find_section(rest, VALUE)
    body = None if start == value else decode(rest, value)[0]
    return body if isinstance(body, dict) else {}
