"""What rules cost: `python benchmarks/rules.py [--quick]`.

Five ratios, each of medians of interleaved rounds in one run: a typical SQL rule against the same condition written
by hand, a match among 100,000 correlation rules against one among 10, and a match beside 100 SQL rules that fail
against one alone; and what a topic does, which remembers, against a look at each message: for messages that
are all alike, and for such of which no two are. Messages are decoded anew each time, except for the first ratio.
"""

import argparse
import itertools
import json
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

if not __package__:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from duobus.codec import Int, build_message
from duobus.model.descriptions import RuleDescription
from duobus.rules import MessageView, Rule, RuleSet, compile_rule

SQL = "color = 'red' AND qty > 4"
PROPERTIES = {"color": "red", "qty": Int(5), "price": 2.5, "vip": True, "region": "r7"}
PAYLOAD = build_message(["m1", None, None, "Order-7"], PROPERTIES, data=b"x" * 1024)


def by_hand(properties: dict[str, Any]) -> bool:
    """The same as SQL, as somebody would write it who knows that a message may lack or mistype anything."""
    color, quantity = properties.get("color"), properties.get("qty")
    if not isinstance(color, str) or not isinstance(quantity, (int, float)):
        return False
    return color == "red" and quantity > 4


def sql_rule(text: str, name: str = "r") -> Rule:
    return compile_rule(RuleDescription(name=name, filter_type="Sql", sql_filter=text))


def correlation_rule(number: int) -> Rule:
    members = {"Label": "Order-7", "Properties": {"region": f"r{number}"}}
    return compile_rule(RuleDescription(name="r", filter_type="Correlation", correlation_filter=members))


def rule_set(rules: list[Rule]) -> RuleSet:
    """Each rule with a name of its own, a hundred to a subscription."""
    subscriptions: dict[int, list[Rule]] = {}
    for number, rule in enumerate(rules):
        rule.name = f"r{number}"
        subscriptions.setdefault(number // 100, []).append(rule)
    return RuleSet(subscriptions, new_id=uuid.uuid4)


def seconds(call: Callable[[], object], count: int) -> float:
    times = range(count)
    started = time.perf_counter()
    for _ in times:
        call()
    return (time.perf_counter() - started) / count


def compare(first: Callable[[], object], second: Callable[[], object], count: int, rounds: int) -> dict[str, float]:
    """Medians in microseconds, and the median of the ratios of the second to the first, round by round."""
    pairs = [(seconds(first, count), seconds(second, count)) for _ in range(rounds)]
    return {
        "first_us": 1e6 * median(pair[0] for pair in pairs),
        "second_us": 1e6 * median(pair[1] for pair in pairs),
        "ratio": median(pair[1] / pair[0] for pair in pairs),
    }


def matcher(found: RuleSet, expected: int) -> Callable[[], object]:
    assert len(found.match(MessageView(PAYLOAD)).sources) == expected
    return lambda: found.match(MessageView(PAYLOAD))


def remembering(found: RuleSet, payloads: list[bytes]) -> tuple[Callable[[], object], Callable[[], object]]:
    """A look at one message after the other, and what a topic does with them."""
    first, second = itertools.cycle(payloads), itertools.cycle(payloads)
    return (
        lambda: found.match(MessageView(next(first), None, 1, 1)),
        lambda: found.match_payload(next(second), None, 1, 1),
    )


def measure(rules: int, count: int, rounds: int) -> dict[str, dict[str, float]]:
    """All comparisons; see the module's docstring."""
    rule = sql_rule(SQL)
    message = MessageView(PAYLOAD)
    message.need(rule.sections)
    plain = dict(PROPERTIES, qty=5)
    assert rule.test(message)
    assert by_hand(plain)
    few = rule_set([correlation_rule(number) for number in range(10)])
    many = rule_set([correlation_rule(number) for number in range(rules)])
    alone = rule_set([sql_rule(SQL)])
    beside_sql = rule_set([sql_rule(SQL), *(sql_rule(f"color = 'c{n}' AND qty > 4") for n in range(100))])
    new = [
        build_message(["m1", None, None, "Order-7"], dict(PROPERTIES, order=Int(number)), data=b"x" * 1024)
        for number in range(5000)
    ]
    return {
        "remembered / looked at": compare(*remembering(beside_sql, [PAYLOAD]), count, rounds),
        "ever new, by memo / looked at": compare(*remembering(beside_sql, new), count, rounds),
        "SQL rule / by hand": compare(lambda: by_hand(plain), lambda: rule.test(message), count * 10, rounds),
        f"{rules} correlation rules / 10": compare(matcher(few, 1), matcher(many, 1), count, rounds),
        "beside 100 SQL rules / alone": compare(matcher(alone, 1), matcher(beside_sql, 1), count, rounds),
    }


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a second")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = measure(1000, 200, 3) if options.quick else measure(100_000, 20_000, 9)
    if options.json:
        print(json.dumps(results))
        return
    for name, found in results.items():
        print(f"{name:32}  {found['first_us']:7.2f} us  {found['second_us']:7.2f} us  ratio {found['ratio']:.2f}")


if __name__ == "__main__":
    main()
