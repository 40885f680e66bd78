"""Which link a reply takes, and that credit decides when."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.codec import application_properties, build_message, scan
from duobus.gateway.amqp.management.request_node import ReplyLink, Request, RequestNode


class WireLink:
    """Stands for an engine's link: credit and what was sent."""

    def __init__(self, name: str, session: object, target: str | None = None, credit: int = 10) -> None:
        self.name = name
        self.session = session
        self.remote = SimpleNamespace(target=SimpleNamespace(address=target))
        self.credit = credit
        self.drain = self.echo = False
        self.sent: list[bytes] = []

    def sendable(self) -> int:
        """See Link."""
        return self.credit

    def send_one(self, tag: bytes, payload: bytes, settled: bool) -> None:
        """See Link."""
        assert settled
        self.credit -= 1
        self.sent.append(payload)


class OneConnection:
    """Stands for a peer: its reply links."""

    has_room = True

    def __init__(self) -> None:
        self.links: list[ReplyLink] = []
        self.dropped: list[str] = []
        self.detached: list[Any] = []

    def reply_links(self) -> Iterator[ReplyLink]:
        """See Peer."""
        return iter(self.links)

    def write_soon(self) -> None:
        """See Peer."""

    def log_debug(self, text: str, **about: object) -> None:
        """See Peer."""
        self.dropped.append(text)

    def detach(self, link: Any, error: Exception, path: str) -> None:
        """See Peer."""
        self.detached.append(error)


class Room:
    """A node with reply links on two sessions."""

    def __init__(self) -> None:
        self.peer: Any = OneConnection()
        self.here, self.there = object(), object()
        self.node = RequestNode(self.peer, "q/$management")

    def link(self, name: str, session: object, node: str = "q/$management", **options: Any) -> WireLink:
        """Add a reply link."""
        wire: Any = WireLink(name, session, **options)
        self.peer.links.append(ReplyLink(self.peer, wire, RequestNode(self.peer, node), ()))
        return wire  # type: ignore[no-any-return]

    def ask(self, reply_to: str | None, message_id: Any = "id") -> None:
        """Answer one request that came on the session ``here``."""
        fields = [message_id, None, None, None, reply_to]
        wire: Any = SimpleNamespace(session=self.here)
        self.node.reply(Request(wire, build_message(fields, body_value={})), {"statusCode": 200}, None)


def test_a_link_named_by_reply_to_wins_over_its_neighbours() -> None:
    room = Room()
    first, second = room.link("a", room.here), room.link("b", room.here)
    room.ask("b")
    assert (len(first.sent), len(second.sent)) == (0, 1)


def test_a_target_address_names_a_link_too() -> None:
    room = Room()
    first, second = room.link("a", room.here, target="x"), room.link("b", room.here, target="y")
    room.ask("y")
    assert (len(first.sent), len(second.sent)) == (0, 1)


def test_a_named_link_of_another_session_is_found() -> None:
    room = Room()
    near, remote = room.link("a", room.here), room.link("b", room.there)
    room.ask("b")
    assert (len(near.sent), len(remote.sent)) == (0, 1)


def test_without_reply_to_the_request_s_own_session_answers() -> None:
    room = Room()
    remote, near = room.link("a", room.there), room.link("b", room.here)
    room.ask(None)
    assert (len(remote.sent), len(near.sent)) == (0, 1)


def test_the_node_s_own_address_names_nobody_on_another_session() -> None:
    room = Room()
    remote = room.link("a", room.there, target="q/$management")
    near = room.link("b", room.here, target="other")
    room.ask("q/$management")
    assert (len(remote.sent), len(near.sent)) == (0, 1)


def test_links_of_another_node_are_never_used() -> None:
    room = Room()
    other = room.link("b", room.here, node="$cbs")
    room.ask("b")
    assert other.sent == []
    assert room.peer.dropped == ["reply without link"]


@pytest.mark.parametrize("message_id", ["text", b"bytes"])
def test_the_correlation_id_keeps_the_type_of_the_message_id(message_id: Any) -> None:
    room = Room()
    wire = room.link("a", room.here)
    room.ask(None, message_id)
    found = scan(wire.sent[0])
    assert found.correlation_id == message_id
    assert type(found.correlation_id) is type(message_id)
    assert application_properties(wire.sent[0][found.bare :]) == {"statusCode": 200}


def test_replies_wait_for_credit_and_keep_their_order() -> None:
    room = Room()
    wire = room.link("a", room.here, credit=0)
    for index in range(3):
        room.ask(None, str(index))
    assert wire.sent == []
    wire.credit = 2
    room.peer.links[0].flow()
    assert [scan(payload).correlation_id for payload in wire.sent] == ["0", "1"]


def test_a_client_that_never_gives_credit_loses_its_link() -> None:
    room = Room()
    room.link("a", room.here, credit=0)
    for index in range(1001):
        room.ask(None, str(index))
    assert [error.condition for error in room.peer.detached] == ["amqp:resource-limit-exceeded"]
