"""Topics and subscriptions in a scale unit: every accepted message has all of its copies or none (I24)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from inspect import signature
from typing import Any

import pytest

from duobus.broker import (
    COMPLETE,
    COUNT_BITS,
    DEAD_LETTER,
    MAIN,
    Group,
    SettleBatch,
    Subscription,
    Topic,
    Transaction,
)
from duobus.codec import build_message
from duobus.codec.sections import application_properties
from duobus.errors import (
    ArgumentInvalid,
    EntityAlreadyExists,
    EntityNotFound,
    NoMatchingSubscription,
    NotAllowed,
    QuotaExceeded,
)
from duobus.model.address import parse_address
from duobus.model.batches import DeliveryBatch
from duobus.model.descriptions import (
    DISABLED,
    RuleDescription,
    SubscriptionDescription,
    TopicDescription,
    to_json,
)
from duobus.model.overlay import Overlay
from kits.broker import Hall, answers, batch
from kits.fragment import Box
from simulation.world.loop import SimulationLoop

MINUTE_MS = 60_000


def simulated(stores: int = 1) -> Callable[[Callable[..., Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Run a test in virtual time, for hours of it."""

    def wrap(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
        def run(**arguments: Any) -> None:
            loop = SimulationLoop()

            async def whole() -> None:
                await test(Hall(loop, stores), **arguments)

            try:
                loop.run(whole(), time_limit_s=20_000)
            finally:
                loop.close()

        run.__name__ = test.__name__
        run.__signature__ = signature(
            test
        ).replace(  # type: ignore[attr-defined]
            parameters=list(signature(test).parameters.values())[1:], return_annotation=None
        )
        return run

    return wrap


async def make(hall: Hall, *names: str, name: str = "t", **properties: Any) -> Topic:
    """A topic with subscriptions that take everything."""
    subscriptions = tuple(SubscriptionDescription(name=one) for one in names)
    about = TopicDescription(name=name, subscriptions=subscriptions, **properties)
    return await hall.unit.topics.create_topic("n", about)


def topic_of(hall: Hall) -> Topic:
    return hall.unit.namespace("n").topics["t"]


def sub(hall: Hall, name: str) -> Subscription:
    return hall.unit.topics.subscription("n", "t", name)


async def settled(hall: Hall) -> None:
    for broker in hall.unit.brokers.values():
        await broker.finish()


async def publish(hall: Hall, *payloads: bytes, **options: Any) -> list[Any]:
    made = batch(*payloads, **options)
    topic_of(hall).send(made)
    await settled(hall)
    return answers(made)


async def seen(subscription: Subscription, sub_queue: int = MAIN) -> list[bytes]:
    return [message.payload for _, message in await subscription.peek(sub_queue, 1, 100)]


async def take(subscription: Subscription, credit: int, sub_queue: int = MAIN) -> list[DeliveryBatch]:
    box = Box()
    receiver = subscription.open_receiver(sub_queue, box, removing=False)
    receiver.request(credit)
    receiver.close()
    return [found for found in box.ready if found.messages]


def complete(subscription: Subscription, found: DeliveryBatch) -> None:
    ranges = [(found.first_lock, len(found.messages))]
    subscription.settle(
        SettleBatch(found.fragment, subscription.source_no, None, prefix=found.prefix, outcome=COMPLETE, ranges=ranges)
    )


@simulated()
async def test_every_subscription_gets_a_copy_of_its_own(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b", "c")
    assert await publish(hall, b"one", b"two") == [None]
    (found,) = await take(sub(hall, "a"), 10)
    assert [message.payload for message in found.messages] == [b"one", b"two"]
    complete(sub(hall, "a"), found)
    await settled(hall)
    assert await seen(sub(hall, "a")) == []
    assert await seen(sub(hall, "b")) == await seen(sub(hall, "c")) == [b"one", b"two"]


@simulated()
async def test_copies_are_numbered_by_subscription_and_know_the_number_of_the_topic(hall: Hall) -> None:
    await hall.start()
    await make(hall, "early")
    await publish(hall, b"one")
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="late"))
    await publish(hall, b"two")
    (found,) = await take(sub(hall, "late"), 10)
    (message,) = found.messages
    assert (message.count, message.origin) == (1, 2)


