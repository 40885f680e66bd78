"""What an error says is away, and which keys belong to that (PN3, PE17)."""

from __future__ import annotations

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageProperties

from duobus.broker import slot_of as slot_of_the_broker
from duobus.broker import string_key
from duobus.errors import ServerBusy, StoreUnavailable
from duobus.ha.outage_scope import (
    AWAY_GROUPS_MAX,
    AWAY_KEYS_MAX,
    Away,
    KeyGroup,
    KeyGroups,
    keys_of,
    slot_of,
    store_away,
)

KEYS = [str(number) for number in range(1_000)] + ["größe", "", "a" * 128, "日本"]


def busy(text: str) -> sdk.ServiceBusServerBusyError:
    return sdk.ServiceBusServerBusyError(message=text, condition=b"com.microsoft:server-busy")


@pytest.mark.parametrize(
    ("fragments", "path", "expected"),
    [
        (None, "orders", Away("orders", 0, 0, 0)),
        ((13, 13, 16), "orders", Away("orders", 13, 13, 16)),
        ((4, 7, 16), "shop/Orders_1.b~c-d", Away("shop/Orders_1.b~c-d", 4, 7, 16)),
        ((0, 0, 4), "amqps://localhost:5671/orders", Away("orders", 0, 0, 4)),
        (None, "/orders/$deadletterqueue", Away("orders/$deadletterqueue", 0, 0, 0)),
    ],
)
def test_what_the_broker_marks_is_what_the_client_reads(
    fragments: tuple[int, int, int] | None, path: str, expected: Away
) -> None:
    error = StoreUnavailable("A sentence about it.", fragments)
    assert store_away(busy(f"{error}{error.mark(path)} TrackingId:1_G0, SystemTracker:duobus:{path}")) == expected
    # As an answer of the management node comes out of the SDK.
    assert store_away(busy(f"Scheduling messages failed. b'{error}{error.mark(path)} TrackingId:1'.")) == expected


def test_a_busy_server_makes_no_mark_and_no_other_error_is_looked_at() -> None:
    assert ServerBusy("x").mark("orders") == ""
    assert store_away(busy("The server is busy.")) is None
    marked = f"x{StoreUnavailable('x').mark('orders')} TrackingId:1"
    assert store_away(sdk.MessagingEntityNotFoundError(message=marked)) is None
    assert store_away(OSError(marked)) is None


@pytest.mark.parametrize(
    "text",
    [
        "StoreUnavailable:",
        "StoreUnavailable: orders",
        "NoStoreUnavailable:orders",
        f"StoreUnavailable:{'a' * 600}",
        "StoreUnavailable:orders, Fragment:1/0 TrackingId",
        "StoreUnavailable:orders, Fragment:1234567/16 TrackingId",
    ],
)
def test_what_is_not_wholly_a_mark_is_none(text: str) -> None:
    found = store_away(busy(text))
    assert found is None or found.slots == 0


def test_a_key_belongs_where_the_broker_puts_it() -> None:
    for slots in (2, 4, 16, 64):
        for key in KEYS:
            assert slot_of(key, slots) == slot_of_the_broker(string_key(key), slots)


def test_the_keys_of_whatever_can_be_sent() -> None:
    batch = ServiceBusMessageBatch()
    batch.add_message(ServiceBusMessage("x", partition_key="in a batch"))
    annotated = AmqpAnnotatedMessage(data_body=[b"x"], annotations={"x-opt-partition-key": b"as bytes"})
    session = AmqpAnnotatedMessage(data_body=[b"x"])
    session.properties = AmqpMessageProperties(group_id="a session")
    assert keys_of(ServiceBusMessage("x")) == set()
    assert keys_of(ServiceBusMessage("x", session_id="s", partition_key="s")) == {"s"}
    assert keys_of([{"body": "x", "partition_key": "p"}, ServiceBusMessage("x", session_id="s")]) == {"p", "s"}
    assert keys_of(batch) == {"in a batch"}
    assert keys_of([annotated, session]) == {"as bytes", "a session"}


