"""Claims by the broker: duobus defers messages under an id and tells their numbers, and no body comes to this process.

The operations are extensions of duobus (``docs/reference/management-operations.md``). Azure has none of them and is not
asked. Connection, rights and requests are those of the SDK, by a method of its receiver that is not public, as
``source.peek_pages`` does.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from duobus.clock import Clock
from duobus.spark.offsets import COUNT_BITS, Claim, ClaimOffset, Key, Numbers

#: Messages that one request claims.
MESSAGES_MAX: Final = 20_000
#: Bytes that one request claims at most; a stream that may take more asks again.
BYTES_MAX: Final = 256 << 20
#: Longest wait of one request for messages.
WAIT_MS_MAX: Final = 10_000
#: And of one request to each of several entities: the others are not asked again before all have answered.
SLICE_MS: Final = 1_000
#: Entities that are asked at the same time.
THREADS_MAX: Final = 16

_RUN: Final = struct.Struct(">QI")
_REPEATED: Final = struct.Struct(">II")
_NOT_IMPLEMENTED: Final = 501
#: The operation that settles, which may be asked for while another request is under way.
SETTLE: Final = "settle-claim"

_log = logging.getLogger("duobus.spark")


class Unsupported(Exception):
    """The broker, or the entity, has no claims."""


class Taken(NamedTuple):
    """What a claim has in one entity.

    Attributes:
        numbers: Sequence numbers and delivery counts.
        size: Bytes of all messages.
        fragments: The fragments that they are in.
        oldest_ms: When the first was enqueued.
        available: Messages that a further claim would have found; None: the broker does not say so.
        away: Fragments whose store is away, which may have more.
    """

    numbers: Numbers
    size: int
    fragments: tuple[int, ...]
    oldest_ms: int | None
    available: int | None = None
    away: frozenset[int] = frozenset()


class BrokerClaims:
    """The claims of one stream at a broker that claims.

    Args:
        reader: Opens a receiver of an entity, to send requests with.
        settler: Likewise, for requests that settle: they may be sent by another thread than the others.
        retried: Does work of an entity again after errors that pass.
        clock: Time.

    Attributes:
        oldest_ms: When the first message of the latest claim was enqueued.
        size: Bytes of the messages of the latest claim, as the broker keeps them.
        available: Messages of each entity that a further claim would have found, as the broker said last.
    """

    def __init__(
        self,
        reader: Callable[[Key], AbstractContextManager[Any]],
        settler: Callable[[Key], AbstractContextManager[Any]],
        retried: Callable[[Key, Callable[[], Any]], Any],
        clock: Clock,
    ) -> None:
        self._reader = reader
        self._settler = settler
        self._retried = retried
        self._clock = clock
        self._is_there: bool | None = None
        self._has_looked = False
        self._open: dict[tuple[str, str], None] = {}
        self.oldest_ms: int | None = None
        self.size = 0
        self.available: dict[str, int] = {}

    # -- the operations -----------------------------------------------------------------------------------------

    def _ask(self, entity: str, operation: str, **members: Any) -> dict[bytes, Any]:
        """One request, which is idempotent.

        Raises:
            Unsupported: There is no such operation.
        """
        answer = self._retried(Key(entity), partial(self._ask_once, entity, operation, members))
        if answer is None:
            raise Unsupported(entity)
        found: dict[bytes, Any] = answer
        return found

    def _ask_once(self, entity: str, operation: str, members: Mapping[str, Any]) -> Any:
        request = {name.replace("_", "-"): value for name, value in members.items()}
        opened = self._settler if operation == SETTLE else self._reader
        with opened(Key(entity)) as receiver:
            receiver._check_live()
            return receiver._mgmt_request_response_with_retry(
                f"duobus:{operation}".encode(), request, partial(_answered, operation)
            )

    def _claim_of(self, entity: str, claim_id: str, limit: int, size: int, least: int, wait_ms: int) -> Taken:
        if limit:
            # Whatever becomes of the request: the messages may be claimed from now on.
            self._open[entity, claim_id] = None
        answer = self._ask(
            entity, "claim", claim_id=claim_id, max_count=limit, max_bytes=size, min_count=least, max_wait=wait_ms
        )
        taken = taken_of(answer)
        if taken.available is not None:
            self.available[entity] = taken.available
        return taken

    # -- the steps of a stream ----------------------------------------------------------------------------------

    def are_there(self, entities: Iterable[str]) -> bool:
        """Whether the broker claims from all of these entities."""
        if self._is_there is None:
            try:
                for entity in entities:
                    self._ask(entity, "list-claims", top=1)
                self._is_there = True
            except Unsupported as refusal:
                _log.info("'%s' has no claims by the broker; messages are received instead", refusal)
                self._is_there = False
        return self._is_there

    def give_up(self) -> None:
        """An entity has no claims after all: free what was claimed, and claim no more."""
        self._is_there = False
        self.free()

    def claim(
        self,
        entities: tuple[str, ...],
        name: Callable[[int], str],
        limit: int,
        wait_ms: int,
        *,
        max_bytes: int | None = None,
        min_messages: int = 1,
        delay_ms: int = 0,
    ) -> tuple[Claim, int]:
        """Claim messages of some entities, in fair shares; see ``Access``.

        Args:
            entities: The entities.
            name: Makes the id of each part of the claim.
            limit: Messages at most.
            wait_ms: How long to wait for a first message.
            max_bytes: Bytes at most, about.
            min_messages: Messages to wait for, for ``delay_ms``.
            delay_ms: See above.

        Raises:
            Unsupported: An entity has no claims.
        """
        self.oldest_ms, self.size = None, 0
        found = self._left_behind(entities, name)
        if found[1] or limit < 1:
            return found
        room = _Room(limit, max_bytes if max_bytes is not None else BYTES_MAX)
        claim: Claim = {}
        until_ms = self._clock.monotonic_ms() + wait_ms
        if min_messages > 1 and delay_ms:
            self._share_out(claim, entities, name(0), room, min_messages, delay_ms)
        # Not waited for at first: of several entities some may have messages, and the others none for long.
        most_ms = 0
        while not claim:
            left_ms = max(0, until_ms - self._clock.monotonic_ms())
            self._share_out(claim, entities, name(0), room, 1, min(left_ms, most_ms))
            if not left_ms:
                break
            most_ms = WAIT_MS_MAX if len(entities) == 1 else SLICE_MS
        if not claim:
            self._open.clear()
            return {}, 0
        parts = 1
        while not room.is_full and (rich := [key.entity for key in claim if room.had_its_share(key.entity)]):
            self._share_out(claim, tuple(rich), name(parts), room, 1, 0)
            parts += 1
        return claim, parts

    def _left_behind(self, entities: tuple[str, ...], name: Callable[[int], str]) -> tuple[Claim, int]:
        """What an earlier process has claimed by these ids before it could be written down."""
        if self._has_looked:
            return {}, 0
        claim: Claim = {}
        parts = 0
        prefix = name(0)[:-1]
        for entity in entities:
            listed = self._ask(entity, "list-claims", prefix=prefix)[b"claims"]
            for claim_id in sorted(one[b"claim-id"].decode() for one in listed):
                taken = self._claim_of(entity, claim_id, 0, BYTES_MAX, 0, 0)
                self._open[entity, claim_id] = None
                self._note(claim, entity, taken)
                parts = max(parts, int(claim_id.rpartition("/")[2]) + 1)
        self._has_looked = True
        return claim, parts

    def _share_out(
        self, claim: Claim, entities: tuple[str, ...], claim_id: str, room: _Room, least: int, wait_ms: int
    ) -> None:
        """Claim of each entity its share of the room."""
        count = len(entities)
        share = min(MESSAGES_MAX, max(1, room.messages // count))
        size = min(BYTES_MAX, max(1, room.size // count))

        def one(entity: str) -> tuple[str, Taken]:
            return entity, self._claim_of(entity, claim_id, share, size, min(least, share), wait_ms)

        if count == 1:
            takings = [one(entities[0])]
        else:
            with ThreadPoolExecutor(min(THREADS_MAX, count)) as pool:
                takings = list(pool.map(one, entities))
        room.begin()
        for entity, taken in takings:
            if taken.numbers:
                self._note(claim, entity, taken)
                room.took(entity, taken, has_its_share=len(taken.numbers) >= share or taken.size >= size)

    def _note(self, claim: Claim, entity: str, taken: Taken) -> None:
        if taken.numbers:
            claim.setdefault(Key(entity), {}).update(taken.numbers)
            self.size += taken.size
            if taken.oldest_ms is not None:
                self.oldest_ms = min(taken.oldest_ms, self.oldest_ms or taken.oldest_ms)

    def claimed(self, offset: ClaimOffset, ids: tuple[str, ...]) -> Claim:
        """The messages that the entities of an offset have under its ids.

        What a fragment has that is away is waited for: the batch would be read without it, and settled with it.

        Raises:
            Unsupported: An entity has no claims.
            ServiceBusServerBusyError: A fragment is away for long.
        """
        claim: Claim = {}
        for entity in sorted({key.entity for key in offset.claim}):
            fragments = {number >> COUNT_BITS for number in offset.claim[Key(entity)]}
            for claim_id in ids:
                work = partial(self._whole_once, entity, claim_id, fragments)
                self._note(claim, entity, self._retried(Key(entity), work))
        return claim

    def _whole_once(self, entity: str, claim_id: str, fragments: set[int]) -> Taken:
        """What a claim has in one entity, of these fragments for certain."""
        from azure.servicebus.exceptions import ServiceBusServerBusyError

        asked = {"claim_id": claim_id, "max_count": 0, "max_bytes": BYTES_MAX, "min_count": 0, "max_wait": 0}
        answer = self._ask_once(entity, "claim", asked)
        if answer is None:
            raise Unsupported(entity)
        taken = taken_of(answer)
        if away := fragments & taken.away:
            raise ServiceBusServerBusyError(
                message=f"The fragment {min(away)} of '{entity}' is away, which has messages of the batch."
            )
        return taken

    def settle(self, claim: Claim, ids: tuple[str, ...]) -> None:
        """Remove the messages of a batch, by the ids of its claims.

        Raises:
            Unsupported: An entity has no claims.
        """
        for key, numbers in claim.items():
            fragments = sorted({number >> COUNT_BITS for number in numbers})
            for claim_id in ids:
                self._ask(key.entity, SETTLE, claim_id=claim_id, fragments=fragments)

    def free_all(self, entities: Iterable[str], prefix: str) -> int:
        """Give back all claims whose ids begin with a prefix, which no task has read; return how many messages it were.

        Raises:
            Unsupported: An entity has no claims.
        """
        freed = 0
        for entity in entities:
            for one in self._ask(entity, "list-claims", prefix=prefix)[b"claims"]:
                answer = self._ask(entity, "release-claim", claim_id=one[b"claim-id"].decode(), count_delivery=False)
                freed += int(answer[b"message-count"])
        return freed

    def planned(self) -> None:
        """The claims are written down, and tasks read them: they are not given back any more."""
        self._open.clear()

    def free(self) -> None:
        """Give back what was claimed and went to no task; tried once, since the process may have to end."""
        claims, self._open = list(self._open), {}
        for entity, claim_id in claims:
            self._ask_once(entity, "release-claim", {"claim_id": claim_id, "count_delivery": False})


class _Room:
    """What a batch may still take, and which entities may have more."""

    def __init__(self, messages: int, size: int) -> None:
        self.messages = messages
        self.size = size
        self._rich: set[str] = set()

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be claimed."""
        return self.messages <= 0 or self.size <= 0

    def begin(self) -> None:
        """A round of claims is over; what each entity gave follows."""
        self._rich = set()

    def took(self, entity: str, taken: Taken, *, has_its_share: bool) -> None:
        """An entity gave messages: as many, or as many bytes, as it was asked for, or less."""
        self.messages -= len(taken.numbers)
        self.size -= taken.size
        if has_its_share:
            self._rich.add(entity)

    def had_its_share(self, entity: str) -> bool:
        """Whether an entity gave all that it was asked for in the latest round, so that it may have more."""
        return entity in self._rich


