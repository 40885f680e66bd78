"""A server whose clock is off: Python imports this at its start where the folder is on PYTHONPATH.

The file that DUOBUS_WRONG_CLOCK names holds by how many nanoseconds, as eight bytes, and may change at any time. Clocks
that only grow stay as they are, as they do when the clock of a machine is set.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

_name = os.environ.get("DUOBUS_WRONG_CLOCK")
if _name is not None:
    _handle = os.open(_name, os.O_RDONLY)
    _shared = mmap.mmap(_handle, 8, access=mmap.ACCESS_READ)
    os.close(_handle)
    _real_ns = time.time_ns
    _unpack = struct.Struct("<q").unpack_from

    def _time_ns() -> int:
        return _real_ns() + int(_unpack(_shared)[0])

    def _time() -> float:
        return _time_ns() / 1e9

    time.time_ns = _time_ns
    time.time = _time
