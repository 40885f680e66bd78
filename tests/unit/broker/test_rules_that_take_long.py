"""What the rules of a topic may do for one message, and at once: others are served in between (I62, decision 0048)."""

from __future__ import annotations

import asyncio
from typing import Any

from duobus.broker import DEAD_LETTER, MAIN, SOURCE, Group, address
from duobus.codec import build_message
from duobus.errors import QuotaExceeded
from duobus.fragment.send import Run
from duobus.model.descriptions import RuleDescription, SubscriptionDescription, TopicDescription
from duobus.model.metadata import MessageMetadata
from kits.broker import Hall, answers, batch, simulated_over, turns
from kits.fragment import Box

simulated = simulated_over(1)

#: Fits nearly everywhere in TEXT, as far as its last part: each place of it has to be looked at.
PATTERN = "%" + "aa_" * 150 + "aabbaab"
TEXT = "aab" * 10_000 + "b" * 50 + "aab" * 30
#: So many rules do nearly as much as they may for a message with TEXT, and so many do too much.
NEARLY, TOO_MANY = 28, 40


def heavy(name: bytes) -> bytes:
    return build_message(None, {"p": TEXT}, data=name)


def rules(number: int) -> tuple[RuleDescription, ...]:
    return tuple(
        RuleDescription(name=f"r{one}", filter_type="Sql", sql_filter=f"p LIKE '{PATTERN}{'a' * one}%'")
        for one in range(number)
    )


async def make(hall: Hall, number: int) -> None:
    """A topic with a subscription of so many rules, and a queue in the same store."""
    await hall.start()
    await hall.create()
    await hall.unit.topics.create_topic("n", TopicDescription(name="t"))
    await subscribe(hall, "all", ())
    if number:
        await subscribe(hall, "looking", rules(number))


async def subscribe(hall: Hall, name: str, wanted: tuple[RuleDescription, ...], **properties: Any) -> None:
    about = SubscriptionDescription(name=name, **properties)
    if wanted:
        about = SubscriptionDescription(name=name, rules=wanted, **properties)
    await hall.unit.topics.create_subscription("n", "t", about)


def publish(hall: Hall, *payloads: bytes, is_atomic: bool = False, **metadata: Any) -> Any:
    made = batch(*payloads, **metadata)
    made.atomic = is_atomic
    hall.unit.namespace("n").topics["t"].send(made)
    return made


async def stored(hall: Hall, name: str, sub_queue: int = MAIN) -> int:
    return len(await hall.unit.topics.subscription("n", "t", name).peek(sub_queue, 1, 100))


async def most_in_a_turn(many: list[Any]) -> int:
    """The most messages that are answered within one turn of the loop, until all of them are."""
    most, before = 0, sum(len(made.reply.ready) for made in many)
    while before < len(many):
        await asyncio.sleep(0)
        now = sum(len(made.reply.ready) for made in many)
        most, before = max(most, now - before), now
    return most


@simulated
async def test_a_message_of_another_entity_does_not_wait_for_many_that_take_long(hall: Hall) -> None:
    await make(hall, NEARLY)
    many = [publish(hall, heavy(b"%d" % number)) for number in range(8)]
    other = batch(b"quick")
    hall.queue().send(other)
    while not other.reply.ready:  # noqa: ASYNC110 - turns are counted here
        await asyncio.sleep(0)
    assert answers(other) == [None]
    assert sum(len(made.reply.ready) for made in many) <= 2
    assert await most_in_a_turn(many) <= 2
    assert [answers(made) for made in many] == [[None]] * 8
    assert await stored(hall, "all") == 8


@simulated
async def test_messages_that_are_refused_for_what_they_take_do_not_take_it_all_at_once(hall: Hall) -> None:
    await make(hall, TOO_MANY)
    many = [publish(hall, heavy(b"%d" % number)) for number in range(6)]
    assert await most_in_a_turn(many) <= 1
    assert {type(error) for made in many for error in answers(made)} == {QuotaExceeded}
    assert await stored(hall, "all") == 0
    # The others of its batch are not concerned, nor is anybody who comes later.
    mixed = publish(hall, build_message(None, {"p": "short"}), heavy(b"long"), build_message(None, None, data=b"x"))
    await turns(40)
    assert sorted(str(type(error).__name__) for error in answers(mixed)) == ["NoneType", "NoneType", "QuotaExceeded"]
    assert "Make long properties shorter" in str(next(error for error in answers(mixed) if error))
    assert await stored(hall, "all") == 2


