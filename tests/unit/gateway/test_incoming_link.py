"""A link on which a client sends, by itself: a stand-in has its connection's place, another its queue's."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from duobus.amqp import ACCEPTED, Rejected, TransactionalState, TransferRefused, Transfers
from duobus.broker import string_key
from duobus.codec import BATCH_FORMAT, Symbol, build_message
from duobus.codec.builder import data_section
from duobus.errors import (
    MessageTooLarge,
    NotImplementedYet,
    QuotaExceeded,
    ServerBusy,
    ServiceBusError,
    Undecodable,
)
from duobus.gateway.amqp.links.incoming_link import CREDIT, IncomingLink
from duobus.gateway.amqp.mapping import PING_CONTENT_TYPE
from duobus.model.assigned_ids import MessageIds
from duobus.model.batches import SendBatch
from duobus.model.metering import OPERATION_BYTES, PING, SEND

LIMIT = 1 << 20
#: A header of five fields, none of them given.
EMPTY_HEADER = bytes.fromhex("005370c00605") + b"\x40" * 5


def event_of(kind: type[Any], **fields: Any) -> Any:
    """A stand-in for an event of the engine, with the same fields: a compiled event takes no link but the engine's."""
    names = getattr(kind, "__slots__", ()) or getattr(kind, "__mypyc_attrs__", ())
    assert fields.keys() == set(names)
    return SimpleNamespace(**fields)


class Line:
    """The engine's side of the link: what was granted and settled."""

    def __init__(self) -> None:
        self.credit = 0
        self.max_message_size = 0
        self.session = object()
        self.granted: list[int] = []
        self.settled: list[tuple[int, int, Any]] = []

    def grant(self, credit: int) -> None:
        self.credit = credit
        self.granted.append(credit)

    def settle(self, first: int, last: int, state: Any) -> None:
        self.settled.append((first, last, state))

    def told(self) -> list[tuple[int, int, str]]:
        """What was settled, each with the condition's class, and forget it."""
        found = [
            (first, last, type(state.error).__name__ if isinstance(state, Rejected) else "accepted")
            for first, last, state in self.settled
        ]
        self.settled.clear()
        return found


class Rate:
    """A throttle with so many messages left."""

    def __init__(self, left: int, rate: int = 1000) -> None:
        self.left = left
        self.rate = rate

    def admit(self, number: int) -> int:
        admitted = min(self.left, number)
        self.left -= admitted
        return admitted

    def admit_whole(self, number: int) -> bool:
        if self.left < number:
            return False
        self.left -= number
        return True

    def refusal(self) -> ServerBusy:
        return ServerBusy("too many")


class Books:
    """Transactions: what was sent in them, and which are doomed."""

    def __init__(self) -> None:
        self.sent: list[tuple[bytes, SendBatch | None]] = []
        self.doomed: list[tuple[bytes, ServiceBusError]] = []

    def send(self, txn_id: bytes, queue: Any, batch: SendBatch | None) -> None:
        self.sent.append((txn_id, batch))

    def doom(self, txn_id: bytes, error: ServiceBusError) -> None:
        self.doomed.append((txn_id, error))


class FakeEndpoint:
    """A link with everything around it."""

    def __init__(self, throttle: Rate | None = None, *, partitioned: bool = False, sessions: bool = False) -> None:
        self.sent: list[SendBatch] = []
        self.carried: list[int] = []
        self.metered: list[tuple[Any, ...]] = []
        self.looked = 0
        self.written = 0
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.books = Books()
        self.line: Any = Line()
        about = SimpleNamespace(requires_session=sessions, max_message_size_bytes=LIMIT)
        self.queue: Any = SimpleNamespace(
            description=about,
            looks_for_keys=partitioned,
            is_partitioned=partitioned,
            path="q",
            has_moved=False,
            send=self.sent.append,
            demand_session=self._demand,
        )
        self.peer: Any = SimpleNamespace(
            throttle=throttle,
            schedule=self._look,
            note_bytes=self.carried.append,
            meter=lambda queue, *what: self.metered.append(what),
            error=lambda error, path: error,
            is_gone=False,
            server=SimpleNamespace(
                loop=SimpleNamespace(call_later=lambda s, call: self.timers.append((s, call))),
                unit=SimpleNamespace(message_ids=MessageIds(uuid.uuid4)),
            ),
            write_soon=self._write,
            router=SimpleNamespace(send_via=lambda link, event: False),
            transactions=self.books,
            endpoints_of=lambda session: iter(()),
        )
        self.link = IncomingLink(self.peer, self.line, self.queue, ("q",))

    def _look(self, link: IncomingLink) -> None:
        self.looked += 1

    def _write(self) -> None:
        self.written += 1

    def _demand(self, metadata: Any, *, is_ping: bool) -> None:
        if metadata is not None and metadata.partition_key == "refused":
            raise QuotaExceeded("refused")

    def transfer(
        self, *payloads: bytes, first: int = 7, settled: bool = False, form: int = 0, state: Any = None
    ) -> None:
        event = event_of(
            Transfers,
            link=self.line,
            first_delivery_id=first,
            settled=settled,
            message_format=form,
            payloads=list(payloads),
            state=state,
        )
        self.link.transfers(event)

    def refuse(self, size: int, *, settled: bool = False, state: Any = None) -> None:
        """The engine has thrown a delivery away."""
        event = event_of(
            TransferRefused, link=self.line, delivery_id=5, settled=settled, size=size, reason="", state=state
        )
        self.link.refused(event)

    def answer(self, batch: SendBatch, indices: list[int] | None = None, error: ServiceBusError | None = None) -> None:
        self.link.ready.append(SimpleNamespace(batch=batch, indices=indices, error=error))


