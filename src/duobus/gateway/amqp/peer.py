"""Peer: one AMQP connection. Bytes to the engine, events to links, and one write per turn back.

It is an ``asyncio.Protocol`` without a task of its own: what the broker releases gets into a link's
mailbox, whose ``wake`` puts the link on a list that is worked off once at the end of the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from duobus.amqp import (
    AttachReceived,
    Closed,
    Connection,
    Dispositions,
    Link,
    LinkDetached,
    LinkFlow,
    OpenReceived,
    SaslInitReceived,
    Session,
    SessionBegun,
    SessionEnded,
    SessionFlow,
    TransactionalState,
    TransferRefused,
    Transfers,
    WorkDropped,
)
from duobus.amqp import Error as AmqpError
from duobus.auth.authorizer import Grants, NamespaceRules, narrowed
from duobus.broker import Queue, Throttle
from duobus.errors import (
    ConnectionForced,
    DetachForced,
    QuotaExceeded,
    ServiceBusError,
    Unauthorized,
)
from duobus.gateway.amqp import attach as attaching
from duobus.gateway.amqp.connection_list import client_of
from duobus.gateway.amqp.deliveries import Deliveries
from duobus.gateway.amqp.links.session_link import SessionLink
from duobus.gateway.amqp.management.cbs_node import demand_entity
from duobus.gateway.amqp.management.request_node import ReplyLink
from duobus.gateway.amqp.meter import Meter
from duobus.gateway.amqp.pacing import ending, widen, work_off
from duobus.gateway.amqp.revocation import detach_unauthorized
from duobus.gateway.amqp.transactions.transactions import Transactions
from duobus.gateway.waits import REST_S

if TYPE_CHECKING:
    from duobus.gateway.amqp.deliveries import DeliveryRun
    from duobus.gateway.amqp.links.link import Endpoint
    from duobus.gateway.amqp.links.outgoing_link import OutgoingLink
    from duobus.gateway.amqp.links.session_writer import SessionWriter
    from duobus.gateway.amqp.server import AmqpServer

#: Messages of this connection that are on their way to a store: beyond it nothing more is read from the socket.
CARRIED_BYTES_MAX = 4 << 20
#: Unread output of a peer beyond which nothing more is read from it; as much again may be on its way to the socket.
OUTPUT_BYTES_MAX = 1 << 19
#: ... while it has not shown yet that it reads: what is made for a peer that never does is made in vain.
OUTPUT_BYTES_FIRST = 1 << 14
#: Characters of a condition that a log tells of: a peer may name any.
CONDITION_MAX = 64
#: How long a connection that was closed from this side may take over its goodbye.
CLOSE_MS = 5_000
#: Whoever has the turn in a full byte budget has to bring the whole message in this time: 100 MB at 1.7 MB/s.
TURN_MS = 60_000
#: ... and may not be silent for so long: its client may be dead.
TURN_SILENCE_MS = 10_000


class Peer(asyncio.Protocol):
    """One connection.

    Attributes:
        server: What it shares with the others.
        engine: The AMQP engine.
        grants: What its tokens and its login allow.
        transactions: What it has declared and not discharged.
        router: Says of its links by which server they are answered.
        can_write: False while the socket takes no more.
        is_gone: The connection is lost; nothing can be answered any more.
        counted_in: The namespace whose connections it is counted with, or None.
        client: What its client calls itself, and the product that it says it is; empty before it has said so.
    """

    __slots__ = (
        "_carried",
        "_closing_ms",
        "_deliveries",
        "_endpoints",
        "_goes_on",
        "_had_token",
        "_is_behind",
        "_is_closing",
        "_listener",
        "_login_rules",
        "_looking",
        "_partial",
        "_paused",
        "_rules",
        "_since_ms",
        "_tasks",
        "_transport",
        "_turn",
        "_write_scheduled",
        "can_write",
        "client",
        "counted_in",
        "engine",
        "grants",
        "is_gone",
        "meter",
        "namespace",
        "router",
        "server",
        "transactions",
    )

    def __init__(self, server: AmqpServer) -> None:
        self.server = server
        self.engine = Connection(server.settings(), acceptor=True)
        self.grants = Grants()
        self.meter = Meter(server, self.grants).count
        self.transactions = Transactions(self)
        self.router = server.router_of(self)
        self._listener = self.router.listener
        self.can_write = True
        self.is_gone = False
        self.namespace: str | None = None
        self.counted_in: str | None = None
        self.client: tuple[str, str] = ("", "")
        self._rules: NamespaceRules | None = None
        self._login_rules: NamespaceRules | None = None
        self._transport: asyncio.Transport | None = None
        self._looking: list[Endpoint | SessionWriter] = []
        self._write_scheduled = False
        self._endpoints: dict[Link, Endpoint] = {}
        self._deliveries: dict[Session, Deliveries] = {}
        self._tasks: dict[asyncio.Task[None], int] = {}
        self._carried = 0
        self._partial = 0
        # Since when it has the turn and since when nothing came, and how much there was of the message then.
        self._turn: tuple[int, int, int] | None = None
        self._paused = False
        # The engine holds frames that wait for their time, and goes on doing so.
        self._goes_on = self._is_behind = False
        self._since_ms = server.clock.monotonic_ms()
        self._is_closing = False
        self._closing_ms = 0
        self._had_token = False

    # -- asyncio ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=OUTPUT_BYTES_FIRST)
        self.server.peers[self] = None

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._handle_all(self.engine.receive(data, self.server.clock.monotonic_ms()))

    def _handle_all(self, events: list[Any]) -> None:
        for event in events:
            _HANDLERS[type(event)](self, event)
        if self.engine.partial_bytes != self._partial:
            self.note_bytes(0)
        if self.engine.is_cut and not self._goes_on:
            self._goes_on = True
            self.server.loop.call_later(REST_S, self._go_on)
        engine = self.engine
        if engine.output_size or engine.held_back or engine.is_closed:
            # Most reads bring messages or settlements, whose answers come with a commit.
            self.write_soon()

    def _go_on(self) -> None:
        """Take the next frames of what was read; others were served meanwhile."""
        self._goes_on = False
        if not self.is_gone:
            self._handle_all(self.engine.receive(b"", self.server.clock.monotonic_ms()))
            if self._is_behind != self._goes_on:
                self._is_behind = self._goes_on
                self.see_to_reading()

    def eof_received(self) -> bool:
        """See asyncio.Protocol: a half-closed peer is treated as gone (AMQP 1.0 part 2, 2.4)."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release every lock at once, each delivery counted (I20)."""
        self.is_gone = True
        self.can_write = False
        self._partial = 0
        self.server.budget.note(self, 0, self._carried)
        self.server.forget(self)
        for task in self._tasks:
            task.cancel()
        if self._listener is not None:
            self._listener.close()
        unsettled = [entry for deliveries in self._deliveries.values() for entry in deliveries.drain()]
        self._deliveries.clear()
        # Receivers first: what is released must not be offered to this connection again.
        # Those that wait for a session go before those that free one.
        for endpoint in self._endpoints.values():
            endpoint.ask_no_more()
        endpoints = sorted(self._endpoints.values(), key=lambda endpoint: not endpoint.closes_first)
        self._endpoints.clear()
        self.server.loop.call_soon(work_off, self.server.loop, ending(endpoints, unsettled))

    def pause_writing(self) -> None:
        """See asyncio.Protocol: a peer that does not read is not read from either."""
        self.can_write = False
        self.see_to_reading()

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self.can_write = True
        self.see_to_reading()
        for deliveries in self._deliveries.values():
            for writer in deliveries.writers.values():
                writer.wake()
        for endpoint in list(self._endpoints.values()):
            endpoint.resume()
        if self._listener is not None:
            self._listener.resume()
        self.write_soon()

    def note_bytes(self, size: int) -> None:
        """Count bytes of messages that are on their way to a store; negative when they have arrived."""
        self._carried += size
        self._partial = 0 if self.is_gone else self.engine.partial_bytes
        budget = self.server.budget
        budget.note(self, self._partial, self._carried)
        if self._paused or budget.is_over or self._carried > CARRIED_BYTES_MAX:
            self.see_to_reading()

    def see_to_reading(self) -> None:
        """Read from the socket, or stop, as what is held here and in the whole server demands."""
        holds_much = self._is_behind or self._carried > CARRIED_BYTES_MAX
        paused = not self.can_write or holds_much or not self.server.budget.may_read(self)
        if paused != self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = paused
            if paused:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    # -- the end of a turn --------------------------------------------------------------------------------------

    def schedule(self, endpoint: Endpoint | SessionWriter) -> None:
        """A link's mailbox has something; it is looked at once, at the end of the turn."""
        self._looking.append(endpoint)
        self.write_soon()

    def write_soon(self) -> None:
        """Write at the end of the turn what the engine has to say by then: one write per connection and turn."""
        if not self._write_scheduled:
            self._write_scheduled = True
            self.server.at_turn_end(self._end_iteration)

    def _end_iteration(self) -> None:
        self._write_scheduled = False
        looking, self._looking = self._looking, []
        for endpoint in looking:
            endpoint.deliver_answers()
        transport = self._transport
        if transport is None or self.is_gone:
            return
        output = self.engine.take_output(OUTPUT_BYTES_MAX if self.can_write else 0)
        while output:
            transport.write(output)
            # Large messages come in pieces, as fast as the socket takes them.
            output = self.engine.take_output(OUTPUT_BYTES_MAX) if self.can_write else b""
        if self.engine.reopened:
            for session in self.engine.take_reopened():
                self._on_session_flow(SessionFlow(session))
        if self.engine.is_closed:
            transport.close()

    def tick(self, now_ms: int, monotonic_ms: int) -> None:
        """Heartbeats, time limits and expired tokens; called about twice a second."""
        events = self.engine.tick(monotonic_ms)
        if events:
            self._handle_all(events)
        if self._turn is not None or self.server.budget.turn is self:
            self._watch_exemption(monotonic_ms)
        self.transactions.tick(monotonic_ms)
        if self._listener is not None:
            self._listener.tick(monotonic_ms)
        self._see_to_limits(now_ms, monotonic_ms)
        if self.engine.output_size:
            self.write_soon()

    def _see_to_limits(self, now_ms: int, monotonic_ms: int) -> None:
        """End what takes longer than it may, and what has no right any more."""
        age_ms = monotonic_ms - self._since_ms
        if self._is_closing or self.engine.is_closed or self.engine.is_closing:
            # What is written already goes out, unless the other side does not read it (AMQP 1.0 part 2, 2.4).
            self._closing_ms = self._closing_ms or monotonic_ms
            if monotonic_ms - self._closing_ms >= CLOSE_MS:
                self.abort()
        elif not self.engine.is_open:
            if age_ms > attaching.HANDSHAKE_MS:
                self.abort()
        elif not self._had_token and age_ms > attaching.TOKEN_MS:
            self._close(Unauthorized("No token was put within 20 seconds. Connect again and put one."))
        elif self.grants.drop_expired(now_ms):
            detach_unauthorized(self, now_ms)

    def _watch_exemption(self, monotonic_ms: int) -> None:
        """Others wait for whoever has the turn in the byte budget; it may not take its time."""
        if self.server.budget.turn is not self or self._carried:
            self._turn = None
            return
        since_ms, silent_ms, partial = self._turn or (monotonic_ms, monotonic_ms, -1)
        if partial != self._partial:
            silent_ms = monotonic_ms
        self._turn = (since_ms, silent_ms, self._partial)
        is_slow = monotonic_ms - since_ms > TURN_MS or monotonic_ms - silent_ms > TURN_SILENCE_MS
        if is_slow and not self._is_closing:
            self._close(QuotaExceeded("The server is short of memory and your message is slow. Try later."))

    # -- closing ------------------------------------------------------------------------------------------------

    def stop_sends(self) -> None:
        """Take the credit of every sending client back: the server is about to stop."""
        for endpoint in self._endpoints.values():
            endpoint.stop()
        self.write_soon()

    @property
    def owes(self) -> bool:
        """Whether it took something that is not answered yet."""
        return bool(self._tasks) or any(endpoint.owes for endpoint in self._endpoints.values())

    def shut_down(self) -> None:
        """Detach every link and close the connection, both as transient (AMQP 1.0 part 2, 2.4)."""
        self._is_closing = True
        if not self.engine.is_open:
            self.abort()
            return
        for link, endpoint in list(self._endpoints.items()):
            self.detach(link, DetachForced("The server is shutting down. Attach again."), endpoint.path)
        self._close(ConnectionForced("The server is shutting down. Connect again."))

    def _close(self, error: ServiceBusError) -> None:
        described = self.error(error, self.namespace or "")
        self._is_closing = True
        self.engine.close(described.condition, described.description, described.info)
        self.write_soon()

    def end_for_operator(self) -> None:
        """Somebody who runs the server does not want this connection any more."""
        if not self.engine.is_open:
            self.abort()
        elif not self._is_closing:
            self._close(ConnectionForced("An operator asked the server to close this connection. Connect again."))

    def end_login(self) -> None:
        """The key of its login was taken away, and it has nothing else."""
        self._close(Unauthorized("The key of the login was taken away. Connect again with one that is good."))

    def abort(self) -> None:
        """Drop the connection without ceremony."""
        if self._transport is not None:
            self._transport.abort()

    def detach(self, link: Link, error: ServiceBusError, path: str) -> None:
        """End a link with an error."""
        described = self.error(error, path)
        link.detach(described.condition, described.description, described.info)
        self._forget(link)
        self.write_soon()

    def _forget(self, link: Link) -> None:
        endpoint = self._endpoints.pop(link, None)
        if endpoint is not None:
            endpoint.close()

    @property
    def throttle(self) -> Throttle | None:
        """The rate of the client's namespace, or None."""
        return self.server.unit.namespace(self.namespace or "").throttle

    # -- for links and nodes ------------------------------------------------------------------------------------

    def allow_output(self) -> None:
        """This peer reads what it is sent."""
        if self._transport is not None and not self.is_gone:
            widen(self._transport, OUTPUT_BYTES_MAX)

    @property
    def has_room(self) -> bool:
        """Whether more may be written: the socket takes it, and what waits to be handed to it is not much."""
        return self.can_write and self.engine.output_size < OUTPUT_BYTES_MAX

    @property
    def links(self) -> int:
        """Number of attached links."""
        return len(self._endpoints)

    @property
    def since_ms(self) -> int:
        """Monotonic time at which the connection was made."""
        return self._since_ms

    @property
    def origin(self) -> str:
        """Network address and port of the client; empty when nobody knows."""
        name = None if self._transport is None else self._transport.get_extra_info("peername")
        return f"[{name[0]}]:{name[1]}" if name and ":" in name[0] else ":".join(map(str, (name or ())[:2]))

    def endpoints_of(self, session: Session) -> Iterator[Endpoint]:
        """Those of an AMQP session, in the order in which they were attached."""
        return (endpoint for link, endpoint in self._endpoints.items() if link.session is session)

    def reply_links(self) -> Iterator[ReplyLink]:
        """The links on which this client waits for replies."""
        for endpoint in self._endpoints.values():
            if isinstance(endpoint, ReplyLink):
                yield endpoint

    def spawn(self, work: Coroutine[Any, Any, None], size: int) -> None:
        """Run a task that ends with the connection at the latest; ``size`` bytes are held as long as it runs."""
        task = self.server.loop.create_task(work)
        self._tasks[task] = size
        self.note_bytes(size)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self.note_bytes(-self._tasks.pop(task))
        if not task.cancelled() and task.exception() is not None:
            self.server.log.error("request failed", error=repr(task.exception()))
        self.write_soon()

    def error(self, error: ServiceBusError, path: str) -> AmqpError:
        """The wire form of an error, logged under its tracking id."""
        return self.server.error(error, path, connection=self.engine.settings.container_id)

    def log_debug(self, text: str, **about: object) -> None:
        """Log something of this connection that only its developer wants to know."""
        self.server.log.debug(text, connection=self.engine.settings.container_id, **about)

    def allows(self, segments: tuple[str, ...], right: int) -> bool:
        """Whether the connection's grants give ``right`` there now."""
        return self.grants.allows(segments, right, self.server.clock.now_ms())

    def put_token(self, audience: str, token: str) -> None:
        """Verify a token and keep what it allows.

        Raises:
            Unauthorized: It is wrong, expired, or not for this audience.
            EntityNotFound: It is good, but there is no such entity; then nothing is kept.
        """
        assert self._rules is not None
        grant = self.server.authorizer.authorize_token(token, self._rules, self.server.clock.now_ms())
        # Whoever has shown no good token for it is not told whether there is such an entity.
        _, grant = narrowed(audience, grant)
        self.now_known()
        demand_entity(audience, self.server.unit.namespace(self._rules.name), self.router)
        self.server.note_signer(self, self.grants.add(audience, grant))
        if self._listener is not None:
            self._listener.token_put(audience, token)

    def now_known(self) -> None:
        """Somebody's token or login was good: give it what a stranger has not."""
        if not self._had_token:
            self._had_token = True
            self.server.know(self)
        self._count()

    def _count(self) -> None:
        """Count the connection once it has both opened and shown who it is; close it when there are too many."""
        if self._had_token and self.namespace is not None and self.counted_in is None and not self._is_closing:
            try:
                self.server.count(self, self.namespace)
            except QuotaExceeded as error:
                self._close(error)

    def add_endpoint(self, link: Link, endpoint: Endpoint) -> None:
        """Keep the other side of an accepted link."""
        self._endpoints[link] = endpoint

    def endpoints(self) -> list[tuple[Link, Endpoint]]:
        """All accepted links with their other sides."""
        return list(self._endpoints.items())

    def endpoint_of(self, link: Link) -> Endpoint | None:
        """The other side of an accepted link."""
        return self._endpoints.get(link)

    def has_endpoint(self, link: Link) -> bool:
        """Whether a link that was accepted, or waits for a session, is still there."""
        return link in self._endpoints

    def drop_endpoint(self, link: Link) -> None:
        """Forget the other side of a link that is refused after all."""
        self._forget(link)

    def session_link(self, queue: Queue, session_id: str) -> SessionLink | None:
        """The link on which this connection holds a session of a queue; None when it does not."""
        return next((link for link in self._session_links(queue) if link.session_id == session_id), None)

    def session_link_named(self, queue: Queue, name: str | None) -> SessionLink | None:
        """The link of this name on which this connection holds a session of a queue; None when there is none."""
        return next((found for found in self._session_links(queue) if found.link.name == name), None)

    def _session_links(self, queue: Queue) -> Iterator[SessionLink]:
        for endpoint in self._endpoints.values():
            if endpoint.queue is queue and isinstance(endpoint, SessionLink):
                yield endpoint

    def deliveries_of(self, session: Session) -> Deliveries:
        """The unsettled deliveries of an AMQP session."""
        found = self._deliveries.get(session)
        if found is None:
            found = self._deliveries[session] = Deliveries()
        return found

    def unsettled_runs(self) -> Iterator[DeliveryRun]:
        """The deliveries that the client has not settled; sessions that end meanwhile are passed over."""
        for deliveries in list(self._deliveries.values()):
            yield from deliveries.runs()

    # -- events -------------------------------------------------------------------------------------------------

    def _on_sasl_init(self, event: SaslInitReceived) -> None:
        is_ok, self._login_rules = _log_in(self, event)
        if self._login_rules is not None:
            self.now_known()
        self.engine.sasl_outcome(is_ok)

    def _on_open(self, event: OpenReceived) -> None:
        self._rules = self.server.authorizer.namespace_of(event.hostname)
        self.namespace = self._rules.name
        self.client = client_of(event)
        if self._listener is not None:
            self._listener.opened(event)
        self.engine.open(self.server.clock.monotonic_ms())
        if self._login_rules is not None and self._login_rules is not self._rules:
            self._close(Unauthorized("The login belongs to another namespace than the host name of open."))
        elif self.server.is_closing:
            self._close(ConnectionForced("The server is shutting down. Connect again."))
        self._count()

    def _on_attach(self, event: AttachReceived) -> None:
        attaching.attach(self, event.link)

    def _on_transfers(self, event: Transfers) -> None:
        endpoint = self._endpoints.get(event.link)
        if endpoint is not None:
            endpoint.transfers(event)

    def _on_transfer_refused(self, event: TransferRefused) -> None:
        endpoint = self._endpoints.get(event.link)
        if endpoint is not None:
            endpoint.refused(event)

    def _on_flow(self, event: LinkFlow) -> None:
        endpoint = self._endpoints.get(event.link)
        if endpoint is not None:
            endpoint.flow()

    def _on_session_flow(self, event: SessionFlow) -> None:
        for link, endpoint in list(self._endpoints.items()):
            if link.session is event.session:
                endpoint.session_flow()

    def _on_dispositions(self, event: Dispositions) -> None:
        # As a sender a client settles what we settled already: nothing to do.
        if not event.role:
            return
        if self._listener is not None:
            self._listener.dispositions(event.session, event.ranges)
        deliveries = self.deliveries_of(event.session)
        for first, last, settled, state in event.ranges:
            if state is None and not settled:
                continue
            if isinstance(state, TransactionalState):
                self.transactions.settle(deliveries, first, last, state, settled=settled)
                continue
            by_link: dict[OutgoingLink | SessionWriter, list[Any]] = {}
            for found in deliveries.settle(first, last):
                by_link.setdefault(found[0].link, []).append(found)
            for link, stretches in by_link.items():
                link.settle(stretches, state, settled=settled)

    def _on_session_ended(self, event: SessionEnded) -> None:
        for link in [link for link in self._endpoints if link.session is event.session]:
            self._forget(link)
        self._deliveries.pop(event.session, None)
        if self._listener is not None:
            self._listener.session_ended(event)

    def _on_closed(self, event: Closed) -> None:
        if event.error is not None:
            # Its text is the peer's, or quotes it.
            self.log_debug("connection closed", condition=str(event.error.condition)[:CONDITION_MAX])

    def _on_nothing(self, event: object) -> None:
        """Events that need no answer from this side."""


