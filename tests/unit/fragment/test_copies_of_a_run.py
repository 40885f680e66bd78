"""What a fragment of a topic does with a whole run: copies for some subscriptions, and for those that are full."""

from __future__ import annotations

import uuid

import pytest

from duobus.codec import build_message
from duobus.errors import NoMatchingSubscription
from duobus.fragment.fragment import Fragment
from duobus.fragment.message import ACTIVE, DEAD_LETTER, MAIN, SCHEDULED, state_of, stored_state
from duobus.fragment.send import Run
from duobus.fragment.source import Source, SourceSettings
from duobus.fragment.topics import fanout
from duobus.fragment.topics.topic_state import TopicRules, TopicState
from duobus.model.batches import Mailbox, SendBatch
from duobus.model.descriptions import RuleDescription
from duobus.model.metadata import MessageMetadata
from duobus.rules import RuleSet, compile_rule
from duobus.storage.interface import CommitBatch, SourceRow


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


def topic_for_all(subscriptions: int = 1, **settings: bool) -> Fragment:
    """A topic's fragment whose subscriptions take everything."""
    fragment = topic(*["any"] * subscriptions)
    rules = RuleSet(new_id=uuid.uuid4)
    for number in range(1, subscriptions + 1):
        rules.put(number, [compile_rule(RuleDescription(name="r"))])
        fragment.sources[number] = Source(10 + number, number, SourceSettings(**settings))
    fragment.topic = TopicState(TopicRules(rules))
    assert rules.trivial == tuple(range(1, subscriptions + 1))
    return fragment


def message(color: str, text: bytes = b"body") -> bytes:
    return build_message(None, {"color": color}, data=text)


def publish(
    fragment: Fragment,
    *payloads: bytes,
    extra: dict[int, MessageMetadata] | None = None,
    indices: list[int] | None = None,
) -> tuple[Run, CommitBatch]:
    """Decide; nothing is released yet."""
    batch = SendBatch(0, list(payloads), True, Box())
    batch.extra = extra
    run = Run(fragment.handle, 0, batch, indices, None)
    commit = CommitBatch(1, 5)
    assert fragment.check(run, 5) is None
    fragment.apply(run, 5, commit)
    return run, commit


def waiting(fragment: Fragment, source_no: int) -> list[tuple[int, int, bytes]]:
    return [
        (message.count, message.origin, message.payload)
        for message in fragment.sources[source_no].sub_queues[MAIN].ready
    ]


def test_each_subscription_gets_its_messages_in_their_order() -> None:
    fragment = topic("red", "blue")
    red, blue, third = message("red"), message("blue", b"longer"), message("red", b"3")
    run, commit = publish(fragment, red, blue, message("green"), third)
    assert [(put.source_key, put.first_count, put.payloads, put.origins) for put in commit.puts] == [
        (11, 1, [red, third], [1, 4]),
        (12, 1, [blue], [2]),
    ]
    assert (run.weight()[0], run.written_ranges(fragment)) == (3, [(10, 1, 4), (11, 1, 2), (12, 1, 1)])
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
        assert (source.tail_first, source.tail_count) == (2, 2 * number - 2)
    assert [count for count, *_ in waiting(fragment, 1)] == [1]
    assert source.tail_bytes == 2 * len(message("red")) + 2 * len(message("red", b"22"))
    assert source.numbers[MAIN] == 5


def test_what_was_cold_when_the_commit_began_and_is_read_by_its_end_is_kept_in_memory() -> None:
    fragment = topic("red")
    fragment.window_bytes = 1
    source = fragment.sources[1]
    for _ in range(2):
        run, _ = publish(fragment, message("red"))
        fragment.release(run, 5)
    assert source.tail_count == 1
    run, _ = publish(fragment, message("red", b"late"))
    source.paged_in(1, len(message("red")), 3)
    fragment.window_bytes = 1 << 20
    fragment.release(run, 5)
    assert waiting(fragment, 1)[-1] == (3, 3, message("red", b"late"))
    assert source.tail_count == 0


