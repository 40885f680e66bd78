"""The file in which a server writes down what time it is, so that the next start can tell a clock that is wrong.

Every commit records broker time, but a server may have been idle for months. And how much time has passed since, only
the machine can tell, and only until it is started anew: see ``clock.BrokerTime`` and decision 0042.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from duobus.clock import BrokerTime, Witness

#: In the data folder.
NAME: Final = "clock.json"
#: Between two records, in seconds: small beside what is believed without counting.
PERIOD_S: Final = 600.0
#: A record is written over the last one, in one piece.
_BYTES: Final = 256


def read_record(data: Path) -> Witness | None:
    """Return what was written down last; None when there is nothing that can be read."""
    try:
        with (data / NAME).open("rb") as file:
            found = msgspec.json.decode(file.read(_BYTES).strip(), type=Witness)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return found if found.broker_ms >= 0 and found.boot_ms >= 0 else None


class ClockRecord:
    """Writes the time down now and then.

    Args:
        data: The data folder.
        time: Broker time.
    """

    def __init__(self, data: Path, time: BrokerTime) -> None:
        self._data = data
        self._time = time
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Write now, and from now on."""
        self.write()
        self._timer = asyncio.get_running_loop().call_later(PERIOD_S, self.begin)

    def stop(self) -> None:
        """Write for the last time, if it was begun."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.write()

    def write(self) -> None:
        """Write the time down, if it is known. A disk that refuses costs a start its witness and nothing else."""
        if not self._time.is_begun:
            # No store could be opened yet: this is the machine's clock, which may be wrong.
            return
        try:
            fd = os.open(self._data / NAME, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            os.pwrite(fd, msgspec.json.encode(self._time.witness()).ljust(_BYTES - 1) + b"\n", 0)
        except OSError:
            return
        finally:
            os.close(fd)