@simulated()
async def test_copies_survive_a_crash_with_their_bodies_and_numbers(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b")
    await publish(hall, b"one", b"two")
    (found,) = await take(sub(hall, "a"), 1)
    complete(sub(hall, "a"), found)
    await settled(hall)
    await hall.again()
    assert await seen(sub(hall, "a")) == [b"two"]
    assert await seen(sub(hall, "b")) == [b"one", b"two"]
    (found,) = await take(sub(hall, "b"), 10)
    assert [message.origin for message in found.messages] == [1, 2]
    assert topic_of(hall).numbers() == ([0] * 5, 6)


@pytest.mark.parametrize("how", ["before", "after"])
@simulated()
async def test_a_failed_commit_leaves_all_copies_or_none(hall: Hall, how: str) -> None:
    await hall.start()
    await make(hall, "a", "b", "c")
    hall.writers[1].fail_next = how
    made = batch(b"one")
    topic_of(hall).send(made)
    await asyncio.sleep(2)
    # The refusal that the publisher got holds: nothing of it may appear later (I38).
    assert len(answers(made)) == 1
    assert answers(made)[0] is not None
    for name in "abc":
        assert await seen(sub(hall, name)) == []
    assert hall.disks[1].usage().rows == 0


@simulated()
async def test_a_topic_without_a_subscription_takes_messages_and_drops_them(hall: Hall) -> None:
    await hall.start()
    await make(hall)
    assert await publish(hall, b"nobody wants it") == [None]
    assert hall.disks[1].usage().rows == 0


@simulated()
async def test_a_topic_that_filters_before_publishing_refuses_what_nobody_takes(hall: Hall) -> None:
    await hall.start()
    await make(hall, filtering_messages_before_publishing=True)
    first, second = await publish(hall, b"one", b"two")
    assert isinstance(first, NoMatchingSubscription)
    assert isinstance(second, NoMatchingSubscription)
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="a"))
    assert await publish(hall, b"three") == [None]


@simulated()
async def test_a_subscription_without_rules_gets_nothing_and_rules_hold_at_once(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    topics = hall.unit.topics
    await topics.remove_rule(sub(hall, "a"), "$default")
    await publish(hall, b"unseen")
    await topics.add_rule(sub(hall, "a"), RuleDescription(name="all"))
    await publish(hall, b"seen")
    assert await seen(sub(hall, "a")) == [b"seen"]
    with pytest.raises(EntityAlreadyExists):
        await topics.add_rule(sub(hall, "a"), RuleDescription(name="ALL"))
    with pytest.raises(EntityNotFound):
        await topics.remove_rule(sub(hall, "a"), "$Default")
    await hall.again()
    assert [rule.name for rule in sub(hall, "a").about.rules] == ["all"]
    await publish(hall, b"again")
    assert await seen(sub(hall, "a")) == [b"seen", b"again"]


@simulated()
async def test_a_disabled_subscription_gets_no_copies_and_keeps_those_it_has(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b")
    await publish(hall, b"one")
    await hall.unit.topics.update_subscription("n", "t", SubscriptionDescription(name="a", status=DISABLED))
    await publish(hall, b"two")
    assert await seen(sub(hall, "a")) == [b"one"]
    await hall.unit.topics.update_subscription("n", "t", SubscriptionDescription(name="a"))
    await publish(hall, b"three")
    assert await seen(sub(hall, "a")) == [b"one", b"three"]


@simulated()
async def test_a_scheduled_message_waits_at_the_topic_and_is_filtered_when_it_is_due(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    due_ms = hall.unit.now_ms() + MINUTE_MS
    await publish(hall, b"later", scheduled_ms=due_ms, partition_key="k")
    assert topic_of(hall).numbers()[0][-1] == 1
    assert await seen(sub(hall, "a")) == []
    await hall.again()
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="b"))
    await asyncio.sleep(61)
    await settled(hall)
    for name in "ab":
        (found,) = await take(sub(hall, name), 10)
        (message,) = found.messages
        assert message.payload == b"later"
        assert message.metadata is not None
        assert message.metadata.enqueued_sequence_number == 1
        assert message.metadata.partition_key == "k"
        assert message.enqueued_ms >= due_ms
    assert topic_of(hall).numbers()[0][-1] == 0


@simulated()
async def test_a_scheduled_message_can_be_cancelled_at_the_topic(hall: Hall) -> None:
    await hall.start()
    topic = await make(hall, "a")
    await publish(hall, b"later", scheduled_ms=hall.unit.now_ms() + MINUTE_MS)
    box = Box()
    topic.cancel_scheduled([topic.fragments[0].number << COUNT_BITS | 1], box)
    await settled(hall)
    assert [command.error for command in box.ready] == [None]
    await asyncio.sleep(61)
    assert await seen(sub(hall, "a")) == []


@simulated()
async def test_the_shorter_time_to_live_of_topic_and_subscription_holds(hall: Hall) -> None:
    await hall.start()
    await make(hall, "long", default_message_time_to_live_ms=10_000)
    short = SubscriptionDescription(
        name="short", default_message_time_to_live_ms=2_000, dead_lettering_on_message_expiration=True
    )
    await hall.unit.topics.create_subscription("n", "t", short)
    await publish(hall, b"one")
    await asyncio.sleep(3)
    await settled(hall)
    assert await seen(sub(hall, "short")) == []
    assert await seen(sub(hall, "short"), DEAD_LETTER) == [b"one"]
    assert await seen(sub(hall, "long")) == [b"one"]
    await asyncio.sleep(8)
    await settled(hall)
    assert await seen(sub(hall, "long")) == []


@simulated()
async def test_a_subscription_with_sessions_dead_letters_what_has_none(hall: Hall) -> None:
    await hall.start()
    await make(hall, "plain")
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="grouped", requires_session=True))
    await publish(hall, b"alone")
    await publish(hall, b"member", session_id="s1")
    assert await seen(sub(hall, "plain")) == [b"alone", b"member"]
    ((_, dead),) = await sub(hall, "grouped").peek(DEAD_LETTER, 1, 10)
    assert (dead.payload, dead.metadata.reason) == (b"alone", "SessionIdIsNull")
    # Each counted where it is, before and after a start.
    assert sub(hall, "grouped").numbers()[0] == [1, 1, 0, 0, 0]
    assert list(sub(hall, "grouped").sessions_in_use()) == ["s1"]
    await hall.again()
    assert list(sub(hall, "grouped").sessions_in_use()) == ["s1"]
    assert sub(hall, "grouped").numbers()[0] == [1, 1, 0, 0, 0]