def test_a_subscription_that_is_gone_at_the_end_of_the_commit_gets_nothing() -> None:
    fragment = topic("red")
    run, _ = publish(fragment, message("red"))
    del fragment.sources[1]
    fragment.release(run, 5)
    assert not fragment.fresh


def test_messages_alike_in_a_row_keep_the_numbers_of_the_topic() -> None:
    fragment = topic("red", "blue", "blue")
    _, commit = publish(fragment, message("red"), message("blue"), message("blue"), message("red"))
    found = [(put.source_key, list(put.origins or ())) for put in commit.puts]
    assert found == [(11, [1, 4]), (12, [-2, -3]), (13, [-2, -3])]


def test_one_subscription_shares_its_bodies_with_nobody() -> None:
    for fragment, origins in ((topic_for_all(1), [1, 2]), (topic_for_all(2), [-1, -2])):
        _, commit = publish(fragment, b"a", b"b")
        assert {tuple(put.origins or ()) for put in commit.puts} == {tuple(origins)}


def test_those_of_a_batch_that_go_to_another_fragment_are_left_out() -> None:
    extra = {index: MessageMetadata(partition_key=f"key {index}") for index in range(4)}
    for given in (None, extra):
        fragment = topic_for_all(1)
        run, commit = publish(fragment, b"a", b"bb", b"ccc", b"dddd", extra=given, indices=[1, 3])
        (put,) = commit.puts
        assert (put.payloads, list(put.origins or ())) == ([b"bb", b"dddd"], [1, 2])
        assert run.written_ranges(fragment) == [(10, 1, 2), (11, 1, 2)]
        fragment.release(run, 5)
        found = fragment.sources[1].by_count.values()
        keys = [message.metadata.partition_key if message.metadata else None for message in found]
        assert keys == ([None, None] if given is None else ["key 1", "key 3"])


def test_what_is_rare_about_a_copy_is_written_with_it() -> None:
    fragment = topic_for_all(1)
    metadata = MessageMetadata(partition_key="key")
    _, commit = publish(fragment, b"a", b"b", extra={1: metadata})
    (put,) = commit.puts
    assert put.all_metadata == {1: (stored_state(ACTIVE, metadata), 0, metadata.encode())}


def test_what_is_scheduled_waits_at_the_topic_under_its_own_number() -> None:
    fragment = topic_for_all(1)
    metadata = MessageMetadata(scheduled_ms=1_000)
    run, commit = publish(fragment, b"a", b"later", b"c", extra={1: metadata})
    assert [(put.source_key, put.first_count, put.payloads) for put in commit.puts] == [
        (10, 2, [b"later"]),
        (11, 1, [b"a", b"c"]),
    ]
    assert commit.puts[0].all_metadata == {0: (SCHEDULED, 0, metadata.encode())}
    assert fragment.sources[0].numbers == [0, 0, 0, 0, 1]
    fragment.release(run, 5)
    assert {count: message.payload for count, message in fragment.sources[0].by_count.items()} == {2: b"later"}
    assert waiting(fragment, 1) == [(1, 1, b"a"), (2, 3, b"c")]


def test_a_subscription_with_sessions_takes_no_message_without_one() -> None:
    fragment = topic_for_all(2, requires_session=True)
    run, _ = publish(fragment, b"a", b"b")
    fragment.release(run, 5)
    for number in (1, 2):
        source = fragment.sources[number]
        assert [message.state for message in source.by_count.values()] == [state_of(DEAD_LETTER, ACTIVE)] * 2
        assert source.numbers[:2] == [0, 2]