@simulated
async def test_what_is_sent_via_the_topic_to_another_entity_is_no_work_for_its_rules(hall: Hall) -> None:
    await make(hall, TOO_MANY)
    topic = hall.unit.namespace("n").topics["t"]
    sent = batch(heavy(b"1"))
    address(sent, topic, "q")
    topic.send_via(sent)
    await turns(40)
    assert answers(sent) == [None]
    assert await stored(hall, "all") == 0


@simulated
async def test_a_batch_that_is_one_whole_is_refused_for_what_its_messages_take_together(hall: Hall) -> None:
    await make(hall, NEARLY)
    whole = publish(hall, heavy(b"1"), heavy(b"2"), is_atomic=True)
    single = publish(hall, heavy(b"1"), heavy(b"2"))
    await turns(40)
    assert [type(error) for error in answers(whole)] == [QuotaExceeded]
    assert answers(single) == [None, None]
    assert await stored(hall, "all") == 2


@simulated
async def test_a_batch_of_ordinary_messages_before_many_rules_is_cut(hall: Hall) -> None:
    await make(hall, 0)
    many = tuple(
        RuleDescription(name=f"r{one}", filter_type="Sql", sql_filter=f"c LIKE 'x%{one}_'") for one in range(600)
    )
    await subscribe(hall, "looking", many)
    made = publish(hall, *[build_message(None, {"c": f"y{number}"}, data=b"x") for number in range(200)])
    before = hall.unit.brokers[1].commits
    await turns(60)
    assert answers(made) == [None] * len(made.reply.ready)
    # By turns with whoever else is there, and in several commits.
    assert len(made.reply.ready) >= 4
    assert hall.unit.brokers[1].commits - before >= 4
    assert await stored(hall, "all") == 100


@simulated
async def test_a_transaction_is_refused_for_what_its_messages_take_together(hall: Hall) -> None:
    await make(hall, NEARLY)
    (handle,) = hall.unit.namespace("n").topics["t"].fragments
    box = Box()
    members = [Run(handle, SOURCE, batch(heavy(b"%d" % number)), None, None) for number in range(2)]
    group = Group(members, box)
    handle.submit(group)
    await turns(40)
    assert box.ready == [group]
    assert isinstance(group.error, QuotaExceeded)
    assert await stored(hall, "all") == 0


@simulated
async def test_a_scheduled_message_is_refused_when_it_is_sent(hall: Hall) -> None:
    await make(hall, TOO_MANY)
    made = publish(hall, heavy(b"later"), scheduled_ms=hall.clock.now_ms() + 5_000)
    await turns(40)
    assert [type(error) for error in answers(made)] == [QuotaExceeded]


@simulated
async def test_a_scheduled_message_for_which_new_rules_do_too_much_fails_before_them_alone(hall: Hall) -> None:
    await make(hall, 0)
    for number in range(4):
        made = publish(hall, heavy(b"%d" % number), scheduled_ms=hall.clock.now_ms() + 5_000)
        await turns(20)
        assert answers(made) == [None]
    await subscribe(hall, "looking", rules(TOO_MANY), dead_lettering_on_filter_evaluation_exceptions=True)
    before = hall.unit.brokers[1].commits
    await asyncio.sleep(10)
    assert (await stored(hall, "all"), await stored(hall, "looking")) == (4, 0)
    dead = await hall.unit.topics.subscription("n", "t", "looking").peek(DEAD_LETTER, 1, 10)
    assert [message.metadata.reason for _, message in dead if isinstance(message.metadata, MessageMetadata)] == [
        "FilterEvaluationException"
    ] * 4
    assert all("comparisons" in message.metadata.description for _, message in dead)
    # Each had a commit of its own.
    assert hall.unit.brokers[1].commits - before >= 4
