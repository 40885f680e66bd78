"""What the audit log tells of a queue that ends because nobody uses it."""

from __future__ import annotations

from pathlib import Path

from duobus.broker import Queue
from duobus.model.descriptions import QueueDescription, SubscriptionDescription, TopicDescription
from duobus.server.composition import Server
from duobus.telemetry.audit_log import read_audit
from kits.gateway import in_loop, serving

FIVE_MINUTES_MS = 300_000


def has_been_idle(server: Server, queue: Queue) -> None:
    """Let the time pass, for one queue."""
    assert queue.idle is not None
    queue.idle.last_ms -= FIVE_MINUTES_MS
    server.unit.idle_watch.check()


def test_the_audit_log_names_the_queue_or_subscription_that_was_idle(tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        queue = QueueDescription(name="Orders", auto_delete_on_idle_ms=FIVE_MINUTES_MS)
        async with serving(queue, ephemeral=False, data=tmp_path) as server:
            home = server.unit.namespace("ns")
            topics = server.unit.topics
            topic = await topics.create_topic("ns", TopicDescription(name="News"))
            about = SubscriptionDescription(name="all", auto_delete_on_idle_ms=FIVE_MINUTES_MS)
            subscription = await topics.create_subscription("ns", "News", about)
            has_been_idle(server, home.queues["orders"])
            has_been_idle(server, subscription)
            assert not home.queues
            assert not topic.subscriptions

    run()
    told = [
        [record[name] for name in ("operation", "kind", "namespace", "path", "who", "door", "outcome")]
        for record in read_audit(tmp_path / "audit")
    ]
    assert told == [
        ["delete", "queue", "ns", "Orders", "AutoDeleteOnIdle", "server", "done"],
        ["delete", "subscription", "ns", "News/Subscriptions/all", "AutoDeleteOnIdle", "server", "done"],
    ]
