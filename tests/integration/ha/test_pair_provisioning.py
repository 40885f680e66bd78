"""Backlog queues, made by the official administration client over the broker's management API (PN5 to PN7, I44)."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError
from azure.core.exceptions import ResourceNotFoundError as NotFound
from azure.core.pipeline.transport import AioHttpTransport
from azure.servicebus.aio.management import ServiceBusAdministrationClient
from click.testing import CliRunner

from duobus.cli.main import main
from duobus.ha.aio import backlog_queues as backlog
from duobus.ha.aio import pair_namespace
from duobus.ha.aio.backlog_queues import backlogs_among, paths, provide
from duobus.ha.errors import BacklogUnavailable
from duobus.ha.events import BacklogCreateFailed, BacklogDepth, BacklogLockShort, BacklogMissing, Reporter
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.testing.server import ServerProcess, queues_config
from kits.pair import Events, client
from kits.virtual_pair import World, in_virtual_time

COUNT = 3


class PlainTransport(AioHttpTransport):
    """HTTP without TLS, which the SDK's administration client does not know."""

    async def send(self, request: Any, **options: Any) -> Any:
        request.url = re.sub("^https:", "http:", request.url)
        return await super().send(request, **options)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A secondary that has queue 1 of ``taken``, described otherwise, and two of ``old`` that nobody wants."""
    queues = {path: {"MaxDeliveryCount": 7, "LockDuration": "PT30S"} for path in paths("taken", 2)[1:]}
    queues |= {path: {} for path in paths("old", 5)}
    queues |= {"old/x-servicebus-transfer/no": {}, "old/x-servicebus-transfer/007": {}, "elsewhere": {}}
    folder = tmp_path_factory.mktemp("provisioning")
    arguments = ("--emulator", "--stores", "2", "--allow-drills")
    with ServerProcess(folder, config=queues_config(queues), arguments=arguments) as process:
        yield process


@asynccontextmanager
async def administration_of(server: ServerProcess) -> AsyncIterator[ServiceBusAdministrationClient]:
    address = server.ready["admin_url"].removeprefix("http://")
    text = re.sub("Endpoint=[^;]*", f"Endpoint=sb://{address}", server.connection_string)
    async with ServiceBusAdministrationClient.from_connection_string(text, transport=PlainTransport()) as found:
        yield found


def pair_with(server: ServerProcess, primary_name: str, administration: Any, **options: Any) -> Any:
    there = SendAvailabilityPairedNamespaceOptions(
        client(server), backlog_queue_count=COUNT, administration=administration, primary_name=primary_name, **options
    )
    primary = client(server)
    # The primary is not asked for anything at pairing; the name alone tells the two apart.
    primary.fully_qualified_namespace = f"{primary_name}.example.net"
    return pair_namespace(primary, there)


def test_missing_queues_are_made_with_exactly_the_properties_of_the_documents(server: ServerProcess) -> None:
    async def play() -> None:
        async with administration_of(server) as administration:
            async with await pair_with(server, "fresh", administration) as pair:
                assert pair.backlog_queue_count == COUNT
            for path in paths("fresh", COUNT):
                made = await administration.get_queue(path)
                assert made.max_size_in_megabytes == 5120
                assert made.max_delivery_count == 2_147_483_647
                assert made.default_message_time_to_live == timedelta.max or made.default_message_time_to_live > (
                    timedelta(days=10_000_000)
                )
                assert made.auto_delete_on_idle > timedelta(days=10_000_000)
                assert made.lock_duration == timedelta(minutes=1)
                assert made.dead_lettering_on_message_expiration is True
                assert made.enable_batched_operations is True
                assert not made.requires_session
                assert not made.requires_duplicate_detection
            with pytest.raises(NotFound):
                await administration.get_queue(f"fresh/x-servicebus-transfer/{COUNT}")

    asyncio.run(play())


def test_a_queue_that_exists_is_taken_as_it_is_however_it_is_described(server: ServerProcess) -> None:
    async def play() -> None:
        events = Events()
        async with administration_of(server) as administration:
            async with await pair_with(server, "taken", administration, on_event=events) as pair:
                assert pair.backlog_queue_count == COUNT
            kept = await administration.get_queue("taken/x-servicebus-transfer/1")
            assert (kept.max_delivery_count, kept.lock_duration) == (7, timedelta(seconds=30))
        short = [(event.entity, event.lock_ms) for event in events.of(BacklogLockShort)]
        assert short == [("taken/x-servicebus-transfer/1", 30_000)], "its owner hears that the syphon may double"

    asyncio.run(play())


def test_the_command_warns_of_a_lock_that_is_shorter_than_a_minute(server: ServerProcess) -> None:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    words = ["pair", "backlog", "taken", "--backlog-queues", str(COUNT), "-o", "json"]
    done = CliRunner().invoke(main, [*words, "--endpoint", server.ready["admin_url"]], env=environment)
    assert done.exit_code == 0, done.output
    rows = {row["queue"]: row for row in json.loads(done.stdout)}
    short = rows.pop("taken/x-servicebus-transfer/1")
    assert (short["lockSeconds"], "30 seconds" in short["warning"]) == (30, True)
    assert all(row["warning"] is None and row["lockSeconds"] == 60 for row in rows.values())
    assert done.stderr.count("Warning:") == 1
    assert "taken/x-servicebus-transfer/1" in done.stderr


def test_surplus_queues_are_listed_left_and_not_used(server: ServerProcess) -> None:
    async def play() -> None:
        async with administration_of(server) as administration:
            async with await pair_with(server, "old", administration) as pair:
                assert list(pair.rotation.queues) == paths("old", COUNT)
            queues = [queue async for queue in administration.list_queues_runtime_properties()]
            found = backlogs_among(queues, "OLD", COUNT)
            assert [(queue.path, queue.is_used) for queue in found] == [
                (path, number < COUNT) for number, path in enumerate(paths("old", 5))
            ]

    asyncio.run(play())
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}
    words = ["pair", "backlog", "old", "--backlog-queues", str(COUNT), "-o", "tsv"]
    done = CliRunner().invoke(main, [*words, "--endpoint", server.ready["admin_url"]], env=environment)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        f"{path}\t{'used' if number < COUNT else 'surplus'}\t0\t0" for number, path in enumerate(paths("old", 5))
    ]


def test_what_backlog_queues_hold_is_told_every_interval(server: ServerProcess) -> None:
    async def play() -> None:
        events = Events()
        async with administration_of(server) as administration:
            options = {"depth_interval": timedelta(seconds=1), "on_event": events}
            async with await pair_with(server, "fresh", administration, **options):
                await events.wait(BacklogDepth, 2 * COUNT)
        assert {event.entity for event in events.of(BacklogDepth)} == set(paths("fresh", COUNT))

    asyncio.run(play())


def test_a_pair_gets_its_queues_while_a_store_of_its_secondary_is_away(server: ServerProcess) -> None:
    environment = {"DUOBUS_CONNECTION_STRING": server.connection_string}

    async def play() -> None:
        async with administration_of(server) as administration:
            async with await pair_with(server, "ill", administration) as pair:
                assert pair.backlog_queue_count == COUNT
            for path in paths("ill", COUNT):
                assert await administration.get_queue(path)

    assert CliRunner().invoke(main, ["store", "fail", "2"], env=environment).exit_code == 0
    try:
        asyncio.run(play())
    finally:
        assert CliRunner().invoke(main, ["store", "heal", "2"], env=environment).exit_code == 0


def test_pairing_without_the_right_to_manage_raises_at_once(server: ServerProcess, tmp_path: Path) -> None:
    async def play() -> None:
        text = server.connection_string.replace("SAS_KEY_VALUE", "wrong")
        address = server.ready["admin_url"].removeprefix("http://")
        text = re.sub("Endpoint=[^;]*", f"Endpoint=sb://{address}", text)
        async with ServiceBusAdministrationClient.from_connection_string(text, transport=PlainTransport()) as wrong:
            with pytest.raises(ClientAuthenticationError):
                await pair_with(server, "fresh", wrong)

    asyncio.run(play())


class Administration:
    """A service that refuses, for a while or for ever, as the cloud does."""

    def __init__(self, *, deliveries_max: int = 2**31 - 1, failures: int = 0, is_taken_meanwhile: bool = False) -> None:
        self.made: dict[str, dict[str, Any]] = {}
        self.tries = 0
        self._deliveries_max = deliveries_max
        self._failures = failures
        self._is_taken_meanwhile = is_taken_meanwhile

    async def get_queue(self, path: str) -> object:
        self.tries += 1
        if self.tries <= self._failures:
            raise HttpResponseError("busy")
        if path not in self.made:
            raise NotFound(path)
        return path

    async def create_queue(self, path: str, **properties: Any) -> None:
        if self._is_taken_meanwhile:
            raise ResourceExistsError(path)
        if properties["max_delivery_count"] > self._deliveries_max:
            error = HttpResponseError("MaxDeliveryCount must be at most 2000")
            error.status_code = 400
            raise error
        self.made[path] = properties


def provided(administration: Administration) -> tuple[list[str], list[Any], float]:
    """What one backlog queue comes to, in virtual time, and how long it took."""
    told: list[Any] = []

    async def play() -> tuple[list[str], list[Any], float]:
        world = World()
        found = await provide(world.secondary, administration, paths("contoso", 1), Reporter(told.append))  # type: ignore[arg-type]
        return found, told, world.loop.time()

    result: list[tuple[list[str], list[Any], float]] = []

    async def keep() -> None:
        result.append(await play())

    in_virtual_time(keep)
    return result[0]


def test_two_thousand_deliveries_are_asked_for_where_the_service_takes_no_more() -> None:
    azure = Administration(deliveries_max=2_000)
    found, _, _ = provided(azure)
    assert found == paths("contoso", 1)
    assert azure.made[found[0]]["max_delivery_count"] == 2_000
    plain = Administration()
    provided(plain)
    assert plain.made[found[0]]["max_delivery_count"] == 2_147_483_647


def test_a_queue_that_somebody_else_makes_meanwhile_is_taken() -> None:
    found, told, _ = provided(Administration(is_taken_meanwhile=True))
    assert (found, told) == (paths("contoso", 1), [])


def test_what_fails_is_tried_three_times_half_a_minute_apart() -> None:
    found, told, took_s = provided(Administration(failures=2))
    assert found == paths("contoso", 1)
    assert [(type(event), event.tries_left) for event in told] == [(BacklogCreateFailed, 2), (BacklogCreateFailed, 1)]
    assert took_s == pytest.approx(2 * backlog.TRY_AGAIN_S)


def test_a_queue_that_cannot_be_made_is_done_without_and_told() -> None:
    with pytest.raises(BacklogUnavailable, match="none of 1"):
        provided(Administration(failures=3))
    told: list[Any] = []

    async def play() -> None:
        world = World()
        one_of_two = Administration(deliveries_max=0)
        one_of_two.made[paths("contoso", 2)[1]] = {}
        found = await provide(
            world.secondary,  # type: ignore[arg-type]
            one_of_two,  # type: ignore[arg-type]
            paths("contoso", 2),
            Reporter(told.append),
        )
        assert found == paths("contoso", 2)[1:]

    in_virtual_time(play)
    assert [event.entity for event in told if isinstance(event, BacklogMissing)] == paths("contoso", 1)


def test_a_topic_on_the_path_of_a_backlog_queue_is_told_at_once() -> None:
    class WithTopic(Administration):
        async def get_queue(self, path: str) -> object:
            # As the SDK does that is told of an entity of another kind.
            raise AttributeError("'NoneType' object has no attribute 'lock_duration'")

        async def get_topic(self, path: str) -> object:
            return path

    with pytest.raises(BacklogUnavailable) as refused:
        provided(WithTopic())
    assert f"'{paths('contoso', 1)[0]}' is a topic in the secondary" in str(refused.value.__cause__)


def test_what_the_sdk_cannot_read_for_another_reason_is_told_as_it_is() -> None:
    class Odd(Administration):
        async def get_queue(self, path: str) -> object:
            raise AttributeError("something else")

        async def get_topic(self, path: str) -> object:
            raise NotFound(path)

    with pytest.raises(BacklogUnavailable) as refused:
        provided(Odd())
    assert str(refused.value.__cause__) == "something else"
