"""Starting again and stopping: what stays, how the broker takes its leave."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusSubQueue
from kit_bus import Bus, until
from kit_sdk import Sdk, bodies, within_the_limit

from duobus.amqp import ACCEPTED, Closed, LinkDetached
from duobus.codec import Int, build_message
from kits.raw_client import RawClient, token


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Bus]:
    """A broker that the test may stop."""
    found = Bus(tmp_path)
    with found.process:
        yield found


@pytest.mark.parametrize("how", ["terminate", "kill"])
@within_the_limit
async def test_a_restart_keeps_states_and_order_of_sessions(tmp_path: Path, how: str) -> None:
    bus, sdk = Bus(tmp_path), Sdk("sync")
    queue = "parted-sessions-0"
    with bus.process:
        async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
            for name in ("a", "b"):
                await sender.send_messages([ServiceBusMessage(name + number, session_id=name) for number in "123"])
            async with client.receiver(queue, session_id="a") as receiver:
                session = receiver.inner.session
                for state in (b"old", b"new"):
                    session.set_state(state)
                (first,) = await receiver.receive_messages(max_wait_time=20)
                await receiver.complete_message(first)
        if how == "terminate":
            assert bus.process.terminate() == 0
        else:
            bus.process.kill()
        bus.process.start()
        async with sdk.client(bus.connection_string) as client:
            async with client.receiver(queue, session_id="a") as receiver:
                assert receiver.inner.session.get_state() == b"new"
                assert await bodies(receiver, 2) == [b"a2", b"a3"]
            async with client.receiver(queue, session_id="b") as receiver:
                assert receiver.inner.session.get_state() is None
                assert await bodies(receiver, 3) == [b"b1", b"b2", b"b3"]


@pytest.mark.parametrize("how", ["terminate", "kill"])
@within_the_limit
async def test_a_restart_keeps_messages_with_all_that_belongs_to_them(tmp_path: Path, how: str) -> None:
    bus, sdk = Bus(tmp_path), Sdk("sync")
    queue = "partitioned-0"
    properties = {"text": "t", "number": 7, "flag": True, "when": datetime(2026, 1, 2, tzinfo=UTC)}
    with bus.process:
        async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
            whole = ServiceBusMessage(
                b"whole",
                message_id="m-1",
                subject="s",
                correlation_id="c",
                content_type="text/plain",
                reply_to="r",
                to="t",
                partition_key="k",
                time_to_live=timedelta(minutes=30),
                application_properties=properties,
            )
            await sender.send_messages([ServiceBusMessage(b"defer"), ServiceBusMessage(b"dead")])
            async with client.receiver(queue) as receiver:
                numbers = {}
                while len(numbers) < 2:
                    for message in await receiver.receive_messages(max_message_count=2, max_wait_time=2):
                        body = b"".join(message.body)
                        numbers[body] = message.sequence_number
                        if body == b"defer":
                            await receiver.defer_message(message)
                        else:
                            await receiver.dead_letter_message(message, reason="why", error_description="because")
            due = datetime.now(UTC) + timedelta(hours=1)
            (scheduled,) = await sender.schedule_messages(ServiceBusMessage(b"later"), due)
            await sender.send_messages(whole)
        if how == "terminate":
            assert bus.process.terminate() == 0
        else:
            bus.process.kill()
        bus.process.start()
        async with sdk.client(bus.connection_string) as client:
            async with client.receiver(queue) as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=20)
                assert b"".join(message.body) == b"whole"
                assert (message.message_id, message.subject, message.correlation_id) == ("m-1", "s", "c")
                assert (message.content_type, message.reply_to, message.to) == ("text/plain", "r", "t")
                assert (message.partition_key, message.delivery_count) == ("k", 0)
                assert message.time_to_live == timedelta(minutes=30)
                assert message.application_properties[b"text"] == b"t"
                assert message.application_properties[b"number"] == 7
                assert message.application_properties[b"flag"] is True
                await receiver.complete_message(message)
                (back,) = await receiver.receive_deferred_messages(numbers[b"defer"])
                assert b"".join(back.body) == b"defer"
                await receiver.complete_message(back)
                (waiting,) = await receiver.peek_messages(max_message_count=10, sequence_number=1)
                assert (waiting.sequence_number, b"".join(waiting.body)) == (scheduled, b"later")
            async with client.receiver(queue, sub_queue=ServiceBusSubQueue.DEAD_LETTER) as receiver:
                (letter,) = await receiver.receive_messages(max_wait_time=20)
                assert (letter.dead_letter_reason, letter.dead_letter_error_description) == ("why", "because")
                assert letter.sequence_number == numbers[b"dead"]
                await receiver.complete_message(letter)
            async with client.sender(queue) as sender:
                await sender.cancel_scheduled_messages(scheduled)


@pytest.mark.parametrize("kind", ["watchful", "watchful-partitioned"])
@within_the_limit
async def test_a_killed_broker_still_knows_the_ids_that_came_before(tmp_path: Path, kind: str) -> None:
    bus, sdk = Bus(tmp_path), Sdk("sync")
    queue = f"{kind}-0"
    with bus.process:
        async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
            for number in range(20):
                await sender.send_messages(ServiceBusMessage(f"{number}", message_id=f"id-{number}"))
            async with client.receiver(queue) as receiver:
                completed = await bodies(receiver, 5)
        bus.process.kill()
        bus.process.start()
        async with sdk.client(bus.connection_string) as client, client.sender(queue) as sender:
            for number in range(21):
                await sender.send_messages(ServiceBusMessage(f"{number}", message_id=f"id-{number}"))
            async with client.receiver(queue) as receiver:
                left = await bodies(receiver, 16)
                assert await receiver.receive_messages(max_wait_time=0.5) == []
    assert sorted(completed + left) == sorted(b"%d" % number for number in range(21))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@within_the_limit
async def test_a_lock_of_before_the_kill_is_lost_and_its_message_comes_again(tmp_path: Path) -> None:
    bus, sdk = Bus(tmp_path), Sdk("asyncio")
    queue = "plain-0"
    with bus.process:
        async with sdk.client(bus.connection_string, retry_total=3) as client:
            async with client.sender(queue) as sender:
                await sender.send_messages(ServiceBusMessage(b"m"))
            async with client.receiver(queue) as receiver:
                (message,) = await receiver.receive_messages(max_wait_time=20)
                # Any later commit of the fragment carries how far it has delivered.
                async with client.sender(queue) as sender:
                    await sender.send_messages(ServiceBusMessage(b"next"))
                bus.process.restart()
                with pytest.raises(Exception, match=r"(?i)lock"):
                    await receiver.complete_message(message)
            async with client.receiver(queue) as receiver:
                (again,) = await receiver.receive_messages(max_wait_time=20)
                # What may have been seen counts as seen (I6).
                assert again.delivery_count == 1
                await receiver.complete_message(again)
    gc.collect()


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_a_completion_that_asks_for_no_answer_counts_at_once_and_stays(own: Bus, how: str) -> None:
    """As the Python SDK completes up to 7.14. What is held is written at the end of the process, and before a peek."""
    queue = "queue.1"
    with RawClient(own.port) as raw:
        raw.put_token("", token(""))
        sender, link = raw.sender(queue), raw.receiver(queue)
        raw.credited(sender)
        raw.send(sender, build_message(data=b"m"))
        link.grant(1)
        ((delivery, _),) = raw.receive(link, 1)
        link.session.disposition(True, delivery, delivery, ACCEPTED, True)
        request = {"from-sequence-number": 0, "message-count": Int(1)}
        properties, _, _ = raw.request(f"{queue}/$management", {"operation": "com.microsoft:peek-message"}, request)
        assert properties["statusCode"] == 204
    getattr(own.process, how)()
    own.process.start()
    with RawClient(own.port) as raw:
        raw.put_token("", token(""))
        properties, _, _ = raw.request(f"{queue}/$management", {"operation": "com.microsoft:peek-message"}, request)
        assert properties["statusCode"] == 204


def test_sigterm_says_good_bye_on_every_link_and_exits_with_0(own: Bus, tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    assert stat.S_IMODE(ready.stat().st_mode) == 0o600
    assert json.loads(ready.read_text())["pid"] == own.process.pid
    with RawClient(own.port) as raw:
        raw.put_token("", token(""))
        links = [raw.sender("queue.1"), raw.receiver("queue.1")]
        raw.send(links[0], build_message(data=b"m"))
        os.kill(own.process.pid, signal.SIGTERM)
        for _ in links:
            gone = raw.wait(LinkDetached)
            assert gone.error is not None
            assert gone.error.condition == "amqp:link:detach-forced"
        closed = raw.wait(Closed)
        assert closed.error is not None
        assert closed.error.condition == "amqp:connection:forced"
        raw.until_eof()
    until(lambda: not own.process.is_running)
    assert own.process.terminate() == 0
    assert not ready.exists()


def test_sigterm_ends_in_bounded_time_though_a_client_is_silent(own: Bus) -> None:
    with RawClient(own.port) as raw:
        raw.put_token("", token(""))
        raw.receiver("queue.1")
        # Raises when the process does not end.
        assert own.process.terminate() == 0


def test_a_second_sigterm_stops_at_once(own: Bus) -> None:
    with RawClient(own.port) as raw:
        raw.put_token("", token(""))
        raw.receiver("queue.1")
        os.kill(own.process.pid, signal.SIGTERM)
        until(lambda: any(line["event"] == "stopping" for line in own.log_lines()))
        # The client does not answer the close: the first signal alone would wait for that, and end with 0.
        assert own.process.terminate() == 1


# The SDK leaves the socket of a lost connection to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@within_the_limit
async def test_clients_go_on_by_themselves_after_a_restart(own: Bus, sdk: Sdk) -> None:
    queue = "plain-1"
    async with (
        sdk.client(own.connection_string, retry_total=5, retry_backoff_factor=0.1) as client,
        client.sender(queue) as sender,
        client.receiver(queue) as receiver,
    ):
        await sender.send_messages(ServiceBusMessage(b"before"))
        await asyncio.to_thread(own.process.restart)
        await sender.send_messages(ServiceBusMessage(b"after"))
        assert await bodies(receiver, 2) == [b"before", b"after"]
    gc.collect()


def test_health_and_metrics_are_served_on_the_http_port(own: Bus) -> None:
    status, page = own.get("/health")
    assert status == 200
    assert json.loads(page)["status"] == "healthy"
    assert own.get("/metrics")[1].startswith("# ")
    assert own.metric("duobus_store_available", "1") == 1
    # Any other path is an entity's, and nobody learns without a token whether there is one.
    assert own.get("/nothing")[0] == 401
