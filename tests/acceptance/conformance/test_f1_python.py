"""The list in docs/reference/http-coverage.md by number, with the SDK for Python in both flavours, unmodified.

Items that are no Python client's stand elsewhere; ``test_f1_table.py`` counts them all.
"""

from __future__ import annotations

import asyncio
import datetime
import warnings
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    AuthorizationRule,
    CorrelationRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
)
from kit_admin import Admin, Forgetful, ForgetfulAsync, Plain, all_of
from kit_bus import KEY, SEND_ONLY, Bus, unique
from kit_f1 import COMMON, FOR_EVER, FORWARDING, QUEUE, RULES, SUBSCRIPTION, TOPIC, own_admin, signature, sub_code
from kit_sdk import Face, Sdk, within_the_limit
from urllib3.exceptions import InsecureRequestWarning

SECOND = datetime.timedelta(seconds=1)
KINDS = ("queue", "topic", "subscription", "rule")


@pytest.fixture(params=["sync", "asyncio"])
def admin(request: pytest.FixtureRequest, bus: Bus) -> Admin:
    return Admin(request.param, bus)


@pytest.fixture
def name() -> str:
    return f"f1/{unique()}"


def where(kind: str, name: str) -> tuple[str, ...]:
    """The arguments that name an entity of a kind, all in the topic called ``name``."""
    return {"queue": (f"{name}-q",), "topic": (name,), "subscription": (name, "Sub"), "rule": (name, "Sub", "Rule")}[
        kind
    ]


async def names_of(client: Face, kind: str, *parents: str) -> list[str]:
    return [found.name for found in await all_of(getattr(client.inner, f"list_{kind}s")(*parents))]


@within_the_limit
async def test_f1_01_every_kind_is_created_read_changed_listed_and_deleted(admin: Admin, name: str) -> None:
    async with admin.client() as client:
        for kind in KINDS:
            path = where(kind, name)
            made = await getattr(client, f"create_{kind}")(*path)
            read = await getattr(client, f"get_{kind}")(*path)
            assert made.name == read.name == path[-1]
            if kind == "rule":
                read.filter = SqlRuleFilter("a = 1")
            else:
                read.user_metadata = "changed"
            await getattr(client, f"update_{kind}")(*path[:-1], read)
            again = await getattr(client, f"get_{kind}")(*path)
            changed = again.filter.sql_expression if kind == "rule" else again.user_metadata
            assert changed == ("a = 1" if kind == "rule" else "changed")
            assert path[-1] in await names_of(client, kind, *path[:-1])
        for kind in reversed(KINDS):
            path = where(kind, name)
            await getattr(client, f"delete_{kind}")(*path)
            with pytest.raises(ResourceNotFoundError):
                await getattr(client, f"get_{kind}")(*path)


