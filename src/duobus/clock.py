"""The one place where time and randomness come in.

Everything stored or compared is ``int`` milliseconds since the Unix epoch, UTC (the unit of AMQP
timestamps). Engines never hold a clock: they get ``now_ms`` with the command. Simulation replaces
``Clock`` and ``Entropy`` and nothing else.
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from pathlib import Path
from typing import Final, NamedTuple

# A 5 minute lock (the longest the service allows) may be off by at most 1 s while broker time is
# slewed towards the wall clock (I58): 300 s / 400 = 0.75 s.
SLEW_DIVISOR = 400
#: A wall clock that is so near to broker time is not followed. Both come from clocks that are rounded by themselves and
#: read one after the other, so they seem some milliseconds apart, now this way and now the other. Whoever moves time by
#: 30 s, as tests do, could find a lock of 30 s still held.
NEAR_MS: Final = 5


class Clock:
    """The operating system's clocks."""

    def now_ms(self) -> int:
        """Return wall clock time; it may jump in both directions."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return a time that only ever grows; its zero means nothing."""
        return time.monotonic_ns() // 1_000_000

    def boot(self) -> tuple[str, int] | None:
        """Return which start of the machine this is, and the ms since then, sleep included; None: it does not tell."""
        try:
            name = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
            return name, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        except (OSError, AttributeError):
            return None


#: Ids that are drawn at once.
_DRAWN_AHEAD: Final = 64


