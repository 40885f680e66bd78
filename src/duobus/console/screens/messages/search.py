"""Looking through messages in bounded steps, for those that a person looks for.

A namespace tells messages in the order of their numbers and filters nothing, so that a search looks at one message
after the other. Each step ends in bounded time and tells how far it came; a person goes on from there.
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Final, NamedTuple

from duobus.clock import Clock
from duobus.console.namespace.absence import tells_of_absence
from duobus.console.namespace.failures import NamespaceError
from duobus.console.screens.messages.node import Node
from duobus.console.screens.messages.records import body_bytes, number_of, state_of
from duobus.console.visits import Refusal
from duobus.dead_letters.message_filter import MessageFilter
from duobus.errors import ServiceBusError
from duobus.model.json.deliveries import Delivery

#: Messages that one step of a search looks at, and their bytes.
LOOKED_MAX: Final = 2_000
BYTES_MAX: Final = 16 << 20
#: How long one step of a search takes, in milliseconds; the request that is under way then is waited for.
_STEP_MS: Final = 8_000
#: Messages that one request asks for.
_REQUEST: Final = 250
#: Bytes of a body that a search for text reads.
_READ_MAX: Final = 4 << 20
_TEXT_LENGTH_MAX: Final = 4_000


class Query(NamedTuple):
    """What a person looks for.

    Attributes:
        sql: A filter on properties, in the language of rules.
        path: A condition on a JSON body.
        text: Has to be in the body, small or capital letters alike.
    """

    sql: str
    path: str
    text: str

    @property
    def is_empty(self) -> bool:
        """Whether every message is looked for."""
        return not (self.sql or self.path or self.text)

    @property
    def needs_bodies(self) -> bool:
        """Whether bodies are looked into."""
        return bool(self.path or self.text)


class QueryFault(NamedTuple):
    """Why a query cannot be used: the field, and a sentence."""

    field: str
    text: str


class Step(NamedTuple):
    """What one step of a search has found.

    Attributes:
        found: Messages.
        looked: How many were looked at.
        following: Number from which to go on; None at the end.
        is_cut: Whether the step ended before it had as many as asked for.
        absence: The error that ended the step because a store is away; None when none did.
    """

    found: list[Delivery]
    looked: int
    following: int | None
    is_cut: bool
    absence: NamespaceError | None = None


Wanted = Callable[[Delivery], bool]


def wanted_of(query: Query, state: str | None) -> Wanted:
    """What tells whether a message is looked for.

    Raises:
        Refusal: A filter is none, with the field in front of the sentence.
    """
    fault = fault_of(query)
    if fault is not None:
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, fault.text)
    chosen = MessageFilter(query.sql or None, query.path or None)
    text = query.text.casefold()

    def wanted(delivery: Delivery) -> bool:
        if state is not None and state_of(delivery) != state:
            return False
        if not chosen.takes(delivery):
            return not (query.sql or query.path) and bool(delivery.fault) and not text
        return not text or text in body_bytes(delivery)[:_READ_MAX].decode("utf-8", "ignore").casefold()

    return wanted


def fault_of(query: Query) -> QueryFault | None:
    """What is wrong with a query; None for nothing."""
    for field, given in zip(query._fields, query, strict=True):
        if len(given) > _TEXT_LENGTH_MAX:
            return QueryFault(field, f"A search has at most {_TEXT_LENGTH_MAX:,} characters.")
    for field, sql, path in (("sql", query.sql, None), ("path", None, query.path)):
        try:
            MessageFilter(sql or None, path or None)
        except ServiceBusError as error:
            return QueryFault(field, str(error).removeprefix("Rule 'selection': "))
    return None


async def search(
    node: Node,
    wanted: Wanted,
    *,
    first: int,
    count: int,
    clock: Clock,
    session_id: str | None = None,
    with_bodies: bool = True,
    looked_max: int = LOOKED_MAX,
) -> Step:
    """Look through messages from a number on until there are as many as asked for, or the step is over.

    Raises:
        NamespaceError: The namespace refuses, or does not answer.
    """
    found: list[Delivery] = []
    looked = size = 0
    began_ms = clock.monotonic_ms()
    while True:
        number = min(_REQUEST, max(looked_max - looked, 1), count + 1 if not looked else _REQUEST)
        try:
            page = await node.peek(first, number, session_id=session_id, with_bodies=with_bodies)
        except NamespaceError as error:
            if not tells_of_absence(error):
                raise
            return Step(found, looked, None, is_cut=False, absence=error)
        if not page:
            return Step(found, looked, None, is_cut=False)
        for delivery in page:
            if len(found) == count:
                return Step(found, looked, number_of(delivery), is_cut=False)
            looked, size, first = looked + 1, size + len(delivery.payload), number_of(delivery) + 1
            if wanted(delivery):
                found.append(delivery)
        is_over = looked >= looked_max or size >= BYTES_MAX or clock.monotonic_ms() - began_ms >= _STEP_MS
        if is_over and len(found) < count:
            return Step(found, looked, first, is_cut=True)
