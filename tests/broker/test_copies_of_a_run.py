"""What a fragment of a topic does with a whole run: copies for some subscriptions, and for those that are full."""

from __future__ import annotations

import uuid

from duobus.broker.fragment.commands import Run
from duobus.broker.fragment.fanout import TopicRules, TopicState, ranges_of, weight_of
from duobus.broker.fragment.fragment import Fragment
from duobus.broker.fragment.slot import MAIN
from duobus.broker.fragment.source import SourceSettings
from duobus.codec import build_message
from duobus.model.columns import Mailbox, SendBatch
from duobus.model.description import RuleDescription
from duobus.rules import RuleSet, compile_rule
from duobus.stores.interface import CommitBatch, SourceRow


class Box(Mailbox):
    def wake(self) -> None:
        pass


def topic(*colors: str) -> Fragment:
    """A topic's fragment with one subscription for each color, and sources numbered from 1."""
    fragment = Fragment(object(), 1, 1, 1, b"0123456789")
    rules = RuleSet(new_id=uuid.uuid4)
    fragment.add_source(SourceRow(10, 1, 0), SourceSettings())
    for number, color in enumerate(colors, 1):
        fragment.add_source(SourceRow(10 + number, 1, number), SourceSettings())
        about = RuleDescription(name="r", filter_type="Sql", sql_filter=f"color = '{color}'")
        rules.put(number, [compile_rule(about)])
    fragment.topic = TopicState(TopicRules(rules))
    return fragment


def message(color: str, text: bytes = b"body") -> bytes:
    return build_message(None, {"color": color}, data=text)


def publish(fragment: Fragment, *payloads: bytes) -> tuple[Run, CommitBatch]:
    """Decide; nothing is released yet."""
    run = Run(fragment.handle, 0, SendBatch(0, list(payloads), True, Box()), None, None)
    commit = CommitBatch(1, 5)
    assert fragment.check(run, 5) is None
    fragment.apply(run, 5, commit)
    return run, commit


def waiting(fragment: Fragment, source_no: int) -> list[tuple[int, int, bytes]]:
    return [(slot.count, slot.origin, slot.payload) for slot in fragment.sources[source_no].sub_queues[MAIN].ready]


def test_each_subscription_gets_its_messages_in_their_order() -> None:
    fragment = topic("red", "blue")
    red, blue, third = message("red"), message("blue", b"longer"), message("red", b"3")
    run, commit = publish(fragment, red, blue, message("green"), third)
    assert [(put.source_key, put.first_count, put.payloads, put.origins) for put in commit.puts] == [
        (11, 1, [red, third], [1, 4]),
        (12, 1, [blue], [2]),
    ]
    assert (weight_of(run), ranges_of(fragment, run)) == (3, [(10, 1, 4), (11, 1, 2), (12, 1, 1)])
    # Durable before visible.
    assert waiting(fragment, 1) == []
    fragment.release(run, 5)
    assert waiting(fragment, 1) == [(1, 1, red), (2, 4, third)]
    assert waiting(fragment, 2) == [(1, 2, blue)]
    sizes = [fragment.sources[number].bytes for number in (1, 2)]
    assert sizes == [len(red) + len(third), len(blue)]
    assert fragment.topic is not None
    assert fragment.topic.bytes == sum(sizes)


def test_a_message_for_two_subscriptions_counts_its_body_once() -> None:
    fragment = topic("red", "red")
    run, commit = publish(fragment, message("red"), message("red"))
    assert [list(put.origins or ()) for put in commit.puts] == [[-1, -2], [-1, -2]]
    fragment.release(run, 5)
    assert [waiting(fragment, number) for number in (1, 2)] == [[(1, 1, message("red")), (2, 2, message("red"))]] * 2
    assert fragment.topic is not None
    assert fragment.topic.bytes == 2 * len(message("red"))


def test_what_goes_cold_is_counted_and_not_kept_in_memory() -> None:
    fragment = topic("red")
    fragment.window_bytes = 1
    source = fragment.sources[1]
    first, _ = publish(fragment, message("red"))
    fragment.release(first, 5)
    for number in (2, 3):
        run, _ = publish(fragment, message("red"), message("red", b"22"))
        fragment.release(run, 5)
        assert (source.cold_first, source.cold_number) == (2, 2 * number - 2)
    assert [count for count, *_ in waiting(fragment, 1)] == [1]
    assert source.cold_bytes == 2 * len(message("red")) + 2 * len(message("red", b"22"))
    assert source.numbers[MAIN] == 5


def test_what_was_cold_when_the_commit_began_and_is_read_by_its_end_is_kept_in_memory() -> None:
    fragment = topic("red")
    fragment.window_bytes = 1
    source = fragment.sources[1]
    for _ in range(2):
        run, _ = publish(fragment, message("red"))
        fragment.release(run, 5)
    assert source.cold_number == 1
    run, _ = publish(fragment, message("red", b"late"))
    source.warmed(1, len(message("red")), 3)
    fragment.window_bytes = 1 << 20
    fragment.release(run, 5)
    assert waiting(fragment, 1)[-1] == (3, 3, message("red", b"late"))
    assert source.cold_number == 0


def test_a_subscription_that_is_gone_at_the_end_of_the_commit_gets_nothing() -> None:
    fragment = topic("red")
    run, _ = publish(fragment, message("red"))
    del fragment.sources[1]
    fragment.release(run, 5)
    assert not fragment.fresh
