"""What the shop's namespaces have in them: entities, and the messages that its programs would send."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any, Final, NamedTuple

from azure.servicebus import ServiceBusMessage

ORDERS: Final = "orders"
PAYMENTS: Final = "payments"
BASKETS: Final = "baskets"
REMINDERS: Final = "reminders"
INVOICES: Final = "invoices"
EVENTS: Final = "order-events"
#: Subscriptions of EVENTS to the filters of their rules.
SUBSCRIPTIONS: Final = {
    "warehouse": "sys.Label = 'order-paid'",
    "large-orders": "total >= 500 AND currency = 'EUR'",
    "newsletter": "EXISTS(newsletter) AND newsletter = TRUE",
    "audit": "1=1",
}
PRIMARY_NAME: Final = "shop"
BACKLOG_QUEUES: Final = 2
BACKLOGS: Final = tuple(f"{PRIMARY_NAME}/x-servicebus-transfer/{index}" for index in range(BACKLOG_QUEUES))
_PARTITIONED: Final = {"EnablePartitioning": True}

_ARTICLES: Final = (
    ("oak table", 489.0),
    ("garden chair", 79.0),
    ("desk lamp", 45.5),
    ("book shelf", 199.0),
    ("rug, 2 m by 3 m", 260.0),
    ("wall clock", 38.9),
    ("tea pot", 24.0),
    ("armchair", 640.0),
)
_CUSTOMERS: Final = ("Ada Nowak", "Björn Öst", "Chiara Russo", "Deniz Kaya", "Émile Petit", "Fatou Diop", "Grace Lee")
_CURRENCIES: Final = ("EUR", "EUR", "EUR", "SEK", "GBP")


class Failure(NamedTuple):
    """Why payments became dead letters.

    Attributes:
        reason, description: As the program gives them; ``{order}`` is the number of the order.
        payments: How many.
        is_broken: Whether the body is what is wrong.
    """

    reason: str
    description: str
    payments: int
    is_broken: bool = False


FAILURES: Final = (
    Failure("CurrencyMissing", "KeyError: 'currency' in charge_card(), order {order}, attempt 10", 167, is_broken=True),
    Failure("CardDeclined", "The bank declined the card of order {order} (code 51)", 42),
    Failure("BankTimeout", "TimeoutError: bank.example did not answer within 30 s, order {order}", 19),
    Failure("MalformedJson", "JSONDecodeError: Expecting ',' delimiter: line 1 column 48 (char 47)", 4, is_broken=True),
)


def shop_config() -> dict[str, Any]:
    """Return the configuration file of the shop's namespace."""
    queues = [
        {"Name": ORDERS, "Properties": {**_PARTITIONED, "LockDuration": "PT1M"}},
        {"Name": PAYMENTS, "Properties": {**_PARTITIONED, "MaxDeliveryCount": 10}},
        {"Name": BASKETS, "Properties": {"RequiresSession": True}},
        {"Name": REMINDERS, "Properties": {}},
        {"Name": INVOICES, "Properties": {"RequiresDuplicateDetection": True}},
    ]
    subscriptions = [
        {"Name": name, "Properties": {}, "Rules": [_rule(name, sql)]} for name, sql in SUBSCRIPTIONS.items()
    ]
    topic = {"Name": EVENTS, "Properties": _PARTITIONED, "Subscriptions": subscriptions}
    return _config([*queues], [topic])


def spare_config() -> dict[str, Any]:
    """Return the configuration file of the namespace to which the shop's messages go when its own has an outage."""
    backlog = {"MaxDeliveryCount": 2_147_483_647, "DeadLetteringOnMessageExpiration": True}
    return _config([{"Name": name, "Properties": backlog} for name in BACKLOGS], [])


def _config(queues: list[dict[str, Any]], topics: list[dict[str, Any]]) -> dict[str, Any]:
    namespace = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics}
    return {"UserConfig": {"Namespaces": [namespace], "Logging": {"Type": "File"}}}


def _rule(name: str, sql: str) -> dict[str, Any]:
    properties = {"FilterType": "Sql", "SqlFilter": {"SqlExpression": sql}}
    return {"Name": name, "Properties": properties}


class Till:
    """Makes the shop's messages, the same ones for the same seed.

    Args:
        seed: Of the customers' choices.
    """

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._number = 10_000

    def order(self) -> ServiceBusMessage:
        """An order of one to three articles."""
        body = self._order()
        return ServiceBusMessage(
            json.dumps(body, ensure_ascii=False),
            message_id=f"order-{body['order']}",
            subject="order-placed",
            content_type="application/json",
            correlation_id=f"basket-{body['order'] % 977}",
            partition_key=str(body["customer"]),
            time_to_live=timedelta(days=7),
            application_properties=self._properties(body),
        )

    def event(self) -> ServiceBusMessage:
        """What subscribers hear about an order."""
        body = self._order()
        return ServiceBusMessage(
            json.dumps({"order": body["order"], "total": body["total"]}),
            message_id=f"event-{body['order']}",
            subject=self._dice.choice(("order-placed", "order-paid", "order-paid", "order-shipped")),
            content_type="application/json",
            application_properties=self._properties(body),
        )

    def payment(self, failure: Failure | None = None) -> ServiceBusMessage:
        """A payment; one that cannot be made for the reason of a failure."""
        order = self._order()
        body = {"order": order["order"], "amount": order["total"], "currency": order["currency"], "card": "4000…0002"}
        if failure is not None and failure.is_broken:
            del body["currency"]
        text = json.dumps(body, ensure_ascii=False)
        if failure is not None and failure.reason == "MalformedJson":
            text = text.replace(', "amount"', ' "amount"')
        return ServiceBusMessage(
            text,
            message_id=f"payment-{order['order']}",
            subject="payment",
            content_type="application/json",
            application_properties={"order": order["order"], "bank": "bank.example"},
        )

    def reminder(self) -> ServiceBusMessage:
        """A letter that is to be sent later."""
        order = self._order()
        return ServiceBusMessage(
            f"<reminder><order>{order['order']}</order><to>{order['customer']}</to></reminder>",
            message_id=f"reminder-{order['order']}",
            subject="reminder",
            content_type="application/xml",
        )

    def basket(self, customer: str) -> ServiceBusMessage:
        """A change of a basket, in the session of its customer."""
        article, price = self._dice.choice(_ARTICLES)
        return ServiceBusMessage(
            json.dumps({"add": article, "price": price}),
            session_id=customer,
            subject="basket-changed",
            content_type="application/json",
        )

    def _order(self) -> dict[str, Any]:
        self._number += 1
        lines = self._dice.sample(_ARTICLES, self._dice.randint(1, 3))
        bought = [(article, price, self._dice.randint(1, 4)) for article, price in lines]
        return {
            "order": self._number,
            "customer": self._dice.choice(_CUSTOMERS),
            "items": [{"article": article, "price": price, "pieces": pieces} for article, price, pieces in bought],
            "total": round(sum(price * pieces for _, price, pieces in bought), 2),
            "currency": self._dice.choice(_CURRENCIES),
        }

    def _properties(self, body: dict[str, Any]) -> dict[str | bytes, Any]:
        found: dict[str | bytes, Any] = {name: body[name] for name in ("total", "currency")}
        found["articles"] = len(body["items"])
        if self._dice.random() < 0.4:
            found["newsletter"] = self._dice.random() < 0.8
        return found


def customers() -> tuple[str, ...]:
    """The shop's customers."""
    return _CUSTOMERS
