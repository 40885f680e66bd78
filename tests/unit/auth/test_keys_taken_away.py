"""Keys that are taken away, or give less, while grants that were signed with them are in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from duobus.auth import Authorizer, Grant, Grants, NamespaceRules, sign_token
from duobus.errors import Unauthorized
from duobus.model.descriptions import AccessRule, Right

NOW_MS, LATER_S = 1_700_000_000_000, 1_700_000_600
BOTH = Right.SEND | Right.LISTEN
ORDERS, BILLS = ("orders",), ("bills",)


def rule(name: str, rights: int, first: str = "one", second: str = "two") -> AccessRule:
    return AccessRule(name=name, primary_key=first, secondary_key=second, rights=rights)


class Bus:
    """A namespace whose rules change, and what one connection to it may do."""

    def __init__(self) -> None:
        self.own: dict[tuple[str, ...], list[AccessRule]] = {
            ORDERS: [rule("other", Right.LISTEN), rule("own", BOTH)],
            BILLS: [rule("own", BOTH, "three", "four")],
        }
        self.rules = NamespaceRules("ns", [rule("root", BOTH)], entity_rules=self._rules_of)
        self.authorizer = Authorizer([self.rules])
        self.grants = Grants()

    def _rules_of(self, segments: Sequence[str]) -> Iterator[tuple[tuple[str, ...], AccessRule]]:
        # Those of every entity: whoever asks looks at the path.
        yield from ((path, one) for path, rules in self.own.items() for one in rules)

    def put(self, entity: str, name: str = "root", key: str = "one") -> Grant:
        """Put a token for an entity, made with this key."""
        uri = f"sb://ns/{entity}"
        return self.grants.add(
            uri, self.authorizer.authorize_token(sign_token(uri, name, key, LATER_S), self.rules, NOW_MS)
        )

    def log_in(self, key: str = "one") -> None:
        self.grants.set_login(self.authorizer.authorize_plain("root", key, self.rules))

    def may(self, entity: str, right: int = Right.SEND) -> bool:
        return self.grants.allows((entity,), right, NOW_MS)


@pytest.mark.parametrize("path", [(), None])
@pytest.mark.parametrize("key", ["one", "two"])
def test_a_token_ends_when_the_key_is_replaced_that_it_was_made_with(key: str, path: tuple[str, ...] | None) -> None:
    """And not when the rule's other key is."""
    bus = Bus()
    bus.put("a", key=key)
    other = {"second": "new"} if key == "one" else {"first": "new"}
    bus.rules.rules["root"] = rule("root", BOTH, **other)
    before = bus.grants.changes
    assert not bus.grants.check_again(path)
    assert bus.may("a")
    assert bus.grants.changes == before
    bus.rules.rules["root"] = rule("root", BOTH, "new", "newer")
    assert bus.grants.check_again(path)
    assert not bus.may("a")
    assert bus.grants.is_empty
    assert bus.grants.changes > before


def test_a_token_ends_with_its_rule() -> None:
    bus = Bus()
    bus.put("a")
    grant = bus.put("b")
    del bus.rules.rules["root"]
    assert bus.grants.check_again(())
    assert bus.grants.is_empty
    assert grant.rights == 0
    assert not bus.grants.check_again(())


def test_a_login_ends_when_its_key_is_replaced() -> None:
    bus = Bus()
    bus.log_in("two")
    bus.rules.rules["root"] = rule("root", BOTH, "new")
    assert not bus.grants.check_again(())
    assert bus.may("a")
    bus.rules.rules["root"] = rule("root", BOTH, "one", "new")
    assert bus.grants.check_again(())
    assert not bus.may("a")
    assert not bus.grants.has_login


@pytest.mark.parametrize("by_login", [True, False])
@pytest.mark.parametrize(
    ("before", "after", "is_less"),
    [(BOTH, Right.SEND, True), (Right.SEND, BOTH, False), (Right.LISTEN, Right.SEND, True), (BOTH, BOTH, False)],
)
def test_a_grant_has_the_rights_that_its_rule_has_now(by_login: bool, before: int, after: int, is_less: bool) -> None:
    bus = Bus()
    bus.rules.rules["root"] = rule("root", before)
    if by_login:
        bus.log_in()
    else:
        bus.put("a")
    changes = bus.grants.changes
    bus.rules.rules["root"] = rule("root", after)
    assert bus.grants.check_again(()) is is_less
    assert [bus.may("a", right) for right in (Right.SEND, Right.LISTEN)] == [
        bool(after & right) for right in (Right.SEND, Right.LISTEN)
    ]
    assert (bus.grants.changes > changes) is (before != after)
    assert not bus.grants.is_empty


def test_what_a_token_loses_is_told_although_the_login_gains() -> None:
    bus = Bus()
    bus.log_in()
    bus.put("orders", "own")
    bus.own[ORDERS] = []
    bus.rules.rules["root"] = rule("root", BOTH | Right.MANAGE)
    assert bus.grants.check_again(None)
    assert bus.may("orders", Right.MANAGE)


def test_rules_of_an_entity_are_looked_at_when_they_change_and_not_for_others() -> None:
    bus = Bus()
    bus.put("orders", "own")
    bus.put("bills", "own", "three")
    bus.put("a")
    assert bus.grants.entities == {ORDERS, BILLS}
    bus.own[ORDERS] = [rule("own", BOTH, "new", "newer")]
    bus.rules.rules["root"] = rule("root", BOTH, "new", "newer")
    assert not bus.grants.check_again(BILLS)
    assert [bus.may(entity) for entity in ("orders", "bills", "a")] == [True, True, True]
    assert bus.grants.check_again(ORDERS)
    assert [bus.may(entity) for entity in ("orders", "bills", "a")] == [False, True, True]
    bus.own[BILLS] = [rule("other", BOTH, "three", "four")]
    assert bus.grants.check_again(None)
    assert [bus.may(entity) for entity in ("orders", "bills", "a")] == [False, False, False]


def test_a_token_of_the_whole_namespace_ends_where_it_was_put_for_one_entity() -> None:
    bus = Bus()
    text = sign_token("sb://ns/", "root", "one", LATER_S)
    bus.grants.add("sb://ns/a", bus.authorizer.authorize_token(text, bus.rules, NOW_MS))
    bus.rules.rules.clear()
    assert bus.grants.check_again(())
    assert not bus.may("a")
    with pytest.raises(Unauthorized):
        bus.put("a")


def test_what_nobody_has_signed_is_not_taken_away() -> None:
    bus = Bus()
    bus.grants.set_login(Grant((), BOTH, None, "test"))
    bus.grants.add("sb://ns/a", Grant(("a",), Right.SEND, None, "test"))
    bus.rules.rules.clear()
    assert not bus.grants.check_again(None)
    assert bus.may("a", Right.LISTEN)
