from __future__ import annotations

import pytest
from engine_pair import Pair, frames

from duobus.amqp import (
    AttachReceived,
    Coordinator,
    EngineMisuse,
    LinkAttached,
    LinkDetached,
    LinkFlow,
    SessionBegun,
    SessionEnded,
    Source,
    Target,
    Transfers,
)
from duobus.codec import Described, Symbol, ULong


@pytest.fixture
def pair() -> Pair:
    return Pair().open()


def test_an_attach_carries_every_field_to_the_owner_and_back(pair: Pair) -> None:
    mine, _ = pair.session()
    source = Source(
        address="amqps://localhost:5672/q1",
        durable=1,
        timeout=5,
        dynamic=False,
        filter={"com.microsoft:session-filter": "s1", "apache": Described(ULong(1), "x")},
        outcomes=["amqp:accepted:list"],
        capabilities=["queue"],
    )
    link = mine.attach_receiver(
        "name",
        source,
        Target(address="t"),
        snd_settle_mode=0,
        rcv_settle_mode=1,
        properties={"com.microsoft:timeout": 5},
    )
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    assert theirs.is_sender
    assert theirs.remote.source == source
    assert theirs.remote.properties == {"com.microsoft:timeout": 5}
    theirs.accept(properties={"com.microsoft:locked-until-utc": 7}, max_message_size=262144)
    pair.pump()
    assert pair.take(LinkAttached, "client")[0].link is link
    answer = link.remote
    assert answer is not None
    assert answer.source == source
    assert answer.target == Target(address="t")
    assert (answer.snd_settle_mode, answer.rcv_settle_mode) == (0, 1)
    assert answer.initial_delivery_count == 0
    assert answer.max_message_size == 262144
    assert answer.properties == {"com.microsoft:locked-until-utc": 7}
    assert all(type(key) is Symbol for key in answer.properties)
    assert link.is_attached
    assert theirs.is_attached


