"""A fragment against a slow, simple model: any sequence of operations, crashes included."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from duobus.errors import MessageNotFound
from duobus.fragment.message import NEVER
from duobus.fragment.purge import CancelScheduled, PurgeAvailable, PurgeCounts
from duobus.fragment.receive import TakeDeferred
from duobus.fragment.settlement import ABANDON, COMPLETE, DEAD_LETTER_OUTCOME, DEFER
from kits.fragment import Box, Driver

LOCK_MS, DEFAULT_TTL_MS, DELIVERIES_MAX = 1000, 5000, 3


class Message:
    """One message of the model."""

    def __init__(self, payload: bytes, ends_ms: int, due_ms: int | None) -> None:
        self.payload = payload
        self.ends_ms = ends_ms
        self.due_ms = due_ms
        self.place = "active" if due_ms is None else "scheduled"
        self.deliveries = 0
        self.locked_until_ms = 0
        self.away_until_ms = 0

    @property
    def is_free(self) -> bool:
        """Whether a receiver could have it now, if it is in the right place."""
        return not self.locked_until_ms and not self.away_until_ms


class FragmentMachine(RuleBasedStateMachine):
    """Messages are told apart by their payloads, which are never repeated."""

    #: What an abandoned message is put off by, doubled for the second time.
    delay_ms = 0

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver(
            lock_duration_ms=LOCK_MS,
            default_ttl_ms=DEFAULT_TTL_MS,
            max_delivery_count=DELIVERIES_MAX,
            redelivery_delay_ms=self.delay_ms,
            redelivery_delay_maximum_ms=10 * self.delay_ms,
        )
        self.messages: dict[bytes, Message] = {}
        self.locks: dict[bytes, int] = {}
        self.counter = 0

    # -- the model ----------------------------------------------------------------------------------------------

    def _settle_time(self) -> None:
        """What time does, in the model."""
        now_ms = self.driver.now_ms
        for name, message in list(self.messages.items()):
            if message.locked_until_ms and message.locked_until_ms <= now_ms:
                self._unlock(name, counted=True)
            if message.away_until_ms <= now_ms:
                message.away_until_ms = 0
            if message.place == "scheduled" and message.due_ms is not None and message.due_ms <= now_ms:
                message.place = "active"
                message.ends_ms = now_ms + message.ends_ms - (message.due_ms or 0)
            # What is deferred expires when it is asked for, not by itself.
            is_mortal = message.place == "active" and not message.locked_until_ms
            if is_mortal and message.ends_ms <= now_ms:
                del self.messages[name]

    def _unlock(self, name: bytes, *, counted: bool) -> None:
        message = self.messages[name]
        message.locked_until_ms = 0
        # In a dead-letter queue the count stays what it was.
        message.deliveries += counted and message.place != "dead"
        if message.place == "active" and message.deliveries >= DELIVERIES_MAX:
            message.place = "dead"

    def _sync(self) -> None:
        """Commit until nothing is due, then do the same to the model."""
        self.driver.commit()
        self.driver.commit()
        self._settle_time()

    # -- operations ---------------------------------------------------------------------------------------------

    @rule(number=st.integers(1, 3), ttl_ms=st.none() | st.sampled_from([500, 2000, 9000]))
    def send(self, number: int, ttl_ms: int | None) -> None:
        """Send ordinary messages."""
        names = [b"m%d" % (self.counter + index) for index in range(number)]
        self.counter += number
        self.driver.send(*names, **({} if ttl_ms is None else {"ttl_ms": ttl_ms}))
        life = min(ttl_ms or DEFAULT_TTL_MS, DEFAULT_TTL_MS)
        for name in names:
            self.messages[name] = Message(name, self.driver.now_ms + life, None)

    @rule(dead=st.booleans(), limit=st.integers(1, 3))
    def lock(self, dead: bool, limit: int) -> None:
        """Lock what comes first."""
        self._sync()
        place = "dead" if dead else "active"
        free = [name for name, m in self.messages.items() if m.place == place and m.is_free]
        got = self.driver.lock(limit, int(dead))
        assert len(got) == min(limit, len(free))
        for lock, queued in got:
            message = self.messages[queued.payload]
            assert queued.payload in free
            assert queued.deliveries == message.deliveries
            message.locked_until_ms = self.driver.now_ms + LOCK_MS
            self.locks[queued.payload] = lock

    @rule(data=st.data(), outcome=st.sampled_from([COMPLETE, ABANDON, DEFER, DEAD_LETTER_OUTCOME]))
    def settle(self, data: st.DataObject, outcome: int) -> None:
        """Settle a lock, held or long lost."""
        if not self.locks:
            return
        name = data.draw(st.sampled_from(sorted(self.locks)))
        lock = self.locks.pop(name)
        self._sync()
        message = self.messages.get(name)
        is_held = message is not None and message.locked_until_ms > 0
        command = self.driver.settle(outcome, lock)
        if message is None or not is_held:
            assert command.lost == [lock]
            return
        if outcome == DEAD_LETTER_OUTCOME and message.place == "dead":
            assert command.error is not None
            self.locks[name] = lock
            return
        assert (command.error, command.lost) == (None, [])
        if outcome == COMPLETE:
            del self.messages[name]
        elif outcome == ABANDON:
            self._unlock(name, counted=True)
            if message.place == "active" and self.delay_ms:
                message.away_until_ms = self.driver.now_ms + self.delay_ms * 2 ** (message.deliveries - 1)
        else:
            message.locked_until_ms = 0
            if outcome == DEAD_LETTER_OUTCOME:
                message.place = "dead"
            elif message.place == "active":
                message.place = "deferred"
            else:
                # A deferred dead letter: out of this model's reach from here on.
                del self.messages[name]
                count = next(c for c, s in self.driver.source.by_count.items() if s.payload == name)
                state = self.driver.source.by_count[count].state
                self.driver.commit(TakeDeferred("handle", 0, state >> 2, [count], Box()))
        self._sync()

    @rule(data=st.data())
    def take_deferred(self, data: st.DataObject) -> None:
        """Receive a deferred message for good."""
        self._sync()
        names = sorted(name for name, m in self.messages.items() if m.place == "deferred" and not m.locked_until_ms)
        if names:
            name = data.draw(st.sampled_from(names))
            count = next(c for c, s in self.driver.source.by_count.items() if s.payload == name)
            error = self.driver.error_of(TakeDeferred("handle", 0, 0, [count], Box()))
            has_run_out = self.messages[name].ends_ms <= self.driver.now_ms
            assert isinstance(error, MessageNotFound) if has_run_out else error is None
            del self.messages[name]

    @rule(limit=st.integers(1, 3))
    def clear_available(self, limit: int) -> None:
        """Delete what would be received next."""
        self._sync()
        free = [name for name, m in self.messages.items() if m.place == "active" and m.is_free]
        command = PurgeAvailable("handle", 0, None, sub_queue=0, limit=limit, before_ms=NEVER, end=NEVER)
        self.driver.commit(command)
        names = [message.payload for message in command.messages]
        assert len(names) == min(limit, len(free))
        for name in names:
            assert name in free
            del self.messages[name]

    @rule()
    def clear_everything(self) -> None:
        """Remove whatever nobody holds."""
        self._sync()
        counts = list(self.driver.source.by_count)
        command = PurgeCounts("handle", 0, None, counts=counts)
        self.driver.commit(command)
        gone = {message.payload for message in command.messages}
        assert gone == {name for name, m in self.messages.items() if not m.locked_until_ms}
        for name in gone:
            del self.messages[name]

    @rule(cancel=st.booleans(), wait_ms=st.sampled_from([100, 3000]))
    def schedule(self, cancel: bool, wait_ms: int) -> None:
        """Schedule a message, and perhaps think better of it."""
        name = b"m%d" % self.counter
        self.counter += 1
        due_ms = self.driver.now_ms + wait_ms
        (count,) = self.driver.send(name, scheduled_ms=due_ms)
        if cancel:
            assert self.driver.error_of(CancelScheduled("handle", 0, [count], Box())) is None
        else:
            self.messages[name] = Message(name, due_ms + DEFAULT_TTL_MS, due_ms)

    @rule(ms=st.sampled_from([1, 400, 1000, 2500]))
    def wait(self, ms: int) -> None:
        """Let time pass."""
        self.driver.now_ms += ms
        self._sync()

    @rule()
    def crash(self) -> None:
        """Lose the memory; locks are gone, and what was delivered counts as such."""
        self._sync()
        self.driver = self.driver.recovered()
        for message in self.messages.values():
            message.locked_until_ms = 0
        self.locks.clear()
        by_name = {queued.payload: queued for queued in self.driver.source.by_count.values()}
        for name, message in self.messages.items():
            # A crash may forget a delivery or count one that was not; it never loses what was settled (I6).
            assert by_name[name].deliveries >= message.deliveries
            assert by_name[name].deliveries == message.deliveries or message.place != "dead"
            message.deliveries = by_name[name].deliveries
            if message.place == "active" and message.deliveries >= DELIVERIES_MAX:
                message.place = "dead"
                message.away_until_ms = 0
        self._sync()

    # -- what always holds --------------------------------------------------------------------------------------

    @invariant()
    def the_same_messages_are_there(self) -> None:
        """Fragment, store and model agree."""
        self._sync()
        source = self.driver.source
        assert sorted(queued.payload for queued in source.by_count.values()) == sorted(self.messages)
        assert sorted(found[2] for found in self.driver.stored().values()) == sorted(self.messages)
        places = [message.place for message in self.messages.values()]
        assert source.numbers == [
            places.count("active"),
            places.count("dead"),
            0,
            places.count("deferred"),
            places.count("scheduled"),
        ]
        assert source.bytes == sum(map(len, self.messages))
        assert set(source.by_count) == set(self.driver.stored())
        free = sum(m.place == "active" and m.is_free for m in self.messages.values())
        assert self.driver.waiting() == free


FragmentMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)
TestAFragmentBehavesLikeItsModel = FragmentMachine.TestCase


class BackingOffMachine(FragmentMachine):
    """The same with a back-off policy."""

    delay_ms = 600


BackingOffMachine.TestCase.settings = FragmentMachine.TestCase.settings
TestAFragmentThatBacksOffBehavesLikeItsModel = BackingOffMachine.TestCase
