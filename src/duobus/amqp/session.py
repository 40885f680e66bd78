"""One end of a session: windows, handles, delivery ids, dispositions (part 2, section 2.5; AMQP 1.0 part 2, 2.7.2)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp import errors as conditions
from duobus.amqp.delivery_states import ACCEPTED, ACCEPTED_BYTES, DeliveryState, encode_state
from duobus.amqp.errors import EngineMisuse, Error, ProtocolViolation
from duobus.amqp.events import (
    AttachReceived,
    Dispositions,
    Event,
    LinkAttached,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    SessionFlow,
)
from duobus.amqp.frames import HALF, MASK, disposition_frame, flow_frame, serial_difference
from duobus.amqp.large_delivery import LargeDelivery
from duobus.amqp.link import DETACHED, HELD, OFFERED, REQUESTED, Link
from duobus.amqp.performatives import Attach, Begin, Coordinator, Detach, End, Flow, Source, Target, Transfer

if TYPE_CHECKING:
    from duobus.amqp.connection import Connection

BEGINNING: Final = "beginning"  # We began; the peer's answer is awaited.
OPEN: Final = "open"
ENDING: Final = "ending"  # We ended; whatever the peer sends until its own end is thrown away.
ENDED: Final = "ended"


#: Output of a connection at which large deliveries are cut no further until it was taken.
LARGE_OUTPUT_MAX: Final = 1 << 20

#: Begins, ends, attaches and detaches make objects and long answers: each counts as so many other frames.
WORK_OF_LIFE: Final = 24

#: Characters of a link's name. It is kept, and clients use what they have of entity and identifier.
NAME_MAX: Final = 1024


class Session:
    """A session endpoint; made by the connection.

    Attributes:
        connection: The connection it belongs to.
        channel: Ours.
        remote_channel: The peer's; None until its begin came.
        state: One of the four names above.
        context: For the owner; the engine never looks.
        next_delivery_id: Of the next delivery that we send, on any link of the session.
    """

    __slots__ = (
        "_by_handle",
        "_by_name",
        "_by_remote_handle",
        "_disposition_events",
        "_disposition_generation",
        "_next_incoming_id",
        "_next_outgoing_id",
        "_queue",
        "_remote_handle_max",
        "_remote_window",
        "_reported",
        "_starved",
        "_window_left",
        "channel",
        "connection",
        "context",
        "next_delivery_id",
        "remote_channel",
        "state",
    )

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.remote_channel: int | None = None
        self.state = BEGINNING
        self.context: Any = None
        self.next_delivery_id = 0
        self._next_outgoing_id = 0
        self._next_incoming_id = 0
        self._window_left = connection.settings.incoming_window
        self._remote_window = 0
        self._remote_handle_max = MASK
        self._starved = False
        self._reported = False
        # What waits for the peer's window, in order: bodies of transfers, and large deliveries, not cut yet.
        # None until something does: an empty deque is larger than all the rest of a session.
        self._queue: deque[tuple[Link, bytes | LargeDelivery]] | None = None
        self._by_handle: dict[int, Link] = {}
        self._by_remote_handle: dict[int, Link] = {}
        self._by_name: dict[tuple[str, bool], Link] = {}
        self._disposition_generation = -1
        self._disposition_events: dict[bool, Dispositions] = {}

    def __repr__(self) -> str:
        return f"<Session {self.channel} {self.state}>"

    @property
    def is_open(self) -> bool:
        """Whether links can be attached and messages travel."""
        return self.state == OPEN

    @property
    def links(self) -> list[Link]:
        """The links that exist, in any state but detached."""
        return list(self._by_handle.values())

    # Beginning and ending.

    def write_begin(self) -> None:
        """Write our begin; an answer if the peer's is known."""
        settings = self.connection.settings
        begin = Begin(
            remote_channel=self.remote_channel,
            next_outgoing_id=self._next_outgoing_id,
            incoming_window=settings.incoming_window,
            outgoing_window=settings.outgoing_window,
            handle_max=settings.handle_max,
        )
        self.connection.write_frame(self.channel, begin.to_bytes())

    def on_begin(self, begin: Begin, remote_channel: int, events: list[Event]) -> None:
        """Take the peer's begin, whether it asks or answers."""
        is_answer = begin.remote_channel is not None
        self.connection.work_left -= WORK_OF_LIFE
        self.remote_channel = remote_channel
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = min(begin.incoming_window, HALF - 1)
        self._remote_handle_max = MASK if begin.handle_max is None else begin.handle_max
        if self.state == ENDING:
            return
        self.state = OPEN
        if not is_answer:
            self.write_begin()
        events.append(SessionBegun(self))
        self._flush()

    def end(self, condition: str | None = None, description: str | None = None) -> None:
        """End the session; SessionEnded comes when the peer has answered. Does nothing when it is ending already."""
        if self.state not in (BEGINNING, OPEN):
            return
        error = None if condition is None else Error(condition, description)
        self.state = ENDING
        self._drop_links()
        self.connection.write_frame(self.channel, End(error=error).to_bytes())

    def on_end(self, end: End, events: list[Event]) -> None:
        """Take the peer's end: answer it, if it is not the answer to ours, and tell the owner."""
        self.connection.work_left -= WORK_OF_LIFE
        if self.state != ENDING:
            self._drop_links()
            self.connection.write_frame(self.channel, End().to_bytes())
        self.state = ENDED
        self.connection.forget_session(self)
        if not self._reported:
            self._reported = True
            events.append(SessionEnded(self, end.error))

    def fail(self, error: Error, events: list[Event]) -> None:
        """End the session because the peer broke a rule in it."""
        if self.state != ENDING:
            self.end(error.condition, error.description)
            self._reported = True
            events.append(SessionEnded(self, error))

    def connection_gone(self) -> None:
        """Forget everything: the connection took the session with it."""
        self.state = ENDED
        self._reported = True
        self._drop_links()

    def _drop_links(self) -> None:
        self.connection.dropped += len(self._queue or ())
        self._queue = None
        for link in self._by_handle.values():
            link.session_gone()
        self.connection.link_count -= len(self._by_handle)
        self._by_handle.clear()
        self._by_remote_handle.clear()
        self._by_name.clear()

    # Links.

    def attach_sender(
        self, name: str, source: Source | None, target: Target | Coordinator | None, **options: Any
    ) -> Link:
        """Attach a link that we send on.

        Args:
            name: Unique among the sending links of the session.
            source: Ours.
            target: Where messages shall go.
            **options: Further fields of ``Attach``; settle modes are 2 (mixed) and 0 (first) unless given.

        Raises:
            EngineMisuse: The session is not open, the name is taken, or the peer allows no more links.
        """
        return self._attach(name, True, source, target, options)

    def attach_receiver(
        self, name: str, source: Source | None, target: Target | Coordinator | None, **options: Any
    ) -> Link:
        """Attach a link that we receive on; see ``attach_sender``. A ``max_message_size`` given here is enforced."""
        return self._attach(name, False, source, target, options)

    def _attach(self, name: str, is_sender: bool, source: Source | None, target: Any, options: dict[str, Any]) -> Link:
        if self.state not in (BEGINNING, OPEN) or (name, is_sender) in self._by_name:
            raise EngineMisuse(f"link {name!r} cannot be attached in {self!r}")
        handle = self._free_handle(0)
        link = Link(self, name, is_sender, handle, OFFERED)
        self._add(link)
        values: dict[str, Any] = {"snd_settle_mode": 2, "rcv_settle_mode": 0}
        values.update(options)
        if is_sender:
            values.setdefault("initial_delivery_count", 0)
        else:
            link.max_message_size = values.get("max_message_size") or None
        attach = Attach(name=name, handle=handle, role=not is_sender, source=source, target=target, **values)
        self.connection.write_frame(self.channel, attach.to_bytes())
        return link

    def _free_handle(self, wanted: int) -> int:
        # The peer's own number is easiest to read in traces (AMQP 1.0 part 2, 2.7.2); lowest free otherwise.
        handle = wanted
        if handle in self._by_handle or handle > self._remote_handle_max:
            handle = 0
            while handle in self._by_handle:
                handle += 1
        if handle > self._remote_handle_max:
            raise EngineMisuse(f"the peer allows no handle above {self._remote_handle_max}")
        return handle

    def _add(self, link: Link) -> None:
        self._by_handle[link.handle] = link
        self._by_name.setdefault((link.name, link.is_sender), link)
        self.connection.link_count += 1

    def on_attach(self, attach: Attach, events: list[Event]) -> None:
        """Take the peer's attach, whether it asks or answers.

        Raises:
            ProtocolViolation: The handle is in use or too large.
        """
        self.connection.work_left -= WORK_OF_LIFE
        handle = attach.handle
        if handle > self.connection.settings.handle_max:
            text = f"handle {handle} is above {self.connection.settings.handle_max}"
            raise ProtocolViolation(conditions.NOT_ALLOWED, text)
        if handle in self._by_remote_handle:
            raise ProtocolViolation(conditions.HANDLE_IN_USE, f"handle {handle} is in use", self)
        if len(attach.name) > NAME_MAX:
            raise ProtocolViolation(conditions.INVALID_FIELD, f"a link's name has {NAME_MAX} characters at most", self)
        # The peer's role is the opposite of ours: True means that it receives and we send.
        known = self._by_name.get((attach.name, attach.role))
        if known is not None and known.remote is None:
            self._by_remote_handle[handle] = known
            if known.on_attach(attach):
                events.append(LinkAttached(known))
            return
        if len(self._by_handle) > self._remote_handle_max:
            raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, "no handle is left for the answer", self)
        settings = self.connection.settings
        if self.connection.link_count >= 2 * settings.links_max:
            # Refused links live until the peer detaches them, too: this one does not listen.
            text = f"the connection has {self.connection.link_count} links and does not detach those that were refused"
            raise ProtocolViolation(conditions.RESOURCE_LIMIT_EXCEEDED, text)
        link = Link(self, attach.name, attach.role, self._free_handle(handle), REQUESTED)
        link.remote = attach
        is_too_many = self.connection.link_count >= settings.links_max
        self._add(link)
        self._by_remote_handle[handle] = link
        if known is not None:
            self._refuse(link, conditions.NOT_ALLOWED, f"a link named {attach.name!r} is attached in this session")
        elif is_too_many:
            text = f"the connection has {settings.links_max} links, which is the limit"
            self._refuse(link, conditions.RESOURCE_LIMIT_EXCEEDED, text)
        else:
            events.append(AttachReceived(link))

    def _refuse(self, link: Link, condition: str, text: str) -> None:
        link.announced = False
        link.refuse(condition, text)
        link.remote = None

    def on_detach(self, detach: Detach, events: list[Event]) -> None:
        """Take the peer's detach of one of its handles.

        Raises:
            ProtocolViolation: No link has that handle.
        """
        self.connection.work_left -= WORK_OF_LIFE
        link = self._link(detach.handle)
        link.on_detach(detach, events)
        if link.state in (HELD, DETACHED):
            # The peer's handle and the name are free at once, ours when our answer is written.
            del self._by_remote_handle[detach.handle]
            if self._by_name.get((link.name, link.is_sender)) is link:
                del self._by_name[link.name, link.is_sender]
        if link.state == DETACHED:
            self.free(link)

    def free(self, link: Link) -> None:
        """Free our handle of a link that both sides have detached."""
        del self._by_handle[link.handle]
        self.connection.link_count -= 1

    def _link(self, handle: int) -> Link:
        link = self._by_remote_handle.get(handle)
        if link is None:
            raise ProtocolViolation(conditions.UNATTACHED_HANDLE, f"no link has handle {handle}", self)
        return link

    def link_of(self, handle: int) -> Link | None:
        """Return the link to which the peer's handle belongs, None when the thorough path has to look."""
        return self._by_remote_handle.get(handle) if self.state == OPEN else None

    # Windows and transfers.

    def _windows(self) -> tuple[int, int, int, int]:
        settings = self.connection.settings
        return self._next_incoming_id, self._window_left, self._next_outgoing_id, settings.outgoing_window

    def write_flow(
        self, handle: int, delivery_count: int, credit: int, *, drain: bool = False, available: int = 0
    ) -> None:
        """Write a flow of one of our handles; replenishes the session's window on the way."""
        self._window_left = self.connection.settings.incoming_window
        link = (handle, delivery_count, credit)
        self.connection.write(flow_frame(self.channel, self._windows(), link, drain, available))

    def _write_session_flow(self) -> None:
        self._window_left = self.connection.settings.incoming_window
        self.connection.write(flow_frame(self.channel, self._windows()))

    def count_incoming(self, n: int) -> None:
        """Take account of ``n`` transfer frames; tell the peer when half of its window is used.

        What the peer calls its transfers is not policed: pyamqp counts deliveries, not frames (AMQP 1.0 part 2, 2.7.2).
        """
        self._next_incoming_id = (self._next_incoming_id + n) & MASK
        self._window_left -= n
        if self._window_left <= self.connection.settings.incoming_window // 2:
            self._write_session_flow()

    def on_transfer(self, transfer: Transfer, payload: bytes, events: list[Event], generation: int) -> None:
        """Take one transfer frame of any kind.

        Raises:
            ProtocolViolation: See ``Link.on_transfer``; or no link has the handle.
        """
        self.count_incoming(1)
        self._link(transfer.handle).on_transfer(transfer, payload, events, generation)

    def room(self, wanted: int) -> int:
        """Return how many transfer frames the peer's window takes now; SessionFlow will tell when it opens again."""
        room = 0 if self._queue else self._remote_window
        if room < wanted:
            self._starved = True
        return room

    def can_write(self, n: int) -> bool:
        """Whether ``n`` transfer frames can be written at once."""
        return n <= self._remote_window and not self._queue

    def wrote_transfers(self, n: int) -> None:
        """Take account of ``n`` transfer frames that were written."""
        self._remote_window -= n
        self._next_outgoing_id = (self._next_outgoing_id + n) & MASK

    def write_transfer(self, link: Link, body: bytes) -> None:
        """Write one transfer frame, or keep it until the peer's window opens."""
        if self.can_write(1):
            self.wrote_transfers(1)
            self.connection.write_frame(self.channel, body)
        else:
            self._starved = True
            self._wait((link, body))

    def write_large(self, link: Link, large: LargeDelivery) -> None:
        """Write the frames of a delivery as room comes up for them, after everything that waits already."""
        self._wait((link, large))
        self._flush()

    def _wait(self, item: tuple[Link, bytes | LargeDelivery]) -> None:
        if self._queue is None:
            self._queue = deque()
        self._queue.append(item)

    def drop_queued(self, link: Link) -> None:
        """Forget frames of a link that is gone; their delivery ids stay unused."""
        if self._queue:
            self.connection.dropped += sum(item[0] is link for item in self._queue)
            self._queue = deque(item for item in self._queue if item[0] is not link)

    def _flush(self) -> None:
        held_back = self.connection.held_back
        if self._queue and not self.fill_output(LARGE_OUTPUT_MAX) and self not in held_back:
            held_back.append(self)
        if self._queue:
            self._starved = True

    def fill_output(self, output_max: int) -> bool:
        """Write what waits until the peer's window or ``output_max`` is reached; False when it is the latter."""
        connection = self.connection
        queue = self._queue
        while queue and self._remote_window > 0:
            if connection.output_size >= output_max:
                return False
            _, item = queue[0]
            if isinstance(item, bytes):
                body = item
                queue.popleft()
            else:
                body = item.next_body()
                if item.is_done:
                    queue.popleft()
            self.wrote_transfers(1)
            connection.write_frame(self.channel, body)
        return True

    @property
    def has_waiting(self) -> bool:
        """Whether transfer frames wait to be written: what another session writes now comes before them."""
        return bool(self._queue)

    def take_starved(self) -> bool:
        """Whether somebody waited for room and there is some now; True once."""
        is_open = self._starved and self._remote_window > 0 and not self._queue
        self._starved = self._starved and not is_open
        return is_open

    def on_flow(self, flow: Flow, events: list[Event]) -> None:
        """Take a flow of the session or of one of its links.

        Raises:
            ProtocolViolation: No link has the handle.
        """
        # window = flow.next-incoming-id + flow.incoming-window - our next-outgoing-id; ours started at 0.
        known = serial_difference(self._next_outgoing_id, flow.next_incoming_id or 0)
        self._remote_window = max(0, min(flow.incoming_window, HALF - 1) - max(known, 0))
        if self._queue:
            self._flush()
        if self._starved and self.take_starved():
            events.append(SessionFlow(self))
        if flow.handle is not None:
            link = self._link(flow.handle)
            if link.on_flow(flow):
                events.append(LinkFlow(link))
        elif flow.echo:
            self._write_session_flow()

    # Dispositions.

    def disposition(self, role: bool, first: int, last: int, state: DeliveryState | None, settled: bool) -> None:
        """Tell the peer about deliveries; does nothing when the session is gone.

        Args:
            role: True about deliveries that we received, False about those we sent.
            first: Delivery id.
            last: Delivery id; the same as ``first`` for one delivery. Keep ranges tight: pyamqp expands them.
            state: What became of them.
            settled: Whether that is final.
        """
        if self.state == OPEN:
            encoded = ACCEPTED_BYTES if state is ACCEPTED else encode_state(state)
            self.connection.write(disposition_frame(self.channel, role, first, last, settled, encoded))

    def on_disposition(
        self,
        role: bool,
        first: int,
        last: int,
        settled: bool,
        state: DeliveryState | None,
        events: list[Event],
        generation: int,
    ) -> None:
        """Take what the peer says about a range, joining it to the one before where nothing differs."""
        if self.state != OPEN:
            return
        if self._disposition_generation != generation:
            self._disposition_generation = generation
            self._disposition_events = {}
        event = self._disposition_events.get(role)
        if event is None:
            event = self._disposition_events[role] = Dispositions(self, role, [])
            events.append(event)
        ranges = event.ranges
        if ranges:
            start, before, was_settled, before_state = ranges[-1]
            if (before + 1) & MASK == first and was_settled is settled and before_state == state:
                ranges[-1] = (start, last, settled, state)
                return
        ranges.append((first, last, settled, state))
