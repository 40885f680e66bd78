"""Traffic of the SDK on partitioned entities, whose fragments lie in the stores of all servers."""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusReceivedMessage
from azure.servicebus.management import SqlRuleFilter
from kit_cluster import LOCK_S, Cluster
from kit_cuts import FORWARDING, PLAIN, SESSIONS, CutTraffic

from kits.client_record import ClientRecord, Grant

#: Partitioned queues: messages without a key; sessions; duplicates, which are detected; scheduled messages; what comes
#: from a topic's subscription.
KEYLESS: Final = "keyless"
VISITS: Final = "visits"
ONCE: Final = "once"
LATER: Final = "later"
SINK: Final = "sink"
#: The topic, its subscription that gets all, and the one that forwards what a rule lets in.
NEWS: Final = "news"
ALL: Final = "all"
RED: Final = "red"
#: How texts begin that are sent: in each flow something has to be acknowledged.
FLOWS: Final = (*PLAIN, FORWARDING, SESSIONS, KEYLESS, VISITS, ONCE, LATER, f"{ALL}/{NEWS}", f"{SINK}/{NEWS}")
#: Messages of one send to the topic and of scheduled ones.
_FEW: Final = 2
#: As one in so many, one of the last ids is sent again though it was answered: by then it is mostly settled, and its
#: store may be another server's. A minute of sends at most, of the 10 minutes for which ids are remembered.
_AGAIN: Final = 3
_LAST: Final = 100
#: Scheduled messages are due after so long, seconds: some before a fault is over, some behind it.
_DELAYS_S: Final = (1.0, 3.0, 9.0)


class FeatureTraffic(CutTraffic):
    """What CutTraffic does, and a sender and receivers for each partitioned entity.

    These go to the next server when theirs makes trouble, as clients behind one name do; those of CutTraffic stay.
    """

    def __init__(self, cluster: Cluster, record: ClientRecord, **options: Any) -> None:
        super().__init__(cluster, record, **options)
        self._unanswered: str | None = None
        self._sent_once = 0
        self._again = random.Random(1)
        senders = (
            (self._send, KEYLESS),
            (self._send_to_sessions, VISITS),
            (self._send_until_answered, ONCE),
            (self._schedule, LATER),
            (self._publish, NEWS),
        )
        self._senders += [self._thread(i, work, name, 1) for i, (work, name) in enumerate(senders)]
        self._receivers += [self._thread(i, self._receive, name, 1) for i, name in enumerate((KEYLESS, ONCE, LATER))]
        self._receivers += [self._thread(0, self._receive, SINK, 1), self._thread(1, self._receive_news, ALL, 1)]
        self._receivers += [self._thread(i, self._receive_sessions, VISITS, 1) for i in (1, 2)]

    def _send_until_answered(self, bus: ServiceBusClient, name: str) -> bool:
        """Send the same under the same id until it is answered, and some again: each may be there once."""
        with bus.get_queue_sender(name) as sender:
            while self._unanswered or not self._is_over.is_set():
                if self._unanswered is None:
                    self._sent_once += 1
                    self._unanswered = f"{name}:{self._sent_once}"
                text = self._unanswered
                sender.send_messages(ServiceBusMessage(text, message_id=text))
                self._unanswered = None
                self.record.note_sent([text])
                if self._sent_once % _AGAIN == 0:
                    text = f"{name}:{self._again.randint(max(1, self._sent_once - _LAST), self._sent_once)}"
                    sender.send_messages(ServiceBusMessage(text, message_id=text))
                time.sleep(self._pause_s)
        return True

    def _schedule(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_queue_sender(name) as sender:
            while not self._is_over.is_set():
                for delay_s in _DELAYS_S:
                    due = datetime.now(UTC) + timedelta(seconds=delay_s)
                    # The broker has milliseconds.
                    due_ms = int(due.timestamp() * 1000)
                    texts = [f"{name}:{time.monotonic_ns()}:{due_ms}:{index}" for index in range(_FEW)]
                    sender.schedule_messages([ServiceBusMessage(text) for text in texts], due)
                    self.record.note_sent(texts)
                time.sleep(self._pause_s)
        return True

    def _publish(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_topic_sender(name) as sender:
            while not self._is_over.is_set():
                begun = time.monotonic_ns()
                texts = {colour: f"{name}:{begun}:{colour}" for colour in ("red", "blue")}
                messages = [
                    ServiceBusMessage(text, application_properties={"colour": colour}) for colour, text in texts.items()
                ]
                sender.send_messages(messages)
                self.record.note_sent([*(f"{ALL}/{text}" for text in texts.values()), f"{SINK}/{texts['red']}"])
                time.sleep(self._pause_s)
        return True

    def _receive_news(self, bus: ServiceBusClient, name: str) -> bool:
        with bus.get_subscription_receiver(NEWS, name) as receiver:
            return self._receive_all(receiver, name)

    def _grant(self, name: str, message: ServiceBusReceivedMessage) -> Grant:
        """See CutTraffic."""
        grant = super()._grant(name, message)
        if name == LATER:
            grant.early_s = int(grant.text.split(":")[2]) / 1000 - time.time()
        if name in (ALL, SINK):
            grant.is_misruled = name == SINK and not grant.text.endswith(":red")
            # A message that comes out at two places is two.
            grant.text = f"{name}/{grant.text}"
        return grant


def make_partitioned(cluster: Cluster) -> None:
    """Make what the traffic uses beside plain queues."""
    common: dict[str, Any] = {"lock_duration": timedelta(seconds=LOCK_S), "max_delivery_count": 1000}
    with cluster.admin(0) as admin:
        for name in (KEYLESS, LATER, SINK):
            admin.create_queue(name, enable_partitioning=True, **common)
        admin.create_queue(VISITS, enable_partitioning=True, requires_session=True, **common)
        window = timedelta(minutes=10)
        admin.create_queue(
            ONCE,
            enable_partitioning=True,
            requires_duplicate_detection=True,
            duplicate_detection_history_time_window=window,
            **common,
        )
        admin.create_topic(NEWS, enable_partitioning=True)
        admin.create_subscription(NEWS, ALL, **common)
        admin.create_subscription(NEWS, RED, forward_to=SINK, **common)
        admin.create_rule(NEWS, RED, "red", filter=SqlRuleFilter("colour = 'red'"))
        admin.delete_rule(NEWS, RED, "$Default")


def look_at_all(bus: ServiceBusClient, names: tuple[str, ...]) -> None:
    """Look into these queues and the subscription, which takes the owner of each."""
    with ExitStack() as stack:
        receivers = [stack.enter_context(bus.get_queue_receiver(name)) for name in names]
        receivers.append(stack.enter_context(bus.get_subscription_receiver(NEWS, ALL)))
        for receiver in receivers:
            receiver.peek_messages(1)
