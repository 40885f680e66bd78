"""One end of a link: attach and detach, credit, deliveries in and out (part 2, section 2.6; wire contract 6 to 8).

REQUESTED --accept--> ATTACHED --detach (ours)--> DETACHING --detach (peer's)--> DETACHED
    '------refuse--------------------------------^                                  ^
OFFERED ---attach (peer's)--> ATTACHED ----------detach (peer's)--------------------'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import conditions
from duobus.amqp.conditions import EngineMisuse, Error, ProtocolViolation
from duobus.amqp.events import Event, LinkDetached, TransferRefused, Transfers
from duobus.amqp.frames import HALF, MASK, TransferTemplate, serial_difference, transfer_head
from duobus.amqp.performatives import Attach, Coordinator, Detach, Flow, Source, Target, Transfer
from duobus.amqp.states import DeliveryState, encode_state, state_from

if TYPE_CHECKING:
    from duobus.amqp.session import Session

REQUESTED: Final = "requested"  # The peer attached; our answer is awaited.
OFFERED: Final = "offered"  # We attached; the peer's answer is awaited.
ATTACHED: Final = "attached"
DETACHING: Final = "detaching"  # We detached; whatever the peer sends until its own detach is thrown away.
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
    (ATTACHED, "session gone"): DETACHED,
    (DETACHING, "attach received"): DETACHING,
    (DETACHING, "detach received"): DETACHED,
    (DETACHING, "session gone"): DETACHED,
}

SND_MIXED: Final = 2
RCV_FIRST: Final = 0

# What one kept frame of an unfinished delivery costs beside its bytes; stops floods of tiny frames.
_CHUNK_OVERHEAD = 64
_CREDIT_MAX = HALF - 1
_ENCODED_NONE = b"\x40"


class _Partial:
    """A delivery of which more frames are to come."""

    __slots__ = ("chunks", "cost", "delivery_id", "message_format", "refused", "settled", "size", "state")

    def __init__(self, delivery_id: int, message_format: int) -> None:
        self.delivery_id = delivery_id
        self.message_format = message_format
        self.settled = False
        self.state: DeliveryState | None = None
        self.chunks: list[bytes] = []
        self.size = 0
        self.cost = 0
        self.refused = False


class Link:
    """A link endpoint; made by the session.

    Attributes:
        session: The session it belongs to.
        name: Chosen by whoever attached first.
        is_sender: Whether we send on it.
        handle: Our handle.
        state: One of the five names above.
        remote: The peer's attach; None until it came.
        context: For the owner; the engine never looks.
        credit: How many deliveries may be sent, or how many we still await.
        drain: On a link we send on: the peer wants all credit used up now.
        echo: On a link we send on: the peer wants to hear our state; ``flow`` answers.
        max_message_size: The largest delivery we take, in bytes; None for no limit of its own.
    """

    __slots__ = (
        "_allowance",
        "_delivery_count",
        "_initial_delivery_count",
        "_partial",
        "_run",
        "_run_generation",
        "_run_next",
        "_template",
        "announced",
        "context",
        "credit",
        "drain",
        "echo",
        "handle",
        "is_sender",
        "max_message_size",
        "name",
        "remote",
        "session",
        "state",
    )

    def __init__(self, session: Session, name: str, is_sender: bool, handle: int, state: str) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.state = state
        self.remote: Attach | None = None
        self.context: Any = None
        self.credit = 0
        self.drain = False
        self.echo = False
        self.max_message_size: int | None = None
        # Whether the owner knows of the link, and has not been told of its end.
        self.announced = True
        self._delivery_count = 0
        self._initial_delivery_count = 0
        # More than credit after credit was taken back: deliveries may be under way that were sent on the old one.
        self._allowance = 0
        self._partial: _Partial | None = None
        self._run: Transfers | None = None
        self._run_generation = -1
        self._run_next = -1
        self._template = TransferTemplate(session.channel, handle)

    @property
    def is_attached(self) -> bool:
        """Whether messages can travel."""
        return self.state == ATTACHED

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'sender' if self.is_sender else 'receiver'} {self.state}>"

    def _move(self, step: str) -> bool:
        following = _NEXT.get((self.state, step))
        if following is None:
            return False
        self.state = following
        return True

    # Attaching and detaching.

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
        if remote is None or not self._move("accept"):
            return False
        self.max_message_size = max_message_size if not self.is_sender else None
        self._shift_counts(initial_delivery_count if self.is_sender else remote.initial_delivery_count or 0)
        self._write(
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

    def _shift_counts(self, initial: int) -> None:
        self._initial_delivery_count = initial
        self._delivery_count = initial

    def refuse(self, condition: str, description: str | None = None, info: Mapping[str, Any] | None = None) -> bool:
        """Refuse the peer's attach: an attach without termini, then a detach with the error (wire contract 6.3).

        Returns:
            False when the link is gone already, which is no error.
        """
        if not self._move("refuse"):
            return False
        self._write_empty_attach()
        self._write(Detach(handle=self.handle, closed=True, error=Error(condition, description, info)))
        return True

    def _write_empty_attach(self) -> None:
        remote = self.remote
        assert remote is not None  # only asked for after the peer's attach
        self._write(
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
            self._write_empty_attach()
        if not self._move("detach sent"):
            return False
        self._forget_deliveries()
        error = None if condition is None else Error(condition, description, info)
        self._write(Detach(handle=self.handle, closed=closed, error=error))
        return True

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """Take the peer's detach: answer it, if it is not the answer to ours, and tell the owner."""
        was = self.state
        self._move("detach received")
        if was == REQUESTED:
            self._write_empty_attach()
        if was != DETACHING:
            self._write(Detach(handle=self.handle, closed=True if detach.closed is None else detach.closed))
        self._forget_deliveries()
        if self.announced:
            self.announced = False
            events.append(LinkDetached(self, bool(detach.closed), detach.error))

    def fail(self, error: Error, events: list[Event]) -> None:
        """End the link because the peer broke a rule on it."""
        if self.detach(error.condition, error.description, error.info) and self.announced:
            self.announced = False
            events.append(LinkDetached(self, True, error))

    def session_gone(self) -> None:
        """Forget everything: the session took the link with it."""
        self._move("session gone")
        self._forget_deliveries()
        self.announced = False

    def _forget_deliveries(self) -> None:
        self._drop_partial()
        self._run = None
        self.credit = self._allowance = 0
        self.session.drop_queued(self)

    def on_attach(self, attach: Attach) -> bool:
        """Take the peer's answer to our attach; return whether the link is attached now."""
        self.remote = attach
        self._move("attach received")
        if not self.is_sender:
            self._shift_counts(attach.initial_delivery_count or 0)
        return self.state == ATTACHED

    def _write(self, performative: Attach | Detach) -> None:
        self.session.connection.write_frame(self.session.channel, performative.to_bytes())

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
        self.session.write_flow(self.handle, self._delivery_count, self.credit, drain=drain)

    def flow(self) -> None:
        """Tell the peer the state of the link and its session, as an echo asks for."""
        self.echo = False
        if self.state == ATTACHED:
            self.session.write_flow(self.handle, self._delivery_count, self.credit)

    def drained(self) -> None:
        """Answer a drain: all credit is used up, nothing is available (wire contract 8.5)."""
        self._delivery_count = (self._delivery_count + self.credit) & MASK
        self.credit = 0
        self.drain = self.echo = False
        if self.state == ATTACHED:
            self.session.write_flow(self.handle, self._delivery_count, 0, drain=True)

    def sendable(self) -> int:
        """Return how many single-frame messages could be written now: credit and the peer's window allow it."""
        return 0 if self.state != ATTACHED else min(self.credit, self.session.room(self.credit))

    def on_flow(self, flow: Flow) -> bool:
        """Take the link's part of a flow; return whether the owner wants to know.

        Ignores credit on links that we receive on: pyamqp sends it there, too (wire contract 8.1).
        """
        if not self.is_sender:
            return self._on_sender_flow(flow)
        before = self.credit
        drain = bool(flow.drain)
        if flow.link_credit is not None:
            # credit = flow.delivery-count + flow.link-credit - own delivery-count.
            count = self._initial_delivery_count if flow.delivery_count is None else flow.delivery_count
            credit = flow.link_credit - serial_difference(self._delivery_count, count)
            self.credit = max(0, min(credit, _CREDIT_MAX))
        self.drain = drain
        self.echo = self.echo or bool(flow.echo)
        return drain or self.echo or self.credit != before

    def _on_sender_flow(self, flow: Flow) -> bool:
        if flow.echo:
            self.flow()
        if not self.drain or not flow.drain or flow.delivery_count is None:
            return False
        # The peer gives back what it did not use.
        unused = max(0, min(serial_difference(flow.delivery_count, self._delivery_count), self.credit))
        self._delivery_count = (self._delivery_count + unused) & MASK
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
        run = self._run
        if (
            run is None
            or self._run_generation != generation
            or self._run_next != delivery_id
            or run.settled is not settled
            or run.message_format != message_format
            or run.state is not None
        ):
            run = Transfers(self, delivery_id, settled, message_format, [])
            self._run = run
            self._run_generation = generation
            events.append(run)
        return run.payloads

    def close_run(self, n: int, next_id: int) -> None:
        """Take account of ``n`` deliveries that were put into the list; the next would have ``next_id``."""
        self._run_next = next_id
        self._delivery_count = (self._delivery_count + n) & MASK
        self._allowance -= n
        self.credit = max(0, self.credit - n)
        self.session.count_incoming(n)

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event], generation: int) -> None:
        """Take one frame of a delivery, of any kind.

        Raises:
            ProtocolViolation: No credit, no delivery id, a change of the id within a delivery, too much unfinished.
        """
        if self.state == DETACHING:
            return
        if self.is_sender:
            raise ProtocolViolation(conditions.NOT_ALLOWED, f"link {self.name!r} only sends to you", self)
        partial = self._partial or self._first_frame(transfer)
        if transfer.delivery_id is not None and transfer.delivery_id != partial.delivery_id:
            text = f"delivery {transfer.delivery_id} starts before delivery {partial.delivery_id} is complete"
            raise ProtocolViolation(conditions.NOT_ALLOWED, text, self)
        if transfer.aborted:
            self._drop_partial()
            return
        partial.settled = partial.settled or bool(transfer.settled)
        partial.state = state_from(transfer.state) or partial.state
        self._keep(partial, payload)
        if transfer.more:
            self._partial = partial
            return
        self._partial = None
        self.session.connection.partial_bytes -= partial.cost
        if partial.refused:
            reason = f"a message of {partial.size} bytes is larger than the {self.max_message_size} bytes allowed"
            events.append(TransferRefused(self, partial.delivery_id, partial.settled, partial.size, reason))
            return
        whole = b"".join(partial.chunks)
        if partial.state is not None:
            event = Transfers(
                self, partial.delivery_id, partial.settled, partial.message_format, [whole], partial.state
            )
            self._run = None
            events.append(event)
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
        self._delivery_count = (self._delivery_count + 1) & MASK
        return _Partial(transfer.delivery_id, transfer.message_format or 0)

    def _keep(self, partial: _Partial, payload: bytes) -> None:
        partial.size += len(payload)
        connection = self.session.connection
        if self.max_message_size is not None and partial.size > self.max_message_size:
            # Buffering stops at once; the rest of the delivery is only counted (wire contract 7.4).
            connection.partial_bytes -= partial.cost
            partial.cost = 0
            partial.chunks.clear()
            partial.refused = True
        if partial.refused or not payload:
            return
        partial.chunks.append(payload)
        cost = len(payload) + _CHUNK_OVERHEAD
        partial.cost += cost
        connection.partial_bytes += cost
        # Kept already, so that dropping the link's partial delivery gives back all of it.
        self._partial = partial
        if connection.partial_bytes > connection.settings.partial_bytes_max:
            text = f"unfinished deliveries pass {connection.settings.partial_bytes_max} bytes on this connection"
            raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, text, self)

    def _drop_partial(self) -> None:
        if self._partial is not None:
            self.session.connection.partial_bytes -= self._partial.cost
            self._partial = None

    # Deliveries that go out.

    def send_run(self, prefix: bytes, first: int, heads: list[bytes], payloads: list[bytes], settled: bool) -> int:
        """Write one delivery for each head and payload; return the first delivery id, the others follow by one.

        Message-format is 0. Delivery tags are 16 bytes. What the peer's window does not let through waits in the
        session; stay within ``sendable`` and it is one run at most.

        Args:
            prefix: First 8 bytes of every tag.
            first: Counter of the first tag, its last 8 bytes, big-endian; each delivery adds one.
            heads: Header and annotations of each message.
            payloads: Bare message of each, of the same number.
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
            template = self._template
            pack = template.pack
            constant = template.head
            overhead = template.overhead
            room = connection.peer_frame_max - overhead
            tag = b"\xa0\x10" + prefix
            tail = TransferTemplate.TAIL_SETTLED if settled else TransferTemplate.TAIL_UNSETTLED
            append = connection.out.append
            written = 0
            counter = first
            for head, payload in zip(heads, payloads, strict=True):
                size = len(head) + len(payload)
                if size > room:
                    break
                append(pack(overhead + size, constant, delivery_id, tag, counter, tail))
                append(head)
                append(payload)
                delivery_id += 1
                counter += 1
                written += size
            done = delivery_id - start
            connection.output_size += written + done * overhead
            session.wrote_transfers(done)
        else:
            done = 0
        self._delivery_count = (self._delivery_count + n) & MASK
        self.credit -= n
        session.next_delivery_id = (start + n) & MASK
        for index in range(done, n):
            tag = prefix + ((first + index) & 0xFFFFFFFFFFFFFFFF).to_bytes(8, "big")
            content = heads[index] + payloads[index]
            self._send_frames((start + index) & MASK, tag, content, 0, settled, _ENCODED_NONE)
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
            tag: 1 to 32 bytes.
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
        self._delivery_count = (self._delivery_count + 1) & MASK
        self.credit -= 1
        self._send_frames(delivery_id, tag, payload, message_format, settled, encode_state(state))
        return delivery_id

    def _send_frames(
        self, delivery_id: int, tag: bytes, content: bytes, message_format: int, settled: bool, state: bytes
    ) -> None:
        session = self.session
        frame_max = session.connection.peer_frame_max
        head = transfer_head(self.handle, delivery_id, tag, message_format, settled, False, state)
        room = frame_max - 8 - len(head)
        if len(content) <= room:
            session.write_transfer(self, head + content)
            return
        view = memoryview(content)
        head = transfer_head(self.handle, delivery_id, tag, message_format, settled, True, state)
        session.write_transfer(self, head + view[:room])
        pos = room
        head = transfer_head(self.handle, delivery_id, None, None, settled, True, state)
        room = frame_max - 8 - len(head)
        while len(content) - pos > room:
            session.write_transfer(self, head + view[pos : pos + room])
            pos += room
        head = transfer_head(self.handle, delivery_id, None, None, settled, False, state)
        session.write_transfer(self, head + view[pos:])
