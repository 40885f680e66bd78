"""AmqpServer: what all AMQP connections of a server share, and the second-hand that watches over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duobus.amqp import ConnectionSettings, Link
from duobus.amqp import Error as AmqpError
from duobus.auth.authorizer import Authorizer, Grant
from duobus.broker import Queue, ScaleUnit
from duobus.clock import Clock, Entropy
from duobus.codec import Symbol
from duobus.concurrency.turn_end import turn_end
from duobus.errors import QuotaExceeded, ServiceBusError
from duobus.gateway.amqp.byte_budget import ByteBudget
from duobus.gateway.amqp.entity_status import entity_changed
from duobus.gateway.amqp.links.link_kinds import PLAIN
from duobus.gateway.amqp.pacing import WORK_MAX, work_off
from duobus.gateway.amqp.peer import Peer
from duobus.gateway.amqp.revocation import revoking
from duobus.gateway.amqp.router import FORWARDING_NODE, LinkRouter, local_router_of, refuse_forwarding
from duobus.telemetry.audit_log import AuditTrail
from duobus.telemetry.bounded_log import BoundedLog
from duobus.telemetry.logs import Log, new_tracking_id, tracking_suffix
from duobus.telemetry.metering_log import MeteringCounts

#: How often connections are looked at: tokens end within a second of their expiry.
SWEEP_S = 0.5
#: At a clean stop: for how long clients may still send after their credit is taken back, and the bound on answers.
LAST_SENDS_S, ANSWERS_MS, POLL_S = 0.05, 3_000, 0.01
FRAME_SIZE_MAX = 65_536
CHANNEL_MAX, HANDLE_MAX = 4_999, 255
#: Of one connection with a good token or login, and of one without.
LINKS_MAX, SESSIONS_MAX = 1_000, 1_000
STRANGER_LINKS_MAX, STRANGER_SESSIONS_MAX = 16, 16
#: Unfinished deliveries of a connection beside the largest one.
PARTIAL_ROOM = 1 << 20
#: Connections without a token or login; when there are more, the oldest of them has to go.
STRANGERS_MAX = 4_000
IDLE_TIME_OUT_MS = 120_000


#: Attaches a link of a connection to a node, or raises a ServiceBusError that refuses the link.
NodeFactory = Callable[[Peer, Link], None]


class AmqpServer:
    """The AMQP front end of one server.

    Attributes:
        unit: The scale unit that it gives access to.
        authorizer: Who may do what.
        peers: Every connection that is alive.
        router_of: Makes what says of the links of a connection by which server they are answered.
        nodes: By address, nodes that are no entities: what attaches a link to each.
        budget: What all of them may hold of messages that no store has yet.
        link_kinds: What clients are attached with.
        is_closing: Once true no link is attached any more.
    """

    def __init__(
        self,
        unit: ScaleUnit,
        authorizer: Authorizer,
        *,
        clock: Clock,
        entropy: Entropy,
        log: Log,
        metering: MeteringCounts,
        budget: ByteBudget | None = None,
    ) -> None:
        self.unit = unit
        self.authorizer = authorizer
        self.clock = clock
        self.entropy = entropy
        self.log = log
        self.refusals = BoundedLog(log, clock.monotonic_ms)
        self.metering = metering
        self.errors: dict[str, int] = {}
        self.connections_opened = 0
        # An ordered set: a simulation must visit connections in the same order every time.
        self.peers: dict[Peer, None] = {}
        # By age.
        self._strangers: dict[Peer, None] = {}
        # Per namespace, strangers excepted: they must not keep out those who may come in.
        self._connections: dict[str, int] = {}
        self.budget = budget or ByteBudget()
        self.audit = AuditTrail()
        self.router_of: Callable[[Peer], LinkRouter] = local_router_of
        self.nodes: dict[str, NodeFactory] = {FORWARDING_NODE: refuse_forwarding}
        self.link_kinds = PLAIN
        # Entities, by namespace and lower-case segments, to the connections with grants by their own access rules.
        self._holders: dict[tuple[str, tuple[str, ...]], dict[Peer, None]] = {}
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self.at_turn_end = turn_end(self.loop)
        self._server_id = str(entropy.uuid())
        self._empty: asyncio.Future[None] | None = None
        self._sweep: asyncio.TimerHandle | None = self.loop.call_later(SWEEP_S, self._check_connections)
        unit.follow(self._entity_changed)

    def forget(self, peer: Peer) -> None:
        """A connection is lost."""
        self.peers.pop(peer, None)
        self._strangers.pop(peer, None)
        for path in peer.grants.entities:
            holders = self._holders.get((peer.namespace or "", path), {})
            holders.pop(peer, None)
            if not holders:
                self._holders.pop((peer.namespace or "", path), None)
        if peer.counted_in is not None:
            self._connections[peer.counted_in] -= 1
        if not self.peers and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    def __call__(self) -> Peer:
        """Make the protocol of a new connection."""
        peer = Peer(self)
        self._strangers[peer] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.abort()
        return peer

    def count(self, peer: Peer, namespace: str) -> None:
        """Count a connection to a namespace, now that it is no stranger any more.

        Raises:
            QuotaExceeded: The namespace has as many as it may.
        """
        number, limit = self._connections.get(namespace, 0), self.unit.quotas.connections
        if number >= limit:
            raise QuotaExceeded(
                f"The namespace '{namespace}' has {number} connections of at most {limit}. Close some, share one among "
                "senders and receivers, or raise the quota (--quota connections=...)."
            )
        self._connections[namespace] = number + 1
        peer.counted_in = namespace

    def connections_of(self, namespace: str) -> int:
        """How many connections to a namespace have shown who they are."""
        return self._connections.get(namespace, 0)

    def know(self, peer: Peer) -> None:
        """A connection has shown a good token or login."""
        self._strangers.pop(peer, None)
        peer.engine.settings.links_max = LINKS_MAX
        peer.engine.settings.sessions_max = SESSIONS_MAX

    def settings(self) -> ConnectionSettings:
        """Engine settings of a new connection; the container id is what support asks for."""
        self.connections_opened += 1
        return ConnectionSettings(
            container_id=f"duobus-{self._server_id}-{self.connections_opened}",
            max_frame_size=FRAME_SIZE_MAX,
            channel_max=CHANNEL_MAX,
            handle_max=HANDLE_MAX,
            idle_time_out_ms=IDLE_TIME_OUT_MS,
            links_max=STRANGER_LINKS_MAX,
            sessions_max=STRANGER_SESSIONS_MAX,
            partial_room=PARTIAL_ROOM,
            work_max=WORK_MAX,
        )

    def error(self, error: ServiceBusError, path: str, **about: object) -> AmqpError:
        """The wire form of an error, with a tracking id that is also in the log (Azure: AMQP error codes)."""
        tracking_id = new_tracking_id(self.entropy)
        about.update(tracking_id=tracking_id, condition=error.condition, path=path, reason=str(error))
        self.refusals.info("refused", **about)
        self.errors[error.condition] = self.errors.get(error.condition, 0) + 1
        suffix = tracking_suffix(tracking_id, "G0", "duobus", path, self.clock.now_ms())
        return AmqpError(
            error.condition, f"{error}{error.mark(path)}{suffix}", {Symbol("com.microsoft:tracking-id"): tracking_id}
        )

    def _check_connections(self) -> None:
        now_ms, monotonic_ms = self.clock.now_ms(), self.clock.monotonic_ms()
        for peer in list(self.peers):
            peer.tick(now_ms, monotonic_ms)
        self._sweep = self.loop.call_later(SWEEP_S, self._check_connections)

    def _entity_changed(self, queue: Queue) -> None:
        for peer in list(self.peers):
            entity_changed(peer, queue)
        if not queue.is_leaving and not queue.has_moved:
            path = tuple(queue.path.lower().split("/"))
            holders = self._holders.get((queue.namespace.lower(), path))
            if holders:
                work_off(self.loop, revoking(list(holders), path))

    def note_signer(self, peer: Peer, grant: Grant) -> None:
        """A connection has a grant: it is looked at again when the access rules that it comes from change."""
        if grant.signer is not None and grant.signer.path:
            self._holders.setdefault((peer.namespace or "", grant.signer.path), {})[peer] = None

    def rules_changed(self, namespace: str) -> None:
        """A namespace has other access rules."""
        peers = [peer for peer in self.peers if peer.namespace == namespace.lower()]
        work_off(self.loop, revoking(peers, ()))

    def keys_changed(self) -> None:
        """An issuer of bearer tokens has other keys."""
        work_off(self.loop, revoking(list(self.peers), None))

    async def _answer_everything(self) -> None:
        """Let what is under way end: a send without an outcome is sent again, after a client's whole timeout (I63)."""
        for peer in list(self.peers):
            peer.stop_sends()
        # What clients sent before they learn of it is still on its way here.
        await asyncio.sleep(LAST_SENDS_S)
        deadline_ms = self.clock.monotonic_ms() + ANSWERS_MS
        while any(peer.owes for peer in self.peers) and self.clock.monotonic_ms() < deadline_ms:  # noqa: ASYNC110 - once
            await asyncio.sleep(POLL_S)

    async def close(self, limit_s: float) -> None:
        """Answer, detach every link, close every connection, wait a little for their close."""
        self.is_closing = True
        self.unit.unfollow(self._entity_changed)
        if self.peers:
            await self._answer_everything()
        for peer in list(self.peers):
            peer.shut_down()
        if self.peers:
            self._empty = self.loop.create_future()
            await asyncio.wait([self._empty], timeout=limit_s)
        for peer in list(self.peers):
            peer.abort()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