def plain(text: bytes = b"x") -> bytes:
    return build_message(["id"], data=text)


def keyed(key: str, text: bytes = b"x") -> bytes:
    return build_message(["id"], data=text, annotations={Symbol("x-opt-partition-key"): key})


def ping() -> bytes:
    return build_message([None] * 6 + [Symbol(PING_CONTENT_TYPE)])


def keyed_ping(key: str) -> bytes:
    """A ping that asks for the fragment of a key."""
    fields = [None] * 6 + [Symbol(PING_CONTENT_TYPE)]
    return build_message(fields, annotations={Symbol("x-opt-partition-key"): key})


def batch_of(*messages: bytes) -> bytes:
    return b"".join(map(data_section, messages))


# -- credit ----------------------------------------------------------------------------------------------------


def test_a_client_may_send_as_much_as_can_be_admitted_in_a_second() -> None:
    for throttle, credit in ((None, CREDIT), (Rate(9, 50), 50), (Rate(9, 5 * CREDIT), CREDIT)):
        endpoint = FakeEndpoint(throttle)
        assert endpoint.line.granted == []
        endpoint.link.start()
        assert endpoint.line.granted == [credit]


def test_credit_is_given_again_when_half_is_used_up_and_never_beyond_what_is_owed() -> None:
    endpoint = FakeEndpoint()
    endpoint.line.credit = CREDIT // 2 + 1
    endpoint.transfer(*[plain()] * 10)
    (sent,) = endpoint.sent
    assert endpoint.link.owes
    endpoint.answer(sent)
    endpoint.link.deliver_answers()
    assert (endpoint.line.granted, endpoint.link.owes) == ([], False)
    endpoint.transfer(*[plain()] * 100)
    endpoint.transfer(plain())
    endpoint.line.credit = CREDIT // 2
    endpoint.answer(endpoint.sent[-1])
    endpoint.link.deliver_answers()
    assert endpoint.line.granted == [CREDIT - 100]
    assert endpoint.link.owes


def test_a_link_that_stops_takes_its_credit_back_and_gives_none_again() -> None:
    endpoint = FakeEndpoint()
    endpoint.link.start()
    endpoint.link.stop()
    endpoint.transfer(plain())
    endpoint.line.credit = 0
    endpoint.answer(endpoint.sent[0])
    endpoint.link.deliver_answers()
    assert endpoint.line.granted == [CREDIT, 0]
    assert endpoint.line.told() == [(7, 7, "accepted")]


def test_a_link_that_is_closed_gives_no_credit() -> None:
    endpoint = FakeEndpoint()
    endpoint.link.close()
    endpoint.transfer(b"damaged")
    assert endpoint.line.granted == []


def test_its_connection_looks_at_it_once_a_turn() -> None:
    endpoint = FakeEndpoint()
    endpoint.link.wake()
    endpoint.link.wake()
    assert endpoint.looked == 1
    endpoint.link.deliver_answers()
    endpoint.link.wake()
    assert endpoint.looked == 2


def test_a_changed_entity_has_another_largest_message() -> None:
    endpoint = FakeEndpoint()
    endpoint.queue.description.max_message_size_bytes = 99
    endpoint.link.entity_changed()
    assert endpoint.line.max_message_size == 99


# -- what is sent ----------------------------------------------------------------------------------------------