def test_settle_modes_that_were_not_given_are_answered_with_the_defaults(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_sender("s", Source(), Target(address="q"), snd_settle_mode=None, rcv_settle_mode=None)
    pair.pump()
    pair.take(AttachReceived)[0].link.accept()
    pair.pump()
    assert link.remote is not None
    assert (link.remote.snd_settle_mode, link.remote.rcv_settle_mode) == (2, 0)
    assert link.remote.initial_delivery_count is None


def test_a_replaced_source_is_what_the_peer_hears(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_receiver("r", Source(address="q", filter={"f": None}), Target())
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    theirs.accept(source=theirs.remote.source.replace(filter={"f": "session-1"}))
    pair.pump()
    assert link.remote is not None
    assert link.remote.source == Source(address="q", filter={"f": "session-1"})


def test_a_coordinator_is_a_target_of_its_own_kind(pair: Pair) -> None:
    mine, _ = pair.session()
    mine.attach_sender("txn", Source(), Coordinator(capabilities=["amqp:local-transactions"]))
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    assert isinstance(theirs.remote.target, Coordinator)
    theirs.accept()
    pair.pump()
    assert isinstance(pair.take(LinkAttached, "client")[0].link.remote.target, Coordinator)


def test_a_refusal_is_an_attach_without_termini_and_then_a_detach(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_receiver("r", Source(address="missing"), Target())
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    assert theirs.refuse("amqp:not-found", "no such entity")
    pair.pump()
    assert link.remote is not None
    assert link.remote.source is None
    assert link.remote.target is None
    detached = pair.take(LinkDetached, "client")[0]
    assert (detached.link, detached.closed, detached.error.condition) == (link, True, "amqp:not-found")
    assert pair.take(LinkDetached)[0].link is theirs
    assert pair.server.link_count == pair.client.link_count == 0
    assert mine.attach_receiver("r", Source(address="other"), Target()).handle == link.handle


def test_a_detach_before_the_answer_is_answered_and_the_late_answer_does_nothing(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_receiver("r", Source(address="q"), Target())
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    link.detach()
    pair.sent_by_server = b""
    pair.pump()
    assert [frame[2] for frame in frames(pair.sent_by_server)] == [0x12, 0x16]
    assert pair.take(LinkDetached)[0].link is theirs
    assert pair.take(LinkDetached, "client")[0].link is link
    assert theirs.accept() is False
    assert theirs.refuse("amqp:not-found") is False
    theirs.grant(5)
    theirs.drained()
    assert theirs.detach() is False
    assert pair.server.take_output() == b""


def test_an_end_before_the_answer_makes_the_late_answer_do_nothing(pair: Pair) -> None:
    mine, theirs_session = pair.session()
    mine.attach_receiver("r", Source(address="q"), Target())
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    mine.end()
    pair.pump()
    assert pair.take(SessionEnded)[0].session is theirs_session
    assert theirs.accept() is False
    assert pair.server.take_output() == b""
    assert pair.server.link_count == 0


def test_a_late_answer_still_works_when_the_peer_waited(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_receiver("r", Source(address="q"), Target())
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    pair.session()
    assert theirs.accept()
    pair.pump()
    link.grant(3)
    pair.pump()
    assert theirs.credit == 3


@pytest.mark.parametrize("from_client", [True, False])
def test_a_detach_of_either_side_is_answered_and_reported_once_each(pair: Pair, from_client: bool) -> None:
    mine, _ = pair.session()
    link, theirs = pair.sender(mine)
    if from_client:
        link.detach("amqp:internal-error", "why")
    else:
        theirs.detach("amqp:link:detach-forced", "why")
    pair.pump()
    at_server, at_client = pair.take(LinkDetached), pair.take(LinkDetached, "client")
    assert len(at_server) == len(at_client) == 1
    told = at_server[0] if from_client else at_client[0]
    assert told.error.description == "why"
    assert (at_client[0] if from_client else at_server[0]).error is None
    assert pair.server.link_count == 0


def test_a_detach_waits_for_its_answer_when_the_owner_holds_it(pair: Pair) -> None:
    mine, session = pair.session()
    link, theirs = pair.receiver(mine)
    theirs.holds_detach = True
    link.detach()
    pair.pump()
    assert [event.link for event in pair.take(LinkDetached)] == [theirs]
    assert pair.take(LinkDetached, "client") == []
    assert not theirs.detach("amqp:internal-error")
    # The name is free, our handle is not.
    again, newer = pair.receiver(mine, "other")
    assert newer.handle != theirs.handle
    theirs.answer_detach()
    theirs.answer_detach()
    pair.pump()
    assert [event.link for event in pair.take(LinkDetached, "client")] == [link]
    assert session.links == [newer]
    assert again.is_attached
    assert pair.server.link_count == 1


def test_the_end_of_a_session_takes_a_detach_along_that_waits_for_its_answer(pair: Pair) -> None:
    mine, _ = pair.session()
    link, theirs = pair.receiver(mine)
    theirs.holds_detach = True
    link.detach()
    mine.end()
    pair.pump()
    assert len(pair.take(SessionEnded, "client")) == 1
    theirs.answer_detach()
    assert pair.server.output_size == 0
    assert pair.server.link_count == 0


def test_detaches_that_cross_are_not_answered_twice(pair: Pair) -> None:
    mine, _ = pair.session()
    link, theirs = pair.sender(mine)
    link.detach()
    theirs.detach()
    pair.pump()
    assert len(pair.take(LinkDetached)) == len(pair.take(LinkDetached, "client")) == 1
    codes = [frame[2] for frame in frames(pair.sent_by_client + pair.sent_by_server)]
    assert codes.count(0x16) == 2


@pytest.mark.parametrize("from_client", [True, False])
def test_an_end_of_either_side_takes_all_links_with_it(pair: Pair, from_client: bool) -> None:
    mine, theirs = pair.session()
    link, other = pair.sender(mine)
    (mine if from_client else theirs).end("amqp:internal-error", "why")
    pair.pump()
    ended = pair.take(SessionEnded)
    assert len(ended) == len(pair.take(SessionEnded, "client")) == 1
    assert not link.is_attached
    assert not other.is_attached
    assert pair.take(LinkDetached) == []
    with pytest.raises(EngineMisuse):
        link.send_one(b"t", b"", True)
    other.settle(0, 0, None)
    pair.pump()
    pair.session()


def test_ends_that_cross_are_not_answered_twice(pair: Pair) -> None:
    mine, theirs = pair.session()
    mine.end()
    theirs.end()
    pair.pump()
    assert len(pair.take(SessionEnded)) == len(pair.take(SessionEnded, "client")) == 1
    codes = [frame[2] for frame in frames(pair.sent_by_client + pair.sent_by_server)]
    assert codes.count(0x17) == 2


def test_the_same_name_attaches_in_both_directions_but_not_twice_in_one(pair: Pair) -> None:
    mine, _ = pair.session()
    pair.sender(mine, "n")
    pair.receiver(mine, "n")
    with pytest.raises(EngineMisuse):
        mine.attach_sender("n", Source(), Target())
    # Behind the engine's back: a client that does not know its own rules.
    mine._by_name.clear()
    twin = mine.attach_sender("n", Source(), Target())
    pair.pump()
    assert pair.take(AttachReceived) == []
    detached = pair.take(LinkDetached, "client")[0]
    assert detached.link is twin
    assert detached.error.condition == "amqp:not-allowed"
    assert pair.take(LinkDetached) == []


def test_links_beyond_the_limit_of_the_connection_are_refused() -> None:
    pair = Pair(server={"links_max": 2}).open()
    mine, _ = pair.session()
    first, _ = pair.sender(mine, "a")
    pair.sender(mine, "b")
    mine.attach_sender("c", Source(), Target())
    pair.pump()
    assert pair.take(AttachReceived) == []
    assert pair.take(LinkDetached, "client")[0].error.condition == "amqp:resource-limit-exceeded"
    first.detach()
    pair.pump()
    pair.sender(mine, "c")


def test_several_sessions_share_a_connection_and_reuse_channels(pair: Pair) -> None:
    pairs = [pair.session() for _ in range(5)]
    assert [theirs.channel for _, theirs in pairs] == [mine.channel for mine, _ in pairs] == [0, 1, 2, 3, 4]
    pairs[2][0].end()
    pair.pump()
    again, _ = pair.session()
    assert again.channel == 2


def test_the_answering_side_may_begin_and_attach_as_well(pair: Pair) -> None:
    session = pair.server.begin()
    link = session.attach_sender("push", Source(address="s"), Target(address="t"))
    pair.pump()
    assert pair.take(SessionBegun, "client")
    theirs = pair.take(AttachReceived, "client")[0].link
    theirs.accept()
    theirs.grant(1)
    pair.pump()
    assert link.credit == 1


def test_a_flow_that_is_pipelined_behind_the_attach_gives_credit_before_the_answer(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_receiver("r", Source(address="q"), Target())
    link.state = "attached"
    link.grant(7)
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    assert pair.take(LinkFlow)[0].link is theirs
    assert theirs.credit == 7
    assert theirs.sendable() == 0
    theirs.accept()
    assert theirs.sendable() == 7
    theirs.send_one(b"tag", b"body", True)
    link.state = "offered"
    pair.pump()
    assert pair.take(Transfers, "client")[0].payloads == [b"body"]


def test_a_detach_in_place_of_an_answer_brings_the_attach_along(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_sender("s", Source(), Target(address="q"))
    pair.pump()
    theirs = pair.take(AttachReceived)[0].link
    assert theirs.detach("amqp:resource-limit-exceeded", "enough")
    pair.pump()
    assert pair.take(LinkDetached, "client")[0].error.description == "enough"
    assert pair.take(LinkDetached)[0].link is theirs
    assert link.remote is not None
    assert link.remote.target is None


def test_a_transfer_before_the_answer_is_beyond_all_credit(pair: Pair) -> None:
    mine, _ = pair.session()
    link = mine.attach_sender("s", Source(), Target(address="q"))
    link.state, link.credit, mine._remote_window = "attached", 1, 1
    link.send_one(b"t", b"m", False)
    events = pair.to_server(pair.client.take_output())
    assert [type(event) for event in events] == [AttachReceived, LinkDetached]
    assert events[1].error.condition == "amqp:link:transfer-limit-exceeded"
    assert events[0].link.accept() is False
    assert pair.server.link_count == 1


def test_the_limits_that_the_peer_announced_are_kept() -> None:
    pair = Pair(server={"channel_max": 0, "handle_max": 0}).open()
    mine, _ = pair.session()
    mine.attach_sender("a", Source(), Target())
    with pytest.raises(EngineMisuse):
        mine.attach_sender("b", Source(), Target())
    with pytest.raises(EngineMisuse):
        pair.client.begin()


def test_no_session_begins_on_a_connection_that_is_not_open() -> None:
    pair = Pair()
    with pytest.raises(EngineMisuse):
        pair.client.begin()
    pair.open().client.close()
    with pytest.raises(EngineMisuse):
        pair.client.begin()


def test_the_peer_runs_out_of_handles_for_our_answers() -> None:
    pair = Pair(client={"handle_max": 0, "channel_max": 0}).open()
    mine, _ = pair.session()
    mine.attach_sender("a", Source(), Target())
    mine.attach_sender("b", Source(), Target())
    pair.pump()
    assert pair.take(SessionEnded)[0].error.condition == "amqp:resource-limit-exceeded"
