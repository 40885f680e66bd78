"""ShardManagement: the management node of one shard of a sharded queue, as its front sees it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Error as AmqpError
from duobus.amqp import Link, Source, Target, TransactionalState, Transfers
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.codec import build_message, scan
from duobus.codec.sections import APPLICATION_PROPERTIES, application_properties, find_section
from duobus.errors import OutcomeUnknown, QuotaExceeded, StoreUnavailable

if TYPE_CHECKING:
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer

#: Requests that wait for one owner; more are refused.
WAITING_MAX: Final = 1000
#: Replies that an owner may send.
_CREDIT: Final = 1000

#: The answer of an owner: its application properties, decoded, and the message from these on as it came.
Reply = tuple[dict[str, Any], bytes]


class ShardManagementLink(ProxiedLink):
    """One of the two links to the node of a shard: requests go out on one, replies come on the other."""

    __slots__ = ("management",)

    def __init__(self, management: ShardManagement, link: Link, owners: OwnerDirectory) -> None:
        super().__init__(management.peer, link, (), owners)
        self.management = management

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """Attach it, once."""
        self._upstream, self.session = upstream, session
        self.uplink = self.management.make(self, session)
        self.uplink.context = self

    def answered(self) -> None:
        """See ProxiedLink; what is refused is detached."""
        self._is_accepted = True
        self.management.ready()

    def owner_flow(self) -> None:
        """See ProxiedLink."""
        self.management.ready()

    def owner_transfers(self, event: Transfers) -> None:
        """See ProxiedLink."""
        for payload in event.payloads:
            self.management.replied(payload)

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """See ProxiedLink."""
        del closed
        self.uplink = None
        self.management.lost("" if error is None else str(error.description or ""))

    def lost(self, text: str) -> None:
        """See ProxiedLink."""
        self.uplink = None
        self.management.lost(text)

    def write(self) -> None:
        """Have the request written."""
        self._write()

    @property
    def upstream(self) -> UpstreamConnection | None:
        """The connection to its owner."""
        return self._upstream

    @property
    def was_accepted(self) -> bool:
        """Whether it has ever been usable."""
        return self._is_accepted

    @property
    def is_usable(self) -> bool:
        """Whether the owner has accepted it."""
        return self._is_accepted and self.uplink is not None and self.uplink.is_attached


class ShardManagement:
    """The management node of one shard, at its owner."""

    def __init__(self, peer: Peer, address: str, server_address: str, name: str) -> None:
        self.peer = peer
        self.server = server_address
        self.is_gone = False
        self.ends: list[ShardManagementLink] = []
        self._address = address
        self._name = name
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._asked: dict[str, asyncio.Future[Reply]] = {}
        self._count = 0

    @property
    def is_broken(self) -> bool:
        """Whether one of its links has ended without a word, as with the session of a client."""
        return any(end.was_accepted and not end.is_usable for end in self.ends)

    def make(self, end: ShardManagementLink, session: ProxiedSession) -> Link:
        """The link with the owner for one of the two ends."""
        if end is self.ends[0]:
            replies = session.owner.attach_receiver(
                f"{self._name}-replies", Source(address=self._address), Target(address=self._name)
            )
            replies.grant(_CREDIT)
            return replies
        return session.owner.attach_sender(self._name, Source(address=self._name), Target(address=self._address))

    async def ask(self, rest: bytes) -> Reply:
        """Send a request, from its application properties on, and wait for the answer.

        Raises:
            OutcomeUnknown: The owner was told of the request, and is gone; whether it was done is not known.
            StoreUnavailable: The owner is gone, and was not told of the request.
            QuotaExceeded: Too many wait already.
        """
        if self.is_gone:
            raise StoreUnavailable("A part of the queue moves to another server. Try again.")
        if len(self._asked) >= WAITING_MAX:
            raise QuotaExceeded(f"{WAITING_MAX} requests wait for a part of this queue. Wait for their answers.")
        number, payload, future = self._numbered(rest)
        self._waiting.append((number, payload))
        self._asked[number] = future
        self.ready()
        try:
            return await future
        finally:
            self._asked.pop(number, None)

    def ask_in(self, txn_id: bytes, rest: bytes, path: str) -> asyncio.Future[Reply]:
        """Send a request as part of a transaction, at once, and return what gets its answer.

        Raises:
            ServiceBusError: The transaction cannot have it; it can only be rolled back.
        """
        requests, upstream = self.ends[1].uplink, self.ends[1].upstream
        is_open = not self.is_gone and all(end.is_usable for end in self.ends)
        if not is_open or self._waiting or requests is None or upstream is None or not requests.credit:
            raise StoreUnavailable("A part of the queue takes nothing in a transaction for now. Try it again.")
        if len(self._asked) >= WAITING_MAX:
            raise QuotaExceeded(f"{WAITING_MAX} requests wait for a part of this queue. Wait for their answers.")
        self.peer.transactions.join(txn_id, upstream.coordinator, path)
        number, payload, future = self._numbered(rest)
        self._asked[number] = future
        future.add_done_callback(lambda _: self._asked.pop(number, None))
        self._count += 1
        requests.send_one(self._count.to_bytes(8, "big"), payload, True, 0, TransactionalState(txn_id))
        self.ends[1].write()
        return future

    def _numbered(self, rest: bytes) -> tuple[str, bytes, asyncio.Future[Reply]]:
        """A request's number, the request, and what gets its answer."""
        self._count += 1
        number = f"{self._name}-{self._count}"
        payload = build_message([number, None, None, None, self._name]) + rest
        return number, payload, asyncio.get_running_loop().create_future()

    def ready(self) -> None:
        """Send what waits, once both links are there."""
        if self.is_gone or not all(end.is_usable for end in self.ends):
            return
        replies, requests = (end.uplink for end in self.ends)
        if replies is not None and replies.credit <= _CREDIT // 2:
            replies.grant(_CREDIT)
        while self._waiting and requests is not None and requests.credit > 0:
            self._count += 1
            requests.send_one(self._count.to_bytes(8, "big"), self._waiting.popleft()[1], True)
        self.ends[1].write()

    def replied(self, payload: bytes) -> None:
        """An answer has come."""
        found = scan(payload)
        bare = payload[found.bare :]
        start, _, _ = find_section(bare, APPLICATION_PROPERTIES)
        future = self._asked.get(str(found.correlation_id))
        if future is not None and not future.done():
            future.set_result((application_properties(bare), bare[start:]))
        self.ready()

    def lost(self, text: str) -> None:
        """The owner has ended a link, or is gone."""
        self.is_gone = True
        for end in self.ends:
            end.close()
        unsent = {number for number, _ in self._waiting}
        for number, future in self._asked.items():
            if future.done():
                continue
            if number in unsent:
                error = StoreUnavailable(f"A part of the queue moves to another server. Try again. {text}")
            else:
                error = OutcomeUnknown(
                    "A part of the queue moves to another server, which may have done this and does not say so any "
                    f"more. Look, or try again. {text}"
                )
            future.set_exception(error)
        self._waiting.clear()
