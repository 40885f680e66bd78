"""One link of a client that another server answers, and the pairs of delivery ids of a session."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from duobus.amqp import RELEASED, Link, Rejected, Session, TransactionalState, TransferRefused, Transfers
from duobus.amqp import Error as AmqpError
from duobus.cluster.proxy.id_pairs import IdPairs, IdRun, Stretch, ranges
from duobus.codec import BATCH_FORMAT, COUNTERS, runs_of_tags, tag_of
from duobus.errors import (
    DetachForced,
    MessageTooLarge,
    NotImplementedYet,
    OutcomeUnknown,
    ServerBusy,
    ServiceBusError,
)
from duobus.gateway.amqp.links.link import ANY_RIGHT, Claim, Endpoint, summarize_attach
from duobus.model.descriptions import Right

if TYPE_CHECKING:
    from duobus.cluster.owners import OwnerDirectory
    from duobus.cluster.proxy.upstream import UpstreamConnection
    from duobus.gateway.amqp.peer import Peer

_MASK: Final = 0xFFFFFFFF


class Answered(Protocol):
    """Who counts what it has proxied."""

    def settled(self, number: int, state: Any) -> None:
        """So many deliveries have an answer: the owner's, or that nobody knows what became of them."""


class _Sent(NamedTuple):
    """Deliveries of a client in a row that went to an owner together.

    Attributes:
        first: Position in the run of ids.
        sizes: Bytes of each.
        counter: Who counts their answers.
    """

    first: int
    sizes: list[int]
    counter: Answered | None