def test_all_keys_of_a_fragment_are_away_when_one_of_them_was_refused() -> None:
    groups = KeyGroups()
    group = groups.note("orders", Away("Orders", 3, 3, 16), {"whatever"})
    assert group == KeyGroup("orders", "3/16")
    for key in KEYS:
        assert groups.of_keys("orders", {key}) == ([group] if slot_of(key, 16) == 3 or key == "whatever" else [])
    assert groups.of_keys("bills", KEYS) == []
    fresh = groups.any_key(KeyGroup("orders", "3/16"), "fresh")
    assert fresh is not None
    assert fresh.startswith("fresh")
    assert slot_of(fresh, 16) == 3


def test_of_what_has_another_path_only_the_keys_are_known_that_were_refused() -> None:
    groups = KeyGroups()
    group = groups.note("orders", Away("orders/~share/2", 1, 1, 4), {"one", "two"})
    assert group == KeyGroup("orders", "orders/~share/2 1/4")
    assert isinstance(group, KeyGroup)
    assert groups.of_keys("orders", {"one", "three"}) == [group]
    assert groups.of_keys("orders", {"three"}) == []
    assert groups.any_key(group, "fresh") in {"one", "two"}
    groups.forget(group)
    assert groups.of_keys("orders", {"one"}) == []
    assert not groups.has("orders")


def test_an_error_without_a_fragment_is_about_the_entity() -> None:
    groups = KeyGroups()
    assert groups.note("orders", Away("orders", 0, 0, 0), {"a key"}) == "orders"
    assert groups.note("orders", Away("another", 0, 0, 0), set()) == "orders"
    assert not groups.has("orders")


def test_what_has_another_path_and_is_away_as_a_whole_is_called_by_that_path() -> None:
    groups = KeyGroups()
    group = groups.note("orders", Away("orders/~share/2", 0, 0, 0), {"one"})
    assert group == KeyGroup("orders", "orders/~share/2")
    assert groups.of_keys("orders", {"one", "two"}) == [group]


def test_slashes_around_a_path_make_no_other_entity_of_it() -> None:
    groups = KeyGroups()
    assert groups.note("/shop/orders/", Away("shop/Orders", 0, 0, 0), {"a key"}) == "/shop/orders/"
    assert groups.note("/orders", Away("orders/", 3, 3, 16), {"a key"}) == KeyGroup("/orders", "3/16")


def test_a_group_that_is_there_again_takes_its_own_keys_along_and_no_others() -> None:
    groups = KeyGroups()
    first = groups.note("orders", Away("a share", 1, 1, 4), {"one"})
    second = groups.note("orders", Away("a share", 2, 2, 4), {"two"})
    assert isinstance(first, KeyGroup)
    assert isinstance(second, KeyGroup)
    groups.forget(first)
    assert groups.of_keys("orders", {"one", "two"}) == [second]
    assert groups.any_key(first, "fresh") is None, "no key of it is known any more"
    assert groups.any_key(second, "fresh") == "two"


def test_what_is_kept_is_bounded() -> None:
    groups = KeyGroups()
    for slot in range(AWAY_GROUPS_MAX):
        assert groups.note("orders", Away("orders", slot, slot, 99_999), {"k"}) is not None
    assert groups.note("bills", Away("bills", 0, 0, 16), {"k"}) is None
    assert groups.note("orders", Away("orders", 5, 5, 99_999), {"k"}) == KeyGroup("orders", "5/99999")
    groups.forget(KeyGroup("orders", "5/99999"))
    groups.forget(KeyGroup("orders", "5/99999"))
    group = groups.note("bills", Away("a share", 0, 0, 16), {"first"})
    for number in range(AWAY_KEYS_MAX):
        groups.note("bills", Away("a share", 0, 0, 16), {str(number)})
    assert groups.of_keys("bills", {"first"}) == []
    assert groups.of_keys("bills", {str(AWAY_KEYS_MAX - 1)}) == [group]
