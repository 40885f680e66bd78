"""StoreProbes: stores that are not used show how they are, so that an outage is seen before a client needs them (PE4).

A store that fails is noticed by the first call that meets it. Where no client sends there is no call, and it would
count as well for days. So a store that was idle for a while is told to commit nothing, which is a plain commit, with
all that follows when it fails or takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from duobus.broker.message_broker import MessageBroker

#: Whoever asks how the stores are is told of commits that are no older.
FRESH_S: Final = 1.0
#: How often idle stores are probed when nobody asks: a sync each, which no disk notices.
PROBE_S: Final = 10.0
#: How long whoever asks waits for probes: a little longer than it takes a store to be late.
ANSWER_S: Final = 0.75


class StoreProbes:
    """Probes the stores of a server.

    Args:
        brokers: Its message brokers; they may come and go.
    """

    __slots__ = ("_brokers", "_pending", "_timer")

    def __init__(self, brokers: Mapping[int, MessageBroker]) -> None:
        self._brokers = brokers
        self._timer: asyncio.TimerHandle | None = None
        self._pending: set[asyncio.Future[Any]] = set()

    async def look(self) -> None:
        """Return when the state of each store is no older than FRESH_S, or has not changed for ANSWER_S."""
        self._probe(FRESH_S)
        if self._pending:
            await asyncio.wait(set(self._pending), timeout=ANSWER_S)

    def begin(self) -> None:
        """Probe idle stores from now on."""
        self._timer = asyncio.get_running_loop().call_later(PROBE_S, self._tick)

    def stop(self) -> None:
        """Probe no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        # A little less, so that a store is not passed over for the probe before this one.
        self._probe(PROBE_S / 2)
        self.begin()

    def _probe(self, idle_s: float) -> None:
        for broker in list(self._brokers.values()):
            probe = broker.lifecycle.probe(idle_s)
            if probe is not None:
                self._pending.add(probe)
                probe.add_done_callback(self._ended)

    def _ended(self, probe: asyncio.Future[Any]) -> None:
        self._pending.discard(probe)
        if not probe.cancelled():
            # What became of it is seen where everything of this store is.
            probe.exception()