@simulated()
async def test_duplicates_are_dropped_at_the_topic(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b", requires_duplicate_detection=True)
    # 00 53 73 c0: a properties section with the message id "m".
    message = b"\x00\x53\x73\xc0\x04\x01\xa1\x01m\x00\x53\x77\x40"
    assert await publish(hall, message) == [None]
    assert await publish(hall, message) == [None]
    await hall.again()
    assert await publish(hall, message) == [None]
    assert len(await seen(sub(hall, "a"))) == len(await seen(sub(hall, "b"))) == 1


@simulated()
async def test_a_topic_is_full_by_what_its_bodies_take_up_once(hall: Hall) -> None:
    await hall.start()
    topic = await make(hall, "a", "b", "c")
    for settings in (topic.sources[0],):
        settings.max_bytes = 1000
    assert await publish(hall, b"x" * 900) == [None]
    (error,) = await publish(hall, b"x" * 101)
    assert isinstance(error, QuotaExceeded)
    assert await publish(hall, b"x" * 100) == [None]
    for name in "abc":
        (found,) = await take(sub(hall, name), 10)
        complete(sub(hall, name), found)
    await settled(hall)
    assert topic.numbers()[1] == 0
    assert await publish(hall, b"x" * 1000) == [None]


@simulated(4)
async def test_a_partitioned_topic_keeps_keys_together_and_shows_every_copy(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b", enable_partitioning=True)
    for index in range(20):
        await publish(hall, b"%d" % index)
    for index in range(5):
        await publish(hall, b"k%d" % index, key=b"skey", partition_key="key")
    for name in "ab":
        assert len(await seen(sub(hall, name))) == 25
        homes = {handle.number for handle, message in await sub(hall, name).peek(MAIN, 1, 99) if message.metadata}
        assert len(homes) == 1
    await hall.again()
    assert len(await seen(sub(hall, "a"))) == 25


@simulated()
async def test_a_deleted_subscription_is_gone_with_its_copies_and_others_keep_theirs(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b")
    told: list[str] = []
    hall.unit.follow(lambda queue: told.append(f"{queue.path} {queue.is_deleted}"))
    await publish(hall, b"one", b"two")
    (held,) = await take(sub(hall, "a"), 1)
    gone = sub(hall, "a")
    await hall.unit.topics.delete_subscription("n", "t", "A")
    assert told == ["t/Subscriptions/a True"]
    # What comes back late for it finds nothing, and disturbs nobody.
    complete(gone, held)
    await settled(hall)
    with pytest.raises(EntityNotFound):
        sub(hall, "a")
    assert await publish(hall, b"three") == [None]
    assert await seen(sub(hall, "b")) == [b"one", b"two", b"three"]
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="a"))
    assert sub(hall, "a").source_no != gone.source_no
    assert await seen(sub(hall, "a")) == []
    await hall.again()
    assert await seen(sub(hall, "b")) == [b"one", b"two", b"three"]


@simulated()
async def test_a_deletion_that_a_crash_cut_short_is_finished_at_the_next_start(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b")
    await publish(hall, b"one")
    hall.catalog.begin_delete(sub(hall, "a").source_no)
    await hall.again()
    with pytest.raises(EntityNotFound):
        sub(hall, "a")
    assert await seen(sub(hall, "b")) == [b"one"]
    assert {row.kind for row in hall.catalog.read().entities} == {"topic", "subscription"}
    assert len(hall.catalog.read().entities) == 2
    complete(sub(hall, "b"), (await take(sub(hall, "b"), 1))[0])
    await settled(hall)
    assert hall.disks[1].usage().rows == 0


@simulated()
async def test_a_creation_that_a_crash_cut_short_is_finished_at_the_next_start(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    about = SubscriptionDescription(name="b")
    hall.catalog.begin_create("n", "subscription", "t/Subscriptions/b", to_json(about), ())
    await hall.again()
    await publish(hall, b"one")
    assert await seen(sub(hall, "b")) == [b"one"]


@simulated(2)
async def test_a_deleted_topic_leaves_nothing_behind(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b", enable_partitioning=True)
    await publish(hall, b"one")
    await hall.unit.topics.delete_topic("n", "T")
    assert hall.catalog.read().entities == ()
    assert all(store.usage().rows == 0 for store in hall.disks.values())
    await make(hall, "a")
    assert await seen(sub(hall, "a")) == []


@simulated()
async def test_a_topic_that_an_earlier_version_only_kept_is_served_after_the_start(hall: Hall) -> None:
    about = TopicDescription(name="t", subscriptions=(SubscriptionDescription(name="a"),))
    hall.catalog.mark_live(hall.catalog.begin_create("n", "topic", "t", to_json(about), ()))
    await hall.start()
    await publish(hall, b"one")
    assert await seen(sub(hall, "a")) == [b"one"]


@simulated()
async def test_names_are_found_in_any_letter_case_and_taken_only_once(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    space = hall.unit.namespace("n")
    assert space.resolve(parse_address("T/subscriptions/A")) is sub(hall, "a")
    assert space.resolve(parse_address("t/Subscriptions/a/$deadletterqueue")) is sub(hall, "a")
    assert space.resolve(parse_address("t")) is topic_of(hall)
    for missing in ("t/$deadletterqueue", "t/Subscriptions/b", "u/Subscriptions/a"):
        with pytest.raises(EntityNotFound):
            space.resolve(parse_address(missing))
    with pytest.raises(EntityAlreadyExists):
        await hall.create("T")
    with pytest.raises(EntityAlreadyExists):
        await make(hall, name="T")
    with pytest.raises(EntityAlreadyExists):
        await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="A"))
    with pytest.raises(EntityAlreadyExists):
        await make(hall, "x", "X", name="other")


@simulated()
async def test_what_is_fixed_cannot_be_changed(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    topics = hall.unit.topics
    with pytest.raises(ArgumentInvalid, match="RequiresDuplicateDetection"):
        await topics.update_topic("n", TopicDescription(name="t", requires_duplicate_detection=True))
    with pytest.raises(ArgumentInvalid, match="RequiresSession"):
        await topics.update_subscription("n", "t", SubscriptionDescription(name="a", requires_session=True))
    changed = await topics.update_topic("n", TopicDescription(name="t", max_size_in_megabytes=2048))
    assert changed.settings()[0].max_bytes == 2048 << 20


@simulated()
async def test_an_idle_subscription_is_deleted_and_a_topic_that_is_used_through_one_is_not(hall: Hall) -> None:
    await hall.start()
    await make(hall, "kept", auto_delete_on_idle_ms=5 * MINUTE_MS)
    about = SubscriptionDescription(name="idle", auto_delete_on_idle_ms=5 * MINUTE_MS)
    await hall.unit.topics.create_subscription("n", "t", about)
    receiver = sub(hall, "kept").open_receiver(MAIN, Box(), removing=False)
    await asyncio.sleep(6 * 60)
    assert list(topic_of(hall).subscriptions) == ["kept"]
    receiver.close()
    await asyncio.sleep(12 * 60)
    assert hall.unit.namespace("n").topics == {}
    assert hall.catalog.read().entities == ()
    hall.unit.idle_watch.stop()


@simulated()
async def test_a_topic_is_idle_from_when_the_last_receiver_of_a_subscription_was_closed(hall: Hall) -> None:
    await hall.start()
    await make(hall, "kept", auto_delete_on_idle_ms=5 * MINUTE_MS)
    await asyncio.sleep(60)
    sub(hall, "kept").open_receiver(MAIN, Box(), removing=False).close()
    await asyncio.sleep(5 * 60 - 1)
    assert "t" in hall.unit.namespace("n").topics
    await asyncio.sleep(2)
    assert hall.unit.namespace("n").topics == {}
    hall.unit.idle_watch.stop()


@simulated()
async def test_use_of_a_subscription_keeps_it_and_its_topic_whatever_idle_times_they_have(hall: Hall) -> None:
    await hall.start()
    await make(hall, auto_delete_on_idle_ms=5 * MINUTE_MS)
    about = SubscriptionDescription(name="used", auto_delete_on_idle_ms=7 * MINUTE_MS)
    await hall.unit.topics.create_subscription("n", "t", about)
    receiver = sub(hall, "used").open_receiver(MAIN, Box(), removing=False)
    for _ in range(4):
        # Each pause is longer than both times.
        await asyncio.sleep(8 * 60)
        assert list(topic_of(hall).subscriptions) == ["used"]
    receiver.close()
    await asyncio.sleep(20 * 60)
    assert hall.unit.namespace("n").topics == {}
    hall.unit.idle_watch.stop()


@simulated()
async def test_a_commit_writes_the_rows_of_those_subscriptions_only_that_it_changes(hall: Hall) -> None:
    await hall.start()
    await make(hall, *(f"s{index}" for index in range(50)))
    for index in range(1, 50):
        await hall.unit.topics.remove_rule(sub(hall, f"s{index}"), "$Default")
    written: list[int] = []
    commit = hall.disks[1].commit
    hall.disks[1].commit = lambda made: (written.append(len(made.sources)), commit(made))[1]  # type: ignore[method-assign]
    await publish(hall, b"one")
    assert written == [2]


def tagged(**properties: Any) -> bytes:
    """A bare message with application properties."""
    return build_message(application_properties=properties, data=b"body")


def sql(name: str, expression: str, action: str | None = None) -> RuleDescription:
    return RuleDescription(name=name, filter_type="Sql", sql_filter=expression, sql_action=action)


@simulated()
async def test_every_matching_rule_with_an_action_gives_a_copy_of_its_own(hall: Hall) -> None:
    await hall.start()
    await make(hall)
    rules = (sql("plain", "n > 0"), sql("other", "n > 1"), sql("marked", "n = 2", "SET mark = 'x'; REMOVE n"))
    await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="a", rules=rules))
    await publish(hall, tagged(n=2), tagged(n=0))
    await hall.again()
    await asyncio.sleep(0.1)
    (found,) = await take(sub(hall, "a"), 10)
    seen_properties = []
    for message in found.messages:
        changes = None if message.metadata is None else message.metadata.changes
        payload = message.payload if changes is None else Overlay.decode(changes).apply_to(message.payload)
        seen_properties.append(application_properties(payload))
        # The message itself stays the bytes that came.
        assert message.payload == tagged(n=2)
    assert seen_properties == [{"n": 2}, {"mark": "x", "RuleName": "marked"}]
    # Two copies and the one body that they share.
    assert hall.disks[1].usage().rows == 3


@simulated()
async def test_what_a_filter_fails_on_is_dead_lettered_where_it_is_asked_for_and_nowhere_else(hall: Hall) -> None:
    await hall.start()
    await make(hall, "others")
    rules = (sql("broken", "n / 0 = 1"),)
    for name, keeps in (("keeps", True), ("skips", False)):
        about = SubscriptionDescription(name=name, rules=rules, dead_lettering_on_filter_evaluation_exceptions=keeps)
        await hall.unit.topics.create_subscription("n", "t", about)
    assert await publish(hall, tagged(n=1)) == [None]
    ((_, dead),) = await sub(hall, "keeps").peek(DEAD_LETTER, 1, 10)
    assert dead.metadata.reason == "FilterEvaluationException"
    assert "broken" in dead.metadata.description
    assert await seen(sub(hall, "skips"), DEAD_LETTER) == []
    assert await seen(sub(hall, "others")) == [tagged(n=1)]


@simulated()
async def test_a_rule_that_is_none_creates_nothing(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a")
    wrong = SubscriptionDescription(name="b", rules=(sql("wrong", "n ="),))
    with pytest.raises(ArgumentInvalid):
        await hall.unit.topics.create_subscription("n", "t", wrong)
    with pytest.raises(ArgumentInvalid):
        await hall.unit.topics.add_rule(sub(hall, "a"), sql("wrong", "n ="))
    with pytest.raises(ArgumentInvalid):
        await hall.unit.topics.create_topic("n", TopicDescription(name="u", subscriptions=(wrong,)))
    assert [row.path for row in hall.catalog.read().entities] == ["t", "t/Subscriptions/a"]
    assert [rule.name for rule in sub(hall, "a").about.rules] == ["$Default"]


@simulated()
async def test_a_transaction_publishes_and_settles_on_a_topic_together_or_not_at_all(hall: Hall) -> None:
    await hall.start()
    topic = await make(hall, "a", "b")
    other = await make(hall, "c", name="other")
    await publish(hall, b"one")
    (found,) = await take(sub(hall, "a"), 1)
    ranges = [(found.first_lock, 1)]

    def settlement() -> SettleBatch:
        number = sub(hall, "a").source_no
        return SettleBatch(found.fragment, number, None, prefix=found.prefix, outcome=COMPLETE, ranges=list(ranges))

    work = Transaction(b"t1", 1 << 60)
    work.settle(sub(hall, "a"), [settlement()])
    work.send(topic, batch(b"two"))
    with pytest.raises(NotAllowed, match="top-level"):
        work.send(other, batch(b"three"))
    work = Transaction(b"t2", 1 << 60)
    work.settle(sub(hall, "a"), [settlement()])
    work.send(topic, batch(b"two"))
    box = Box()
    topic.fragments[0].submit(Group(work.take(), box))
    await settled(hall)
    assert [command.error for command in box.ready] == [None]
    assert await seen(sub(hall, "a")) == [b"two"]
    assert await seen(sub(hall, "b")) == [b"one", b"two"]


@simulated()
async def test_a_deep_backlog_of_a_subscription_lies_in_the_store_and_comes_back_in_order(hall: Hall) -> None:
    await hall.start()
    await make(hall, "a", "b")
    payloads = [b"%04d" % index for index in range(300)]
    await publish(hall, *payloads)
    hall.build()
    await hall.start()
    got: list[bytes] = []
    origins: list[int] = []
    while len(got) < 300:
        for found in await take(sub(hall, "b"), 100):
            got += [message.payload for message in found.messages]
            origins += [message.origin for message in found.messages]
            complete(sub(hall, "b"), found)
        await settled(hall)
        await asyncio.sleep(0.1)
    assert got == payloads
    assert origins == list(range(1, 301))


@pytest.mark.slow
@simulated()
async def test_two_thousand_subscriptions_get_their_copies(hall: Hall) -> None:
    await hall.start()
    topic = await make(hall, *(f"s{index}" for index in range(2000)))
    assert await publish(hall, b"one", b"two") == [None]
    assert sum(one.numbers()[0][0] for one in topic.subscriptions.values()) == 4000
    assert topic.numbers()[1] == 6
    for subscription in topic.subscriptions.values():
        for found in await take(subscription, 10):
            complete(subscription, found)
    await settled(hall)
    assert hall.disks[1].usage().rows == 0
    with pytest.raises(QuotaExceeded):
        await hall.unit.topics.create_subscription("n", "t", SubscriptionDescription(name="more"))
