"""What the part ``spark`` sends, and how it judges what was captured."""

from collections import Counter

from duobus_demo.expectations.spark_plan import alerts_of, compare, order, orders, replicas, totals_of


def pairs(messages):
    return [(message.message_id, message.digest) for message in messages]


def test_a_message_is_the_same_whoever_makes_it():
    assert order(7) == order(7)
    assert order(7).body != order(8).body


def test_messages_with_and_without_a_key_are_sent():
    keys = {message.partition_key for message in orders(100)}
    assert None in keys
    assert len(keys) > 5


def test_the_replica_misses_some_and_has_some_twice():
    first, second = Counter(pairs(orders(1000))), Counter(pairs(replicas(1000)))
    assert set(first.values()) == {1}
    missing = [pair for pair in first if not second[pair]]
    doubled = [pair for pair in second if second[pair] == 2]
    assert len(missing) == 10
    assert len(doubled) == 9


def test_what_was_captured_as_it_was_sent_does_not_differ():
    sent = pairs(replicas(300))
    assert not any(compare(sent, reversed(sent)).report().values())


def test_every_kind_of_difference_is_told_apart():
    sent = [("a", "1"), ("b", "2"), ("c", "3"), ("c", "3")]
    captured = [("a", "1"), ("a", "1"), ("b", "9"), ("c", "3"), ("d", "4")]
    found = compare(sent, captured)
    assert (found.lost, found.doubled, found.altered, found.strange) == (["c"], ["a"], ["b"], ["d"])


def test_every_order_is_in_the_total_of_its_customer():
    totals = totals_of(orders(500))
    assert sum(number for number, _ in totals.values()) == 500
    assert sum(amount for _, amount in totals.values()) == sum(one.amount for one in orders(500))


def test_customers_above_the_average_get_an_alert():
    assert alerts_of({"a": (1, 10), "b": (2, 20), "c": (1, 30)}) == {
        "alert/c": {"customer": "c", "orders": 1, "amount": 30}
    }