def _answered(operation: str, status: int, answer: Any, description: Any, amqp_transport: Any) -> Any:
    """The body of an answer; None where the operation does not exist. The SDK tells whatever else went wrong."""
    if status == 200:
        return answer.value
    if status == _NOT_IMPLEMENTED:
        return None
    condition = (answer.application_properties or {}).get(b"errorCondition")
    amqp_transport.handle_amqp_mgmt_error(_log, f"{operation} failed.", condition, description, status)
    return None


def taken_of(answer: dict[bytes, Any]) -> Taken:
    """What an answer to ``duobus:claim`` tells."""
    numbers: Numbers = {}
    fragments: list[int] = []
    for part in answer[b"fragments"]:
        fragment = int(part[b"fragment"])
        fragments.append(fragment)
        base = fragment << COUNT_BITS
        runs = (range(base + first, base + first + length) for first, length in _RUN.iter_unpack(part[b"numbers"]))
        counts = (repeat(count, times) for count, times in _REPEATED.iter_unpack(part[b"delivery-counts"]))
        numbers.update(zip(chain.from_iterable(runs), chain.from_iterable(counts), strict=True))
    oldest, available = answer.get(b"oldest-enqueued-time"), answer.get(b"available-count")
    return Taken(
        numbers,
        int(answer[b"size"]),
        tuple(fragments),
        None if oldest is None else int(oldest),
        None if available is None else int(available),
        frozenset(map(int, answer.get(b"unavailable") or ())),
    )