class ProxiedSession:
    """A session of the client and the one that stands for it at an owner.

    Attributes:
        client: The client's.
        owner: That with the owner.
        sent_bytes: Of what the client has sent and the owner has not settled.
        in_doubt: By delivery id there, how many settlements in transactions the owner has not answered. Such an answer
            does not end the delivery: it can be settled again if the transaction is rolled back.
    """

    __slots__ = ("_given", "_sent", "_sizes", "client", "in_doubt", "owner", "sent_bytes")

    def __init__(self, client: Session, owner: Session) -> None:
        self.client = client
        self.owner = owner
        self.sent_bytes = 0
        self.in_doubt: Counter[int] = Counter()
        # What the client has sent, and what it has received.
        self._sent = IdPairs()
        self._given = IdPairs()
        # By run of ``_sent``, in order.
        self._sizes: dict[IdRun, list[_Sent]] = {}

    @property
    def owes(self) -> bool:
        """Whether the owner has not settled all that the client has sent."""
        return bool(self._sent)

    @property
    def holds(self) -> bool:
        """Whether the client has messages of the owner that it has not settled, or whose settlement has no answer."""
        return bool(self._given)

    def note_sent(self, owner_id: int, client_id: int, payloads: list[bytes], counter: Answered | None = None) -> int:
        """The client's deliveries from ``client_id`` on have gone to the owner from ``owner_id`` on; their bytes."""
        number = len(payloads)
        run = self._sent.add(client_id, owner_id, number)
        sizes = list(map(len, payloads))
        self._sizes.setdefault(run, []).append(_Sent(len(run.marks) - number, sizes, counter))
        size = sum(sizes)
        self.sent_bytes += size
        return size

    def note_given(self, owner_id: int, client_id: int, number: int) -> None:
        """The owner's deliveries from ``owner_id`` on have gone to the client from ``client_id`` on."""
        self._given.add(client_id, owner_id, number)

    def owner_settles(self, first: int, last: int, state: Any) -> int:
        """The owner has settled what the client has sent; return the bytes that are under way no more."""
        return self.settle(self._sent.of_owner(first, last), state)

    def unanswered_of(self, counter: object) -> list[Stretch]:
        """What is counted here and the owner has not settled."""
        found: list[Stretch] = []
        for run, parts in self._sizes.items():
            for first, sizes, whose in parts:
                if whose is counter:
                    here = (run.here + first) & _MASK
                    found += self._sent.of_client(here, (here + len(sizes) - 1) & _MASK)
        return found

    def settle(self, found: list[Stretch], state: Any) -> int:
        """Tell the client what became of deliveries of its own; return the bytes that are under way no more."""
        for low, high in ranges((one.here, one.number) for one in found):
            self.client.disposition(True, low, high, state, True)
        size = 0
        for stretch in found:
            size += self._answered(stretch, state)
            self._sent.remove(stretch)
            if not stretch.run.left:
                del self._sizes[stretch.run]
        self.sent_bytes -= size
        return size

    def _answered(self, stretch: Stretch, state: Any) -> int:
        """Tell those who count; the bytes of a stretch."""
        size = 0
        end = stretch.start + stretch.number
        for first, sizes, counter in self._sizes[stretch.run]:
            start = max(0, stretch.start - first)
            part = sizes[start : max(start, end - first)]
            size += sum(part)
            if counter is not None and part:
                counter.settled(len(part), state)
        return size

    def owner_answers(self, first: int, last: int, state: Any) -> None:
        """The owner has settled what it gave, after the client has said what became of it."""
        found = self._given.of_owner(first, last)
        for stretch in found:
            if self.in_doubt:
                self._forget_decided(stretch)
            else:
                self._given.remove(stretch)
        for low, high in ranges((one.here, one.number) for one in found):
            self.client.disposition(False, low, high, state, True)

    def _forget_decided(self, stretch: Stretch) -> None:
        for index in range(stretch.number):
            one = (stretch.there + index) & _MASK
            waiting = self.in_doubt.pop(one, 0)
            if not waiting:
                self._given.remove(Stretch(stretch.run, stretch.start + index, 1))
            elif waiting > 1:
                self.in_doubt[one] = waiting - 1

    def client_settles(self, first: int, last: int, state: Any, *, settled: bool) -> None:
        """The client has said what became of deliveries; those that are not of this owner are left out."""
        found = self._given.of_client(first, last)
        if settled:
            for stretch in found:
                self._given.remove(stretch)
        for low, high in ranges((one.there, one.number) for one in found):
            self.owner.disposition(True, low, high, state, settled)

    def refuse(self, ids: list[int], state: Any) -> None:
        """Tell the client, of deliveries by the owner's ids, why they were not settled."""
        found = [stretch for one in ids for stretch in self._given.of_owner(one, one)]
        for low, high in ranges((one.here, one.number) for one in found):
            self.client.disposition(False, low, high, state, True)

    def named(self, first: int, last: int) -> list[int]:
        """The owner's ids of those among the client's deliveries that are this owner's."""
        found = self._given.of_client(first, last)
        return [(one.there + index) & _MASK for one in found for index in range(one.number)]

    def number_of(self, first: int, last: int) -> int:
        """How many of the client's deliveries in a range are this owner's."""
        return sum(one.number for one in self._given.of_client(first, last))

    def committed(self, ids: list[int]) -> None:
        """A transaction has settled deliveries, by the owner's ids."""
        for one in ids:
            self.in_doubt.pop(one, None)
            for stretch in self._given.of_owner(one, one):
                self._given.remove(stretch)