def test_plain_messages_of_one_read_are_one_batch() -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(plain(b"a"), plain(b"bb"), first=0xFFFFFFFF, settled=True)
    (sent,) = endpoint.sent
    assert (sent.first_delivery_id, sent.n, sent.unsettled, sent.atomic) == (0xFFFFFFFF, 2, False, False)
    assert (sent.payloads, sent.reply) == ([plain(b"a"), plain(b"bb")], endpoint.link)
    assert endpoint.carried == [sent.bytes_total]


def test_keys_are_looked_for_where_the_queue_has_parts() -> None:
    for partitioned in (False, True):
        endpoint = FakeEndpoint(partitioned=partitioned)
        endpoint.transfer(keyed("a"), plain(), keyed("b"))
        (sent,) = endpoint.sent
        assert (sent.keys is not None) is partitioned
        assert sent.extra is not None
        assert {index: metadata.partition_key for index, metadata in sent.extra.items()} == {0: "a", 2: "b"}
        if sent.keys is not None:
            assert [key is None for key in sent.keys] == [False, True, False]


def test_refused_messages_and_pings_part_a_read_and_the_others_keep_their_ids() -> None:
    endpoint = FakeEndpoint()
    first = 0xFFFFFFFE
    endpoint.transfer(plain(b"0"), keyed("refused"), plain(b"2"), ping(), keyed("k", b"4"), plain(b"5"), first=first)
    assert [(sent.first_delivery_id, sent.n, sent.ping) for sent in endpoint.sent] == [
        (first, 1, False),
        (0, 1, False),
        (first + 3, 1, True),
        (2, 2, False),
    ]
    assert all(sent.unsettled for sent in endpoint.sent)
    assert endpoint.line.told() == [(0xFFFFFFFF, 0xFFFFFFFF, "QuotaExceeded")]
    endpoint = FakeEndpoint()
    endpoint.transfer(keyed("refused"), ping(), settled=True)
    assert [sent.unsettled for sent in endpoint.sent] == [False]
    assert endpoint.line.told() == []


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_ping_with_a_key_asks_for_its_fragment_where_the_queue_has_parts(*, partitioned: bool) -> None:
    endpoint = FakeEndpoint(partitioned=partitioned)
    endpoint.transfer(keyed_ping("k"), ping())
    keyed_one, other = endpoint.sent
    assert keyed_one.ping
    assert other.ping
    assert keyed_one.keys == ([string_key("k")] if partitioned else None)
    assert other.keys is None


def test_the_messages_of_a_batch_transfer_are_one_delivery_that_is_stored_as_a_whole() -> None:
    """I40."""
    endpoint = FakeEndpoint()
    both = batch_of(plain(b"a"), plain(b"b")), batch_of(plain(b"c"))
    endpoint.transfer(*both, form=BATCH_FORMAT, settled=True)
    endpoint.transfer(*both, form=BATCH_FORMAT)
    found = [(sent.first_delivery_id, sent.n, sent.atomic, sent.unsettled) for sent in endpoint.sent]
    assert found == [(7, 2, True, False), (8, 1, True, False), (7, 2, True, True), (8, 1, True, True)]
    for sent in endpoint.sent:
        endpoint.answer(sent)
    endpoint.link.deliver_answers()
    assert endpoint.line.told() == [(7, 8, "accepted")]
    assert not endpoint.link.owes


@pytest.mark.parametrize("more", [0, 60])
def test_an_id_from_the_broker_makes_no_message_of_a_batch_too_large(more: int) -> None:
    """A message without an id is as large as its sender made it."""
    endpoint = FakeEndpoint()
    empty = len(data_section(bytes(1000))) - 1000
    endpoint.transfer(batch_of(data_section(bytes(LIMIT - empty + more))), form=BATCH_FORMAT)
    assert len(endpoint.sent) == (0 if more else 1)


@pytest.mark.parametrize("settled", [False, True])
def test_a_batch_transfer_with_nothing_to_store_is_accepted_all_the_same(settled: bool) -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(batch_of(ping()), form=BATCH_FORMAT, settled=settled)
    assert endpoint.sent == []
    assert endpoint.line.told() == ([] if settled else [(7, 7, "accepted")])
    assert endpoint.line.granted == [CREDIT]


def test_a_batch_transfer_that_cannot_be_decoded_is_refused_alone() -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(b"\x00", batch_of(plain()), batch_of(keyed("refused"), plain()), form=BATCH_FORMAT)
    assert [sent.first_delivery_id for sent in endpoint.sent] == [8]
    assert endpoint.line.told() == [(7, 7, "Undecodable"), (9, 9, "QuotaExceeded")]


