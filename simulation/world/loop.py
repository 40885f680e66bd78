"""An event loop in virtual time, driven by one seed.

Nothing waits: when no callback is ready, time jumps to the next timer. The callbacks that are ready together
run in an order drawn from the seed, so that every seed explores another interleaving and the same seed repeats
the same one. Sockets are those of the simulated network; threads do not exist.

A node that is killed stops in the middle of whatever it was doing: its callbacks and timers are dropped and its
coroutines never run again, not even their ``finally`` blocks, as after ``kill -9``. Which node a callback
belongs to is told by a context variable, which asyncio hands on from a callback to all that it schedules.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
import weakref
import zlib
from contextvars import Context, ContextVar
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from simulation.world.network import SimulatedNetwork

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

# Below this, cancelled timers are too few to be worth a sweep of the heap.
_SWEEP_AT_LEAST = 100


class SimulationError(Exception):
    """Parent of what the loop itself finds wrong with a run."""


class SimulationDeadlock(SimulationError):
    """Something is awaited and nothing is scheduled: it can never happen."""


class SimulationTimeout(SimulationError):
    """The run passed its limit of virtual time."""


class SimulationLivelock(SimulationError):
    """Callbacks schedule each other without end and time stands still."""


class UnhandledFailure(SimulationError):
    """A callback or a forgotten task raised; in production this would only have been logged."""


class NodeKilled(BaseException):
    """Raised at a crash point to leave the code of a node that has just been killed; nobody may catch it."""


class Incarnation:
    """One life of a node's process.

    Attributes:
        node: Name of the node.
        number: 1 for the first life, one more after every kill.
        alive: False once killed; from then on nothing of this life runs.
        held: What has become ready while the process is stopped; None while it runs.
    """

    __slots__ = ("__weakref__", "alive", "held", "node", "number", "tasks")

    def __init__(self, node: str, number: int) -> None:
        self.node = node
        self.number = number
        self.alive = True
        self.held: list[Any] | None = None
        self.tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()


#: The life to which the running callback belongs; None for the test driver and the network.
INCARNATION: ContextVar[Incarnation | None] = ContextVar("duobus_testing_incarnation", default=None)


class _Timer(asyncio.TimerHandle):
    """A timer of the heap, where it lies behind its time: it is itself compared only with timers of the same time.

    asyncio's own compares times in Python; a run compares ten for each that it sets.
    """

    __slots__ = ()
    _scheduled: bool
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __lt__(self, other: object) -> bool:
        return False


class SimulationLoop(asyncio.BaseEventLoop):
    """Event loop in virtual seconds, from 0.0.

    Args:
        seed: Decides the order of callbacks and the durations of executor calls.
        shuffle: False keeps the order in which callbacks were made ready.
        trace: Whether to keep a running checksum of everything that ran; see ``digest``.
        executor_s: Longest virtual duration of a ``run_in_executor`` call, seconds.
        instant_limit: Turns allowed without any progress of time before a livelock is reported.

    Attributes:
        random: The loop's own source of randomness.
        network: Where ``create_server`` and ``create_connection`` lead; set by SimulatedNetwork.
        callbacks: How many callbacks ran.
        unhandled: What ``call_exception_handler`` was told.
        on_rest: Told, before time moves, of the stretch in which nothing happens: (from, to).
    """

    network: SimulatedNetwork
    # asyncio's own bookkeeping, which its type stubs leave out.
    _ready: Any
    _scheduled: list[tuple[float, Any]]
    _stopping: bool
    _check_closed: Callable[[], None]
    _timer_cancelled_count: int

    def __init__(
        self,
        seed: int | str = 0,
        *,
        shuffle: bool = True,
        trace: bool = False,
        executor_s: float = 0.005,
        instant_limit: int = 100_000,
    ) -> None:
        super().__init__()
        self.random = random.Random(f"loop:{seed}")
        self.callbacks = 0
        self.unhandled: list[dict[str, Any]] = []
        self.on_rest: Callable[[float, float], None] | None = None
        self._shuffle = shuffle
        self._trace = trace
        self._checksum = 0
        self._executor_s = executor_s
        self._instant_limit = instant_limit
        self._instant_turns = 0
        self._now = 0.0
        self._deadline = float("inf")
        self._graveyard: list[asyncio.Task[Any]] = []

    # --- time and order ---

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._now

    def time_ms(self) -> int:
        """Return virtual time in whole milliseconds."""
        # Sums of decimal fractions fall a hair short of the millisecond they mean.
        return int(self._now * 1000 + 1e-6)

    def timers(self) -> int:
        """Return how many timers wait that nobody has cancelled."""
        return sum(not timer._cancelled for _when, timer in self._scheduled)

    def _run_once(self) -> None:
        if not self._ready and not self._stopping:
            self._jump()
        self._instant_turns += 1
        if self._instant_turns > self._instant_limit:
            raise SimulationLivelock(f"{self._instant_limit} turns at {self._now:.6f} s, still at it: {self._ready!r}")
        self._collect_due()
        batch = list(self._ready)
        self._ready.clear()
        if self._shuffle and len(batch) > 1:
            self.random.shuffle(batch)
        for handle in batch:
            if handle._cancelled:
                continue
            life = handle._context.get(INCARNATION)
            if life is not None:
                if not life.alive:
                    continue
                if life.held is not None:
                    life.held.append(handle)
                    continue
            self.callbacks += 1
            if self._trace:
                self._note(handle)
            handle._run()

    def _jump(self) -> None:
        """Move time to the next timer; called when nothing is ready."""
        scheduled = self._scheduled
        if self._timer_cancelled_count > max(_SWEEP_AT_LEAST, len(scheduled) // 2):
            self._sweep()
        while scheduled and scheduled[0][1]._cancelled:
            heapq.heappop(scheduled)[1]._scheduled = False
            self._timer_cancelled_count -= 1
        if not scheduled:
            # A failure that nobody caught is why nothing goes on.
            self.raise_unhandled()
            names = sorted(task.get_name() for task in asyncio.all_tasks(self))
            raise SimulationDeadlock(f"nothing is scheduled at {self._now:.6f} s; waiting: {', '.join(names)}")
        when = scheduled[0][0]
        if when > self._deadline:
            raise SimulationTimeout(f"not done after {self._deadline:.3f} virtual seconds")
        if when > self._now:
            if self.on_rest is not None:
                self.on_rest(self._now, when)
            self._now = when
            self._instant_turns = 0

    def _collect_due(self) -> None:
        scheduled = self._scheduled
        while scheduled and scheduled[0][0] <= self._now:
            handle = heapq.heappop(scheduled)[1]
            handle._scheduled = False
            if handle._cancelled:
                self._timer_cancelled_count -= 1
            else:
                self._ready.append(handle)

    def _sweep(self) -> None:
        """Forget the timers that are cancelled or belong to the dead."""
        kept = []
        for timed in self._scheduled:
            handle = timed[1]
            life = handle._context.get(INCARNATION)
            if handle._cancelled or (life is not None and not life.alive):
                handle._scheduled = False
            else:
                kept.append(timed)
        heapq.heapify(kept)
        self._scheduled[:] = kept
        self._timer_cancelled_count = 0

    def _note(self, handle: Any) -> None:
        callback = handle._callback
        name = getattr(callback, "__qualname__", type(callback).__name__)
        self._checksum = zlib.crc32(f"{self._now!r} {name}".encode(), self._checksum)

    def digest(self) -> int:
        """Return a checksum of what ran and when, and of the randomness used; equal runs have equal digests."""
        return zlib.crc32(repr(self.random.getstate()).encode(), self._checksum)

    # --- running ---

    def run(self, coro: Coroutine[Any, Any, T], *, time_limit_s: float | None = None) -> T:
        """Run ``coro`` to its end and return its result.

        Args:
            coro: The main program of the simulation.
            time_limit_s: Virtual seconds allowed from now on.

        Raises:
            SimulationDeadlock: It waits for something that cannot happen.
            SimulationTimeout: The limit passed.
            UnhandledFailure: Some callback or forgotten task raised, and it ended well or waits for ever.
        """
        if time_limit_s is not None:
            self._deadline = self._now + time_limit_s
        try:
            result: T = self.run_until_complete(self.create_task(coro))
        finally:
            self._deadline = float("inf")
        self.raise_unhandled()
        return result

    def advance(self, seconds: float) -> None:
        """Let everything run for so many virtual seconds.

        Raises:
            UnhandledFailure: Some callback or forgotten task raised.
        """
        self.run(asyncio.sleep(seconds))

    def raise_unhandled(self) -> None:
        """Raise the first failure that nobody caught, if there is one.

        Raises:
            UnhandledFailure: With the failure as its cause.
        """
        if self.unhandled:
            first = self.unhandled[0]
            text = f"{first.get('message')} ({len(self.unhandled)} unhandled in all): {first.get('exception')!r}"
            raise UnhandledFailure(text) from first.get("exception")

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep the failure for ``run`` to raise, unless it is the death of a node or comes after the end."""
        if not self.is_closed() and not isinstance(context.get("exception"), NodeKilled):
            self.unhandled.append(context)

    def close(self) -> None:
        """End the simulation; what still waits is abandoned. Closing twice is allowed."""
        if self.is_closed():
            return
        left = self._graveyard + list(asyncio.all_tasks(self))
        self._graveyard = []
        super().close()
        for task in left:
            _abandon(task)

    # --- death of a node ---

    def kill(self, life: Incarnation) -> None:
        """Stop everything of one life, in mid-instruction as it were; SimulatedNetwork's nodes call this."""
        life.alive = False
        # Kept until the end: a coroutine that is forgotten would be closed, and its finally blocks would run.
        self._graveyard.extend(life.tasks)
        self._sweep()

    def resume(self, life: Incarnation) -> None:
        """Let a life that was stopped go on, whatever has become ready meanwhile in an order of the seed's."""
        held, life.held = life.held, None
        self._ready.extend(held or ())

    # --- asyncio's interface ---

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's; the heap orders timers by their times in C."""
        self._check_closed()
        timer = _Timer(when, callback, args, self, context)
        timer._scheduled = True
        heapq.heappush(self._scheduled, (when, timer))
        return timer

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As asyncio's."""
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's, without what that does for its debug mode: most of a run's callbacks come this way."""
        self._check_closed()
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        """As asyncio's; the task belongs to the life in whose context it runs."""
        task: asyncio.Task[Any] = super().create_task(coro, name=name, context=context)
        life = INCARNATION.get() if context is None else context.get(INCARNATION)
        if life is not None:
            life.tasks.add(task)
        return task

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As ``call_soon``; there is only one thread.

        Raises:
            RuntimeError: Another thread calls.
        """
        thread = getattr(self, "_thread_id", None)
        if thread is not None and thread != threading.get_ident():
            raise RuntimeError("a simulation has one thread only")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], T], *args: *Ts) -> asyncio.Future[T]:
        """Call ``func`` on this thread after a virtual delay drawn from the seed."""
        future: asyncio.Future[T] = self.create_future()
        self.call_later(self.random.uniform(0, self._executor_s), _call_inline, future, func, args)
        return future

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Listen in the simulated network; ``options`` about sockets mean nothing here.

        Raises:
            ValueError: TLS or a ready-made socket is asked for.
            OSError: The port is taken.
        """
        _refuse_sockets(options)
        return self.network.listen(protocol_factory, host, port or 0)

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        """Connect through the simulated network.

        Raises:
            ValueError: TLS or a ready-made socket is asked for.
            OSError: Unknown host, refused, or no answer.
        """
        _refuse_sockets(options)
        return await self.network.connect(protocol_factory, host, port)


def _refuse_sockets(options: dict[str, Any]) -> None:
    if options.get("ssl") or options.get("sock"):
        raise ValueError("the simulated network carries plain bytes only: no ssl, no sock")


def _call_inline(future: asyncio.Future[Any], func: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if future.cancelled():
        return
    try:
        result = func(*args)
    except Exception as error:  # noqa: BLE001 - an executor hands every failure to whoever waits
        future.set_exception(error)
    else:
        future.set_result(result)


def _abandon(task: asyncio.Task[Any]) -> None:
    """Dispose of a coroutine that will never be resumed, without a word in the log."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coro = task.get_coro()
    if coro is not None:
        # The loop is closed; whatever abandoned code has to say about that is void.
        with contextlib.suppress(BaseException):
            coro.close()
