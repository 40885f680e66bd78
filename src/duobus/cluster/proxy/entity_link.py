"""ProxiedEntityLink: a client's link with an entity of another server, which stays when the entity's owner changes.

A store has its next owner within a fraction of a second of a drain, a move or a kill. A client whose link is detached
for that waits longer: the SDK for Python closes its connection, and tries again 2.5 seconds later (decision 0077).
So the link stays, and the next owner is asked for the same one:

    attached --(the owner gives the link up, or is gone)--> looking --(the next owner accepts)--> attached
                                                               '-----(there is none in MOVING_S)--> detached

Messages that the former owner has not answered are rejected at once, since they may be stored. What the
client sends meanwhile waits here, as far as it has credit. A link on which the client receives stays when the client
holds no message: the locks of those that it holds end with the owner, which a detached link tells it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import Error as AmqpError
from duobus.amqp import Link, Transfers
from duobus.cluster.directory import MOVING
from duobus.cluster.proxy.link import ProxiedLink, ProxiedSession
from duobus.errors import DetachForced
from duobus.gateway.amqp.attach import TRANSFER_DESTINATION
from duobus.gateway.amqp.links.link import is_short

if TYPE_CHECKING:
    from duobus.amqp import Attach
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.address import Address

#: How long a client waits for the next owner of what moves, and how long it is between two looks, in seconds.
MOVING_S: Final = 1.5
LOOK_S: Final = 0.02
#: Why an owner ends a link that its next owner may have: the entity moves, or the server stops.
_MOVES: Final = (DetachForced.condition, "amqp:connection:forced")
_MASK: Final = 0xFFFFFFFF


class ProxiedEntityLink(ProxiedLink):
    """See the module.

    Args:
        connect: Gives the connection to a server.
    """

    __slots__ = ("_address", "_connect", "_entity_id", "_is_asking", "_is_open", "_looked_ms", "_may_stay", "_waiting")

    def __init__(
        self,
        peer: Peer,
        link: Link,
        address: Address,
        owners: OwnerDirectory,
        connect: Callable[[str], UpstreamConnection],
    ) -> None:
        super().__init__(peer, link, address.segments(), owners)
        self.is_entity = True
        self._address = address
        self._connect = connect
        home = owners.home_of(peer.namespace or "", address.key)
        self._entity_id = None if home is None else home[0]
        self._may_stay = link.remote is not None and _is_plain(link.remote)
        # Whether an owner has it now; whether one is asked for it again; and when one was looked for last.
        self._is_open = False
        self._is_asking = False
        self._looked_ms: int | None = None
        # What the owner has no credit for, or what came while there was none.
        self._waiting: deque[Transfers] = deque()

    # -- from the client ----------------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """See ProxiedLink; nothing overtakes what waits."""
        if self._waiting and event.state is None:
            self._no_room_for(event)
        else:
            super().transfers(event)

    def _no_room_for(self, event: Transfers) -> None:
        self._waiting.append(event)
        self._peer.note_bytes(_size_of(event))

    def _note_sent(self, session: ProxiedSession, owner_id: int, event: Transfers) -> int:
        """See ProxiedLink; what is unanswered is found again when the owner is lost."""
        return session.note_sent(owner_id, event.first_delivery_id, event.payloads, self)

    def settled(self, number: int, state: Any) -> None:
        """See Answered: they are not counted, only found again."""

    def flow(self) -> None:
        """See ProxiedLink; a client that sends has no credit to give."""
        if self.link.is_sender:
            super().flow()
        elif self.link.echo:
            self.link.flow()

    # -- from the owner -----------------------------------------------------------------------------------------

    def answered(self) -> None:
        """See ProxiedLink; the client was answered by the first owner."""
        if not self._is_accepted:
            super().answered()
            self._is_open = self._is_accepted
            return
        remote = None if self.uplink is None else self.uplink.remote
        if remote is not None and (remote.source if self.link.is_sender else remote.target) is not None:
            self._is_open = True
            self._owners.proxied_links += 1
            if self.link.is_sender:
                self.flow()
            else:
                self.owner_flow()

    def owner_flow(self) -> None:
        """See ProxiedLink; what waits comes first, and has used the client's credit up already."""
        self._pass_waiting()
        if not self._waiting:
            super().owner_flow()

    def _pass_waiting(self) -> None:
        while self._waiting and self.uplink is not None and self.session is not None and self.uplink.credit:
            event = self._waiting.popleft()
            if len(event.payloads) > self.uplink.credit:
                event, rest = _split(event, self.uplink.credit)
                self._waiting.appendleft(rest)
            self._pass_to_owner(self.uplink, self.session, event)
            self._peer.note_bytes(-_size_of(event))

    # -- from one owner to the next -----------------------------------------------------------------------------

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """See ProxiedLink; an owner that gives the link up has a successor."""
        moves = error is not None and str(error.condition) in _MOVES
        # While one is looked for, the next owner may not know yet what it has.
        if self._is_looking or (moves and self._stays()):
            self._let_go()
        else:
            self._drop_waiting()
            super().owner_detached(error, closed=closed)

    def lost(self, text: str) -> None:
        """See ProxiedLink; an owner that is gone has a successor."""
        if self._is_looking or self._stays():
            self._let_go()
        else:
            self._drop_waiting()
            super().lost(text)

    @property
    def _is_looking(self) -> bool:
        return self._looked_ms is not None and not self._is_open

    def _stays(self) -> bool:
        """Whether the client's link stays without an owner: not again at once, and not for transactions."""
        peer = self._peer
        holds = self.link.is_sender and (bool(self._held) or (self.session is not None and self.session.holds))
        now = peer.server.clock.monotonic_ms()
        return (
            self._may_stay
            and self._is_open
            and self.link.is_attached
            and not (holds or self._is_stopping or peer.is_gone or self.is_transactional)
            and self._entity_id is not None
            and (self._looked_ms is None or now - self._looked_ms >= MOVING_S * 1000)
        )

    def _let_go(self) -> None:
        """Answer for an owner, and look for the next one."""
        peer = self._peer
        self.reject_unanswered(f"'{self.path}'")
        self.uplink = self.session = self._upstream = None
        self._is_asking = False
        if self._is_open:
            self._is_open = False
            self._looked_ms = peer.server.clock.monotonic_ms()
            peer.spawn(self._look(), 0)

    async def _look(self) -> None:
        """Ask whoever has the entity for the link, until one of them has accepted it."""
        for _ in range(round(MOVING_S / LOOK_S)):
            home = self._owners.home_of(self._peer.namespace or "", self._address.key)
            if home is None or home[0] != self._entity_id:
                break
            if not self._is_asking and home[1] != MOVING:
                self._is_asking = True
                self._connect(home[1]).attach(self)
                self._peer.write_soon()
            await asyncio.sleep(LOOK_S)
            if self._is_open or not self.link.is_attached or self._peer.is_gone:
                return
        self._end()
        self._drop_waiting()
        self._looked_ms = None
        super().lost("has no other server now")

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """See ProxiedLink."""
        # The connection may have taken longer than the client, or this server's patience.
        if not self._is_accepted or (self._is_looking and self.link.is_attached):
            super().attach(upstream, session)

    # -- ends ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """See ProxiedLink."""
        return bool(self._waiting) or super().owes

    def close(self) -> None:
        """See ProxiedLink."""
        self._drop_waiting()
        super().close()

    def _drop_waiting(self) -> None:
        size = sum(map(_size_of, self._waiting))
        self._waiting.clear()
        if size and not self._peer.is_gone:
            self._peer.note_bytes(-size)


def _is_plain(remote: Attach) -> bool:
    """Whether what is kept of an attach says all that another owner has to know.

    The receiver of a session has a lock that ends with the owner. A link on which transactions send by way of another
    entity is of that entity's owner.
    """
    source: Any = remote.source
    target: Any = remote.target
    return (
        is_short(getattr(source if remote.role else target, "address", None))
        and not getattr(source, "filter", None)
        and getattr(source, "distribution_mode", None) != "copy"
        and not any(str(key) == TRANSFER_DESTINATION for key in remote.properties or {})
    )


def _size_of(event: Transfers) -> int:
    return sum(map(len, event.payloads))


def _split(event: Transfers, number: int) -> tuple[Transfers, Transfers]:
    """The first deliveries of a read, and the others."""
    ids = event.first_delivery_id, (event.first_delivery_id + number) & _MASK
    parts = event.payloads[:number], event.payloads[number:]
    first, rest = (
        Transfers(event.link, one, event.settled, event.message_format, part)
        for one, part in zip(ids, parts, strict=True)
    )
    return first, rest
