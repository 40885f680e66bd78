"""The SDK's administration clients, both flavours, unmodified, over TLS with the generated authority."""

from __future__ import annotations

import datetime
import re
import time
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
from azure.servicebus.management import AccessRights, AuthorizationRule
from kit_admin import RULE, Admin, Forgetful, Plain
from kit_bus import KEY, SEND_ONLY, Bus, configuration, unique
from kit_sdk import Face, Sdk, within_the_limit

from duobus.auth import sign_token

SECOND = datetime.timedelta(seconds=1)
INFINITE = datetime.timedelta(days=10675199, seconds=10085, microseconds=477581)

#: Every keyword of create_queue that this version serves, with a value that is not its default.
EVERYTHING: dict[str, Any] = {
    "auto_delete_on_idle": datetime.timedelta(minutes=7),
    "dead_lettering_on_message_expiration": True,
    "default_message_time_to_live": datetime.timedelta(minutes=11, seconds=2),
    "duplicate_detection_history_time_window": datetime.timedelta(minutes=12),
    "enable_batched_operations": False,
    "enable_partitioning": True,
    "lock_duration": datetime.timedelta(seconds=13),
    "max_delivery_count": 14,
    "max_size_in_megabytes": 3072,
    "requires_duplicate_detection": True,
    "requires_session": True,
    "user_metadata": "a & b <c> ü",
    "max_message_size_in_kilobytes": 1536,
    "status": "ReceiveDisabled",
}


def shown(queue: Any) -> dict[str, Any]:
    """The properties of a description, its access rules as plain values."""
    found = {name: getattr(queue, name) for name in (*EVERYTHING, "name", "forward_to", "enable_express")}
    rules = queue.authorization_rules or []
    found["rules"] = [
        (rule.key_name, rule.primary_key, rule.secondary_key, sorted(rule.rights), rule.created_at_utc)
        for rule in rules
    ]
    return found


@pytest.fixture(params=["sync", "asyncio"])
def admin(request: pytest.FixtureRequest, bus: Bus) -> Admin:
    return Admin(request.param, bus)


@pytest.fixture
def queue_name() -> str:
    return f"managed/{unique()}"


async def listed(client: Face) -> list[str]:
    """Names of all queues, however the flavour gives pages."""
    pages = client.inner.list_queues()
    if hasattr(pages, "__aiter__"):
        return [queue.name async for queue in pages]
    return [queue.name for queue in pages]


@within_the_limit
async def test_every_property_of_a_queue_is_created_and_read_back(admin: Admin, queue_name: str) -> None:
    """PE9."""
    async with admin.client() as client:
        rules = [
            AuthorizationRule(
                type="SharedAccessAuthorizationRule",
                claim_type="SharedAccessKey",
                claim_value="None",
                rights=[AccessRights.MANAGE, AccessRights.SEND, AccessRights.LISTEN],
                key_name="ops",
                primary_key="P" * 43 + "=",
                secondary_key="S&<" * 14 + "S=",
            )
        ]
        created = await client.create_queue(queue_name, authorization_rules=rules, **EVERYTHING)
        read = await client.get_queue(queue_name)
        assert shown(created) == shown(read)
        expected = dict(EVERYTHING, max_size_in_megabytes=16 * 3072)
        assert {name: getattr(read, name) for name in EVERYTHING} == expected
        ((name, primary, secondary, rights, _),) = shown(read)["rules"]
        assert (name, primary, secondary) == ("ops", "P" * 43 + "=", "S&<" * 14 + "S=")
        assert rights == ["Listen", "Manage", "Send"]
        await client.delete_queue(queue_name)


