"""Transactions over the wire (I8, I34, I35): coordinator, provisional outcomes, all or nothing."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, NoReturn

import pytest
from transaction_kit import (
    CAPABILITY,
    Manager,
    bodies,
    condition,
    coordinator,
    declare,
    declare_message,
    discharge,
    discharge_message,
    keyed,
    outcome,
    put,
    send,
    settle,
    settle_plainly,
)

from duobus.amqp import (
    ACCEPTED,
    RELEASED,
    Coordinator,
    Declared,
    Error,
    Link,
    LinkDetached,
    Modified,
    Rejected,
    Source,
    Target,
    TransactionalState,
    Transfers,
)
from duobus.broker import Queue
from duobus.broker.transaction import MESSAGES_MAX, SETTLEMENTS_MAX
from duobus.codec import BATCH_FORMAT, Array, build_message, tag_of
from duobus.errors import StoreFailed
from duobus.gateway.amqp.transactions.coordinator import DISCHARGE_MS
from duobus.gateway.amqp.transactions.transactions import KEPT_BYTES_MAX, TRANSACTION_MS, TRANSACTIONS_MAX
from duobus.model.descriptions import QueueDescription
from duobus.model.metering import SEND, SETTLE
from duobus.server.composition import Server
from kits.gateway import Client, TcpStream, in_loop, message, serving, settled

#: What the service says, and upstream's tests look for.
ONE_ENTITY = "Local transactions cannot span multiple top-level entities such as queue or topic. "
UNKNOWN, ROLLBACK, TIMEOUT = (f"amqp:transaction:{name}" for name in ("unknown-id", "rollback", "timeout"))
PARTED = QueueDescription(name="parted", enable_partitioning=True)


async def connected(server: Server) -> Client:
    return Client(await TcpStream.connect(server.port("amqp") or 0))


def queue_of(server: Server, name: str = "q") -> Queue:
    return server.amqp.unit.namespace("ns").queues[name]


def lock_tokens(server: Server) -> Array:
    """The tokens of every lock of a queue, as a client shows them."""
    fragment = queue_of(server).fragments[0].fragment
    assert fragment is not None
    locks = fragment.sources[0].locks
    tokens = [tag_of(fragment.prefix, lock) for lock in locks]
    return Array(uuid.UUID, [uuid.UUID(bytes_le=token) for token in tokens])


def active(server: Server, name: str = "q") -> int:
    """Active messages of a queue, locked ones among them."""
    return queue_of(server, name).numbers()[0][0]


# -- the coordinator --------------------------------------------------------------------------------------------


@in_loop
async def test_a_coordinator_says_what_it_can_and_gives_credit_at_once() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        target = link.remote.target if link.remote else None
        assert isinstance(target, Coordinator)
        assert target.capabilities == [CAPABILITY]
        assert link.credit > 0


@in_loop
async def test_each_declared_transaction_has_a_name_of_its_own() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        names = {await declare(client, link) for _ in range(10)}
        assert len(names) == 10
        assert all(0 < len(name) <= 32 for name in names)


@in_loop
async def test_sends_are_seen_after_the_commit_and_by_nobody_before() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        for body in (b"one", b"two"):
            assert await send(client, sender, txn, body) == TransactionalState(txn, ACCEPTED)
        assert active(server) == 0
        assert await discharge(client, link, txn) == ACCEPTED
        assert await bodies(client) == [b"one", b"two"]


@pytest.mark.parametrize("is_partitioned", [False, True])
@in_loop
async def test_what_a_transaction_sends_twice_is_kept_once_where_duplicates_are_detected(is_partitioned: bool) -> None:
    watchful = QueueDescription(name="q", requires_duplicate_detection=True, enable_partitioning=is_partitioned)
    payload = build_message(["order-1"], data=b"order")
    async with serving(watchful) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        for is_rollback in (True, False, False):
            txn = await declare(client, link)
            for _ in range(2):
                state = await outcome(client, put(sender, payload, TransactionalState(txn)))
                assert state == TransactionalState(txn, ACCEPTED)
            assert await discharge(client, link, txn, fail=is_rollback) == ACCEPTED
        assert await outcome(client, put(sender, payload)) is ACCEPTED
        assert await bodies(client) == [b"order"]


@in_loop
async def test_a_rollback_leaves_nothing_of_what_was_sent() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        await send(client, sender, txn, b"never")
        assert await discharge(client, link, txn, fail=True) == ACCEPTED
        assert await bodies(client) == []
        assert server.amqp.budget.kept == 0


@in_loop
async def test_a_batch_transfer_is_part_of_a_transaction_as_a_whole() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        batch = build_message(None, None, data=[message(b"one"), message(b"two")])
        first = sender.send_one(b"b", batch, False, BATCH_FORMAT, state=TransactionalState(txn))
        assert await outcome(client, first) == TransactionalState(txn, ACCEPTED)
        assert active(server) == 0
        await discharge(client, link, txn)
        assert await bodies(client) == [b"one", b"two"]


@in_loop
async def test_an_empty_transaction_commits_and_rolls_back() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        for fail in (False, True):
            assert await discharge(client, link, await declare(client, link), fail=fail) == ACCEPTED


@in_loop
async def test_everything_in_one_write_is_done_in_the_order_of_the_wire() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        first, second = await declare(client, link), await declare(client, link)
        # A client that waits for nothing: neither of the two may lose work to its own discharge.
        ended = [put(link, discharge_message(first))]
        work = [put(sender, message(b"output"), TransactionalState(second))]
        client.session.disposition(True, delivery, delivery, TransactionalState(second, ACCEPTED), False)
        ended.append(put(link, discharge_message(second)))
        for number in ended:
            assert await outcome(client, number) == ACCEPTED
        assert await outcome(client, work[0]) == TransactionalState(second, ACCEPTED)
        assert await outcome(client, delivery, role=False) == TransactionalState(second, ACCEPTED)
        assert await bodies(client) == [b"output"]


# -- settlements ------------------------------------------------------------------------------------------------


@in_loop
async def test_a_move_completes_the_input_and_stores_the_output_together() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await send(client, sender, txn, b"output")
        assert await settle(client, txn, delivery, ACCEPTED) == TransactionalState(txn, ACCEPTED)
        assert active(server) == 1
        assert await discharge(client, link, txn) == ACCEPTED
        assert await bodies(client) == [b"output"]


@in_loop
@pytest.mark.parametrize(
    ("state", "answer", "kind"),
    [
        (Modified(True, None, None), Modified(None, None, None), 0),
        (Modified(True, True, None), Modified(None, True, None), 3),
        (Rejected(Error("com.microsoft:dead-letter", "bad", None)), Rejected(None), 1),
    ],
)
async def test_abandon_defer_and_dead_letter_take_effect_with_the_commit(
    state: Modified, answer: Modified, kind: int
) -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        assert await settle(client, txn, delivery, state) == TransactionalState(txn, answer)
        assert queue_of(server).numbers()[0] == [1, 0, 0, 0, 0]
        await discharge(client, link, txn)
        assert queue_of(server).numbers()[0][kind] == 1


@in_loop
async def test_a_rollback_leaves_the_lock_held_and_the_delivery_to_be_settled_again() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(2)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await settle(client, txn, delivery, ACCEPTED)
        assert await discharge(client, link, txn, fail=True) == ACCEPTED
        assert active(server) == 1
        # Still locked: nobody else gets it, and the holder settles it as if nothing had been.
        assert await bodies(client) == []
        assert await settle_plainly(client, delivery, ACCEPTED) == ACCEPTED
        assert active(server) == 0


@in_loop
async def test_a_lock_that_is_lost_before_the_discharge_rolls_everything_back() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await send(client, sender, txn, b"output")
        await settle(client, txn, delivery, ACCEPTED)
        # Given back by its holder: the lock is gone as if it had expired.
        client.session.disposition(True, delivery, delivery, RELEASED, True)
        receiver.detach()
        refused = await discharge(client, link, txn)
        assert condition(refused) == ROLLBACK
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert "lock" in str(refused.error.description)
        assert await bodies(client) == [b"input"]


@in_loop
async def test_a_refused_discharge_settles_nothing_and_is_metered_as_nothing() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        lost, kept = await client.receiver(), await client.receiver()
        await client.send(sender, b"lost")
        await client.send(sender, b"kept")
        deliveries = []
        for receiver in (lost, kept):
            receiver.grant(1)
            deliveries.append((await client.receive(receiver))[0])
        txn = await declare(client, link)
        await send(client, sender, txn, b"output")
        for delivery in deliveries:
            await settle(client, txn, delivery, ACCEPTED)
        client.session.disposition(True, deliveries[0], deliveries[0], RELEASED, True)
        lost.detach()
        server.metering.take(0)
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert [record.kind for record in server.metering.take(0) if record.kind in (SEND, SETTLE)] == []
        # The other delivery is its holder's as before.
        assert await settle_plainly(client, deliveries[1], ACCEPTED) == ACCEPTED
        assert await bodies(client) == [b"lost"]


@in_loop
async def test_a_settlement_whose_lock_is_gone_already_is_refused_and_the_commit_too() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        queue = queue_of(server)
        handle = queue.fragments[0]
        assert handle.fragment is not None
        (lock,) = handle.fragment.sources[0].locks
        handle.unlock(0, handle.fragment.prefix, [(lock, 1)], counted=True)
        txn = await declare(client, link)
        await send(client, sender, txn, b"output")
        assert condition(await settle(client, txn, delivery, ACCEPTED)) == "com.microsoft:message-lock-lost"
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == 1


@in_loop
async def test_the_second_of_two_transactions_that_settle_one_message_is_rolled_back() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        first, second = await declare(client, link), await declare(client, link)
        for txn in (first, second):
            await settle(client, txn, delivery, ACCEPTED)
            await send(client, sender, txn, b"output")
        assert await discharge(client, link, first) == ACCEPTED
        assert condition(await discharge(client, link, second)) == ROLLBACK
        assert await bodies(client) == [b"output"]


@in_loop
async def test_a_message_is_settled_once_in_a_transaction_and_never_released_in_one() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        twice, released = await declare(client, link), await declare(client, link)
        await settle(client, twice, delivery, ACCEPTED)
        assert condition(await settle(client, twice, delivery, Modified(True, None, None))) == "amqp:not-allowed"
        assert condition(await settle(client, released, delivery, RELEASED)) == "amqp:not-allowed"
        for txn in (twice, released):
            assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == 1


@in_loop
async def test_a_dead_letter_and_its_queue_are_one_entity() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"poison")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        await settle_plainly(client, delivery, Rejected(None))
        letters = await client.receiver("q/$DeadLetterQueue", credit=1)
        letter, _ = await client.receive(letters)
        txn = await declare(client, link)
        await send(client, sender, txn, b"repaired")
        await settle(client, txn, letter, ACCEPTED)
        assert await discharge(client, link, txn) == ACCEPTED
        assert queue_of(server).numbers()[0] == [1, 0, 0, 0, 0]


# -- names ------------------------------------------------------------------------------------------------------


@in_loop
async def test_a_transaction_is_discharged_once() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        assert await discharge(client, link, txn) == ACCEPTED
        assert condition(await discharge(client, link, txn)) == UNKNOWN
        assert condition(await send(client, sender, txn, b"late")) == UNKNOWN
        assert active(server) == 0


@in_loop
async def test_the_transaction_of_another_connection_is_unknown() -> None:
    async with serving() as server:
        one, other = await connected(server), await connected(server)
        link, sender = await coordinator(one), await one.sender()
        txn = await declare(one, link)
        await send(one, sender, txn, b"mine")
        strange, hands = await coordinator(other), await other.sender()
        assert condition(await send(other, hands, txn, b"foreign")) == UNKNOWN
        for fail in (True, False):
            assert condition(await discharge(other, strange, txn, fail=fail)) == UNKNOWN
        assert await discharge(one, link, txn) == ACCEPTED
        assert await bodies(one) == [b"mine"]


@in_loop
async def test_a_settlement_under_an_unknown_name_leaves_the_message_as_it_was() -> None:
    async with serving() as server:
        client = await connected(server)
        sender, receiver = await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        assert condition(await settle(client, b"nobody", delivery, ACCEPTED)) == UNKNOWN
        assert await settle_plainly(client, delivery, ACCEPTED) == ACCEPTED


@in_loop
async def test_nonsense_to_the_coordinator_is_refused_and_the_link_goes_on() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        for payload in (b"\x00", message(b"hello"), discharge_message("text"), discharge_message(b"x", 7)):
            assert condition(await outcome(client, put(link, payload))) == "amqp:decode-error"
        big = await outcome(client, put(link, message(bytes(10_000))))
        assert condition(big) == "amqp:link:message-size-exceeded"
        # Nobody could be told the name, so nothing is declared.
        put(link, declare_message(), settled=True)
        assert await discharge(client, link, await declare(client, link)) == ACCEPTED


# -- limits -----------------------------------------------------------------------------------------------------


@in_loop
async def test_message_101_is_refused_and_none_of_the_others_is_stored() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        full, over = await declare(client, link), await declare(client, link)
        for txn in (full, over):
            numbers = [put(sender, message(b"x"), TransactionalState(txn)) for _ in range(MESSAGES_MAX)]
            assert await outcome(client, numbers[-1]) == TransactionalState(txn, ACCEPTED)
        assert condition(await send(client, sender, over, b"one more")) == "amqp:resource-limit-exceeded"
        assert condition(await discharge(client, link, over)) == ROLLBACK
        assert await discharge(client, link, full) == ACCEPTED
        assert active(server) == MESSAGES_MAX


@in_loop
async def test_a_connection_has_so_many_open_transactions_and_no_more() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        names = [await declare(client, link) for _ in range(TRANSACTIONS_MAX)]
        assert condition(await outcome(client, put(link, declare_message()))) == "amqp:resource-limit-exceeded"
        assert await discharge(client, link, names[0]) == ACCEPTED
        assert isinstance(await outcome(client, put(link, declare_message())), Declared)


@in_loop
async def test_open_transactions_of_a_connection_hold_so_many_bytes_and_no_more() -> None:
    async with serving(QueueDescription(name="q", max_message_size_bytes=1 << 20)) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        big = message(bytes(1_000_000))
        answers = [
            await outcome(client, put(sender, big, TransactionalState(txn))) for _ in range(KEPT_BYTES_MAX // 1_000_000)
        ]
        assert answers[-1] == TransactionalState(txn, ACCEPTED)
        assert server.amqp.budget.kept > KEPT_BYTES_MAX - 2_000_000
        refused = await outcome(client, put(sender, big, TransactionalState(txn)))
        assert condition(refused) == "amqp:resource-limit-exceeded"
        # What can only be rolled back holds nothing any more.
        assert server.amqp.budget.kept == 0
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert server.amqp.budget.used == 0


@in_loop
async def test_transactions_of_a_server_have_a_part_of_its_memory_and_the_rest_is_refused_as_busy() -> None:
    async with serving(incoming_bytes_max=16 << 20) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        state = None
        for _ in range(60):
            state = await outcome(client, put(sender, message(bytes(200_000)), TransactionalState(txn)))
            if not isinstance(state, TransactionalState):
                break
        assert condition(state) == "com.microsoft:server-busy"
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert (server.amqp.budget.kept, active(server)) == (0, 0)


@in_loop
async def test_a_range_beyond_the_settlements_of_a_transaction_is_refused() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        number = SETTLEMENTS_MAX + 1
        last = [put(sender, message(b"x")) for _ in range(number)][-1]
        await outcome(client, last)
        await settled(lambda: active(server) == number)
        receiver = await client.receiver("q", credit=number)
        ids: list[int] = []
        while len(ids) < number:
            event = await client.wait(Transfers, lambda event: event.link is receiver)
            ids += range(event.first_delivery_id, event.first_delivery_id + len(event.payloads))
        txn = await declare(client, link)
        client.session.disposition(True, ids[0], ids[-1], TransactionalState(txn, ACCEPTED), False)
        assert condition(await outcome(client, ids[0], role=False)) == "amqp:resource-limit-exceeded"
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == number


@in_loop
async def test_a_transaction_that_takes_too_long_is_rolled_back_and_says_so() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        late, failed = await declare(client, link), await declare(client, link)
        for txn in (late, failed):
            await send(client, sender, txn, b"slow")
        (peer,) = server.amqp.peers
        clock = server.amqp.clock
        peer.tick(clock.now_ms(), clock.monotonic_ms() + TRANSACTION_MS - 1_000)
        assert server.amqp.budget.kept > 0
        peer.transactions.tick(clock.monotonic_ms() + TRANSACTION_MS)
        assert server.amqp.budget.kept == 0
        assert condition(await send(client, sender, late, b"later")) == ROLLBACK
        assert condition(await discharge(client, link, late)) == TIMEOUT
        assert await discharge(client, link, failed, fail=True) == ACCEPTED
        assert active(server) == 0


# -- keys of partitioned entities (I34, PE15) -------------------------------------------------------------------


@in_loop
async def test_all_messages_of_a_transaction_on_a_partitioned_entity_have_one_key() -> None:
    async with serving(PARTED, stores=4) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender("parted")
        txn = await declare(client, link)
        for body in (b"one", b"two"):
            state = await send(client, sender, txn, body, key="k")
            assert state == TransactionalState(txn, ACCEPTED)
        assert await send(client, sender, txn, b"three", session="k") == TransactionalState(txn, ACCEPTED)
        assert await discharge(client, link, txn) == ACCEPTED
        assert await bodies(client, "parted") == [b"one", b"two", b"three"]


@in_loop
@pytest.mark.parametrize("second", [{}, {"key": "other"}, {"session": "another"}])
async def test_no_key_or_a_second_key_is_an_invalid_operation_and_leaves_only_the_rollback(
    second: dict[str, str],
) -> None:
    async with serving(PARTED, stores=4) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender("parted")
        for fail in (True, False):
            txn = await declare(client, link)
            await send(client, sender, txn, b"one", key="k")
            assert condition(await send(client, sender, txn, b"two", **second)) == "amqp:not-allowed"
            ended = await discharge(client, link, txn, fail=fail)
            assert ended == ACCEPTED if fail else condition(ended) == ROLLBACK
        assert active(server, "parted") == 0


@in_loop
@pytest.mark.parametrize("name", ["q", "parted"])
async def test_a_session_id_and_a_partition_key_that_differ_are_an_invalid_operation_in_a_transaction_too(
    name: str,
) -> None:
    """PE11."""
    async with serving(QueueDescription(name="q"), PARTED, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender(name)
        txn = await declare(client, link)
        assert condition(await send(client, sender, txn, b"one", key="k", session="s")) == "amqp:not-allowed"
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server, name) == 0


@in_loop
async def test_a_keyless_first_message_is_an_invalid_operation_on_a_partitioned_entity() -> None:
    async with serving(PARTED, stores=4) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender("parted")
        txn = await declare(client, link)
        assert condition(await send(client, sender, txn, b"one")) == "amqp:not-allowed"
        assert condition(await discharge(client, link, txn)) == ROLLBACK


@in_loop
async def test_a_settlement_and_the_sends_of_a_transaction_are_in_one_fragment() -> None:
    """PE12."""
    async with serving(PARTED, stores=2) as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender("parted")
        await outcome(client, put(sender, keyed(b"input", key="k")))
        receiver = await client.receiver("parted", credit=1)
        delivery, _ = await client.receive(receiver)
        wrong, right = await declare(client, link), await declare(client, link)
        await settle(client, wrong, delivery, ACCEPTED)
        assert condition(await send(client, sender, wrong, b"output", key="elsewhere")) == "amqp:not-allowed"
        assert condition(await discharge(client, link, wrong)) == ROLLBACK
        await settle(client, right, delivery, ACCEPTED)
        await send(client, sender, right, b"output", key="k")
        assert await discharge(client, link, right) == ACCEPTED
        assert await bodies(client, "parted") == [b"output"]


@in_loop
async def test_a_plain_entity_takes_any_keys_in_one_transaction() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        await send(client, sender, txn, b"one", key="a")
        await send(client, sender, txn, b"two", session="b")
        await send(client, sender, txn, b"three")
        assert await discharge(client, link, txn) == ACCEPTED
        assert active(server) == 3


# -- one entity -------------------------------------------------------------------------------------------------


@in_loop
async def test_a_second_entity_in_a_transaction_is_refused() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="p")) as server:
        client = await connected(server)
        sender, other, link = await client.sender(), await client.sender("p"), await coordinator(client)
        txn = await declare(client, link)
        await send(client, sender, txn, b"here")
        refused = await send(client, other, txn, b"there")
        assert condition(refused) == "amqp:not-allowed"
        assert isinstance(refused, Rejected)
        assert refused.error is not None
        assert str(refused.error.description).startswith(ONE_ENTITY)
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert (active(server), active(server, "p")) == (0, 0)


@in_loop
async def test_a_session_that_began_with_its_coordinator_receives_from_one_entity() -> None:
    async with serving(QueueDescription(name="q"), QueueDescription(name="p")) as server:
        client = await connected(server)
        await coordinator(client)
        await client.receiver("q")
        await client.receiver("q/$DeadLetterQueue")
        await client.sender("p")
        refused = client.session.attach_receiver("second", Source(address="p"), Target(address="c"))
        detached = await client.wait(LinkDetached, lambda event: event.link is refused)
        assert detached.error is not None
        assert detached.error.condition == "com.microsoft:operation-cancelled"
        assert str(detached.error.description).startswith(ONE_ENTITY)
        # A session that did not begin with one has no such limit.
        client.session = client.engine.begin()
        await client.receiver("q")
        await client.receiver("p")


# -- what ends a transaction from outside -----------------------------------------------------------------------


@in_loop
async def test_a_coordinator_link_that_goes_rolls_back_what_it_declared_and_nothing_else() -> None:
    async with serving() as server:
        client = await connected(server)
        going, staying, sender = await coordinator(client), await coordinator(client), await client.sender()
        gone, kept = await declare(client, going), await declare(client, staying)
        for txn in (gone, kept):
            await send(client, sender, txn, b"x")
        going.detach()
        await client.wait(LinkDetached, lambda event: event.link is going)
        assert condition(await send(client, sender, gone, b"late")) == UNKNOWN
        assert condition(await discharge(client, staying, gone)) == UNKNOWN
        assert await discharge(client, staying, kept) == ACCEPTED
        assert active(server) == 1


@in_loop
async def test_a_lost_connection_rolls_back_and_gives_the_messages_back_at_once() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, receiver = await coordinator(client), await client.sender(), await client.receiver()
        await client.send(sender, b"input")
        receiver.grant(1)
        delivery, _ = await client.receive(receiver)
        txn = await declare(client, link)
        await send(client, sender, txn, b"output")
        await settle(client, txn, delivery, ACCEPTED)
        assert isinstance(client.stream, TcpStream)
        client.stream.drop()
        await settled(lambda: not server.amqp.peers)
        assert server.amqp.budget.used == 0
        assert await bodies(await connected(server)) == [b"input"]


@in_loop
async def test_a_sender_that_detaches_leaves_its_messages_in_the_transaction() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        txn = await declare(client, link)
        await send(client, sender, txn, b"one")
        sender.detach()
        await client.wait(LinkDetached, lambda event: event.link is sender)
        assert await discharge(client, link, txn) == ACCEPTED
        assert await bodies(client) == [b"one"]


@in_loop
async def test_a_message_that_is_refused_leaves_only_the_rollback() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender = await coordinator(client), await client.sender()
        for payload, refusal in (
            (b"\x00nonsense", "amqp:decode-error"),
            (message(bytes(300_000)), "amqp:link:message-size-exceeded"),
        ):
            txn = await declare(client, link)
            await send(client, sender, txn, b"good")
            assert condition(await outcome(client, put(sender, payload, TransactionalState(txn)))) == refusal
            assert condition(await discharge(client, link, txn)) == ROLLBACK
        # A pre-settled one has no outcome of its own; the discharge tells.
        txn = await declare(client, link)
        put(sender, b"\x00nonsense", TransactionalState(txn), settled=True)
        assert condition(await discharge(client, link, txn)) == ROLLBACK
        assert active(server) == 0


# -- requests to $management ------------------------------------------------------------------------------------


@in_loop
async def test_a_disposition_by_token_is_done_with_its_transaction() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, manager = await coordinator(client), await client.sender(), await Manager.attach(client)
        for body in (b"kept", b"gone"):
            await client.send(sender, body)
            await client.receive(await client.receiver("q", credit=1))
            txn = await declare(client, link)
            about: dict[str, Any] = {"disposition-status": "completed", "lock-tokens": lock_tokens(server)}
            status, _, delivered = await manager.ask("update-disposition", about, txn)
            assert (status, delivered) == (200, TransactionalState(txn, ACCEPTED))
            assert active(server) == 1
            assert await discharge(client, link, txn, fail=body == b"kept") == ACCEPTED
            if body == b"kept":
                assert (await manager.ask("update-disposition", about))[0] == 200
            assert active(server) == 0


@in_loop
async def test_a_request_that_cannot_be_part_of_a_transaction_is_refused_and_not_done() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, manager = await coordinator(client), await client.sender(), await Manager.attach(client)
        await client.send(sender, b"input")
        await client.receive(await client.receiver("q", credit=1))
        tokens = lock_tokens(server)
        lost = Array(uuid.UUID, [uuid.UUID(int=5)])
        for operation, body, refusal in (
            ("peek-message", {"from-sequence-number": 1, "message-count": 1}, "amqp:not-implemented"),
            ("update-disposition", {"disposition-status": "?", "lock-tokens": tokens}, "com.microsoft:argument-error"),
            (
                "update-disposition",
                {"disposition-status": "completed", "lock-tokens": lost},
                "com.microsoft:message-lock-lost",
            ),
        ):
            txn = await declare(client, link)
            assert (await manager.ask(operation, body, txn))[1] == refusal
            assert condition(await discharge(client, link, txn)) == ROLLBACK
        body = {"disposition-status": "completed", "lock-tokens": tokens}
        assert (await manager.ask("update-disposition", body, b"nobody"))[1] == UNKNOWN
        assert active(server) == 1


@in_loop
async def test_a_request_joins_its_transaction_before_the_discharge_that_follows_it() -> None:
    async with serving() as server:
        client = await connected(server)
        link, sender, manager = await coordinator(client), await client.sender(), await Manager.attach(client)
        await client.send(sender, b"input")
        await client.receive(await client.receiver("q", credit=1))
        txn = await declare(client, link)
        about = {"disposition-status": "completed", "lock-tokens": lock_tokens(server)}
        asked = asyncio.ensure_future(manager.ask("update-disposition", about, txn))
        await asyncio.sleep(0)
        ended = put(link, discharge_message(txn))
        assert (await asked)[0] == 200
        assert await outcome(client, ended) == ACCEPTED
        assert active(server) == 0


# -- a store that falls ill under a discharge -------------------------------------------------------------------


async def with_a_stuck_store(server: Server, client: Client, link: Link) -> bytes:
    """A transaction whose discharge is written while its store fails and does not come back; its id."""
    sender = await client.sender()
    txn = await declare(client, link)
    await send(client, sender, txn, b"perhaps")
    broker = queue_of(server).fragments[0].broker

    def fails() -> NoReturn:
        raise StoreFailed("planted")

    store = broker.store
    store.commit = lambda batch: fails()  # type: ignore[method-assign]
    store.open = fails  # type: ignore[method-assign]
    return txn


@in_loop
async def test_a_discharge_that_nobody_can_decide_ends_its_link_and_not_the_connection() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        txn = await with_a_stuck_store(server, client, link)
        put(link, discharge_message(txn))
        await client.flush()
        await settled(lambda: server.unit.brokers[1].state == "failed")
        (peer,) = server.amqp.peers
        peer.transactions.tick(server.amqp.clock.monotonic_ms() + DISCHARGE_MS - 1_000)
        assert link.is_attached
        peer.transactions.tick(server.amqp.clock.monotonic_ms() + DISCHARGE_MS)
        detached = await client.wait(LinkDetached, lambda event: event.link is link)
        assert detached.error is not None
        assert detached.error.condition == "amqp:internal-error"
        assert await declare(client, await coordinator(client))


@in_loop
async def test_a_detach_behind_such_a_discharge_is_answered_when_it_is_given_up() -> None:
    async with serving() as server:
        client = await connected(server)
        link = await coordinator(client)
        txn = await with_a_stuck_store(server, client, link)
        put(link, discharge_message(txn))
        link.detach()
        await client.flush()
        await settled(lambda: server.unit.brokers[1].state == "failed")
        (peer,) = server.amqp.peers
        peer.transactions.tick(server.amqp.clock.monotonic_ms() + DISCHARGE_MS)
        peer.write_soon()
        await client.wait(LinkDetached, lambda event: event.link is link)