class Entropy:
    """The operating system's randomness."""

    # What ``uuid_text`` has drawn ahead.
    _drawn = b""

    def token(self, size: int) -> bytes:
        """Return ``size`` unguessable bytes."""
        return os.urandom(size)

    def access_key(self) -> str:
        """Return a fresh key of an access rule: 32 random bytes in base64, 44 characters (Azure: Service Bus REST)."""
        return base64.b64encode(self.token(32)).decode()

    def number(self, bits: int) -> int:
        """Return an unguessable integer of at most ``bits`` bits."""
        return int.from_bytes(os.urandom((bits + 7) // 8), "big") >> (-bits % 8)

    def uuid(self) -> uuid.UUID:
        """Return a random UUID, version 4."""
        return uuid.UUID(bytes=self.token(16), version=4)

    def uuid_text(self) -> str:
        """Return the 32 digits of one, for what is made by the thousand and is no secret.

        The random bytes are drawn ahead: asking the operating system gives other threads the interpreter.
        """
        if not self._drawn:
            self._drawn = self.token(16 * _DRAWN_AHEAD)
        digits, self._drawn = self._drawn[-16:].hex(), self._drawn[:-16]
        return f"{digits[:12]}4{digits[13:16]}{'89ab'[int(digits[16], 16) & 3]}{digits[17:]}"


class Witness(NamedTuple):
    """What a server wrote down about time while it ran: what broker time was, when the machine had run for so long.

    Attributes:
        boot: Which start of the machine; empty where the machine does not tell.
        boot_ms: Milliseconds from then on.
        broker_ms: Broker time.
    """

    boot: str
    boot_ms: int
    broker_ms: int


#: A wall clock that is further ahead of the time that has passed, as the machine has counted it, is not believed.
AHEAD_MAX_MS: Final = 5 * 60_000
#: The same where nobody has counted, as after a start of the machine: a server may have been off for so long.
AHEAD_UNCOUNTED_MAX_MS: Final = 60 * 86_400_000


class BrokerTime:
    """Time as the broker counts it: never back, deaf to jumps of the wall clock (I58).

    It starts at the later of the last committed broker time and the wall clock, advances with the monotonic clock, and
    is slewed towards the wall clock by at most one part in SLEW_DIVISOR until the two are within NEAR_MS.

    A wall clock that is far ahead at a start would expire every message at once, and what is written then never goes
    back. So it is *doubted* (decision 0042): broker time goes on from what is known, and is not slewed, until the wall
    clock comes near it.

    Args:
        clock: The machine's.
        committed_ms: The last committed broker time, if it is known already.
        witness: What the last server wrote down.
        is_accepted: Believe the wall clock, however far ahead it is.
    """

    __slots__ = (
        "_clock",
        "_fraction",
        "_is_accepted",
        "_last_monotonic",
        "_now",
        "_witness",
        "is_begun",
        "is_doubted",
    )

    def __init__(
        self, clock: Clock, committed_ms: int = 0, *, witness: Witness | None = None, is_accepted: bool = False
    ) -> None:
        self._clock = clock
        self._now = max(clock.now_ms(), committed_ms)
        self._last_monotonic = clock.monotonic_ms()
        self._fraction = 0
        self._witness = witness
        self._is_accepted = is_accepted
        #: Whether it was decided where to start; before that nobody may rely on the time.
        self.is_begun = False
        #: Whether the wall clock is further ahead than can be believed.
        self.is_doubted = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing may happen any more, in what another server has by now."""
        return False

    @property
    def ahead_ms(self) -> int:
        """How far the wall clock is ahead of broker time; negative when it is behind."""
        return self._clock.now_ms() - self.now_ms()

    def begin(self, recorded_ms: int) -> None:
        """Decide where to start, when all stores have said what they recorded; ``recorded_ms`` is the latest of it.

        Nobody may have asked for the time before. Only the first call counts.
        """
        if self.is_begun:
            return
        self.is_begun = True
        witness = self._witness
        known_ms, bound_ms = recorded_ms, AHEAD_UNCOUNTED_MAX_MS
        if witness is not None:
            known_ms = max(known_ms, witness.broker_ms)
            boot = self._clock.boot()
            if boot is not None and boot[0] == witness.boot and boot[1] >= witness.boot_ms:
                known_ms = max(known_ms, witness.broker_ms + boot[1] - witness.boot_ms)
                bound_ms = AHEAD_MAX_MS
        # Without a record there is nothing that could expire.
        self.is_doubted = bool(known_ms) and not self._is_accepted and self._clock.now_ms() - known_ms > bound_ms
        self._now = known_ms if self.is_doubted else max(self._clock.now_ms(), known_ms)
        self._last_monotonic = self._clock.monotonic_ms()

    def witness(self) -> Witness:
        """What is to be written down now."""
        name, ms = self._clock.boot() or ("", 0)
        return Witness(name, ms, self.now_ms())

    def raise_to(self, committed_ms: int) -> None:
        """Never run behind what a store has recorded; called when one is opened."""
        # Where no store was there at the start, the first that opens is what is known.
        self.begin(committed_ms)
        # What has passed since the time was asked for last is counted before: otherwise it would be added once more to
        # what another server recorded a moment ago.
        self._now = max(self.now_ms(), committed_ms)

    def now_ms(self) -> int:
        """Return broker time; equal or later than every value returned before."""
        monotonic = self._clock.monotonic_ms()
        elapsed = monotonic - self._last_monotonic
        if elapsed <= 0:
            return self._now
        self._last_monotonic = monotonic
        now = self._now + elapsed
        ahead = now - self._clock.now_ms()
        if ahead < -NEAR_MS:
            # What passed between the two clocks, as when this process had to wait for a processor, is not the wall
            # clock's doing; followed, it would be taken back from the time that passes next.
            ahead = min(0, ahead + self._clock.monotonic_ms() - monotonic)
        if self.is_doubted:
            self.is_doubted = -ahead > AHEAD_MAX_MS
        if not (-NEAR_MS <= ahead <= NEAR_MS or self.is_doubted):
            # Whole milliseconds of slew are paid out as the elapsed time earns them.
            self._fraction += elapsed
            budget, self._fraction = divmod(self._fraction, SLEW_DIVISOR)
            now -= max(-budget, min(budget, ahead))
        else:
            self._fraction = 0
        self._now = max(self._now, now)
        return self._now
