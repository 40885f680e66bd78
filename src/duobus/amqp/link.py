"""One end of a link: its states, credit, deliveries in and out (AMQP 1.0 part 2, section 2.6).

REQUESTED --accept--> ATTACHED --detach (ours)--> DETACHING --detach (peer's)--> DETACHED
'------refuse--------------------------------^                                  ^
OFFERED ---attach (peer's)--> ATTACHED ----------detach (peer's)--------------------'
                                 '----detach (peer's)--> HELD --answer (ours)---'
"""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import errors as conditions
from duobus.amqp.delivery_states import DeliveryState, Received, TransactionalState, encode_state, state_from
from duobus.amqp.errors import EngineMisuse, Error, ProtocolViolation
from duobus.amqp.events import Event, LinkDetached, TransferRefused, Transfers
from duobus.amqp.frames import HALF, MASK, TransferTemplate, serial_difference, transfer_head
from duobus.amqp.large_delivery import LargeDelivery
from duobus.amqp.performatives import Attach, Coordinator, Detach, Flow, Source, Target, Transfer
from duobus.codec import BATCH_FORMAT, digit_runs, tag_of

if TYPE_CHECKING:
    from duobus.amqp.session import Session


REQUESTED: Final = "requested"  # The peer attached; our answer is awaited.
OFFERED: Final = "offered"  # We attached; the peer's answer is awaited.
ATTACHED: Final = "attached"
DETACHING: Final = "detaching"  # We detached; whatever the peer sends until its own detach is thrown away.
HELD: Final = "held"  # The peer detached; the owner has outcomes to tell before it is answered.
DETACHED: Final = "detached"

_NEXT: Final[dict[tuple[str, str], str]] = {
    (REQUESTED, "accept"): ATTACHED,
    (REQUESTED, "refuse"): DETACHING,
    (REQUESTED, "detach sent"): DETACHING,
    (REQUESTED, "detach received"): DETACHED,
    (REQUESTED, "session gone"): DETACHED,
    (OFFERED, "attach received"): ATTACHED,
    (OFFERED, "detach sent"): DETACHING,
    (OFFERED, "session gone"): DETACHED,
    (ATTACHED, "detach sent"): DETACHING,
    (ATTACHED, "detach received"): DETACHED,
    (ATTACHED, "detach held"): HELD,
    (ATTACHED, "session gone"): DETACHED,
    (HELD, "detach answered"): DETACHED,
    (HELD, "session gone"): DETACHED,
    (DETACHING, "attach received"): DETACHING,
    (DETACHING, "detach received"): DETACHED,
    (DETACHING, "session gone"): DETACHED,
}

SND_MIXED: Final = 2
RCV_FIRST: Final = 0


# What one kept frame of an unfinished delivery costs beside its bytes; stops floods of tiny frames.
_CHUNK_OVERHEAD: Final = 64
# What the kept frames may cost before they are gathered in one buffer.
_CHUNKS_COST_MAX: Final = 1 << 20
_CREDIT_MAX: Final = HALF - 1
_ENCODED_NONE: Final = b"\x40"
#: Stands for every state of an incoming delivery that is not transactional.
_OTHER: Final = Received(0, 0)
#: How many bytes more than ``max_message_size`` a delivery of the batch format may have. The SDK for Python fills a
#: batch to the limit that the link announced and then writes message-id, session-id and partition-key of the first
#: message (128 characters each, of up to 4 bytes) into the envelope, too.
BATCH_ROOM_BYTES: Final = 2048
#: Bytes of a transaction's id; ours are shorter.
_ID_MAX: Final = 64


def _small(state: DeliveryState | None) -> DeliveryState | None:
    """What is kept of the state of an unfinished delivery: a peer may put anything into one."""
    if isinstance(state, TransactionalState):
        return TransactionalState(state.txn_id[:_ID_MAX])
    return None if state is None else _OTHER


