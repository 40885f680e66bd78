"""Sessions of a queue that is spread over the stores of several servers."""

from __future__ import annotations

import uuid
from typing import Any

from gateway_kit import in_loop, settled
from spread_kit import SpreadRoom, spreading
from test_spread_management import Asking

from duobus.amqp import ACCEPTED, Dispositions, Link, LinkAttached, LinkDetached, Source, Target, Transfers
from duobus.codec import Array, Symbol, Timestamp, UInt, build_message, scan

FILTER = Symbol("com.microsoft:session-filter")


async def _send(room: SpreadRoom, link: Link, session_id: str, body: bytes = b"m") -> Any:
    fields = [uuid.uuid4().hex, *[None] * 9, session_id]
    first = link.send_one(uuid.uuid4().bytes, build_message(fields, data=body), False)
    event = await room.client.wait(Dispositions, lambda event: event.role and event.ranges[0][0] == first)
    return event.ranges[0][3]


async def _accept(room: SpreadRoom, session_id: str | None, timeout_ms: int = 10_000) -> tuple[Link, Any]:
    """A link with a session, and its id; or why there is none."""
    link = room.client.session.attach_receiver(
        uuid.uuid4().hex,
        Source(address="q", filter={FILTER: session_id}),
        Target(address="c"),
        properties={Symbol("com.microsoft:timeout"): UInt(timeout_ms)},
    )
    while True:
        for event in room.client.events:
            if isinstance(event, LinkDetached) and event.link is link:
                room.client.events.remove(event)
                assert event.error is not None
                return link, str(event.error.condition)
        for event in room.client.events:
            if isinstance(event, LinkAttached) and event.link is link and link.remote.source is not None:  # type: ignore[union-attr]
                room.client.events.remove(event)
                return link, link.remote.source.filter[FILTER]  # type: ignore[union-attr]
        await room.client.pump()


def _names(room: SpreadRoom) -> tuple[str, str]:
    """Ids of two sessions, one for each share."""
    assert room.about.spread is not None
    by_share: dict[int, str] = {}
    for number in range(100):
        by_share.setdefault(room.about.spread.of_key(b"s" + str(number).encode()), str(number))
    return by_share[0], by_share[1]


async def _receive(room: SpreadRoom, link: Link, number: int) -> list[bytes]:
    link.grant(number)
    await room.client.flush()
    found: list[bytes] = []
    while len(found) < number:
        event = await room.client.wait(Transfers, lambda event: event.link is link)
        found += event.payloads
        last = event.first_delivery_id + len(event.payloads) - 1
        link.settle(event.first_delivery_id, last, ACCEPTED)
    await room.client.flush()
    return found


@in_loop
async def test_a_session_that_is_named_is_accepted_where_it_belongs() -> None:
    async with spreading(requires_session=True) as room:
        sender = await room.client.sender("q")
        for name in _names(room):
            for _ in range(3):
                assert await _send(room, sender, name) == ACCEPTED
        assert room.numbers() == [3, 3]
        for name in _names(room):
            link, accepted = await _accept(room, name)
            assert accepted == name
            assert [scan(payload).group_id for payload in await _receive(room, link, 3)] == [name] * 3
        await settled(lambda: room.numbers() == [0, 0])


@in_loop
async def test_the_next_session_is_found_in_every_share_and_is_nobody_else_s() -> None:
    async with spreading(requires_session=True) as room:
        sender = await room.client.sender("q")
        for name in _names(room):
            await _send(room, sender, name)
        accepted = [(await _accept(room, None))[1] for _ in range(2)]
        assert sorted(accepted) == sorted(_names(room))
        assert (await _accept(room, None, 300))[1] == "com.microsoft:timeout"
        assert (await _accept(room, accepted[0]))[1] == "com.microsoft:session-cannot-be-locked"


@in_loop
async def test_a_session_that_comes_later_goes_to_who_waits() -> None:
    async with spreading(requires_session=True) as room:
        link = room.client.session.attach_receiver("w", Source(address="q", filter={FILTER: None}), Target(address="c"))
        await room.client.flush()
        await settled(lambda: all(len(owner.door.peers) == 1 for owner in room.owners.values()))
        sender = await room.client.sender("q")
        await _send(room, sender, _names(room)[1])
        await room.client.wait(LinkAttached, lambda event: event.link is link)
        assert len(await _receive(room, link, 1)) == 1


@in_loop
async def test_what_a_session_has_is_managed_where_it_is() -> None:
    async with spreading(requires_session=True) as room:
        sender = await room.client.sender("q")
        node = await Asking(room).begin()
        for name in _names(room):
            await _send(room, sender, name)
            await _accept(room, name)
            status, body = await node.ask("renew-session-lock", {"session-id": name})
            assert (status, type(body["expiration"])) == (200, Timestamp)
            assert (await node.ask("set-session-state", {"session-id": name, "session-state": b"x"}))[0] == 200
            status, body = await node.ask("get-session-state", {"session-id": name})
            assert (status, body["session-state"]) == (200, b"x")
            ask = {"from-sequence-number": 0, "message-count": 10, "session-id": name}
            assert len((await node.ask("peek-message", ask))[1]["messages"]) == 1
        active = {"last-updated-time": Timestamp(253_402_300_800_000), "skip": UInt(0), "top": UInt(10)}
        status, body = await node.ask("get-message-sessions", active)
        assert sorted(body["sessions-ids"].items) == sorted(_names(room))
        status, body = await node.ask("get-message-sessions", {**active, "skip": UInt(1)})
        assert body["sessions-ids"] == Array(str, body["sessions-ids"].items)
        assert len(body["sessions-ids"].items) == 1
        assert (await node.ask("get-message-sessions", {**active, "skip": UInt(2)}))[0] == 204


@in_loop
async def test_a_session_of_a_lost_owner_ends_its_link() -> None:
    async with spreading(requires_session=True) as room:
        link, _ = await _accept(room, _names(room)[0])
        for peer in list(room.owners[1].door.peers):
            peer.abort()
        event = await room.client.wait(LinkDetached, lambda event: event.link is link)
        assert event.error is not None
        assert event.error.condition == "amqp:link:detach-forced"