@pytest.mark.parametrize(
    ("size", "error"), [(LIMIT, "ServerBusy"), (LIMIT + 1, "MessageTooLarge"), (5 * LIMIT, "MessageTooLarge")]
)
def test_what_the_engine_did_not_take_in_is_too_large_or_has_no_room_now(size: int, error: str) -> None:
    endpoint = FakeEndpoint()
    state = TransactionalState(b"t", None)
    for settled, said in ((False, [(5, 5, error)]), (True, [])):
        endpoint.refuse(size, settled=settled)
        assert endpoint.line.told() == said
    assert endpoint.books.doomed == []
    endpoint.refuse(size, state=state)
    assert [(txn_id, type(error).__name__) for txn_id, error in endpoint.books.doomed] == [(b"t", error)]


@pytest.mark.parametrize("ids", [("one", "two"), ("one", "another")])
def test_the_header_of_messages_with_a_session_is_not_stored_with_them(ids: tuple[str, str]) -> None:
    """Whether all of a read are laid out alike or not."""
    endpoint = FakeEndpoint(sessions=True)
    messages = [build_message([name, *[None] * 9, "s"], data=b"x") for name in ids]
    # A header of which every field is null or the default: nothing in it is kept.
    endpoint.transfer(*[EMPTY_HEADER + message for message in messages])
    (sent,) = endpoint.sent
    assert sent.payloads == messages
    assert [metadata.session_id for metadata in sent.sessions or []] == ["s", "s"]


# -- what is answered ------------------------------------------------------------------------------------------


def test_outcomes_are_told_in_ranges_and_never_over_ids_between() -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(*[plain()] * 6, first=0xFFFFFFFD)
    endpoint.transfer(*[plain()] * 2, first=4)
    one, two = endpoint.sent
    endpoint.answer(one, [5, 0, 1])
    endpoint.answer(two)
    endpoint.answer(one, [3], QuotaExceeded("full"))
    endpoint.link.deliver_answers()
    assert endpoint.line.told() == [
        (0, 0, "QuotaExceeded"),
        (4, 5, "accepted"),
        (0xFFFFFFFD, 0xFFFFFFFE, "accepted"),
        (2, 2, "accepted"),
    ]
    assert endpoint.link.owes
    endpoint.answer(one, [2, 4])
    endpoint.link.deliver_answers()
    assert endpoint.line.told() == [(0xFFFFFFFF, 0xFFFFFFFF, "accepted"), (1, 1, "accepted")]
    assert not endpoint.link.owes


def test_what_was_sent_settled_is_not_answered_but_counted() -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(plain(b"abc"), settled=True)
    endpoint.transfer(plain(b"de"), settled=True)
    endpoint.answer(endpoint.sent[0])
    endpoint.answer(endpoint.sent[1], None, QuotaExceeded("full"))
    endpoint.link.deliver_answers()
    assert endpoint.line.told() == []
    size = len(plain(b"abc"))
    assert endpoint.metered == [(SEND, 1, size, 1)]
    assert sum(endpoint.carried) == 0
    assert not endpoint.link.owes


@pytest.mark.parametrize("why", ["is_gone", "has_moved"])
def test_nobody_is_told_when_the_connection_is_gone_or_the_store_has_another_owner(why: str) -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(plain())
    endpoint.transfer(plain())
    setattr(endpoint.peer if why == "is_gone" else endpoint.queue, why, True)
    endpoint.answer(endpoint.sent[0])
    endpoint.answer(endpoint.sent[1], None, QuotaExceeded("full"))
    endpoint.link.deliver_answers()
    assert (endpoint.line.told(), endpoint.line.granted) == ([], [])
    assert len(endpoint.metered) == 1
    assert not endpoint.link.owes