@within_the_limit
async def test_the_defaults_are_those_of_the_cloud(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        queue = await client.create_queue(queue_name)
        assert (queue.lock_duration, queue.max_delivery_count) == (60 * SECOND, 10)
        assert (queue.default_message_time_to_live, queue.auto_delete_on_idle) == (INFINITE, INFINITE)
        assert queue.duplicate_detection_history_time_window == 600 * SECOND
        assert (queue.max_size_in_megabytes, queue.max_message_size_in_kilobytes) == (1024, 256)
        assert (queue.status, queue.availability_status) == ("Active", "Available")
        assert (queue.forward_to, queue.forward_dead_lettered_messages_to, queue.user_metadata) == (None, None, None)
        await client.delete_queue(queue_name)


@within_the_limit
async def test_a_fresh_description_sent_back_changes_nothing(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        for properties in ({}, EVERYTHING):
            before = await client.create_queue(queue_name, **properties)
            await client.update_queue(await client.get_queue(queue_name))
            assert shown(await client.get_queue(queue_name)) == shown(before)
            await client.delete_queue(queue_name)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_delete_on_idle", datetime.timedelta(minutes=8)),
        ("dead_lettering_on_message_expiration", True),
        ("default_message_time_to_live", datetime.timedelta(days=1, seconds=1.5)),
        ("duplicate_detection_history_time_window", datetime.timedelta(seconds=20)),
        ("enable_batched_operations", False),
        ("lock_duration", datetime.timedelta(minutes=5)),
        ("max_delivery_count", 2_147_483_647),
        ("max_size_in_megabytes", 5120),
        ("user_metadata", "x" * 1024),
        ("max_message_size_in_kilobytes", 102_400),
        ("status", "SendDisabled"),
        ("enable_express", True),
    ],
)
def test_each_property_that_can_change_changes_alone(admin: Admin, queue_name: str, name: str, value: Any) -> None:
    @within_the_limit
    async def scenario() -> None:
        async with admin.client() as client:
            before = shown(await client.create_queue(queue_name))
            queue = await client.get_queue(queue_name)
            setattr(queue, name, value)
            await client.update_queue(queue)
            assert shown(await client.get_queue(queue_name)) == {**before, name: value}
            await client.delete_queue(queue_name)

    scenario()


