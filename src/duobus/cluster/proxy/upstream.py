"""A connection that this server makes to another one, in the name of one of its clients."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import (
    Closed,
    ConnectionSettings,
    Dispositions,
    EngineMisuse,
    Link,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    Rejected,
    Session,
    SessionEnded,
    Source,
    Target,
    TransactionalState,
    Transfers,
)
from duobus.cluster.connection import ServerConnection
from duobus.cluster.proxy.coordinator import RemoteCoordinator, attach_coordinator_of
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.codec import build_message
from duobus.errors import ServiceBusError
from duobus.gateway.amqp.links.link import begins_with_coordinator
from duobus.gateway.amqp.management.cbs_node import CBS

if TYPE_CHECKING:
    from duobus.cluster.router import ClusterRouter
    from duobus.gateway.amqp.peer import Peer

#: Replies of ``$cbs`` that are let in; what they say is not looked at, for a refused token shows in what follows.
_REPLIES: Final = 100


class UpstreamConnection(ServerConnection):
    """One connection to the owner of entities.

    Attributes:
        is_gone: It has ended, or was never made.
        coordinator: Does the transactions of the client at the owner; None while the client has no coordinator here.
    """

    def __init__(
        self, peer: Peer, router: ClusterRouter, settings: ConnectionSettings, tokens: Mapping[str, str]
    ) -> None:
        super().__init__(peer.server.loop, lambda: peer.server.clock.monotonic_ms(), settings)
        self.coordinator: RemoteCoordinator | None = None
        self._peer = peer
        self._router = router
        self._tokens = dict(tokens)
        self._cbs: Link | None = None
        self._replies: Link | None = None
        self._is_ready = False
        self._waiting: list[ProxiedLink] = []
        self._sessions: dict[Session, ProxiedSession] = {}
        self._by_owner: dict[Session, ProxiedSession] = {}
        self._is_paused = False
        self._counter = 0

    # -- asyncio ------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        """Show the tokens, then attach what waits."""
        session = self._engine.begin()
        if self._tokens:
            self._replies = session.attach_receiver("cbs-replies", Source(address=CBS), Target(address=CBS))
            self._cbs = session.attach_sender("cbs", Source(address=CBS), Target(address=CBS))
        else:
            self._ready()

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        super().data_received(data)
        # Behind the writing, which makes room.
        self._loop.call_soon(self.see_to_reading)

    def _received(self) -> None:
        if self.coordinator is not None:
            self.coordinator.go_on()
        self._peer.write_soon()

    def _wrote(self) -> None:
        if self.coordinator is not None:
            self.coordinator.go_on()

    # -- the client's side --------------------------------------------------------------------------------------

    def attach(self, proxied: ProxiedLink) -> None:
        """Pass a link on, as soon as that is possible."""
        if self._is_ready:
            self._attach(proxied)
            self.write_soon()
        else:
            self._waiting.append(proxied)

    def _attach(self, proxied: ProxiedLink) -> None:
        client = proxied.link.session
        pair = self._sessions.get(client)
        try:
            if pair is None:
                pair = self._sessions[client] = ProxiedSession(client, self._engine.begin())
                self._by_owner[pair.owner] = pair
                if begins_with_coordinator(self._peer, client):
                    # So the owner knows that what transactions send on the session goes via its first entity.
                    attach_coordinator_of(pair.owner, "coordinator")
            proxied.attach(self, pair)
        except EngineMisuse as error:
            proxied.lost(str(error))

    def coordinate(self) -> None:
        """The client has a coordinator here: so has it at the owner, before anything that may follow."""
        if self._is_ready and not self.is_gone and (self.coordinator is None or self.coordinator.is_gone):
            # Where there is no room for it, transactions on this owner's entities are refused.
            with suppress(EngineMisuse):
                self.coordinator = RemoteCoordinator(self._engine, self._router.coordinated)
            self.write_soon()

    def put_token(self, audience: str, token: str) -> None:
        """The client has put a token: so does this connection."""
        self._tokens[audience] = token
        if self._is_ready and self._cbs is None:
            # The login has sufficed so far.
            session = self._engine.begin()
            self._replies = session.attach_receiver("cbs-replies", Source(address=CBS), Target(address=CBS))
            self._cbs = session.attach_sender("cbs", Source(address=CBS), Target(address=CBS))
        self._put_tokens()
        self.write_soon()

    def client_settles(self, session: Session, ranges: list[tuple[int, int, bool, Any]]) -> None:
        """The client has said what became of deliveries; those of others are left out."""
        pair = self._sessions.get(session)
        if pair is None:
            return
        for first, last, settled, state in ranges:
            if isinstance(state, TransactionalState):
                self._settle_in(pair, first, last, state, settled=settled)
            elif state is not None or settled:
                pair.client_settles(first, last, state, settled=settled)
        self.write_soon()

    def _settle_in(
        self, pair: ProxiedSession, first: int, last: int, state: TransactionalState, *, settled: bool
    ) -> None:
        """Have the owner settle deliveries in a transaction."""
        found = pair.named(first, last)
        if not found:
            return
        transactions = self._peer.transactions
        try:
            transactions.join(state.txn_id, self.coordinator, None).names(pair, found)
        except ServiceBusError as error:
            transactions.doom(state.txn_id, error)
            if not settled:
                pair.refuse(found, Rejected(self._peer.error(error, "$coordinator")))
            return
        # Settled by the client or not, it is the transaction that decides.
        pair.client_settles(first, last, state, settled=False)

    def number_of(self, session: Session, first: int, last: int) -> int:
        """How many of the client's deliveries in a range are this owner's."""
        pair = self._sessions.get(session)
        return 0 if pair is None else pair.number_of(first, last)

    def end_session(self, session: Session) -> None:
        """A session of the client has ended."""
        pair = self._sessions.pop(session, None)
        if pair is not None:
            self._by_owner.pop(pair.owner, None)
            self._give_back(pair.sent_bytes)
            pair.owner.end()
            self.write_soon()

    # -- events of the owner ------------------------------------------------------------------------------------

    def _handle(self, event: Any) -> None:
        if isinstance(event, Transfers):
            self._on_transfers(event)
        elif isinstance(event, Dispositions):
            self._on_dispositions(event)
        elif isinstance(event, LinkFlow):
            self._on_flow(event.link)
        elif isinstance(event, LinkAttached):
            self._on_attached(event.link)
        elif isinstance(event, LinkDetached):
            self._on_detached(event)
        elif isinstance(event, SessionEnded):
            self._on_session_ended(event)
        elif isinstance(event, Closed):
            self.fail("it has closed the connection")

    def _on_transfers(self, event: Transfers) -> None:
        proxied = event.link.context
        if isinstance(proxied, ProxiedLink):
            proxied.owner_transfers(event)
        elif event.link is self._replies:
            self._replies.grant(_REPLIES)

    def _on_detached(self, event: LinkDetached) -> None:
        proxied = event.link.context
        if isinstance(proxied, ProxiedLink) and proxied.uplink is event.link:
            proxied.owner_detached(event.error, closed=event.closed)
        elif self.coordinator is not None and self.coordinator.is_at(event.link):
            self.coordinator.lost()

    def _on_dispositions(self, event: Dispositions) -> None:
        pair = self._by_owner.get(event.session)
        if pair is None:
            if self.coordinator is not None and event.session is self.coordinator.session:
                for first, last, _, state in event.ranges:
                    self.coordinator.settled(first, last, state)
            return
        for first, last, settled, state in event.ranges:
            if event.role:
                self._give_back(pair.owner_settles(first, last, state))
            elif settled:
                pair.owner_answers(first, last, state)

    def _on_flow(self, link: Link) -> None:
        if link is self._cbs:
            self._put_tokens()
        elif isinstance(link.context, ProxiedLink):
            link.context.owner_flow()
        elif self.coordinator is not None and self.coordinator.is_at(link):
            self.coordinator.flow()

    def _on_attached(self, link: Link) -> None:
        if link is self._replies:
            link.grant(_REPLIES)
        elif isinstance(link.context, ProxiedLink):
            link.context.answered()

    def _on_session_ended(self, event: SessionEnded) -> None:
        if self.coordinator is not None and event.session is self.coordinator.session:
            self.coordinator.lost()
        pair = self._by_owner.pop(event.session, None)
        if pair is not None:
            self._sessions.pop(pair.client, None)
            self._lose([proxied for proxied in self._proxied() if proxied.session is pair], "it has ended the session")
            self._give_back(pair.sent_bytes)

    def _put_tokens(self) -> None:
        """Show every token that was not shown yet; the owner looks at them before it looks at what follows."""
        cbs = self._cbs
        while self._tokens and cbs is not None and cbs.credit > 0:
            audience, token = self._tokens.popitem()
            self._counter += 1
            properties = {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": audience}
            fields = [f"token-{self._counter}", None, CBS, None, CBS]
            cbs.send_one(
                self._counter.to_bytes(8, "big"), build_message(fields, properties, body_value=token), settled=True
            )
        if cbs is not None and not self._tokens and not self._is_ready:
            self._ready()

    def _ready(self) -> None:
        self._is_ready = True
        if self._peer.transactions.has_coordinators:
            self.coordinate()
        waiting, self._waiting = self._waiting, []
        for proxied in waiting:
            self._attach(proxied)

    # -- bytes --------------------------------------------------------------------------------------------------

    def see_to_reading(self) -> None:
        """Read from the owner as long as the client takes it."""
        wants_pause = not self._peer.has_room
        if self._transport is not None and wants_pause != self._is_paused and not self._transport.is_closing():
            self._is_paused = wants_pause
            if wants_pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def tick(self, monotonic_ms: int) -> None:
        """Heartbeats, and an owner that is silent for too long."""
        if self._transport is None or self.is_gone:
            return
        for event in self._engine.tick(monotonic_ms):
            self._handle(event)
        self.see_to_reading()
        if self._engine.output_size:
            self.write_soon()

    # -- ends ---------------------------------------------------------------------------------------------------

    def _proxied(self) -> list[ProxiedLink]:
        return [
            part
            for _, endpoint in self._peer.endpoints()
            if isinstance(endpoint, ProxiedLink)
            for part in endpoint.parts()
            if part.is_of(self)
        ] + [part for part in self._router.node_links() if part.is_of(self)]

    def _lose(self, lost: list[ProxiedLink], text: str) -> None:
        for proxied in lost:
            proxied.lost(text)
        self._peer.write_soon()

    def _failed(self, text: str) -> None:
        """The connection is gone: so are all links that were passed over it."""
        lost = self._proxied() + self._waiting
        self._waiting = []
        if self.coordinator is not None:
            self.coordinator.lost()
        if not self._peer.is_gone:
            self._lose(lost, text)
        # Links that stay have given back what was sent on them.
        self._give_back(sum(pair.sent_bytes for pair in self._sessions.values()))
        self._sessions.clear()
        self._by_owner.clear()

    def _give_back(self, size: int) -> None:
        if size and not self._peer.is_gone:
            self._peer.note_bytes(-size)

    def abort(self) -> None:
        """The client is gone."""
        self.is_gone = True
        if self._transport is not None:
            self._transport.abort()