def test_large_messages_are_several_operations_and_small_ones_one_each() -> None:
    endpoint = FakeEndpoint()
    large, small = plain(b"x" * 2 * OPERATION_BYTES), plain(b"x" * (OPERATION_BYTES // 2))
    endpoint.transfer(large, small, small, small)
    (sent,) = endpoint.sent
    endpoint.answer(sent, [1, 2, 3])
    endpoint.link.deliver_answers()
    endpoint.answer(sent, [0])
    endpoint.link.deliver_answers()
    endpoint.transfer(large, small)
    endpoint.answer(endpoint.sent[-1])
    endpoint.transfer(ping())
    endpoint.answer(endpoint.sent[-1])
    endpoint.link.deliver_answers()
    bare = len(ping())
    assert endpoint.metered == [
        (SEND, 3, 3 * len(small), 3),
        (SEND, 1, len(large), 3),
        (PING, 1, bare, 1),
        (SEND, 2, len(large) + len(small), 4),
    ]
    assert sum(endpoint.carried) == 0


# -- the namespace's rate --------------------------------------------------------------------------------------


def test_messages_beyond_the_rate_are_refused_and_credit_comes_half_a_second_later() -> None:
    endpoint = FakeEndpoint(Rate(2, 1000))
    endpoint.transfer(*[plain()] * 5, first=0xFFFFFFFF)
    (sent,) = endpoint.sent
    assert (sent.first_delivery_id, sent.n) == (0xFFFFFFFF, 2)
    assert endpoint.line.told() == [(1, 3, "ServerBusy")]
    assert endpoint.line.granted == []
    endpoint.transfer(plain(), first=4, settled=True)
    assert (len(endpoint.sent), endpoint.line.told()) == (1, [])
    ((after_s, let_go),) = endpoint.timers
    assert after_s == 0.5
    let_go()
    assert (endpoint.line.granted, endpoint.written) == ([1000 - 2], 1)
    endpoint.transfer(plain(), first=5)
    assert len(endpoint.timers) == 2


def test_a_batch_transfer_is_admitted_as_a_whole_or_refused_as_one_delivery() -> None:
    endpoint = FakeEndpoint(Rate(3))
    two = batch_of(plain(), plain())
    endpoint.transfer(two, two, form=BATCH_FORMAT)
    assert [sent.first_delivery_id for sent in endpoint.sent] == [7]
    assert endpoint.line.told() == [(8, 8, "ServerBusy")]
    assert len(endpoint.timers) == 1
    endpoint.transfer(two, form=BATCH_FORMAT, settled=True)
    assert endpoint.line.told() == []


# -- in a transaction ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
def test_a_delivery_in_a_transaction_is_kept_by_it_and_answered_at_once(settled: bool) -> None:
    endpoint = FakeEndpoint()
    endpoint.transfer(
        batch_of(plain(), plain()), state=TransactionalState(b"t", None), form=BATCH_FORMAT, settled=settled
    )
    ((txn_id, batch),) = endpoint.books.sent
    assert batch is not None
    assert (txn_id, batch.n, batch.atomic, endpoint.sent) == (b"t", 2, True, [])
    if settled:
        assert endpoint.line.settled == []
    else:
        ((first, last, state),) = endpoint.line.settled
        assert (first, last, state.txn_id, state.outcome) == (7, 7, b"t", ACCEPTED)
    assert endpoint.line.granted == [CREDIT]


def test_a_message_that_cannot_be_taken_dooms_its_transaction() -> None:
    endpoint = FakeEndpoint(Rate(1))
    state = TransactionalState(b"t", None)
    endpoint.transfer(keyed("refused"), state=state)
    endpoint.transfer(batch_of(plain(), plain()), state=state, form=BATCH_FORMAT, first=8)
    endpoint.transfer(b"\x00", state=state, first=9)
    errors = [QuotaExceeded, ServerBusy, Undecodable]
    assert [(txn_id, type(error)) for txn_id, error in endpoint.books.doomed] == [(b"t", error) for error in errors]
    assert endpoint.line.told() == [(7 + at, 7 + at, error.__name__) for at, error in enumerate(errors)]
    assert endpoint.books.sent == []
    # One that fits is taken: the rate counts what is kept, when it comes.
    endpoint.transfer(plain(), state=state, first=10)
    assert len(endpoint.books.sent) == 1


def test_a_delivery_cannot_be_resumed() -> None:
    """TL11."""
    endpoint = FakeEndpoint()
    endpoint.transfer(plain(), state=ACCEPTED)
    assert endpoint.line.told() == [(7, 7, NotImplementedYet.__name__)]
    assert endpoint.books.doomed == []
    assert MessageTooLarge.__name__ not in endpoint.line.told()


@pytest.mark.parametrize("names_key", [False, True])
def test_the_envelope_of_a_batch_speaks_for_messages_that_say_nothing(names_key: bool) -> None:
    endpoint = FakeEndpoint(partitioned=True)
    inner = [keyed("own") if names_key else plain(), plain()]
    annotations = {Symbol("x-opt-partition-key"): "of the envelope"}
    endpoint.transfer(build_message(annotations=annotations) + batch_of(*inner), form=BATCH_FORMAT)
    (sent,) = endpoint.sent
    assert sent.keys is not None
    if names_key:
        assert sent.keys[0] is not None
        assert sent.keys[1] is None
    else:
        assert sent.keys[0] == sent.keys[1] is not None


def test_a_refusal_gives_credit_again_when_half_is_used_up() -> None:
    for credit, granted in ((CREDIT // 2 + 1, []), (CREDIT // 2, [CREDIT])):
        endpoint = FakeEndpoint()
        endpoint.line.credit = credit
        endpoint.transfer(keyed("refused"))
        assert endpoint.line.granted == granted