def _log_in(peer: Peer, event: SaslInitReceived) -> tuple[bool, NamespaceRules | None]:
    """Whether a client may go on by its SASL login (AMQP 1.0 part 5, 5.3), and the namespace that the login is for.

    The namespace is None when tokens are to follow.
    """
    if event.mechanism != "PLAIN":
        return event.mechanism in ("ANONYMOUS", "MSSBCBS"), None
    parts = (event.response or b"").split(b"\x00")
    if len(parts) != 3:
        return False, None
    authorizer = peer.server.authorizer
    rules = authorizer.namespace_of(event.hostname)
    try:
        name, key = parts[1].decode(), parts[2].decode()
        peer.grants.set_login(authorizer.authorize_plain(name, key, rules))
    except (Unauthorized, UnicodeDecodeError) as error:
        peer.server.refusals.info("login refused", mechanism="PLAIN", reason=type(error).__name__)
        return False, None
    listener = peer.router.listener
    if listener is not None:
        listener.logged_in(name, key)
    return True, rules


_HANDLERS: dict[type, Callable[[Peer, Any], None]] = {
    SaslInitReceived: Peer._on_sasl_init,
    OpenReceived: Peer._on_open,
    SessionBegun: Peer._on_nothing,
    AttachReceived: Peer._on_attach,
    Transfers: Peer._on_transfers,
    TransferRefused: Peer._on_transfer_refused,
    WorkDropped: lambda peer, event: peer.transactions.dropped(event),
    LinkFlow: Peer._on_flow,
    SessionFlow: Peer._on_session_flow,
    Dispositions: Peer._on_dispositions,
    LinkDetached: lambda peer, event: peer._forget(event.link),
    SessionEnded: Peer._on_session_ended,
    Closed: Peer._on_closed,
}
