"""The operations of the broker that the claim protocol needs, through the official SDK; for one process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.claims.broker_claims import BrokerClaims, Unsupported
from duobus.spark.claims.engine import Seen, ids_of
from duobus.spark.claims.lock_handles import LOCK_S_MIN, LockHandle, is_active, is_deferred, seen_of, settle_all
from duobus.spark.claims.receiver import GAP_S, Limits, fill
from duobus.spark.connection import Place, counts_deferrals, new_client
from duobus.spark.entities import look, open_receiver, peek, told
from duobus.spark.errors import EntityError
from duobus.spark.offsets import Claim, ClaimOffset, Key, by_fragment, deliveries_of, mark_of
from duobus.spark.retry import BackgroundWork, pause, retried
from duobus.spark.rows import size_of

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient

#: How long one of several entities is waited for before the next is looked at.
SLICE_S: Final = 1.0
#: Entities that are received from at the same time.
THREADS_MAX: Final = 16
#: What a clock may be wrong by when a lock's duration is taken from the instant of its end.
CLOCK_ERROR_S: Final = 2.0
#: Between two looks at messages that another process has locked.
OUTWAIT_S: Final = 0.5
#: Messages that one request settles, or defers.
SETTLE_MAX: Final = 500
#: Refused requests after which the rest of a batch is left to a later one, instead of being asked for in halves.
REFUSALS_MAX: Final = 64
#: Bytes of bodies that come back with one request that removes messages.
SETTLE_BYTES: Final = 1 << 20
#: A size for messages that were never seen by this process.
SIZE_GUESS: Final = 4_096
#: Pages of messages that are looked through for an active one; those before it are claims of others.
LOOKS_MAX: Final = 20
#: Times that the SDK may try again when it removes: it takes a missing number for a passing fault.
SETTLE_RETRIES: Final = 0

#: What is seen of a message that is gone.
LOST: Final = Seen(False, 0)

_log = logging.getLogger("duobus.spark")


class SdkAccess:
    """Receives, defers, peeks at and removes messages for the claims of one stream.

    Args:
        place: The namespace.
        entities: Names of the entities, as in offsets.
        takes_sessions: Whether the entities require sessions, and no other receiver takes these sessions.
        max_sessions: Most sessions of a batch, for one entity.
        claim_timeout_s: How long to try for a session that another receiver holds.
        max_bytes: Most bytes of the bodies of a batch, over all entities; one message more may be received.
        min_messages: Number of messages to wait for, for ``max_delay_s`` at most.
        clock: Time.

    Attributes:
        entities: The entities, which may be others for the next claim.
        oldest_ms: When the first message of the latest claim was enqueued, by the broker's clock.
    """

    def __init__(
        self,
        place: Place,
        entities: tuple[str, ...],
        *,
        takes_sessions: bool = False,
        max_sessions: int = 8,
        claim_timeout_s: float = 30.0,
        max_bytes: int | None = None,
        min_messages: int = 1,
        max_delay_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._place = place
        self.entities = entities
        self._takes_sessions = takes_sessions
        self._max_sessions = max_sessions
        self._claim_timeout_s = claim_timeout_s
        self.max_bytes = max_bytes
        self.min_messages = min_messages
        self._max_delay_s = max_delay_s
        self._clock = clock or Clock()
        self.oldest_ms: int | None = None
        self._client: ServiceBusClient | None = None
        self._settler: ServiceBusClient | None = None
        self._receivers: dict[Key, Any] = {}
        self._readers: dict[tuple[str, bool], Any] = {}
        self._held: dict[Key, dict[int, LockHandle]] = {}
        self._sizes: dict[int, int] = {}
        self._broker_bytes = 0
        self._refusals = 0
        self._is_interrupted = False
        #: Receivers that still have credit: what arrives would be locked for nobody.
        self._open_credit: set[Key] = set()
        self._at_broker = BrokerClaims(
            self._reader,
            # A receiver of its own: the batch before is settled by another thread than the one that claims.
            partial(self._reader, removes=True),
            lambda key, work: retried(key, work, self._clock, claim_timeout_s),
            self._clock,
        )

    # -- claims by the broker -----------------------------------------------------------------------------------

    def claims(self) -> bool:
        """See ``Access``; Azure is not asked, and the messages of sessions are their holders'."""
        if self._takes_sessions or counts_deferrals(self._place) is None:
            return False
        return self._at_broker.are_there(self.entities)

    def claim(self, offset: ClaimOffset, batch: int, limit: int, wait_ms: int) -> tuple[Claim, int]:
        """See ``Access``."""
        # A receiver that is still open would be sent messages that nobody wants.
        self.let_go()
        try:
            found = self._at_broker.claim(
                self.entities,
                partial(offset.claim_id, batch),
                limit,
                wait_ms,
                max_bytes=self.max_bytes,
                min_messages=self.min_messages,
                delay_ms=int(self._max_delay_s * 1000),
            )
        except Unsupported:
            self._at_broker.give_up()
            return self.receive(limit, wait_ms), 0
        self.oldest_ms, self._broker_bytes = self._at_broker.oldest_ms, self._at_broker.size
        return found

    def claimed(self, offset: ClaimOffset) -> Claim | None:
        """See ``Access``."""
        try:
            return self._at_broker.claimed(offset, ids_of(offset))
        except Unsupported:
            return None

    @contextmanager
    def beside(self, work: Callable[[], bool]) -> Iterator[Callable[[], bool]]:
        """See ``Access``; a process that has to end leaves the work to itself."""
        # Both threads use the client, so it is there before.
        self._settlers()
        settlement = BackgroundWork(work)
        try:
            yield settlement.result
        except Exception:
            # Whoever closes the connections now is the only one who uses them.
            settlement.wait()
            raise

    def settle(self, claim: Claim, ids: tuple[str, ...]) -> bool:
        """See ``Access``."""
        try:
            self._at_broker.settle(claim, ids)
        except Unsupported:
            return False
        return True

    # -- receiving ----------------------------------------------------------------------------------------------

    def receive(self, limit: int, wait_ms: int) -> Claim:
        """Receive and hold messages of all entities, in fair shares; see ``Access``."""
        self._held, self._sizes = {}, {}
        self.oldest_ms, self._broker_bytes = None, 0
        self._at_broker.available.clear()
        if limit < 1:
            return {}
        wait_s = wait_ms / 1000
        if self._takes_sessions:
            claim = self._of_sessions(limit, wait_s)
        elif len(self.entities) == 1:
            claim = self._claim_of(Key(self.entities[0]), limit, wait_s, max_bytes=self.max_bytes)
        else:
            claim = self._of_several(limit, wait_s)
        if not any(claim.values()):
            self.let_go()
        return {key: numbers for key, numbers in claim.items() if numbers}

    def _claim_of(
        self, key: Key, limit: int, wait_s: float, stop: Event | None = None, max_bytes: int | None = None
    ) -> Claim:
        def once() -> list[LockHandle]:
            try:
                return self._received(key, Limits(limit, max_bytes, self.min_messages, self._max_delay_s, wait_s), stop)
            except Exception:
                # What came over this connection comes again over the next one.
                self._drop(key)
                raise

        if key.session is None:
            return self._remember(key, self._retried(key, once))
        with told(key.entity):
            return self._remember(key, once())

    def _received(self, key: Key, limits: Limits, stop: Event | None) -> list[LockHandle]:
        filled = fill(self._receiver(key), limits, self._clock, (lambda: False) if stop is None else stop.is_set)
        if filled.has_credit:
            self._open_credit.add(key)
        return filled.handles

    def _remember(self, key: Key, handles: list[LockHandle]) -> Claim:
        if not handles:
            return {}
        if key.session is None:
            self._demand_long_locks(key, handles[-1])
        self._held.setdefault(key, {}).update((handle.number, handle) for handle in handles)
        self._sizes.update((handle.number, handle.size) for handle in handles)
        oldest_ms = min(handle.enqueued_ms for handle in handles)
        self.oldest_ms = oldest_ms if self.oldest_ms is None else min(oldest_ms, self.oldest_ms)
        # Elsewhere a lock token tells nothing.
        is_duobus = counts_deferrals(self._place) is not None
        return {key: {handle.number: mark_of(handle.deliveries, handle.life * is_duobus) for handle in handles}}

    def _demand_long_locks(self, key: Key, handle: LockHandle) -> None:
        left_s = (handle.until_ms - self._clock.now_ms()) / 1000
        if left_s < LOCK_S_MIN - CLOCK_ERROR_S:
            self.close()
            raise EntityError(
                f"'{key.entity}' locks messages for about {max(left_s, 0):.0f} s; a claim needs {LOCK_S_MIN:g} s. "
                "Raise the entity's LockDuration, or set this machine's clock. Nothing was taken."
            )

    def _of_several(self, limit: int, wait_s: float) -> Claim:
        """Receive from several entities at once; when one has something, the others get a moment to join in."""
        share = max(1, limit // len(self.entities))
        bytes_share = None if self.max_bytes is None else max(1, self.max_bytes // len(self.entities))
        stop = Event()
        until_ms = self._clock.monotonic_ms() + int(wait_s * 1000)
        slice_s = min(SLICE_S, wait_s)

        def take(entity: str) -> Claim:
            claim = self._claim_of(Key(entity), share, GAP_S if stop.is_set() else slice_s, stop, bytes_share)
            if claim:
                stop.set()
            return claim

        claim: Claim = {}
        with ThreadPoolExecutor(min(THREADS_MAX, len(self.entities))) as pool:
            while not claim:
                for part in pool.map(take, self.entities):
                    claim.update(part)
                if self._clock.monotonic_ms() >= until_ms:
                    break
        return self._rest_of_several(claim, limit)

    def _rest_of_several(self, claim: Claim, limit: int) -> Claim:
        """Give what is left of the limit to the entities that had their whole share."""
        for key in sorted(claim):
            left, bytes_left = limit - sum(map(len, claim.values())), self._bytes_left()
            if left > 0 and bytes_left != 0 and key not in self._open_credit:
                more = self._claim_of(key, left, GAP_S, max_bytes=bytes_left)
                claim[key].update(more.get(key, {}))
        return claim

    def _of_sessions(self, limit: int, wait_s: float) -> Claim:
        claim: Claim = {}
        for entity in self.entities:
            wait = wait_s / len(self.entities)
            while len(claim) < self._max_sessions * len(self.entities) and sum(map(len, claim.values())) < limit:
                bytes_left = self._bytes_left()
                key = None if bytes_left == 0 else self._next_session(entity, wait)
                if key is None:
                    break
                left = limit - sum(map(len, claim.values()))
                claim.update(self._claim_of(key, left, GAP_S, max_bytes=bytes_left))
                wait = GAP_S
        return claim

    def _bytes_left(self) -> int | None:
        """What is left of the limit of bytes; 0: nothing, None: there is no limit."""
        return None if self.max_bytes is None else max(0, self.max_bytes - sum(self._sizes.values()))

    def _next_session(self, entity: str, wait_s: float) -> Key | None:
        from azure.servicebus import NEXT_AVAILABLE_SESSION
        from azure.servicebus.exceptions import OperationTimeoutError

        # Without the SDK's own retries: that no session is left is an answer.
        receiver = open_receiver(
            self._settlers(), Key(entity), session_id=NEXT_AVAILABLE_SESSION, max_wait_time=max(wait_s, GAP_S)
        )
        try:
            with told(entity):
                receiver.__enter__()
        except OperationTimeoutError:
            receiver.close()
            return None
        except BaseException:
            receiver.close()
            raise
        key = Key(entity, receiver.session.session_id)
        self._receivers[key] = receiver
        return key

    # -- deferring ----------------------------------------------------------------------------------------------

    def defer(self, claim: Claim) -> tuple[Claim, int | None]:
        """Defer messages that are held and safely locked, and wait for the broker's answer; see ``Access``."""
        done: Claim = {}
        self._refusals = 0
        self._is_interrupted = False
        for key, numbers in claim.items():
            now_ms = self._clock.now_ms()
            held = self._held.get(key, {})
            safe = [number for number in numbers if number in held and (key.session or held[number].is_safe(now_ms))]
            members = {number: numbers[number] for number in self._deferred(key, safe)}
            if members:
                done[key] = members
        self._held = {}
        return self._looked_over(done), self._learned(done)

    def _looked_over(self, done: Claim) -> Claim:
        """What is deferred after all, where a look costs little: a task that finds another message fails the query."""
        if not done or self._takes_sessions or counts_deferrals(self._place) is None:
            return done
        seen = self.seen(done)
        found = {
            key: {number: mark for number, mark in numbers.items() if seen[key].get(number, LOST).is_deferred}
            for key, numbers in done.items()
        }
        return {key: numbers for key, numbers in found.items() if numbers}

    def _deferred(self, key: Key, numbers: list[int]) -> list[int]:
        done: list[int] = []
        try:
            for at in range(0, len(numbers), SETTLE_MAX):
                done += self._defer_some(key, numbers[at : at + SETTLE_MAX])
        except Exception:  # noqa: BLE001 - of whatever kind: what the broker has done is looked up by the caller
            # The connection goes, and with it what the broker has not begun; what it has begun may wait for its store.
            _log.warning("deferring messages of '%s' was interrupted", key.entity, exc_info=True)
            self._is_interrupted = True
            self._drop(key)
        return done

    def _defer_some(self, key: Key, numbers: list[int]) -> list[int]:
        from azure.servicebus.exceptions import MessageLockLostError

        receiver, held = self._receiver(key), self._held[key]
        try:
            settle_all(receiver, [held[number] for number in numbers], "defered")
        except MessageLockLostError:
            if len(numbers) == 1:
                return []
            self._refusals += 1
            if self._refusals > REFUSALS_MAX:
                # A broker that was started again knows none of the locks.
                raise
            half = len(numbers) // 2
            return self._defer_some(key, numbers[:half]) + self._defer_some(key, numbers[half:])
        return numbers

    def may_still_defer(self) -> bool:
        """See ``Access``."""
        return self._is_interrupted

    def _learned(self, done: Claim) -> int | None:
        """By how much the broker raises the delivery count of a message when it is deferred."""
        for key, numbers in done.items():
            number = next(iter(numbers))
            if key.session is None:
                for message in look(self._receiver(key), [number]):
                    raised = (message.delivery_count or 0) - deliveries_of(numbers[number])
                    return raised if raised in (0, 1) else None
        return None

    def held(self) -> tuple[int, int]:
        """How many messages this process holds under lock, and the bytes of their bodies.

        Of what the broker has claimed nothing is locked, and the bytes are those of the messages as the broker keeps
        them.
        """
        numbers = [number for held in self._held.values() for number in held]
        return len(numbers), self._broker_bytes + sum(self._sizes.get(number, 0) for number in numbers)

    def available(self) -> int | None:
        """Messages that a further claim would have found, as the broker said with the latest one; None: unknown."""
        found = self._at_broker.available
        return sum(found[entity] for entity in self.entities) if set(self.entities) <= found.keys() else None

    def held_until_ms(self) -> int | None:
        """See ``Access``; a message of a session has no lock of its own."""
        return max((handle.until_ms for held in self._held.values() for handle in held.values()), default=0) or None

    def is_past(self, instant_ms: int) -> bool:
        """See ``Access``."""
        return self._clock.now_ms() > instant_ms + CLOCK_ERROR_S * 1000

    def pause(self) -> None:
        """See ``Access``."""
        pause(OUTWAIT_S)

    def let_go(self) -> None:
        """Close sessions, which tasks need now, and links that would receive messages that nobody wants."""
        self._held = {}
        self._drop_all([key for key in self._receivers if key in self._open_credit or key.session is not None])

    def planned(self) -> None:
        """See ``Access``."""
        self._at_broker.planned()

    # -- looking and removing -----------------------------------------------------------------------------------

    def seen(self, claim: Claim) -> Mapping[Key, Mapping[int, Seen]]:
        """See ``Access``; remembers sizes, for the requests that remove."""
        found: dict[Key, dict[int, Seen]] = {}
        for key, numbers in claim.items():
            states = found.setdefault(key, {})
            for message in self._retried(key, partial(self._look, key, numbers)):
                self._sizes[message.sequence_number] = size_of(message)
                states[message.sequence_number] = seen_of(message)
        return found

    def shows_active(self) -> bool:
        """Whether an entity has an active message; False where only the holder of a session may peek."""
        if self._takes_sessions:
            return False
        return any(self._retried(Key(entity), partial(self._has_active, Key(entity))) for entity in self.entities)

    def _has_active(self, key: Key) -> bool:
        number = 1
        with self._reader(key) as receiver:
            for _ in range(LOOKS_MAX):
                page = peek(receiver, number)
                if any(is_active(message) for message in page):
                    return True
                if not page:
                    break
                number = page[-1].sequence_number + 1
        return False

    def _look(self, key: Key, numbers: Iterable[int]) -> list[Any]:
        with self._reader(key) as receiver:
            return [message for part in by_fragment(numbers).values() for message in look(receiver, part)]

    def remove(self, claim: Claim) -> None:
        """See ``Access``; by fragment, because a request must not mix fragments."""
        for key, numbers in claim.items():
            for part in by_fragment(numbers).values():
                for chunk in self._chunks(part):
                    self._retried(key, partial(self._remove_some, key, chunk))

    def _chunks(self, numbers: list[int]) -> Iterator[list[int]]:
        chunk: list[int] = []
        size = 0
        for number in numbers:
            size_here = self._sizes.get(number, SIZE_GUESS)
            if chunk and (len(chunk) >= SETTLE_MAX or size + size_here > SETTLE_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(number)
            size += size_here
        if chunk:
            yield chunk

    def _remove_some(self, key: Key, numbers: list[int]) -> None:
        from azure.servicebus.exceptions import MessageNotFoundError

        with self._reader(key, removes=True) as receiver:
            waiting = [numbers]
            while waiting:
                some = waiting.pop()
                try:
                    receiver.receive_deferred_messages(some)
                except MessageNotFoundError:
                    # One that is missing, which is settled already, fails the request for all.
                    there = [message.sequence_number for message in look(receiver, some) if is_deferred(message)]
                    if len(there) < len(some):
                        waiting += [there] if there else []
                    elif len(some) > 1:
                        waiting += (some[: len(some) // 2], some[len(some) // 2 :])

    def _retried(self, key: Key, work: Callable[[], Any]) -> Any:
        return retried(key, work, self._clock, self._claim_timeout_s)

    # -- connections --------------------------------------------------------------------------------------------

    def _clients(self) -> ServiceBusClient:
        if self._client is None:
            self._client = new_client(self._place)
        return self._client

    def _settlers(self) -> ServiceBusClient:
        if self._settler is None:
            self._settler = new_client(replace(self._place, retries=SETTLE_RETRIES))
        return self._settler

    def _receiver(self, key: Key) -> Any:
        if key not in self._receivers:
            # Opened by itself: a receive counts the time that its link takes to open against its wait.
            receiver = open_receiver(self._clients(), key)
            try:
                self._receivers[key] = receiver.__enter__()
            except BaseException:
                _close(receiver)
                raise
        return self._receivers[key]

    @contextmanager
    def _reader(self, key: Key, *, removes: bool = False) -> Iterator[Any]:
        """A receiver that asks for nothing by itself, to look with and to remove with."""
        if key.session is not None:
            # Its lock keeps tasks out, so it is given back at once.
            with open_receiver(self._settlers(), key, removes=removes) as receiver:
                yield receiver
            return
        name = key.entity, removes
        kept = self._readers.get(name)
        if kept is None:
            kept = self._readers[name] = open_receiver(self._settlers(), key, removes=removes)
        try:
            yield kept
        except Exception:
            del self._readers[name]
            _close(kept)
            raise

    def _drop(self, key: Key) -> None:
        self._open_credit.discard(key)
        receiver = self._receivers.pop(key, None)
        if receiver is not None:
            _close(receiver)

    def _drop_all(self, keys: list[Key]) -> None:
        """Close several receivers; each takes a moment, in which it gives back what it did not hand out."""
        if len(keys) > 1:
            with ThreadPoolExecutor(min(THREADS_MAX, len(keys))) as pool:
                list(pool.map(self._drop, keys))
        elif keys:
            self._drop(keys[0])

    def _abandon(self, key: Key, handles: list[LockHandle]) -> None:
        try:
            for at in range(0, len(handles), SETTLE_MAX):
                settle_all(self._receiver(key), handles[at : at + SETTLE_MAX], "abandoned")
        except Exception:  # noqa: BLE001 - their locks end by themselves
            _log.debug("abandoning messages of '%s' failed", key.entity, exc_info=True)

    def close(self) -> None:
        """Give everything back: held messages become active again at once."""
        try:
            self._at_broker.free()
        except Exception:  # noqa: BLE001 - of whatever kind: the query asks for them again when it is started again
            _log.warning("what was claimed and not handed over stays claimed until the query is started again")
        for key, held in self._held.items():
            self._abandon(key, list(held.values()))
        self._held = {}
        self._drop_all(list(self._receivers))
        for receiver in self._readers.values():
            _close(receiver)
        self._readers.clear()
        for client in (self._client, self._settler):
            if client is not None:
                _close(client)
        self._client = self._settler = None


def _close(thing: Any) -> None:
    try:
        thing.close()
    except Exception:  # noqa: BLE001 - it is given up either way
        _log.debug("closing a link failed", exc_info=True)