@pytest.mark.parametrize("in_order", [[0, 1, 2], [2, 0]])
@pytest.mark.parametrize("with_metadata", [False, True])
def test_a_filter_sees_the_number_that_the_topic_gives_a_message(in_order: list[int], *, with_metadata: bool) -> None:
    fragment = topic("red")
    assert fragment.topic is not None
    rules = fragment.topic.shared.rules
    wanted = fragment.number << 48 | 2
    about = RuleDescription(name="r", filter_type="Sql", sql_filter=f"sys.SequenceNumber = {wanted}")
    rules.put(1, [compile_rule(about)])
    sent = [message("red", b"%d" % number) for number in range(3)]
    extra = {index: MessageMetadata(partition_key="k") for index in range(3)} if with_metadata else None
    run, commit = publish(fragment, *sent, extra=extra, indices=None if in_order == [0, 1, 2] else in_order)
    (put,) = commit.puts
    assert (put.payloads, list(put.origins or ())) == ([sent[in_order[1]]], [2])
    fragment.release(run, 5)
    assert [entry[:2] for entry in waiting(fragment, 1)] == [(1, 2)]


def test_messages_for_nobody_are_refused_where_the_topic_refuses_them_and_those_that_wait_are_not_asked() -> None:
    fragment = topic("red")
    assert fragment.topic is not None
    fragment.topic.shared.refuses_unmatched = True
    batch = SendBatch(0, [message("red"), message("blue"), message("red")], True, Box())
    assert isinstance(fragment.check(Run(fragment.handle, 0, batch, None, None), 5), NoMatchingSubscription)
    assert fragment.check(Run(fragment.handle, 0, batch, [0, 2], None), 5) is None
    assert isinstance(fragment.check(Run(fragment.handle, 0, batch, [0, 1], None), 5), NoMatchingSubscription)
    batch.extra = {1: MessageMetadata(scheduled_ms=6)}
    assert fragment.check(Run(fragment.handle, 0, batch, None, None), 5) is None
    assert isinstance(fragment.check(Run(fragment.handle, 0, batch, None, None), 6), NoMatchingSubscription)


def test_a_topic_without_filters_before_publishing_drops_what_nobody_takes() -> None:
    fragment = topic("red")
    batch = SendBatch(0, [message("blue")], True, Box())
    run = Run(fragment.handle, 0, batch, None, None)
    assert fragment.check(run, 5) is None
    assert run.effort == 0


def test_ids_of_a_topic_are_forgotten_in_time_though_no_message_stands_there() -> None:
    fragment = topic("red")
    source = fragment.sources[0] = Source(10, 0, SourceSettings(duplicate_window_ms=1_000))
    batch = SendBatch(0, [message("red")], True, Box())
    batch.ids = [b"id"]
    commit = CommitBatch(1, 5)
    fragment.apply(Run(fragment.handle, 0, batch, None, None), 5, commit)
    assert source.history is not None
    assert source.history.known == {b"id"}
    fragment.tick(5_000)
    assert source.history.known == set()


def test_what_a_commit_adds_to_a_topic_is_counted_until_the_store_has_told_of_all() -> None:
    fragment = topic("red")
    assert fragment.topic is not None
    _, commit = publish(fragment, message("red"))
    assert fragment.topic.bytes == len(message("red"))
    commit.shared = {10: 77}
    fanout.committed(fragment, fragment.topic, commit)
    assert fragment.topic.bytes == 77


def acting(fragment: Fragment, action: str, sql_filter: str = "color = 'red'") -> None:
    """Give the first subscription a rule with an action in place of its own."""
    assert fragment.topic is not None
    about = RuleDescription(name="r", filter_type="Sql", sql_filter=sql_filter, sql_action=action)
    fragment.topic.shared.rules.put(1, [compile_rule(about)])


