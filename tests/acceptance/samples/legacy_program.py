"""What programs of 2015 did: azure-servicebus 0.21, which speaks HTTP only. Run in a process of its own.

Prints one line of JSON. Takes host and port of the broker.
"""

import json
import sys

from azure.common import AzureConflictHttpError, AzureHttpError, AzureMissingResourceHttpError
from azure.servicebus import Message, Queue, Rule, ServiceBusService, Subscription, Topic


def failure(call, *arguments):
    """The class and status of what a call raises."""
    try:
        call(*arguments)
    except (AzureConflictHttpError, AzureMissingResourceHttpError, AzureHttpError) as error:
        return [type(error).__name__, error.status_code]
    return ["none", 0]


def shown(message):
    """What a message tells."""
    about = message.broker_properties
    return {
        "body": message.body.decode(),
        "type": message.type,
        "custom": {name: str(value) for name, value in message.custom_properties.items()},
        "label": about.get("Label"),
        "ttl": about.get("TimeToLive"),
        "count": about.get("DeliveryCount"),
    }


def main():
    service = ServiceBusService(
        "localhost",
        host_base=f":{sys.argv[1]}",
        shared_access_key_name="RootManageSharedAccessKey",
        shared_access_key_value="SAS_KEY_VALUE",
    )
    found = {}
    found["created"] = [
        service.create_queue("legacy", Queue(lock_duration="PT30S", max_delivery_count=4)),
        service.create_queue("legacy"),
        service.create_topic("news", Topic(default_message_time_to_live="PT1H")),
        service.create_subscription("news", "all", Subscription(lock_duration="PT30S")),
    ]
    rule = Rule()
    rule.filter_type, rule.filter_expression = "SqlFilter", "colour = 'red'"
    found["created"].append(service.create_rule("news", "all", "red", rule))
    service.delete_rule("news", "all", "$Default")
    queue = service.get_queue("legacy")
    found["queue"] = [queue.lock_duration, queue.max_delivery_count, queue.message_count]
    found["listed"] = [
        [one.name for one in service.list_queues()],
        [one.name for one in service.list_topics()],
        [one.name for one in service.list_subscriptions("news")],
        [one.name for one in service.list_rules("news", "all")],
    ]
    message = Message(
        b"first",
        type="text/x",
        custom_properties={"Priority": 'H"i', "size": 5, "real": 1.5, "flag": True},
        broker_properties={"Label": "L", "TimeToLive": "60"},
    )
    service.send_queue_message("legacy", message)
    service.send_queue_message("legacy", Message(b"second"))
    first = service.receive_queue_message("legacy", peek_lock=True, timeout=5)
    found["first"] = shown(first)
    first.unlock()
    again = service.receive_queue_message("legacy", peek_lock=True, timeout=5)
    found["again"] = shown(again)
    again.delete()
    found["late"] = failure(again.delete)
    found["second"] = service.receive_queue_message("legacy", peek_lock=False, timeout=5).body.decode()
    found["empty"] = service.receive_queue_message("legacy", peek_lock=True, timeout=1).body is None
    for colour in ("red", "blue"):
        service.send_topic_message("news", Message(colour.encode(), custom_properties={"colour": colour}))
    news = service.receive_subscription_message("news", "all", peek_lock=True, timeout=5)
    found["news"] = news.body.decode()
    news.delete()
    found["no more"] = service.receive_subscription_message("news", "all", peek_lock=True, timeout=1).body is None
    found["conflict"] = failure(service.create_queue, "legacy", None, True)
    found["missing"] = failure(service.delete_queue, "none", True)
    found["nowhere"] = failure(service.send_queue_message, "none", Message(b"x"))
    found["deleted"] = [
        service.delete_rule("news", "all", "red"),
        service.delete_subscription("news", "all"),
        service.delete_topic("news"),
        service.delete_queue("legacy"),
        service.delete_queue("legacy"),
    ]
    print(json.dumps(found))


main()
