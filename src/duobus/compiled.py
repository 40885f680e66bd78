"""Which rooms of the package run as compiled extension modules, made of the same sources (decision 0008).

Nothing may depend on it but what is shown to people: both twins do the same.
"""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

#: Room and one module that its compiled form always has.
_ROOMS = {"codec": "codec/decoder", "amqp": "amqp/frame_reader", "fragment": "fragment/fragment"}


def compiled_rooms(package: Path = Path(__file__).parent) -> tuple[str, ...]:
    """Return the compiled rooms, none for pure Python. Looks for files and imports nothing.

    Python takes an extension module before a source of the same name, so what lies there is what runs.
    """
    return tuple(
        room
        for room, module in _ROOMS.items()
        if any((package / f"{module}{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)
    )