class _Partial:
    """A delivery of which more frames are to come.

    A few frames are kept as they came and joined in the end. Many are gathered in one buffer, which becomes the
    message without a copy: joining 100 MB takes 200 MB for a moment, and leaves the heap full of holes.
    """

    __slots__ = (
        "_buffer",
        "_chunks",
        "cost",
        "delivery_id",
        "message_format",
        "reason",
        "refused",
        "settled",
        "size",
        "state",
    )

    def __init__(self, delivery_id: int, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.message_format = message_format
        self.settled = False
        self.state: DeliveryState | None = None
        self._chunks: list[bytes] = []
        self._buffer: BytesIO | None = None
        self.size = 0
        self.cost = 0
        self.refused = False
        self.reason = ""

    def keep(self, payload: bytes) -> None:
        """Keep one frame's part of the message."""
        if self._buffer is not None:
            self._buffer.write(payload)
            self.cost += len(payload)
            return
        self._chunks.append(payload)
        self.cost += len(payload) + _CHUNK_OVERHEAD
        if self.cost > _CHUNKS_COST_MAX:
            self._buffer = BytesIO()
            self._buffer.writelines(self._chunks)
            self._chunks.clear()
            self.cost = self._buffer.tell()

    def forget(self) -> None:
        """Keep nothing any more."""
        self._chunks.clear()
        self._buffer = None
        self.cost = 0

    def whole(self) -> bytes:
        """Return all that was kept."""
        return b"".join(self._chunks) if self._buffer is None else self._buffer.getvalue()


class Link:
    """A link endpoint; made by the session.

    Attributes:
        session: The session it belongs to.
        name: Chosen by whoever attached first.
        is_sender: Whether we send on it.
        handle: Our handle.
        state: One of the six names above.
        remote: The peer's attach; None until it came.
        context: For the owner; the engine never looks.
        max_message_size: The largest delivery we take, in bytes; None for no limit of its own.
        announced: Whether the owner knows of the link, and has not been told of its end.
        available: What our flows say of messages that the peer could have.
        credit: How many deliveries may be sent, or how many we still await.
        cut: The state of a delivery that was not complete when the link ended.
        drain: On a link we send on: the peer wants all credit used up now.
        echo: On a link we send on: the peer wants to hear our state; ``flow`` answers.
        holds_detach: Set by an owner who answers the peer's detach with ``answer_detach``, once there are no more
            outcomes to tell: what is told after that answer is lost on clients that wait for it.
        run: The deliveries of the read under way that make one event; None between reads.
        tags: Set to a list by an owner who wants the tag of every delivery that comes in, in order; takes them out.
        template: Of its transfers; for whoever writes them.
        told: What the peer has said last that is available, if an owner has set it to 0, who gets a LinkFlow for each.
    """

    __slots__ = (
        "_allowance",
        "_closed",
        "_partial",
        "_run_generation",
        "_run_next",
        "announced",
        "available",
        "context",
        "credit",
        "cut",
        "delivery_count",
        "drain",
        "echo",
        "handle",
        "holds_detach",
        "initial_delivery_count",
        "is_sender",
        "max_message_size",
        "name",
        "remote",
        "run",
        "session",
        "state",
        "tags",
        "template",
        "told",
    )

    def __init__(self, session: Session, name: str, is_sender: bool, handle: int, state: str) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.state = state
        self.remote: Attach | None = None
        self.context: Any = None
        self.max_message_size: int | None = None
        self.announced = True
        self.delivery_count = 0
        self.initial_delivery_count = 0
        self.available = 0
        self.credit = 0
        self.drain = False
        self.echo = False
        self.holds_detach = False
        self.tags: list[bytes] | None = None
        self._closed = True
        # More than credit after credit was taken back: deliveries may be under way that were sent on the old one.
        self._allowance = 0
        self._partial: _Partial | None = None
        self.cut: DeliveryState | None = None
        self.run: Transfers | None = None
        self._run_generation = -1
        self._run_next = -1
        self.template = TransferTemplate(session.channel, handle)
        self.told = -1

    # Attaching and detaching.

    @property
    def is_attached(self) -> bool:
        """Whether messages can travel."""
        return self.state == ATTACHED

    @property
    def is_held(self) -> bool:
        """Whether the peer has detached and waits for ``answer_detach``."""
        return self.state == HELD

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'sender' if self.is_sender else 'receiver'} {self.state}>"

    def move(self, step: str) -> bool:
        """Go to the state that follows after ``step``; return False if there is none."""
        following = _NEXT.get((self.state, step))
        if following is None:
            return False
        self.state = following
        return True

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
        initial_delivery_count: int = 0,
    ) -> bool:
        """Answer the peer's attach; the settle modes are echoed.

        Args:
            source: In place of the peer's own words, for instance with a filled filter.
            target: In place of the peer's own words.
            max_message_size: In bytes; on a link that we receive on larger deliveries are refused.
            properties: Of the link.
            initial_delivery_count: Where our count starts, if we are the sender.

        Returns:
            False when the link is gone already, which is no error: answers may take their time.
        """
        remote = self.remote
        if remote is None or not self.move("accept"):
            return False
        self.max_message_size = None if self.is_sender else max_message_size or None
        self.shift_counts(initial_delivery_count if self.is_sender else remote.initial_delivery_count or 0)
        self.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=SND_MIXED if remote.snd_settle_mode is None else remote.snd_settle_mode,
                rcv_settle_mode=RCV_FIRST if remote.rcv_settle_mode is None else remote.rcv_settle_mode,
                source=source or remote.source,
                target=target or remote.target,
                initial_delivery_count=initial_delivery_count if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )
        return True

    def shift_counts(self, initial: int) -> None:
        """Let the delivery count start at ``initial``."""
        self.initial_delivery_count = initial
        self.delivery_count = initial

    def refuse(self, condition: str, description: str | None = None, info: Mapping[str, Any] | None = None) -> bool:
        """Refuse the peer's attach: an attach without termini, then a detach with the error (AMQP 1.0 part 2, 2.6.3).

        Returns:
            False when the link is gone already, which is no error.
        """
        if not self.move("refuse"):
            return False
        self.write_empty_attach()
        self.write(Detach(handle=self.handle, closed=True, error=Error(condition, description, info)))
        return True

    def write_empty_attach(self) -> None:
        """Answer the peer's attach without termini: a detach is to follow."""
        remote = self.remote
        assert remote is not None  # only asked for after the peer's attach
        self.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=SND_MIXED if remote.snd_settle_mode is None else remote.snd_settle_mode,
                rcv_settle_mode=RCV_FIRST if remote.rcv_settle_mode is None else remote.rcv_settle_mode,
                initial_delivery_count=0 if self.is_sender else None,
            )
        )

    def detach(
        self,
        condition: str | None = None,
        description: str | None = None,
        info: Mapping[str, Any] | None = None,
        *,
        closed: bool = True,
    ) -> bool:
        """Detach the link; LinkDetached comes when the peer has answered.

        Frames of this link that wait for the peer's window are dropped.

        Returns:
            False when the link is gone already, which is no error.
        """
        if self.state == REQUESTED:
            self.write_empty_attach()
        if not self.move("detach sent"):
            return False
        self.forget_deliveries()
        error = None if condition is None else Error(condition, description, info)
        self.write(Detach(handle=self.handle, closed=closed, error=error))
        return True

    def session_gone(self) -> None:
        """Forget everything: the session took the link with it."""
        self.move("session gone")
        self.forget_deliveries()
        self.announced = False

    def on_attach(self, attach: Attach) -> bool:
        """Take the peer's answer to our attach; return whether the link is attached now."""
        self.remote = attach
        self.move("attach received")
        if not self.is_sender:
            self.shift_counts(attach.initial_delivery_count or 0)
        return self.state == ATTACHED

    def write(self, performative: Attach | Detach) -> None:
        """Write a frame of the link's session."""
        self.session.connection.write_frame(self.session.channel, performative.to_bytes())

    # Ends.

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """Take the peer's detach: answer it, if it is not the answer to ours, and tell the owner."""
        was = self.state
        self._closed = True if detach.closed is None else detach.closed
        self.move("detach held" if was == ATTACHED and self.holds_detach else "detach received")
        if was == REQUESTED:
            self.write_empty_attach()
        if was != DETACHING and self.state != HELD:
            self.write(Detach(handle=self.handle, closed=self._closed))
        self.forget_deliveries()
        if self.announced:
            self.announced = False
            events.append(LinkDetached(self, bool(detach.closed), detach.error))

    def answer_detach(self) -> None:
        """Answer the peer's detach if there was one and it was held; otherwise do nothing."""
        if self.move("detach answered"):
            self.write(Detach(handle=self.handle, closed=self._closed))
            self.session.free(self)

    def fail(self, error: Error, events: list[Event]) -> None:
        """End the link because the peer broke a rule on it."""
        if self.detach(error.condition, error.description, error.info) and self.announced:
            self.announced = False
            events.append(LinkDetached(self, True, error))

    def forget_deliveries(self) -> None:
        """Drop credit and whatever is unfinished, in both directions."""
        self.cut = None if self._partial is None else self._partial.state
        self._drop_partial()
        self.run = None
        self.credit = self._allowance = 0
        self.session.drop_queued(self)

    # Credit.

    def grant(self, credit: int, *, drain: bool = False) -> None:
        """Tell the peer that it may send ``credit`` more deliveries; replaces what was granted before.

        Does nothing on a link that is not attached. Credit taken back may still be used by deliveries under way.

        Args:
            credit: 0 to 2**31 - 1.
            drain: Ask the peer to use it up or give it back at once.
        """
        if self.is_sender or self.state != ATTACHED:
            return
        self.credit = min(credit, _CREDIT_MAX)
        self._allowance = max(self._allowance, self.credit)
        self.drain = drain
        self.session.write_flow(self.handle, self.delivery_count, self.credit, drain=drain)

    def flow(self) -> None:
        """Tell the peer the state of the link and its session, as an echo asks for."""
        self.echo = False
        if self.state == ATTACHED:
            self.session.write_flow(self.handle, self.delivery_count, self.credit, available=self.available)

    def drained(self) -> None:
        """Answer a drain: all credit is used up, nothing is available (AMQP 1.0 part 2, 2.6.7)."""
        self.delivery_count = (self.delivery_count + self.credit) & MASK
        self.credit = 0
        self.drain = self.echo = False
        if self.state == ATTACHED:
            self.session.write_flow(self.handle, self.delivery_count, 0, drain=True, available=self.available)

    def sendable(self) -> int:
        """Return how many single-frame messages could be written now: credit and the peer's window allow it."""
        return 0 if self.state != ATTACHED else min(self.credit, self.session.room(self.credit))

    def on_flow(self, flow: Flow) -> bool:
        """Take the link's part of a flow; return whether the owner wants to know.

        Ignores credit on links that we receive on: pyamqp sends it there, too (AMQP 1.0 part 2, 2.6.7).
        """
        if not self.is_sender:
            return self._on_sender_flow(flow)
        before = self.credit
        drain = bool(flow.drain)
        if flow.link_credit is not None:
            # credit = flow.delivery-count + flow.link-credit - own delivery-count.
            count = self.initial_delivery_count if flow.delivery_count is None else flow.delivery_count
            credit = flow.link_credit - serial_difference(self.delivery_count, count)
            self.credit = max(0, min(credit, _CREDIT_MAX))
        self.drain = drain
        self.echo = self.echo or bool(flow.echo)
        return drain or self.echo or self.credit != before

    def _on_sender_flow(self, flow: Flow) -> bool:
        if flow.echo:
            self.flow()
        is_told = self.told >= 0
        if is_told:
            self.told = flow.available or 0
        if not self.drain or not flow.drain or flow.delivery_count is None:
            return is_told
        # The peer gives back what it did not use.
        unused = max(0, min(serial_difference(flow.delivery_count, self.delivery_count), self.credit))
        self.delivery_count = (self.delivery_count + unused) & MASK
        self.credit -= unused
        self._allowance = self.credit
        self.drain = False
        return True

    # Deliveries that come in.

    def settle(self, first: int, last: int, state: DeliveryState | None) -> None:
        """Settle deliveries that came in on this link's session; does nothing when the session is gone."""
        self.session.disposition(True, first, last, state, True)

    def run_room(self, size: int) -> int:
        """Return how many complete deliveries may follow now; 0 when the thorough path has to look."""
        if self.is_sender or self.state != ATTACHED or self._partial is not None:
            return 0
        if self.max_message_size is not None and size > self.max_message_size:
            return 0
        return self._allowance

    def open_run(
        self, delivery_id: int, settled: bool, message_format: int, events: list[Event], generation: int
    ) -> list[bytes]:
        """Return the list that the payload of this delivery belongs to; a new event where the last cannot go on."""
        run = self.run
        if (
            run is None
            or self._run_generation != generation
            or self._run_next != delivery_id
            or run.settled is not settled
            or run.message_format != message_format
            or run.state is not None
        ):
            run = Transfers(self, delivery_id, settled, message_format, [])
            self.run = run
            self._run_generation = generation
            self.session.connection.running.append(self)
            events.append(run)
        return run.payloads

    def close_run(self, n: int, next_id: int) -> None:
        """Take account of ``n`` deliveries that were put into the list; the next would have ``next_id``."""
        self._run_next = next_id
        self.delivery_count = (self.delivery_count + n) & MASK
        self._allowance -= n
        self.credit = max(0, self.credit - n)
        self.session.count_incoming(n)

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event], generation: int) -> None:
        """Take one frame of a delivery, of any kind.

        Raises:
            ProtocolViolation: No credit, no delivery id, a change of the id within a delivery, too much unfinished.
        """
        if self.is_sender:
            raise ProtocolViolation(conditions.NOT_ALLOWED, f"link {self.name!r} only sends to you", self)
        partial = self._partial or self._first_frame(transfer)
        if transfer.delivery_id is not None and transfer.delivery_id != partial.delivery_id:
            text = f"delivery {transfer.delivery_id} starts before delivery {partial.delivery_id} is complete"
            raise ProtocolViolation(conditions.NOT_ALLOWED, text, self)
        if transfer.aborted:
            self._drop_partial()
            if self.tags:
                self.tags.pop()
            return
        partial.settled = partial.settled or bool(transfer.settled)
        partial.state = state_from(transfer.state) or partial.state
        self._keep(partial, payload)
        if transfer.more:
            self._partial = partial
            partial.state = _small(partial.state)
            return
        self._partial = None
        self.session.connection.partial_bytes -= partial.cost
        if partial.refused:
            # What comes after it in this read, such as the discharge of its transaction, is told after it.
            self.session.connection.generation += 1
            if self.tags:
                self.tags.pop()
            size, reason, state = partial.size, partial.reason, partial.state
            events.append(TransferRefused(self, partial.delivery_id, partial.settled, size, reason, state))
            return
        whole = partial.whole()
        if partial.state is not None:
            # Likewise.
            self.session.connection.generation += 1
            form, state = partial.message_format, partial.state
            self.run = None
            events.append(Transfers(self, partial.delivery_id, partial.settled, form, [whole], state))
            return
        run = self.open_run(partial.delivery_id, partial.settled, partial.message_format, events, generation)
        run.append(whole)
        self._run_next = (partial.delivery_id + 1) & MASK

    def _first_frame(self, transfer: Transfer) -> _Partial:
        if transfer.delivery_id is None:
            text = "the first transfer of a delivery has a delivery-id"
            raise ProtocolViolation(conditions.INVALID_FIELD, text, self.session)
        if self._allowance <= 0:
            text = f"delivery {transfer.delivery_id} came without credit"
            raise ProtocolViolation(conditions.TRANSFER_LIMIT_EXCEEDED, text, self)
        self._allowance -= 1
        self.credit = max(0, self.credit - 1)
        self.delivery_count = (self.delivery_count + 1) & MASK
        if self.tags is not None:
            self.tags.append(transfer.delivery_tag or b"")
        return _Partial(transfer.delivery_id, transfer.message_format or 0)

    def _keep(self, partial: _Partial, payload: bytes) -> None:
        partial.size += len(payload)
        connection = self.session.connection
        limit = self.max_message_size
        if limit is not None and partial.size > limit:
            if partial.message_format == BATCH_FORMAT:
                limit += BATCH_ROOM_BYTES
            if partial.size > limit:
                self._refuse_partial(partial, f"a message of more than the {limit} bytes allowed")
        if partial.refused or not payload:
            return
        connection.partial_bytes -= partial.cost
        partial.keep(payload)
        connection.partial_bytes += partial.cost
        # Kept already, so that dropping the link's partial delivery gives back all of it.
        self._partial = partial
        room = connection.settings.partial_room
        if connection.partial_bytes - partial.cost > room and connection.partial_bytes - self._largest_partial() > room:
            self._refuse_partial(partial, f"unfinished deliveries hold {room} bytes beside the largest one")
        elif connection.partial_bytes > connection.settings.partial_bytes_max:
            text = f"unfinished deliveries pass {connection.settings.partial_bytes_max} bytes on this connection"
            raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, text, self)

    def _refuse_partial(self, partial: _Partial, reason: str) -> None:
        """Stop buffering at once; the rest of the delivery is only counted (AMQP 1.0 part 2, 2.6.14)."""
        self.session.connection.partial_bytes -= partial.cost
        partial.forget()
        partial.refused = True
        partial.reason = reason

    def _largest_partial(self) -> int:
        links = (link for session in self.session.connection.sessions.values() for link in session.links)
        return max(link._partial.cost for link in links if link._partial is not None)

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self.session.connection.partial_bytes -= self._partial.cost
            self._partial = None

    # Deliveries that go out.

    def send_run(self, prefix: bytes, first: int, heads: list[bytes], payloads: list[Any], settled: bool) -> int:
        """Write one delivery for each head and payload; return the first delivery id, the others follow by one.

        Message-format is 0. Delivery tags are 16 bytes, and empty when settled (AMQP 1.0 part 2, 2.6.7). What the
        peer's window does not let through waits in the session; stay within ``sendable`` and it is one run at most.

        Args:
            prefix: First 8 bytes of every tag.
            first: Counter of the first tag, which ``codec.tags`` makes its last 8 bytes of; each delivery adds one.
            heads: First part of each message, header and annotations at least.
            payloads: The rest of each message, of the same number: bytes, or a view of some.
            settled: Send settled.

        Raises:
            EngineMisuse: The link is not attached, or has less credit.
        """
        session = self.session
        n = len(heads)
        if n > self.credit or self.state != ATTACHED or not self.is_sender:
            raise EngineMisuse(f"{n} deliveries on {self!r} with credit {self.credit}")
        start = delivery_id = session.next_delivery_id
        if session.can_write(n) and start + n <= MASK:
            connection = session.connection
            template = self.template
            append = connection.out.append
            written = 0
            if settled:
                pack_settled = template.pack_settled
                constant = template.head_settled
                overhead = template.overhead_settled
                room = connection.peer_frame_max - overhead
                tail = TransferTemplate.TAIL_SETTLED
                for head, payload in zip(heads, payloads, strict=True):
                    size = len(head) + len(payload)
                    if size > room:
                        break
                    append(pack_settled(overhead + size, constant, delivery_id, tail))
                    append(head)
                    append(payload)
                    delivery_id += 1
                    written += size
            else:
                pack = template.pack
                constant = template.head
                overhead = template.overhead
                room = connection.peer_frame_max - overhead
                tag = b"\xa0\x10" + prefix
                tail = TransferTemplate.TAIL_UNSETTLED
                for head, payload, counter in zip(heads, payloads, digit_runs(first, n), strict=True):
                    size = len(head) + len(payload)
                    if size > room:
                        break
                    append(pack(overhead + size, constant, delivery_id, tag, counter, tail))
                    append(head)
                    append(payload)
                    delivery_id += 1
                    written += size
            done = delivery_id - start
            connection.output_size += written + done * overhead
            session.wrote_transfers(done)
        else:
            done = 0
        self.delivery_count = (self.delivery_count + n) & MASK
        self.credit -= n
        session.next_delivery_id = (start + n) & MASK
        for index in range(done, n):
            tag = b"" if settled else tag_of(prefix, first + index)
            delivery_id = (start + index) & MASK
            self._send_frames(delivery_id, tag, heads[index], payloads[index], 0, settled, _ENCODED_NONE)
        return start

    def send_one(
        self,
        tag: bytes,
        payload: bytes,
        settled: bool,
        message_format: int = 0,
        state: DeliveryState | None = None,
    ) -> int:
        """Write one delivery and return its delivery id; see ``send_run``.

        Args:
            tag: At most 32 bytes; empty only for a settled delivery.
            payload: The encoded message, all sections.
            settled: Send settled.
            message_format: 0, or the batch format.
            state: For instance a TransactionalState.

        Raises:
            EngineMisuse: The link is not attached, or has no credit.
        """
        if self.credit < 1 or self.state != ATTACHED or not self.is_sender:
            raise EngineMisuse(f"a delivery on {self!r} with credit {self.credit}")
        session = self.session
        delivery_id = session.next_delivery_id
        session.next_delivery_id = (delivery_id + 1) & MASK
        self.delivery_count = (self.delivery_count + 1) & MASK
        self.credit -= 1
        self._send_frames(delivery_id, tag, b"", payload, message_format, settled, encode_state(state))
        return delivery_id

    def _send_frames(
        self,
        delivery_id: int,
        tag: bytes,
        head: bytes,
        payload: Any,
        message_format: int,
        settled: bool,
        state: bytes,
    ) -> None:
        session = self.session
        start = transfer_head(self.handle, delivery_id, tag, message_format, settled, False, state)
        body_max = session.connection.peer_frame_max - 8
        if len(start) + len(head) + len(payload) <= body_max:
            session.write_transfer(self, start + head + payload)
            return
        large = LargeDelivery(self.handle, delivery_id, tag, message_format, settled, state, head, payload, body_max)
        session.write_large(self, large)
