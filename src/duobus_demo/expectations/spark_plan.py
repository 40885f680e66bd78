"""What the part ``spark`` sends to which of its two namespaces, and what the tables have to say of it.

Bodies are made from the number of the message, so that whoever has the id can tell what the body has to be.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

QUEUE: Final = "orders"
TOPIC: Final = "events"
SUBSCRIPTION: Final = "all"

WEST: Final = "west"
EAST: Final = "east"

#: Topic of the alerts, whose one subscription has the name of the others.
ALERTS: Final = "alerts"

#: One message in so many has a partition key; the others are placed by the broker.
_KEY_EVERY: Final = 3
_KEYS: Final = 11
#: What goes wrong on the way to the replica: one message in so many is lost, another one in so many doubled.
_LOST_EVERY: Final = 97
_DOUBLED_EVERY: Final = 101
_BODY_BYTES_MIN: Final = 200
_BODY_BYTES_SPREAD: Final = 1_800
_CUSTOMERS: Final = 101
_AMOUNT_MAX: Final = 1_000


class Order(NamedTuple):
    """One message of the queue.

    Attributes:
        message_id: Its identifier in both namespaces.
        body: What it carries.
        partition_key: None where the placement is left to the broker.
        customer: Who ordered.
        amount: For how much.
    """

    message_id: str
    body: bytes
    partition_key: str | None
    customer: str
    amount: int

    @property
    def digest(self) -> str:
        """SHA-256 of the body, in hexadecimal."""
        return hashlib.sha256(self.body).hexdigest()


def order(number: int) -> Order:
    """Return the message of this number; always the same."""
    seed = hashlib.sha256(b"order %d" % number).digest()
    size = _BODY_BYTES_MIN + int.from_bytes(seed[:4], "big") % _BODY_BYTES_SPREAD
    body = (seed * (size // len(seed) + 1))[:size]
    key = f"key-{number % _KEYS}" if number % _KEY_EVERY == 0 else None
    customer, amount = f"customer-{seed[4] % _CUSTOMERS:03}", int.from_bytes(seed[5:9], "big") % _AMOUNT_MAX
    return Order(f"order-{number:06}", body, key, customer, amount)


def orders(total: int) -> Iterator[Order]:
    """All messages of the queue, as the first namespace gets them."""
    return map(order, range(total))


def replicas(total: int) -> Iterator[Order]:
    """The same as the second namespace gets them: some are missing, some come twice."""
    for number in range(total):
        if number % _LOST_EVERY == _LOST_EVERY - 1:
            continue
        yield order(number)
        if number % _DOUBLED_EVERY == _DOUBLED_EVERY - 1:
            yield order(number)


def totals_of(messages: Iterable[Order]) -> dict[str, tuple[int, int]]:
    """Number and sum of the orders of each customer."""
    found: dict[str, tuple[int, int]] = {}
    for message in messages:
        number, amount = found.get(message.customer, (0, 0))
        found[message.customer] = number + 1, amount + message.amount
    return found


def alerts_of(totals: dict[str, tuple[int, int]]) -> dict[str, dict[str, int | str]]:
    """The alerts that these totals give: id to body."""
    average = sum(amount for _, amount in totals.values()) / max(1, len(totals))
    return {
        f"alert/{customer}": {"customer": customer, "orders": number, "amount": amount}
        for customer, (number, amount) in totals.items()
        if amount > average
    }


class Difference(NamedTuple):
    """How what was captured differs from what was sent.

    Attributes:
        lost: Ids that were sent and are not there.
        doubled: Ids that are there more often than they were sent.
        altered: Ids whose body differs.
        strange: Ids that nobody sent.
    """

    lost: list[str]
    doubled: list[str]
    altered: list[str]
    strange: list[str]

    def report(self) -> dict[str, int]:
        """How many of each."""
        return {name: len(getattr(self, name)) for name in self._fields}


def compare(sent: Iterable[tuple[str, str]], captured: Iterable[tuple[str, str]]) -> Difference:
    """Compare (id, digest) of what was sent with those of what was captured; order does not matter."""
    due: dict[str, list[str]] = {}
    for message_id, digest in sent:
        due.setdefault(message_id, []).append(digest)
    found = Difference([], [], [], [])
    for message_id, digest in captured:
        open_digests = due.get(message_id)
        if open_digests is None:
            found.strange.append(message_id)
        elif not open_digests:
            found.doubled.append(message_id)
        elif digest in open_digests:
            open_digests.remove(digest)
        else:
            open_digests.pop()
            found.altered.append(message_id)
    found.lost.extend(message_id for message_id, left in due.items() for _ in left)
    return found