def plain(value: Any) -> Any:
    """A value of the SDK that can be compared."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, AuthorizationRule):
        return {name: plain(item) for name, item in vars(value).items()}
    return value


def told(entity: Any) -> dict[str, Any]:
    """Everything that a client was told of an entity, but when it was changed last."""
    found = {name: plain(value) for name, value in vars(entity).items() if name[:1] != "_"}
    return {name: value for name, value in found.items() if "updated" not in name}


@within_the_limit
async def test_f1_02_what_was_read_is_sent_back_and_every_property_is_as_before(admin: Admin, name: str) -> None:
    async with admin.client() as client:
        target = f"{name}-target"
        await client.create_queue(target)
        forward = {"forward_to": target, "forward_dead_lettered_messages_to": target}
        cases: list[tuple[str, tuple[str, ...], dict[str, Any]]] = [
            ("queue", (f"{name}-all",), QUEUE),
            ("queue", (f"{name}-forward",), FORWARDING | forward),
            ("topic", (name,), TOPIC),
            ("subscription", (name, "all"), SUBSCRIPTION),
            ("subscription", (name, "forward"), COMMON | forward),
        ]
        for kind, path, properties in cases:
            await getattr(client, f"create_{kind}")(*path, **properties)
            before = await getattr(client, f"get_{kind}")(*path)
            for property_name, value in properties.items():
                if property_name in {"authorization_rules", "max_size_in_megabytes", *forward}:
                    continue
                expected = before.default_message_time_to_live if value is FOR_EVER else value
                found = getattr(before, property_name)
                assert found == (expected if value is not FOR_EVER else found), (kind, property_name)
                assert value is not FOR_EVER or found.days == 10_675_199, (kind, property_name)
            if "forward_to" in properties:
                assert before.forward_to.endswith(f"/{target}")
                assert before.forward_dead_lettered_messages_to.endswith(f"/{target}")
            await getattr(client, f"update_{kind}")(*path[:-1], before)
            assert told(await getattr(client, f"get_{kind}")(*path)) == told(before)


@pytest.mark.timeout(90)
def test_f1_03_lists_of_any_length_are_complete_and_in_order(
    request: pytest.FixtureRequest, tmp_path: Path, admin: Admin
) -> None:
    flavour = request.node.callspec.params["admin"]

    async def scenario(own: Admin) -> None:
        async with own.client() as client:
            await client.create_topic("counted")
            for kind, parents in (("queue", ()), ("subscription", ("counted",))):
                made: list[str] = []
                for number in (0, 1, 100, 101, 250):
                    while len(made) < number:
                        # Neither in order nor in one case.
                        made.append(f"{'Nn'[len(made) % 2]}{len(made) * 7919 % 1000:03}")
                        await getattr(client, f"create_{kind}")(*parents, made[-1])
                    assert await names_of(client, kind, *parents) == sorted(made, key=str.lower), (kind, number)
            assert await names_of(client, "topic") == ["counted"]
            runtimes = await all_of(client.inner.list_queues_runtime_properties())
            assert len(runtimes) == 250

    with own_admin(flavour, tmp_path) as own:
        asyncio.run(scenario(own))


@within_the_limit
async def test_f1_04_names_of_every_legal_form_are_found_in_any_case(admin: Admin) -> None:
    tail = unique()
    async with admin.client() as client:
        for name in (
            tail[0],
            f"a/b.c-d_e/{tail}",
            f"{tail}{'x' * 228}",
            f"x-servicebus-transfer/{tail}",
            f"Mixed/{tail}",
        ):
            for kind in ("queue", "topic"):
                await getattr(client, f"create_{kind}")(name)
                assert (await getattr(client, f"get_{kind}")(name.swapcase())).max_size_in_megabytes == 1024
                assert name in await names_of(client, kind)
                if kind == "topic":
                    await client.create_subscription(name, "S" * 50)
                    assert [rule.name for rule in await all_of(client.inner.list_rules(name, "s" * 50))] == ["$Default"]
                    assert (await client.get_rule(name, "S" * 50, "$default")).filter is not None
                await getattr(client, f"delete_{kind}")(name.upper())
        for wrong in ("x" * 261, "a//b", "-a", "a b", "a/subscriptions/b"):
            with pytest.raises((HttpResponseError, ValueError)):
                await client.create_queue(wrong)


@within_the_limit
async def test_f1_05_runtime_properties_of_empty_and_filled_entities(admin: Admin, name: str) -> None:
    later = datetime.datetime.now(datetime.UTC) + 600 * SECOND
    async with admin.client() as client:
        await client.create_topic(name)
        await client.create_subscription(name, "s")
        await client.create_queue(f"{name}-q")
        empty = await client.get_topic_runtime_properties(name)
        assert (empty.scheduled_message_count, empty.subscription_count, empty.size_in_bytes) == (0, 1, 0)
        started = datetime.datetime.now(datetime.UTC) - SECOND
        async with Sdk("sync").client(admin.bus.connection_string) as messages:
            for entity in (name, f"{name}-q"):
                async with messages.sender(entity) as sender:
                    await sender.send_messages([ServiceBusMessage("x" * 100) for _ in range(3)])
                    await sender.schedule_messages(ServiceBusMessage("later"), later)
        topic = await client.get_topic_runtime_properties(name)
        assert (topic.scheduled_message_count, topic.size_in_bytes > 300) == (1, True)
        queue = await client.get_queue_runtime_properties(f"{name}-q")
        assert (queue.active_message_count, queue.scheduled_message_count, queue.total_message_count) == (3, 1, 4)
        assert (queue.dead_letter_message_count, queue.transfer_message_count) == (0, 0)
        assert (queue.transfer_dead_letter_message_count, queue.size_in_bytes > 300) == (0, True)
        subscription = await client.get_subscription_runtime_properties(name, "s")
        assert (subscription.active_message_count, subscription.total_message_count) == (3, 3)
        for found in (topic, queue, subscription):
            assert found.created_at_utc <= found.updated_at_utc
        # Sending is access to the queue and the topic.
        assert queue.accessed_at_utc >= started
        assert topic.accessed_at_utc >= started
        every = {found.name: found for found in await all_of(client.inner.list_queues_runtime_properties())}
        assert every[f"{name}-q"].active_message_count == 3


PARAMETERS = {
    "@text": "x & y <z> ü",
    "@int": 5,
    "@long": 1 << 40,
    "@flag": True,
    "@real": 1.5,
    "@when": datetime.datetime(2026, 1, 2, 3, 4, 5),  # noqa: DTZ001 - the SDK writes no zone
    "@span": datetime.timedelta(hours=2),
}


@within_the_limit
async def test_f1_06_parameters_of_every_type_come_back_as_they_were(admin: Admin, name: str) -> None:
    async with admin.client() as client:
        await client.create_topic(name)
        await client.create_subscription(name, "s")
        properties = {key[1:]: value for key, value in PARAMETERS.items()}
        await client.create_rule(
            name,
            "s",
            "sql",
            filter=SqlRuleFilter("a = @int", PARAMETERS),
            action=SqlRuleAction("SET b = @real", PARAMETERS),
        )
        await client.create_rule(name, "s", "correlation", filter=CorrelationRuleFilter(properties=properties))
        rules = {rule.name: rule for rule in await all_of(client.inner.list_rules(name, "s"))}
        assert list(rules) == ["$Default", "correlation", "sql"]
        assert rules["correlation"].filter.properties == properties
        for found in (rules["sql"], await client.get_rule(name, "s", "SQL")):
            for part in (found.filter, found.action):
                assert {key: (type(value), value) for key, value in part.parameters.items()} == {
                    key: (type(value), value) for key, value in PARAMETERS.items()
                }


@pytest.mark.timeout(60)
def test_f1_07_every_failure_has_the_status_and_code_of_the_contract(
    request: pytest.FixtureRequest, admin: Admin, name: str, tmp_path: Path
) -> None:
    async def refused(call: Any, kind: type[Exception], status: int, code: int) -> None:
        with pytest.raises(kind) as caught:
            await call
        assert (caught.value.status_code, sub_code(caught.value)) == (status, code)  # type: ignore[attr-defined]
        assert "TrackingId:" in str(caught.value)

    @within_the_limit
    async def scenario() -> None:
        async with admin.client() as client:
            queue = await client.create_queue(name)
            bad, missing = HttpResponseError, ResourceNotFoundError
            queue.lock_duration = datetime.timedelta(days=25)
            await refused(client.update_queue(queue), bad, 400, 40000)
            await refused(client.create_queue(f"{name}2", max_size_in_megabytes=1025), bad, 400, 40000)
            await refused(client.create_queue(name), ResourceExistsError, 409, 40900)
            await refused(client.create_topic(name), ResourceExistsError, 409, 40900)
            await refused(client.get_subscription("none", "s"), missing, 404, 40400)
            await refused(client.create_subscription("none", "s"), missing, 404, 40400)
            for one in (client.get_queue, client.get_topic):
                # A feed without entries: the SDK makes an error without a status of it.
                with pytest.raises(missing):
                    await one("none")
            await client.delete_queue(name)
            queue.lock_duration = 30 * SECOND
            await refused(client.update_queue(queue), missing, 404, 40400)
            await refused(client.delete_queue(name), missing, 404, 40400)
            assert await all_of(client.inner.list_subscriptions("none")) == []
        port = admin.bus.process.ready["http_port"]
        own = f"Endpoint=sb://localhost:{port};SharedAccessSignature="
        for address, code in (
            (admin.address(key="wrong"), 40103),
            (admin.address(rule="nobody"), 40103),
            (own + signature(admin, "other"), 40104),
            (own + signature(admin, expires_in_s=-400), 40106),
            (own + "SharedAccessSignature sr=x", 40105),
        ):
            async with admin.client(address) as client:
                await refused(client.get_queue("plain-0"), ClientAuthenticationError, 401, code)
        # Who may not read is told so without a code, as the service does.
        async with admin.client(admin.address(SEND_ONLY, KEY)) as client:
            with pytest.raises(ClientAuthenticationError, match="Manage,EntityRead claims required") as unread:
                await client.get_queue("plain-0")
            assert unread.value.status_code == 401

    scenario()

    @within_the_limit
    async def with_limits(own: Admin) -> None:
        async with own.client() as client:
            await client.create_queue("first")
            await refused(client.create_queue("second"), HttpResponseError, 403, 40300)
            for method in ("get_queue", "get_topic"):
                # The cloud's answer to what is missing: 200 and a feed without entries.
                with pytest.raises(ResourceNotFoundError):
                    await getattr(client, method)("none")
            with pytest.raises(ResourceNotFoundError):
                await client.get_rule("none", "s", "r")

    flavour = request.node.callspec.params["admin"]
    with own_admin(flavour, tmp_path, "--quota", "entities=1") as own:
        with_limits(own)


@within_the_limit
async def test_f1_08_a_change_whose_answer_was_lost_succeeds_when_it_comes_again(admin: Admin, name: str) -> None:
    kind = ForgetfulAsync if admin.module.__name__.endswith("aio.management") else Forgetful
    transport = kind(admin.bus.process.ca)
    async with admin.client(transport=transport, retry_total=3, retry_backoff_factor=0.01) as client:
        await client.create_topic(name)
        transport.lost.clear()
        await client.create_subscription(name, "s")
        transport.lost.clear()
        await client.create_rule(name, "s", "r")
        await client.delete_topic(name)
    assert transport.lost == ["PUT", "DELETE"]


@within_the_limit
async def test_f1_09_tokens_that_are_old_or_wrapped_are_good_and_of_others_not(admin: Admin) -> None:
    port = admin.bus.process.ready["http_port"]
    own = f"Endpoint=sb://localhost:{port};SharedAccessSignature="
    names = [f"f1-{unique()}-orders"]
    names.append(names[0] + "2")
    rule = RULES[0]
    async with admin.client() as client:
        for queue in names:
            await client.create_queue(queue, authorization_rules=RULES if queue == names[0] else None)
    # The client keeps a token for 60 s after its end, and puts a signature behind "Bearer".
    for good in (signature(admin, expires_in_s=-60), signature(admin, names[0])):
        async with admin.client(own + good) as client:
            assert (await client.get_queue(names[0])).name == names[0]
    for key in (rule.primary_key, rule.secondary_key):
        async with admin.client(admin.address("ops", key)) as client:
            assert (await client.get_queue(names[0])).name == names[0]
            with pytest.raises(ClientAuthenticationError):
                await client.get_queue(names[1])
    async with admin.client(own + signature(admin, names[0])) as client:
        with pytest.raises(ClientAuthenticationError):
            await client.get_queue(names[1])


def test_f1_10_the_certificate_may_be_trusted_or_left_out_in_each_way(
    admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    @within_the_limit
    async def reached(**options: Any) -> None:
        async with admin.client(**options) as client:
            assert (await client.get_queue("plain-0")).name == "plain-0"

    reached(connection_verify=admin.bus.process.ca)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRequestWarning)
        reached(connection_verify=False)
    if admin.module.__name__.endswith("aio.management"):
        # Neither the variable nor the hook is of that flavour.
        return
    reached(transport=Plain())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", admin.bus.process.ca)
    reached(connection_verify=True)


@within_the_limit
async def test_f1_11_forwarding_is_told_as_it_was_sent_and_can_be_set_changed_and_cleared(
    admin: Admin, name: str
) -> None:
    port = admin.bus.process.ready["http_port"]
    async with admin.client() as client:
        chain = [f"{name}-{index}" for index in range(6)]
        await client.create_queue(chain[-1])
        for index in range(4, -1, -1):
            # A bare name, an address with the port, and one without.
            target = [
                chain[index + 1],
                f"sb://localhost:{port}/{chain[index + 1]}",
                f"sb://localhost/{chain[index + 1]}",
            ]
            made = await client.create_queue(chain[index], forward_to=target[index % 3])
            # The client makes an address of a bare name; what it sends comes back.
            assert made.forward_to == (target[index % 3] if index % 3 else target[1])
        async with Sdk("sync").client(admin.bus.connection_string) as messages, messages.sender(chain[0]) as sender:
            await sender.send_messages(ServiceBusMessage("too far"))
        for _ in range(200):
            found = [await client.get_queue_runtime_properties(queue) for queue in chain]
            if sum(one.transfer_dead_letter_message_count for one in found):
                break
            await asyncio.sleep(0.02)
        # Four hops, and what has a fifth before it lies where it came to.
        assert [one.transfer_dead_letter_message_count for one in found] == [0, 0, 0, 0, 1, 0]
        queue = await client.get_queue(chain[0])
        for target in (chain[5], chain[0]):
            queue.forward_to = queue.forward_dead_lettered_messages_to = target
            await client.update_queue(queue)
            queue = await client.get_queue(chain[0])
            assert queue.forward_to == queue.forward_dead_lettered_messages_to == f"sb://localhost:{port}/{target}"
        queue.forward_to = queue.forward_dead_lettered_messages_to = None
        await client.update_queue(queue)
        queue = await client.get_queue(chain[0])
        assert (queue.forward_to, queue.forward_dead_lettered_messages_to) == (None, None)
        for wrong in (f"{name}-nowhere", f"sb://elsewhere.example/{chain[5]}"):
            with pytest.raises(HttpResponseError) as caught:
                await client.create_queue(f"{name}-x", forward_to=wrong)
            assert caught.value.status_code == 400
        made = await client.create_queue(f"{name}-x", forward_to=chain[5], requires_session=True)
        assert (made.requires_session, bool(made.forward_to)) == (True, True)


@pytest.mark.timeout(60)
def test_f1_12_what_cannot_change_is_refused_and_a_tier_refuses_what_it_has_not(
    request: pytest.FixtureRequest, admin: Admin, name: str, tmp_path: Path
) -> None:
    @within_the_limit
    async def immutable() -> None:
        async with admin.client() as client:
            for kind in ("queue", "topic"):
                await getattr(client, f"create_{kind}")(f"{name}-{kind}")
            await client.create_subscription(f"{name}-topic", "s")
            for kind, path, properties in (
                (
                    "queue",
                    (f"{name}-queue",),
                    ("requires_session", "requires_duplicate_detection", "enable_partitioning"),
                ),
                ("topic", (f"{name}-topic",), ("requires_duplicate_detection", "enable_partitioning")),
                ("subscription", (f"{name}-topic", "s"), ("requires_session",)),
            ):
                for one in properties:
                    entity = await getattr(client, f"get_{kind}")(*path)
                    setattr(entity, one, True)
                    with pytest.raises(HttpResponseError) as caught:
                        await getattr(client, f"update_{kind}")(*path[:-1], entity)
                    assert (caught.value.status_code, sub_code(caught.value)) == (400, 40000), (kind, one)

    immutable()
    flavour = request.node.callspec.params["admin"]
    refusals: dict[str, list[dict[str, Any]]] = {
        "basic": [{"requires_session": True}, {"auto_delete_on_idle": datetime.timedelta(hours=1)}],
        "standard": [{"max_message_size_in_kilobytes": 1024}, {"max_size_in_megabytes": 10_240}],
        "premium": [{"enable_express": True}, {"max_message_size_in_kilobytes": 1023}],
        "premium-partitioned": [{"enable_partitioning": False}, {"max_message_size_in_kilobytes": 1023}],
    }
    largest = {"basic": 256, "standard": 256, "premium": 1024, "premium-partitioned": 1024}
    for tier, wrong in refusals.items():

        @within_the_limit
        async def tiers(own: Admin, tier: str = tier, wrong: list[dict[str, Any]] = wrong) -> None:
            async with own.client() as client:
                assert (await client.create_queue("q")).max_message_size_in_kilobytes == largest[tier]
                for properties in wrong:
                    with pytest.raises(HttpResponseError) as caught:
                        await client.create_queue("wrong", **properties)
                    assert (caught.value.status_code, sub_code(caught.value)) == (400, 40000)
                if tier == "basic":
                    with pytest.raises(HttpResponseError):
                        await client.create_topic("t")
                assert (await client.get_namespace_properties()).messaging_sku == tier.partition("-")[0].title()

        with own_admin(flavour, tmp_path / tier, "--tier", tier) as own:
            tiers(own)