class ProxiedLink(Endpoint):
    """The client's end of a link that is proxied.

    Attributes:
        link: The client's.
        uplink: That with the owner; None until it is made.
        session: The pair of sessions; likewise.
        is_entity: It is on an entity itself, and not on its management node.
    """

    __slots__ = (
        "_counter",
        "_held",
        "_is_accepted",
        "_is_stopping",
        "_owners",
        "_peer",
        "_prefix",
        "_upstream",
        "is_entity",
        "link",
        "segments",
        "session",
        "uplink",
    )

    def __init__(self, peer: Peer, link: Link, segments: tuple[str, ...], owners: OwnerDirectory) -> None:
        self.link = link
        self.segments = segments
        self.is_entity = False
        self.uplink: Link | None = None
        self.session: ProxiedSession | None = None
        self._peer = peer
        self._owners = owners
        self._upstream: UpstreamConnection | None = None
        self._is_accepted = False
        self._is_stopping = False
        self._prefix = peer.server.entropy.token(8)
        self._counter = 0
        # What came from the owner and the client has no credit for, because it took some back: id, tag, format, ...
        self._held: deque[tuple[int, bytes, bytes, int, bool]] = deque()

    # -- attaching ----------------------------------------------------------------------------------------------

    def attach(self, upstream: UpstreamConnection, session: ProxiedSession) -> None:
        """Ask the owner for the same link."""
        remote = self.link.remote
        if remote is None or self.uplink is not None:
            return
        self._upstream, self.session = upstream, session
        options: dict[str, Any] = {
            "snd_settle_mode": 2 if remote.snd_settle_mode is None else remote.snd_settle_mode,
            "rcv_settle_mode": remote.rcv_settle_mode or 0,
            "properties": remote.properties,
            "desired_capabilities": remote.desired_capabilities,
        }
        attach = session.owner.attach_receiver if self.link.is_sender else session.owner.attach_sender
        self.uplink = attach(f"{remote.name}", remote.source, remote.target, **options)
        self.uplink.context = self
        if self.link.is_sender:
            self.uplink.tags = []

    def attach_beside(self, other: ProxiedLink) -> None:
        """Have another link attached where this one is, on the same session."""
        if self._upstream is not None:
            self._upstream.attach(other)

    def parts(self) -> Sequence[ProxiedLink]:
        """The links with owners that it consists of."""
        return (self,)

    def is_of(self, upstream: UpstreamConnection) -> bool:
        """Whether it was passed over this connection."""
        return self._upstream is upstream

    def answered(self) -> None:
        """The owner has answered; an answer without its terminus means that a refusal follows."""
        uplink = self.uplink
        remote = None if uplink is None else uplink.remote
        if remote is None or (remote.source if self.link.is_sender else remote.target) is None:
            return
        self._is_accepted = self.link.accept(
            source=remote.source,
            target=remote.target,
            max_message_size=remote.max_message_size,
            properties=remote.properties,
            initial_delivery_count=remote.initial_delivery_count or 0,
        )
        if not self._is_accepted:
            self._end()
            return
        asked = self.link.remote
        if asked is not None:
            self.link.remote = summarize_attach(asked)
        self._owners.proxied_links += 1
        if self.link.is_sender:
            self.flow()
        else:
            self.owner_flow()

    def owner_detached(self, error: AmqpError | None, *, closed: bool) -> None:
        """The owner has refused or ended the link: in its own words."""
        self.uplink = None
        condition = text = info = None
        if error is not None:
            condition, text, info = error.condition, error.description, error.info
        if self._is_accepted:
            self.link.detach(condition, text, info, closed=closed)
        else:
            self.link.refuse(condition or "amqp:internal-error", text, info)
        self._peer.drop_endpoint(self.link)

    def lost(self, text: str) -> None:
        """The way to the owner has ended."""
        self.uplink = None
        error = self._peer.error(
            DetachForced(f"The entity is served by another server, and {text}. Attach again."), self.path
        )
        if self._is_accepted:
            self.link.detach(error.condition, error.description, error.info)
        else:
            self.link.refuse(error.condition, error.description, error.info)
        self._peer.drop_endpoint(self.link)

    @property
    def is_transactional(self) -> bool:
        """Whether the client does transactions, or has done some at this owner: the coordinator may be gone first."""
        upstream = self._upstream
        return self._peer.transactions.has_coordinators or (upstream is not None and upstream.coordinator is not None)

    def reject_unanswered(self, what: str) -> None:
        """The owner of ``what`` is lost: reject what was sent on this link and has no answer, for it may be stored."""
        session, peer = self.session, self._peer
        unanswered = [] if session is None else session.unanswered_of(self)
        if session is not None and unanswered:
            error = OutcomeUnknown(
                f"The server of {what} went away with the message, which may be stored. Look, or send it again."
            )
            peer.note_bytes(-session.settle(unanswered, Rejected(peer.error(error, self.path))))

    # -- from the client ----------------------------------------------------------------------------------------

    def transfers(self, event: Transfers) -> None:
        """Pass on what came in one read."""
        uplink, session = self.uplink, self.session
        if event.state is not None:
            if self._peer.router.send_via(self.link, event):
                # The owner counts on a credit that this delivery has used up here.
                self.owner_flow()
            else:
                self._in_state(event)
        elif uplink is None or session is None or uplink.credit < len(event.payloads):
            self._no_room_for(event)
        else:
            self._pass_to_owner(uplink, session, event)

    def _no_room_for(self, event: Transfers) -> None:
        """The owner has no credit for what came."""
        del event
        error = DetachForced(f"'{self.path}' takes nothing more for now. Attach again.")
        self._peer.detach(self.link, error, self.path)

    def _pass_to_owner(self, uplink: Link, session: ProxiedSession, event: Transfers) -> None:
        number = len(event.payloads)
        if event.message_format == BATCH_FORMAT:
            first = uplink.session.next_delivery_id
            for payload in event.payloads:
                uplink.send_one(self._tag(1), payload, event.settled, event.message_format)
        else:
            start = self._counter
            self._tag(number)
            first = uplink.send_run(self._prefix, start, [b""] * number, event.payloads, event.settled)
        if not event.settled:
            self._peer.note_bytes(self._note_sent(session, first, event))
        self._owners.proxied_messages += number
        self._write()

    def _tag(self, number: int) -> bytes:
        tag = tag_of(self._prefix, self._counter)
        self._counter = (self._counter + number) % COUNTERS
        return tag

    def _in_state(self, event: Transfers) -> None:
        """One delivery that is part of a transaction, which the owner does."""
        state, uplink, session = event.state, self.uplink, self.session
        try:
            if not isinstance(state, TransactionalState):
                raise NotImplementedYet("Deliveries are not resumed: send without a state, or in a transaction.")
            if uplink is None or session is None or self._upstream is None or not uplink.credit:
                raise ServerBusy(f"'{self.path}' takes nothing more for now. Please wait a second and try again.")
            self._peer.transactions.join(state.txn_id, self._upstream.coordinator, self.path)
        except ServiceBusError as error:
            if isinstance(state, TransactionalState):
                self._peer.transactions.doom(state.txn_id, error)
            if not event.settled:
                first = event.first_delivery_id
                self.link.settle(first, first, Rejected(self._peer.error(error, self.path)))
            # The owner counts on a credit that this delivery has used up here.
            self.owner_flow()
            return
        (payload,) = event.payloads
        first = uplink.send_one(self._tag(1), payload, event.settled, event.message_format, state)
        if not event.settled:
            self._peer.note_bytes(self._note_sent(session, first, event))
        self._owners.proxied_messages += 1
        self._write()

    def _note_sent(self, session: ProxiedSession, owner_id: int, event: Transfers) -> int:
        """Deliveries have gone to the owner; their bytes."""
        return session.note_sent(owner_id, event.first_delivery_id, event.payloads)

    def refused(self, event: TransferRefused) -> None:
        """A delivery that the engine did not take in: too large."""
        error = MessageTooLarge(f"The message has {event.size} bytes, more than '{self.path}' allows.")
        if isinstance(event.state, TransactionalState):
            self._peer.transactions.doom(event.state.txn_id, error)
        if not event.settled:
            state = Rejected(self._peer.error(error, self.path))
            self.link.settle(event.delivery_id, event.delivery_id, state)
        self.owner_flow()

    def flow(self) -> None:
        """The client has changed its credit, or wants to drain: it is the owner's to say what there is."""
        self._forward_pending()
        if self.uplink is not None and self._is_accepted:
            self.uplink.grant(self.link.credit, drain=self.link.drain)
            self._write()
        if self.link.echo:
            self.link.flow()

    # -- from the owner -----------------------------------------------------------------------------------------

    def owner_flow(self) -> None:
        """The owner gives credit to a sending client, or has drained what a receiving one had given."""
        uplink = self.uplink
        if uplink is None or not self._is_accepted:
            return
        if self.link.is_sender:
            if self.link.drain and not self._held:
                self.link.drained()
        elif not self._is_stopping and (uplink.credit != self.link.credit or not uplink.credit):
            self.link.grant(uplink.credit)
        if uplink.echo:
            uplink.flow()
            self._write()

    def owner_transfers(self, event: Transfers) -> None:
        """Pass on what the owner has given, tags and all: they are the lock tokens."""
        uplink = self.uplink
        if uplink is None or uplink.tags is None:
            return
        number = len(event.payloads)
        tags, uplink.tags = uplink.tags[:number], uplink.tags[number:]
        self._owners.proxied_messages += number
        if not self._held and self.link.credit >= number and not event.message_format:
            if event.settled:
                self.link.send_run(b"", 0, [b""] * number, event.payloads, True)
                return
            runs = runs_of_tags(tags)
            if runs is not None:
                self._pass_on(event, runs)
                return
        for index, (tag, payload) in enumerate(zip(tags, event.payloads, strict=True)):
            owner_id = (event.first_delivery_id + index) & _MASK
            self._held.append((owner_id, tag, payload, event.message_format, event.settled))
        self._forward_pending()

    def _pass_on(self, event: Transfers, runs: list[tuple[bytes, int, int]]) -> None:
        """Give the client deliveries whose tags count up, run by run."""
        payloads, start, first_id = event.payloads, 0, -1
        for prefix, counter, number in runs:
            part = payloads if number == len(payloads) else payloads[start : start + number]
            begun = self.link.send_run(prefix, counter, [b""] * number, part, False)
            first_id = begun if first_id < 0 else first_id
            start += number
        if self.session is not None:
            self.session.note_given(event.first_delivery_id, first_id, len(payloads))

    def _forward_pending(self) -> None:
        while self._held and self.link.credit > 0 and self.link.is_attached:
            owner_id, tag, payload, message_format, settled = self._held.popleft()
            client_id = self.link.send_one(tag if settled else tag or b"\0", payload, settled, message_format)
            if not settled and self.session is not None:
                self.session.note_given(owner_id, client_id, 1)

    # -- ends ---------------------------------------------------------------------------------------------------

    @property
    def owes(self) -> bool:
        """Whether the client waits for outcomes; those of other links of its session count, too."""
        return not self.link.is_sender and self.session is not None and self.session.owes

    def stop(self) -> None:
        """Take the client's credit back: this server is about to stop."""
        if not self.link.is_sender:
            self._is_stopping = True
            self.link.grant(0)

    def resume(self) -> None:
        """The client's socket takes more again."""
        self._forward_pending()

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint; the owner looks at it, too."""
        if not self.is_entity:
            return ((self.segments, ANY_RIGHT),)
        return ((self.segments, (Right.LISTEN if self.link.is_sender else Right.SEND,)),)

    def close(self) -> None:
        """The client has detached, or is gone."""
        self._end()

    def _end(self) -> None:
        uplink, self.uplink = self.uplink, None
        if uplink is None:
            return
        for owner_id, _, _, _, settled in self._held:
            if not settled and self.session is not None:
                self.session.owner.disposition(True, owner_id, owner_id, RELEASED, True)
        self._held.clear()
        uplink.detach()
        self._write()

    def _write(self) -> None:
        if self._upstream is not None:
            self._upstream.write_soon()
