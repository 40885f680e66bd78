"""Invariants of a pair in virtual time: minutes and days of it, to the millisecond (I12, I43 to I50, I59)."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus._pyamqp.error import MessageSendFailed
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
)

from duobus.ha.aio import Syphon
from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.syphon import CANNOT_BE_DELIVERED, SEND_LIMIT_S
from duobus.ha.errors import BacklogUnavailable, PairFaulted
from duobus.ha.events import (
    BacklogFailed,
    BacklogRestored,
    Diverted,
    FailoverEngaged,
    Faulted,
    PingSent,
    PrimaryHealthy,
    Reporter,
    Syphoned,
    SyphonFailed,
    SyphonPolled,
    SyphonSkipped,
)
from duobus.ha.failover import State
from duobus.ha.transfer import NO_PATH
from kits.virtual_pair import BATCH_BYTES, World, in_virtual_time, wire

MINUTE = timedelta(minutes=1)


def virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        in_virtual_time(test)

    return run


async def until_failed_over(world: World, sender: Any) -> None:
    with pytest.raises(ServiceBusConnectionError):
        await sender.send_messages(ServiceBusMessage("to its caller"))
    await asyncio.sleep(60.1)
    assert world.of(FailoverEngaged)


@virtual
async def test_i43_a_healthy_pair_makes_no_operation_and_changes_no_byte() -> None:
    world = World()
    async with await world.pair() as pair, pair.get_queue_sender("orders") as sender:
        message = ServiceBusMessage("x", message_id="m", session_id="s", application_properties={"x-ms-path": "mine"})
        before = wire(message)
        looked_at = len(world.secondary.log)
        await sender.send_messages(message)
        await sender.send_messages([message, message])
        await asyncio.sleep(3_600)
        assert [stored.payload for stored in world.primary.queues["orders"]] == [before] * 3
        assert [(what, number) for _, what, _, number in world.primary.log] == [("send", 1), ("send", 2)]
        assert len(world.secondary.log) == looked_at
        assert world.events == []


@virtual
async def test_i12_failover_engages_when_the_interval_has_passed_and_not_a_moment_later() -> None:
    world = World()
    async with await world.pair(ping_primary_interval=timedelta(minutes=30)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        began_s = world.loop.time()
        await until_failed_over(world, sender)
        (engaged_s,) = world.at(FailoverEngaged)
        assert engaged_s - began_s == pytest.approx(60, abs=0.05), "goal: 50 ms after the interval"
        assert pair.state("orders") is State.FAILED_OVER


@virtual
async def test_i12_while_failed_over_no_message_of_the_application_goes_to_the_primary() -> None:
    world = World()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        await until_failed_over(world, sender)
        tried = len(world.primary.sends())
        for number in range(20):
            await sender.send_messages(ServiceBusMessage(str(number)))
            await asyncio.sleep(10)
        assert len(world.primary.sends()) == tried
        assert sorted(world.kept()) == sorted(map(str, range(20)))


@virtual
async def test_i12_a_success_of_any_sender_ends_the_suspicion_and_the_interval_begins_anew() -> None:
    world = World()
    async with await world.pair() as pair:
        one, two = pair.get_queue_sender("orders"), pair.get_queue_sender("orders")
        for _ in range(5):
            world.primary.away()
            with pytest.raises(ServiceBusConnectionError):
                await one.send_messages(ServiceBusMessage("x"))
            await asyncio.sleep(50)
            world.primary.back()
            await two.send_messages(ServiceBusMessage("x"))
        assert world.of(FailoverEngaged) == []
        assert pair.state("orders") is State.HEALTHY


@virtual
async def test_i12_a_primary_that_is_busy_for_longer_than_the_interval_is_away() -> None:
    world = World()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.fault = ServiceBusServerBusyError
        for _ in range(7):
            with pytest.raises(ServiceBusServerBusyError):
                await sender.send_messages(ServiceBusMessage("raised"))
            await asyncio.sleep(9.9)
        assert world.events == [], "busy is no suspicion"
        await sender.send_messages(ServiceBusMessage("diverted"))
        assert world.kept() == ["diverted"]
        (engaged,) = world.of(FailoverEngaged)
        assert engaged.after_ms == pytest.approx(70_000, abs=1_000)
        world.primary.back()
        await asyncio.sleep(61)
        await sender.send_messages(ServiceBusMessage("direct"))
        assert world.primary.texts("orders") == ["direct"]


@virtual
async def test_i12_a_limit_of_the_rate_that_lets_some_through_diverts_nothing() -> None:
    world = World()
    async with await world.pair() as pair:
        one, two = pair.get_queue_sender("orders"), pair.get_queue_sender("orders")
        for _ in range(100):
            world.primary.fault = ServiceBusServerBusyError
            for sender in (one, two, one):
                with pytest.raises(ServiceBusServerBusyError):
                    await sender.send_messages(ServiceBusMessage("too fast"))
                await asyncio.sleep(13)
            world.primary.back()
            await two.send_messages(ServiceBusMessage("let through"))
        assert world.events == []


@virtual
async def test_i12_one_busy_answer_before_a_long_silence_diverts_nothing() -> None:
    world = World()
    async with await world.pair() as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.fault = ServiceBusServerBusyError
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("raised"))
        world.primary.back()
        await asyncio.sleep(3_600)
        await sender.send_messages(ServiceBusMessage("direct"))
        assert world.primary.texts("orders") == ["direct"]
        assert world.events == []


@virtual
async def test_with_an_interval_of_zero_the_second_busy_answer_in_a_row_is_an_outage() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.fault = ServiceBusServerBusyError
        with pytest.raises(ServiceBusServerBusyError):
            await sender.send_messages(ServiceBusMessage("raised"))
        await sender.send_messages(ServiceBusMessage("diverted"))
        assert world.kept() == ["diverted"]


@virtual
async def test_failover_is_per_entity_and_per_client() -> None:
    world = World("orders", "bills")
    async with await world.pair() as pair:
        orders, bills = pair.get_queue_sender("orders"), pair.get_queue_sender("bills")
        world.primary.faults["orders"] = lambda: ServiceBusConnectionError(message="one sick queue")
        await until_failed_over(world, orders)
        await orders.send_messages(ServiceBusMessage("diverted"))
        await bills.send_messages(ServiceBusMessage("direct"))
        assert world.primary.texts("bills") == ["direct"]
        assert world.kept() == ["diverted"]


@virtual
async def test_on_quota_divert_diverts_what_a_full_entity_refuses_and_raise_raises() -> None:
    world = World()
    async with await world.pair(on_quota="divert") as pair:
        world.primary.fault = ServiceBusQuotaExceededError
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        assert world.kept() == ["x"]
        assert pair.state("orders") is State.HEALTHY
    other = World()
    async with await other.pair() as pair:
        other.primary.fault = ServiceBusQuotaExceededError
        with pytest.raises(ServiceBusQuotaExceededError):
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))


@virtual
async def test_i45_each_sender_keeps_its_own_random_queue_and_the_choice_is_even() -> None:
    world = World(backlogs=10)
    async with await world.pair(backlog_queue_count=10, failover_interval=timedelta(0)) as pair:
        world.primary.away()
        senders = [pair.get_queue_sender("orders") for _ in range(1_000)]
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("x"))
        chosen = [sender.backlog_queue for sender in senders]
        counts = Counter(chosen)
        assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 27.9, "chi-square, 9 degrees, 0.001"
        for sender in senders[:50]:
            await sender.send_messages(ServiceBusMessage("y"))
        assert [sender.backlog_queue for sender in senders[:50]] == chosen[:50]


@virtual
async def test_i45_a_backlog_queue_that_fails_leaves_the_rotation_of_all_senders_at_once_and_comes_back() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        world.primary.away()
        senders = [pair.get_queue_sender("orders") for _ in range(30)]
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("x"))
        sick = world.backlogs[0]
        world.secondary.faults[sick] = lambda: ServiceBusConnectionError(message="sick")
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("y"))
        assert [event.entity for event in world.of(BacklogFailed)] == [sick], "one sender found it out, for all"
        assert sick not in {sender.backlog_queue for sender in senders}
        assert pair.rotation.resting == 1
        assert len(world.kept()) == 60, "each message is in one backlog queue"
        del world.secondary.faults[sick]
        await asyncio.sleep(61)
        await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("z"))
        assert [event.entity for event in world.of(BacklogRestored)] == [sick]


@virtual
async def test_i45_a_message_that_cannot_be_encoded_takes_no_backlog_queue_out_of_the_rotation() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        await sender.send_messages(ServiceBusMessage("diverted"))
        with pytest.raises(TypeError, match="Unable to encode"):
            await sender.send_messages(ServiceBusMessage("x", application_properties={"a": object()}))  # type: ignore[dict-item]
        assert world.of(BacklogFailed) == []
        assert pair.rotation.resting == 0


@virtual
async def test_i45_when_all_have_failed_the_error_of_the_last_one_reaches_the_caller() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        world.primary.away()
        world.secondary.away()
        with pytest.raises(BacklogUnavailable, match="all 3 backlog queues") as caught:
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        assert isinstance(caught.value.__cause__, ServiceBusConnectionError)
        assert world.kept() == []


@virtual
async def test_i46_pings_come_every_interval_per_entity_and_none_after_the_first_success() -> None:
    world = World("orders", "bills")
    async with await world.pair(ping_primary_interval=timedelta(seconds=20)) as pair:
        world.primary.away()
        for path in ("orders", "bills"):
            with pytest.raises(ServiceBusConnectionError):
                await pair.get_queue_sender(path).send_messages(ServiceBusMessage("x"))
        await asyncio.sleep(60 + 5 * 20 + 1)
        tried: dict[str, list[float]] = {"orders": [], "bills": []}
        for time, event in world.events:
            if isinstance(event, PingSent):
                tried[event.entity].append(time)
        for path in tried:
            gaps = [after - before for before, after in zip(tried[path], tried[path][1:], strict=False)]
            assert len(tried[path]) == 5
            assert gaps == pytest.approx([20] * 4, abs=0.05)
        # The link of a ping is tried from two seconds before the ping is due until then, and never else.
        attached = [time for time, what, _, _ in world.primary.log if what == "attach"]
        due = {path: times[-1] for path, times in tried.items()}
        assert len(attached) <= 2 * 5 * 10
        assert all(min((due[path] - time) % 20 for path in due) <= 2.05 for time in attached)
        world.primary.back()
        returned_s = world.loop.time()
        await asyncio.sleep(20.1)
        assert max(world.at(PrimaryHealthy)) - returned_s <= 20.1, "at most one ping after it is healthy"
        number = len(world.of(PingSent))
        await asyncio.sleep(3_600)
        assert len(world.of(PingSent)) == number
        assert Counter(path for _, path in world.primary.pings) == {"orders": 1, "bills": 1}
        assert world.primary.texts("orders") == [], "nobody gets a ping"


@virtual
async def test_i46_after_a_ping_every_sender_goes_to_the_primary_at_once() -> None:
    world = World()
    async with await world.pair() as pair:
        senders = [pair.get_queue_sender("orders") for _ in range(5)]
        world.primary.away()
        await until_failed_over(world, senders[0])
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("diverted"))
        world.primary.back()
        await asyncio.sleep(60)
        for sender in senders:
            await sender.send_messages(ServiceBusMessage("direct"))
        assert world.primary.texts("orders") == ["direct"] * 5
        assert world.kept() == ["diverted"] * 5


@virtual
async def test_i48_at_the_size_cliff_the_caller_is_told_and_nothing_is_lost() -> None:
    world = World()
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        sender = pair.get_queue_sender("orders")
        world.primary.away()
        messages = [ServiceBusMessage(b"x" * (BATCH_BYTES // 2 - 85)) for _ in range(2)]
        batch = ServiceBusMessageBatch(BATCH_BYTES)
        for message in messages:
            batch.add_message(message)
        await sender.send_messages(batch)
        assert [event.messages for event in world.of(Diverted)] == [1, 1], "no longer one batch"
        world.secondary.fault = lambda: MessageSizeExceededError(message="too large")
        with pytest.raises(MessageSizeExceededError):
            await sender.send_messages(ServiceBusMessage("x"))
        assert world.of(BacklogFailed) == [], "it is the message, not the queues"


@virtual
async def test_i49_a_destination_that_is_away_or_gone_holds_up_nobody() -> None:
    world = World("orders", "bills")
    async with await world.pair(failover_interval=timedelta(0)) as pair:
        world.primary.away()
        for path in ("orders", "bills", "gone"):
            for number in range(50):
                await pair.get_queue_sender(path).send_messages(ServiceBusMessage(f"{path} {number}"))
        plain = ServiceBusMessage("no path")
        world.secondary.store(world.backlogs[0], wire(plain))
        world.primary.back()
        world.primary.faults = {
            "bills": lambda: ServiceBusConnectionError(message="away"),
            "gone": MessagingEntityNotFoundError,
        }
        syphon = Syphon(world.primary, world.secondary, world.backlogs, clock=world.clock)  # type: ignore[arg-type]
        async with carrying(syphon):
            await asyncio.sleep(1)
            assert sorted(world.primary.texts("orders")) == sorted(f"orders {number}" for number in range(50))
            dead = [reason for path in world.backlogs for _, reason in world.secondary.dead[path]]
            assert Counter(dead) == {CANNOT_BE_DELIVERED: 50, NO_PATH: 1}
            assert len(world.kept()) == 50
            del world.primary.faults["bills"]
            await asyncio.sleep(61)
            assert len(world.primary.texts("bills")) == 50
            assert world.kept() == []


@pytest.mark.parametrize(
    ("fault", "meaning"),
    [
        (lambda: ValueError("The handler has already been shutdown."), "owner"),
        (ServiceBusAuthorizationError, "owner"),
        (lambda: ServiceBusError("new", condition=b"com.example:new"), "unknown"),
    ],
)
def test_i49_what_is_no_fault_of_a_message_keeps_a_backlog_waiting_for_as_long_as_it_lasts(
    fault: Callable[[], Exception], meaning: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        world = World("orders", "bills", backlogs=1)
        (path,) = world.backlogs
        for number in range(150):  # more than one receive brings
            there = "bills" if number >= 140 else "orders"
            message = ServiceBusMessage(str(number), application_properties={"x-ms-path": there})
            world.secondary.store(path, wire(message))
        world.primary.faults = {"orders": fault}
        syphon = Syphon(
            world.primary,  # type: ignore[arg-type]
            world.secondary,  # type: ignore[arg-type]
            world.backlogs,
            reporter=Reporter(lambda event: world.events.append((world.loop.time(), event))),
            clock=world.clock,
        )
        async with carrying(syphon):
            await asyncio.sleep(5)
            assert world.primary.texts("bills") == [str(number) for number in range(140, 150)], "orders stalls nobody"
            await asyncio.sleep(300)
            assert world.secondary.dead[path] == []
            assert {event.meaning for event in world.of(SyphonSkipped)} == {meaning}
            assert len(world.primary.sends()) < 30, "it is tried once in a while, and not with each message"
            assert caplog.text.count("messages for 'orders' wait") == 1, "the log says it once, and not with each try"
            world.primary.faults = {}
            await asyncio.sleep(61)
            assert sorted(world.primary.texts("orders"), key=int) == [str(number) for number in range(140)]
            assert world.kept() == []

    in_virtual_time(play)


@virtual
async def test_i49_a_message_at_fault_is_dead_lettered_alone() -> None:
    world = World("orders", backlogs=1)
    path = world.backlogs[0]
    for text in ("good", "bad", "better"):
        there = ServiceBusMessage(text, application_properties={"x-ms-path": "orders"}, session_id=text)
        world.secondary.store(path, wire(there))
    refuse = world.primary.operate

    async def operate(what: str, there: str, number: int = 1) -> None:
        await refuse(what, there, number)
        sends = world.primary.sends("send")
        if what == "send" and len(sends) == 2:
            inner = MessageSendFailed(condition=b"amqp:not-allowed")
            raise ServiceBusError("no", condition=b"amqp:not-allowed", error=inner)

    world.primary.operate = operate  # type: ignore[method-assign]
    async with carrying(Syphon(world.primary, world.secondary, [path], clock=world.clock)):  # type: ignore[arg-type]
        await asyncio.sleep(1)
        assert sorted(world.primary.texts("orders")) == ["better", "good"]
        assert [reason for _, reason in world.secondary.dead[path]] == [CANNOT_BE_DELIVERED]


@contextlib.asynccontextmanager
async def carrying(*syphons: Syphon) -> Any:
    tasks = [asyncio.create_task(syphon.run()) for syphon in syphons]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@virtual
async def test_i50_the_other_client_is_faulted_five_seconds_after_one_was_closed_and_at_most_one_second_later() -> None:
    for closed, partner in (("primary", "secondary"), ("secondary", "primary")):
        world = World()
        pair = await world.pair(enable_syphon=True)
        sender = pair.get_queue_sender("orders")
        began_s = world.loop.time()
        await getattr(world, closed).close()
        await asyncio.sleep(4.9)
        await sender.send_messages(ServiceBusMessage("the partner has its time"))
        await asyncio.sleep(began_s + 6 - world.loop.time())
        assert getattr(world, partner).is_closed
        (faulted_s,) = world.at(Faulted)
        assert 5 <= faulted_s - began_s <= 6
        for call in (
            sender.send_messages(ServiceBusMessage("x")),
            sender.schedule_messages(ServiceBusMessage("x"), None),
            sender.cancel_scheduled_messages(1),
            sender.create_message_batch(),
            sender.__aenter__(),
        ):
            with pytest.raises(PairFaulted, match="Make new clients"):
                await call
        with pytest.raises(PairFaulted):
            pair.get_queue_sender("orders")


@virtual
async def test_i50_a_partner_that_is_closed_in_its_time_is_not_faulted() -> None:
    world = World()
    await world.pair()
    await world.primary.close()
    await asyncio.sleep(4.9)
    await world.secondary.close()
    await asyncio.sleep(60)
    assert world.of(Faulted) == []


@virtual
async def test_i50_nothing_of_the_pair_uses_a_client_that_is_being_closed() -> None:
    for closed in ("primary", "secondary"):
        world = World()
        pair = await world.pair(enable_syphon=True, ping_primary_interval=timedelta(seconds=1))
        world.primary.away()
        await until_failed_over(world, pair.get_queue_sender("orders"))
        client = getattr(world, closed)
        await client.close()
        number = len(client.log)
        await asyncio.sleep(4)
        assert len(client.log) == number, "neither ping nor syphon"


@pytest.mark.parametrize(("hours", "receives"), [(1, 40), (24, 960), (720, 28_800)])
def test_i59_an_idle_syphon_makes_the_receives_of_the_documents(hours: int, receives: int) -> None:
    @virtual
    async def idle() -> None:
        world = World(backlogs=10)
        polls: list[SyphonPolled] = []
        failures: list[SyphonFailed] = []

        def note(event: Any) -> None:
            if isinstance(event, SyphonPolled):
                polls.append(event)
            elif isinstance(event, SyphonFailed):
                failures.append(event)

        syphon = Syphon(
            world.primary,  # type: ignore[arg-type]
            world.secondary,  # type: ignore[arg-type]
            world.backlogs,
            reporter=Reporter(note),
            clock=world.clock,
        )
        async with carrying(syphon):
            # The first poll of each queue ends 15 minutes after it began, and attaching takes its milliseconds.
            await asyncio.sleep(hours * 3_600 + hours)
        assert len(polls) == receives
        assert all(poll.messages == 0 for poll in polls)
        assert failures == [], "links that the service ended as idle, each after 10 minutes"

    idle()


@virtual
async def test_a_syphon_that_is_told_to_end_ends_at_once_and_receives_no_more() -> None:
    world = World()
    syphon = Syphon(world.primary, world.secondary, world.backlogs, clock=world.clock)  # type: ignore[arg-type]
    running = asyncio.create_task(syphon.run())
    await asyncio.sleep(1)
    began_s = world.loop.time()
    syphon.stop()
    await running
    assert world.loop.time() - began_s < 1
    begun = len(world.secondary.log)
    await asyncio.sleep(3_600)
    assert len(world.secondary.log) == begun


@virtual
async def test_the_state_is_told_as_it_is_now_however_late_the_task_of_the_pair_is() -> None:
    world = World()
    async with await world.pair() as pair:
        assert pair._keeper is not None
        pair._keeper.cancel()
        world.primary.away()
        with pytest.raises(ServiceBusConnectionError):
            await pair.get_queue_sender("orders").send_messages(ServiceBusMessage("x"))
        await asyncio.sleep(59.9)
        assert pair.state("orders") is State.SUSPECT
        await asyncio.sleep(0.2)
        assert pair.state("orders") is State.FAILED_OVER


@virtual
async def test_a_link_ended_as_idle_is_attached_again_and_goes_on_with_the_rest_of_the_poll() -> None:
    world = World(backlogs=1)
    syphon = Syphon(world.primary, world.secondary, world.backlogs, clock=world.clock)  # type: ignore[arg-type]
    async with carrying(syphon):
        await asyncio.sleep(950)
        begun = [time for time, what, _, _ in world.secondary.log if what == "receive"]
        assert begun == pytest.approx([0, 600, 900], abs=0.1)
        late = ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})
        world.secondary.store(world.backlogs[0], wire(late))
        await asyncio.sleep(0.1)
        assert world.primary.texts("orders") == ["x"]


@virtual
async def test_the_age_of_the_oldest_message_is_told_with_each_batch_that_was_carried() -> None:
    world = World(backlogs=1)
    events: list[Any] = []
    for text in ("old", "new"):
        there = ServiceBusMessage(text, application_properties={"x-ms-path": "orders"})
        world.secondary.store(world.backlogs[0], wire(there))
        await asyncio.sleep(100)
    syphon = Syphon(
        world.primary,  # type: ignore[arg-type]
        world.secondary,  # type: ignore[arg-type]
        world.backlogs,
        reporter=Reporter(events.append),
        clock=world.clock,
    )
    async with carrying(syphon):
        await asyncio.sleep(1)
    (carried,) = [event for event in events if isinstance(event, Syphoned)]
    assert (carried.messages, carried.lag_ms) == (2, pytest.approx(200_000, abs=1_000))


@virtual
async def test_a_message_that_was_carried_and_could_not_be_completed_is_told_with_the_reason() -> None:
    world = World(backlogs=1)
    (path,) = world.backlogs
    world.secondary.store(path, wire(ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})))
    events: list[Any] = []
    syphon = Syphon(
        world.primary,  # type: ignore[arg-type]
        world.secondary,  # type: ignore[arg-type]
        world.backlogs,
        reporter=Reporter(events.append),
        clock=world.clock,
    )
    whole = world.secondary.operate

    async def operate(what: str, there: str, number: int = 1) -> None:
        await whole(what, there, number)
        if what == "settle":
            raise ServiceBusConnectionError(message="the answer was lost")

    world.secondary.operate = operate  # type: ignore[method-assign]
    async with carrying(syphon):
        await asyncio.sleep(1)
    assert world.primary.texts("orders") == ["x"]
    assert [event.error for event in events if isinstance(event, SyphonFailed)] == ["the answer was lost"]


@virtual
async def test_a_link_that_breaks_at_once_is_a_failure_with_pauses_that_grow() -> None:
    world = World(backlogs=1)
    events: list[Any] = []
    syphon = Syphon(
        world.primary,  # type: ignore[arg-type]
        world.secondary,  # type: ignore[arg-type]
        world.backlogs,
        reporter=Reporter(events.append),
        clock=world.clock,
    )
    world.secondary.away()
    async with carrying(syphon):
        await asyncio.sleep(600)
    failures = [event for event in events if isinstance(event, SyphonFailed)]
    assert 10 <= len(failures) <= 16, "1, 2, 4 ... 60 seconds, then every minute"
    assert {failure.error for failure in failures} == {"away"}


@pytest.mark.parametrize(
    ("fault", "text"),
    [(ServiceBusConnectionError(message="it broke"), "it broke"), (ConnectionResetError(), "ConnectionResetError")],
)
def test_a_link_that_breaks_while_it_is_waited_over_is_a_failure_and_no_end_of_an_idle_one(
    fault: Exception, text: str
) -> None:
    async def play() -> None:
        world = World(backlogs=1)
        events: list[Any] = []
        syphon = Syphon(
            world.primary,  # type: ignore[arg-type]
            world.secondary,  # type: ignore[arg-type]
            world.backlogs,
            reporter=Reporter(events.append),
            clock=world.clock,
        )
        whole = world.secondary.operate

        async def operate(what: str, there: str, number: int = 1) -> None:
            await whole(what, there, number)
            if what == "receive":
                raise fault

        world.secondary.operate = operate  # type: ignore[method-assign]
        async with carrying(syphon):
            await asyncio.sleep(600)
        failures = [event for event in events if isinstance(event, SyphonFailed)]
        assert 10 <= len(failures) <= 16, "1, 2, 4 ... 60 seconds, then every minute"
        assert {failure.error for failure in failures} == {text}

    in_virtual_time(play)


@virtual
async def test_a_destination_that_gives_no_answer_is_left_alone_a_second_after_the_limit_of_a_send() -> None:
    world = World(backlogs=1)
    (path,) = world.backlogs
    world.secondary.store(path, wire(ServiceBusMessage("x", application_properties={"x-ms-path": "orders"})))
    world.primary.latency_s = 3_600
    syphon = Syphon(
        world.primary,  # type: ignore[arg-type]
        world.secondary,  # type: ignore[arg-type]
        world.backlogs,
        reporter=Reporter(lambda event: world.events.append((world.loop.time(), event))),
        clock=world.clock,
    )
    async with carrying(syphon):
        await asyncio.sleep(30)
        (began_s, *_) = (time for time, what, _, _ in world.primary.log if what == "send")
        (skipped_s,) = world.at(SyphonSkipped)
        assert skipped_s - began_s == pytest.approx(SEND_LIMIT_S + 1, abs=0.01)
        assert world.kept() == ["x"]


@virtual
async def test_a_sender_that_is_left_closes_its_link() -> None:
    world = World()
    pair = await world.pair()
    primary = pair.get_queue_sender("orders")._primary
    closed: list[str] = []

    async def close() -> None:
        closed.append("primary")

    primary.close = close  # type: ignore[method-assign]
    sender = PairedSender(pair, "orders", primary)
    assert not sender._is_open
    async with sender:
        await sender.send_messages(ServiceBusMessage("x"))
        assert closed == []
    assert closed == ["primary"]