def test_copies_that_an_action_changes_keep_their_numbers_and_what_was_sent_with_them() -> None:
    for extra in (None, {index: MessageMetadata(partition_key=f"key {index}") for index in range(3)}):
        fragment = topic("red")
        acting(fragment, "SET done = 1")
        run, commit = publish(fragment, message("red"), message("blue"), message("red", b"3"), extra=extra)
        (put,) = commit.puts
        assert list(put.origins or ()) == [1, 3]
        fragment.release(run, 5)
        found = list(fragment.sources[1].by_count.values())
        assert all(queued.metadata is not None and queued.metadata.changes is not None for queued in found)
        keys = [queued.metadata.partition_key for queued in found if queued.metadata is not None]
        assert keys == ([None, None] if extra is None else ["key 0", "key 2"])


def test_messages_alike_in_a_row_all_reach_their_one_subscription() -> None:
    fragment = topic("red", "blue")
    _, commit = publish(fragment, message("red"), message("red"), message("blue"), message("green"))
    assert [(put.source_key, list(put.origins or ())) for put in commit.puts] == [(11, [1, 2]), (12, [3])]


def test_a_run_of_which_nothing_is_left_gives_nobody_anything() -> None:
    fragment = topic("red")
    fragment.sources[0] = Source(10, 0, SourceSettings(duplicate_window_ms=1_000))
    for copies in (1, 0):
        batch = SendBatch(0, [message("red")], True, Box())
        batch.ids = [b"id"]
        commit = CommitBatch(1, 5)
        fragment.apply(Run(fragment.handle, 0, batch, None, None), 5, commit)
        assert len(commit.puts) == copies


def test_what_rules_did_for_a_message_that_was_tried_out_is_done_and_counted_once() -> None:
    fragment = topic("red")
    assert fragment.topic is not None
    pattern = "%" + "aa_" * 150 + "aabbaab"
    abouts = [
        RuleDescription(name=f"r{one}", filter_type="Sql", sql_filter=f"p LIKE '{pattern}{'a' * one}%'")
        for one in range(20)
    ]
    abouts.append(RuleDescription(name="all"))
    rules = fragment.topic.shared.rules
    rules.put(1, [compile_rule(about) for about in abouts])
    payload = build_message(None, {"p": "aab" * 10_000 + "b" * 50 + "aab" * 30}, data=b"m")
    run = Run(fragment.handle, 0, SendBatch(0, [payload], True, Box()), None, None)
    assert rules.may_exceed([payload], len(payload))
    assert fragment.check(run, 5) is None
    effort = run.effort
    assert effort > 0
    commit = CommitBatch(1, 5)
    fragment.apply(run, 5, commit)
    assert (run.effort, run.matches) == (effort, None)
    assert [list(put.origins or ()) for put in commit.puts] == [[1]]


def test_messages_that_filters_tell_apart_reach_no_subscription_with_sessions_and_none_that_is_gone() -> None:
    fragment = topic("red", "blue")
    fragment.sources[1] = Source(11, 1, SourceSettings(requires_session=True))
    del fragment.sources[2]
    run, commit = publish(fragment, message("red"), message("blue"), message("green"), message("red", b"3"))
    fragment.release(run, 5)
    assert [put.source_key for put in commit.puts] == [11]
    assert [queued.state for queued in fragment.sources[1].by_count.values()] == [state_of(DEAD_LETTER, ACTIVE)] * 2


def test_what_was_scheduled_at_a_topic_leaves_it_when_its_time_has_come() -> None:
    fragment = topic_for_all(1)
    run, _ = publish(fragment, b"later", extra={0: MessageMetadata(scheduled_ms=1_000)})
    fragment.release(run, 5)
    (work,) = fragment.tick(1_000)
    commit = CommitBatch(2, 1_000)
    fragment.apply(work, 1_000, commit)
    assert commit.removed == [(10, 1, 1)]
    assert [(put.source_key, put.payloads) for put in commit.puts] == [(11, [b"later"])]


def test_looking_up_what_filters_name_is_no_effort() -> None:
    fragment = topic("red", "blue")
    run, _ = publish(fragment, message("red"))
    assert fragment.topic is not None
    assert (run.effort, fragment.topic.shared.rules.meter.spent) == (0, 0)
