"""A link on which a client receives the messages of one session, by itself, and one that waits for a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from duobus.amqp import ATTACHED, Source, Target
from duobus.broker import MAIN, QueuedMessage
from duobus.errors import EntityDisabled
from duobus.gateway.amqp.deliveries import Deliveries
from duobus.gateway.amqp.links.session_link import PendingSession, SessionLink
from duobus.gateway.amqp.mapping import HeadMaker
from duobus.gateway.amqp.pacing import ASKED_FIRST
from duobus.model.descriptions import ACTIVE, DISABLED, SEND_DISABLED

PREFIX = b"\0\x01lifesa"


class Named(SimpleNamespace):
    """A queue, which is itself and no other."""

    __hash__ = object.__hash__  # type: ignore[assignment]


class Room:
    """A link with everything around it."""

    def __init__(self) -> None:
        self.looked: list[Any] = []
        about = SimpleNamespace(
            default_message_time_to_live_ms=60_000, max_message_size_bytes=1 << 10, status=ACTIVE, forward_to=None
        )
        self.queue: Any = Named(description=about, source_no=0, path="q", kind="queue", acceptor=None)
        self.peer: Any = SimpleNamespace(throttle=None, schedule=self.looked.append, is_gone=False)
        self.line: Any = SimpleNamespace(
            session=object(),
            credit=0,
            state=ATTACHED,
            remote=SimpleNamespace(source=Source(), target=Target(), properties=None),
        )
        lock = SimpleNamespace(session_id="s", is_over=False)
        self.receiver: Any = SimpleNamespace(
            removing=False, wanted=0, granted=0, gate=None, group=None, is_closed=False, lock=lock
        )

    def link(self) -> SessionLink:
        return SessionLink(self.peer, self.line, self.queue, ("q",), receiver=self.receiver, deliveries=Deliveries())


@pytest.mark.parametrize(
    ("credit", "granted", "looks"),
    [
        # What was asked for is just what credit is left.
        (ASKED_FIRST // 2 + 3, ASKED_FIRST // 2 + 3, False),
        (ASKED_FIRST // 2 + 4, ASKED_FIRST // 2 + 3, True),
        # More is asked for than what makes it ask again.
        (ASKED_FIRST, ASKED_FIRST // 2 + 4, False),
    ],
)
def test_a_link_asks_again_when_little_is_asked_for_and_there_is_more_credit(
    credit: int, granted: int, *, looks: bool
) -> None:
    room = Room()
    link = room.link()
    room.line.credit, room.receiver.granted = credit, granted
    assert link.takes(3) is room.line
    assert room.receiver.granted == granted - 3
    assert bool(room.looked) is looks


def test_a_link_takes_no_more_than_it_has_credit_for() -> None:
    room = Room()
    link = room.link()
    room.line.credit = room.receiver.granted = 2
    assert link.takes(3) is None
    assert room.receiver.granted == 2
    assert link.takes(2) is room.line


def test_a_session_is_of_the_entity_itself_and_its_messages_live_as_long_as_those() -> None:
    room = Room()
    link = room.link()
    assert link.sub_queue == MAIN
    (head,), _ = link._heads.heads([QueuedMessage(1, b"x", 5)], 1, PREFIX, 7, 9)
    (wanted,), _ = HeadMaker(60_000, locks=True).heads([QueuedMessage(1, b"x", 5)], 1, PREFIX, 7, 9)
    assert head == wanted


@pytest.mark.parametrize(("status", "may_wait"), [(ACTIVE, True), (SEND_DISABLED, True), (DISABLED, False)])
def test_whoever_waits_for_a_session_waits_as_long_as_the_status_allows(status: str, *, may_wait: bool) -> None:
    room = Room()
    address: Any = SimpleNamespace(segments=lambda: ("q",))
    pending = PendingSession(room.peer, room.line, room.queue, address, is_removing=False)
    room.queue.description.status = status
    if may_wait:
        pending.demand_enabled()
        return
    with pytest.raises(EntityDisabled):
        pending.demand_enabled()
