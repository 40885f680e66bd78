"""Topics, subscriptions and rules with the JavaScript SDK; each test runs one program of ``programs/``."""

from __future__ import annotations

from typing import Any

import pytest
from kit_node import INSTALL_LIMIT_S, Node

from kits.programs import LIMIT_S, PROMPT_S

# The first test of a run installs the packages; a program has its own limit.
pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)


def test_what_is_published_comes_from_the_subscriptions_that_take_it(node: Node, tcp: dict[str, Any]) -> None:
    found = node.run("fanout", topic="fanout", **tcp)
    assert found == {"all": ["red", "blue", "red"], "red": ["red", "red"]}


def test_the_rule_manager_adds_lists_and_removes_rules(node: Node, tcp: dict[str, Any]) -> None:
    found = node.run("rules", topic="ruled", **tcp)
    assert found["before"] == ["$Default"]
    large, exact = found["rules"]
    assert (large["name"], large["filter"]) == ("large", {"sqlExpression": "n > 3"})
    assert large["action"] == {"sqlExpression": "SET size = 'L'"}
    assert (exact["name"], exact["filter"]["subject"]) == ("exact", "s")
    assert exact["filter"]["applicationProperties"] == {"n": 1}
    assert found["bodies"] == ["five", "one"]
    assert found["properties"] == [{"n": 5, "size": "L", "RuleName": "large"}, {"n": 1}]
    assert found["after"] == ["large", "exact"]
    # Told at once, with what to do; an unknown code would be tried again for long.
    assert all(found[name]["code"] != "none" for name in ("wrong", "twice", "missing")), found
    assert found["twice"]["code"] == "MessagingEntityAlreadyExists", found["twice"]
    assert found["missing"]["code"] in ("MessagingEntityNotFound", "MessageNotFound"), found["missing"]
    assert all(found[name]["seconds"] < PROMPT_S for name in ("wrong", "twice", "missing"))