@within_the_limit
async def test_what_cannot_change_or_is_out_of_range_is_refused(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        await client.create_queue(queue_name)
        for name, value in (
            ("requires_session", True),
            ("requires_duplicate_detection", True),
            ("enable_partitioning", True),
            ("lock_duration", datetime.timedelta(days=25)),
            ("max_message_size_in_kilobytes", 102_401),
            ("max_size_in_megabytes", 1025),
            ("forward_to", "nowhere/at-all"),
        ):
            queue = await client.get_queue(queue_name)
            setattr(queue, name, value)
            with pytest.raises(HttpResponseError) as caught:
                await client.update_queue(queue)
            assert caught.value.status_code == 400, name
        await client.delete_queue(queue_name)


@within_the_limit
async def test_names_are_found_in_any_case_and_with_slashes(admin: Admin) -> None:
    async with admin.client() as client:
        for name in (unique(), f"a/b.c-d_e/{unique()}", unique() + "x" * 228, f"x-servicebus-transfer/{unique()}"):
            assert (await client.create_queue(name.title())).name == name.title()
            # The client shows the name that it was given.
            assert (await client.get_queue(name.upper())).lock_duration == 60 * SECOND
            assert name.title() in await listed(client)
            await client.delete_queue(name)


@within_the_limit
async def test_the_list_is_complete_and_in_order(admin: Admin) -> None:
    namespace = configuration()["UserConfig"]["Namespaces"][0]
    async with admin.client() as client:
        names = await listed(client)
        assert names == sorted(names, key=str.lower)
        assert {queue["Name"] for queue in namespace["Queues"]} <= set(names)
        assert len(names) == len(set(names)) > 400


@within_the_limit
async def test_runtime_properties_are_those_of_the_messages(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        before = datetime.datetime.now(datetime.UTC) - SECOND
        await client.create_queue(queue_name, enable_partitioning=True)
        empty = await client.get_queue_runtime_properties(queue_name)
        assert (empty.total_message_count, empty.size_in_bytes) == (0, 0)
        assert before < empty.created_at_utc <= empty.updated_at_utc
        async with Sdk("sync").client(admin.bus.connection_string) as messages, messages.sender(queue_name) as sender:
            for _ in range(20):
                await sender.send_messages(ServiceBusMessage("x"))
            await sender.schedule_messages(ServiceBusMessage("x"), datetime.datetime.now(datetime.UTC) + 600 * SECOND)
            async with messages.receiver(queue_name) as receiver:
                first, second = await receiver.receive_messages(max_message_count=2, max_wait_time=5)
                await receiver.dead_letter_message(first)
                await receiver.defer_message(second)
        full = await client.get_queue_runtime_properties(queue_name)
        counts = (full.active_message_count, full.dead_letter_message_count, full.scheduled_message_count)
        assert counts == (19, 1, 1)
        assert (full.total_message_count, full.transfer_message_count) == (21, 0)
        assert full.size_in_bytes > 21
        await client.delete_queue(queue_name)


@within_the_limit
async def test_failures_have_the_types_of_the_cloud(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        await client.create_queue(queue_name)
        with pytest.raises(ResourceExistsError, match="SubCode=40900") as exists:
            await client.create_queue(queue_name)
        assert re.search(r"TrackingId:[0-9a-f-]{36}_G0", str(exists.value))
        queue = await client.get_queue(queue_name)
        await client.delete_queue(queue_name)
        for call, status in (
            # A feed without entries, which has no status in the SDK's error.
            (lambda: client.get_queue(queue_name), None),
            (lambda: client.get_queue_runtime_properties(queue_name), None),
            (lambda: client.update_queue(queue), 404),
            (lambda: client.delete_queue(queue_name), 404),
        ):
            with pytest.raises(ResourceNotFoundError) as missing:
                await call()
            assert missing.value.status_code == status
    for address in (admin.address(SEND_ONLY, KEY), admin.address(key="wrong"), admin.address(rule="nobody")):
        async with admin.client(address) as client:
            with pytest.raises(ClientAuthenticationError):
                await client.get_queue("plain-0")
    async with admin.client(admin.address(SEND_ONLY, KEY)) as client:
        assert (await client.get_namespace_properties()).name == "sbemulatorns"


@within_the_limit
async def test_a_signature_may_stand_in_the_connection_string(admin: Admin) -> None:
    port = admin.bus.process.ready["http_port"]
    signature = sign_token(f"https://localhost:{port}", RULE, "SAS_KEY_VALUE", int(time.time()) + 60)
    async with admin.client(f"Endpoint=sb://localhost:{port};SharedAccessSignature={signature}") as client:
        assert (await client.get_queue("plain-0")).name == "plain-0"


@within_the_limit
async def test_a_queue_with_a_status_is_closed_for_clients(admin: Admin, queue_name: str) -> None:
    async with admin.client() as client:
        queue = await client.create_queue(queue_name)
        queue.status = "SendDisabled"
        await client.update_queue(queue)
        async with Sdk("sync").client(admin.bus.connection_string) as messages:
            with pytest.raises(Exception, match=r"(?i)disabled"):
                async with messages.sender(queue_name) as sender:
                    await sender.send_messages(ServiceBusMessage("x"))
        await client.delete_queue(queue_name)


@within_the_limit
async def test_a_change_whose_answer_was_lost_is_no_conflict_when_it_comes_again(bus: Bus, queue_name: str) -> None:
    transport = Forgetful(bus.process.ca)
    admin = Admin("sync", bus)
    async with admin.client(transport=transport, retry_total=3, retry_backoff_factor=0.01) as client:
        assert (await client.create_queue(queue_name)).name == queue_name
        await client.delete_queue(queue_name)
    assert transport.lost == ["PUT", "DELETE"]


@within_the_limit
async def test_the_ways_of_the_contract_to_reach_the_server_all_work(
    bus: Bus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    admin = Admin("sync", bus)
    async with admin.client(transport=Plain()) as client:
        assert (await client.get_queue("plain-0")).name == "plain-0"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", bus.process.ca)
    async with admin.client(connection_verify=True) as client:
        assert (await client.get_queue("plain-0")).name == "plain-0"
    # One port serves messages and management: the same connection string for both.
    async with Sdk("sync").client(
        admin.address(), connection_verify=bus.process.ca, custom_endpoint_address=bus.process.websocket_endpoint
    ) as client:
        assert client is not None
