"""AMQP 1.0 on the wire, as much as a load generator needs: encoders, one generic decoder, frames.

Nothing here is on the path of a message; `sender` and `receiver` have their own templates and walkers for that.
Source: AMQP 1.0 part 1 (types), part 2 (frames), and its table of performatives.
"""

import struct
from typing import Any, NamedTuple

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
ERROR, ACCEPTED, REJECTED, SOURCE, TARGET = 0x1D, 0x24, 0x25, 0x28, 0x29
SASL_MECHANISMS, SASL_INIT, SASL_OUTCOME = 0x40, 0x41, 0x44

BATCH_FORMAT = 0x80013700

NULL = b"\x40"
TRUE = b"\x41"
FALSE = b"\x42"

unpack_u32 = struct.Struct(">I").unpack_from


class LoadError(Exception):
    """The measurement is void: the peer refused, broke the protocol, lost or doubled a message, or fell silent."""


class Described(NamedTuple):
    """A described value: its descriptor (the code, or a symbol) and what it describes."""

    code: Any
    value: Any


class Frame(NamedTuple):
    """One decoded frame; `code` is 0 and `fields` empty for a heartbeat."""

    kind: int
    code: int
    fields: list[Any]
    payload: bytes

    def field(self, index: int) -> Any:
        """Return a field of the performative; trailing ones that the peer left out read as None."""
        return self.fields[index] if index < len(self.fields) else None


# --- encoding ---------------------------------------------------------------------------------------------------------


def uint(value: int) -> bytes:
    """Encode a uint in its full five bytes."""
    return b"\x70" + value.to_bytes(4, "big")


def ubyte(value: int) -> bytes:
    """Encode a ubyte."""
    return bytes((0x50, value))


def ushort(value: int) -> bytes:
    """Encode a ushort."""
    return b"\x60" + value.to_bytes(2, "big")


def _sized(small: int, large: int, raw: bytes) -> bytes:
    if len(raw) < 256:
        return bytes((small, len(raw))) + raw
    return bytes((large,)) + len(raw).to_bytes(4, "big") + raw


def binary(raw: bytes) -> bytes:
    """Encode a binary."""
    return _sized(0xA0, 0xB0, raw)


def string(text: str) -> bytes:
    """Encode a string."""
    return _sized(0xA1, 0xB1, text.encode())


def symbol(text: str) -> bytes:
    """Encode a symbol."""
    return _sized(0xA3, 0xB3, text.encode("ascii"))


def described(code: int, fields: list[bytes]) -> bytes:
    """Encode a described list, in list8 where it fits."""
    body = b"".join(fields)
    if len(body) < 255 and len(fields) < 256:
        return bytes((0x00, 0x53, code, 0xC0, len(body) + 1, len(fields))) + body
    return bytes((0x00, 0x53, code, 0xD0)) + struct.pack(">II", len(body) + 4, len(fields)) + body


def frame(body: bytes, kind: int = 0) -> bytes:
    """Put a frame header before `body`; `kind` is 0 for AMQP and 1 for SASL, the channel is always 0."""
    return struct.pack(">IBBH", len(body) + 8, 2, kind, 0) + body


def flow(next_in: int, window_in: int, next_out: int, window_out: int, delivery_count: int, credit: int) -> bytes:
    """Encode the flow frame of a receiver link with handle 0."""
    numbers = [uint(next_in), uint(window_in), uint(next_out), uint(window_out), uint(0)]
    fields = [*numbers, uint(delivery_count), uint(credit), NULL, FALSE, FALSE, NULL]
    return frame(described(FLOW, fields))


def accept(first: int, last: int, *, settled: bool = False) -> bytes:
    """Encode a receiver's disposition: `first` to `last` accepted; unless it is settled the peer has to answer."""
    fields = [TRUE, uint(first), uint(last), TRUE if settled else FALSE, described(ACCEPTED, []), FALSE]
    return frame(described(DISPOSITION, fields))


# --- decoding ---------------------------------------------------------------------------------------------------------

_FIXED: dict[int, struct.Struct] = {
    0x50: struct.Struct(">B"),
    0x51: struct.Struct(">b"),
    0x52: struct.Struct(">B"),
    0x53: struct.Struct(">B"),
    0x54: struct.Struct(">b"),
    0x55: struct.Struct(">b"),
    0x56: struct.Struct(">?"),
    0x60: struct.Struct(">H"),
    0x61: struct.Struct(">h"),
    0x70: struct.Struct(">I"),
    0x71: struct.Struct(">i"),
    0x72: struct.Struct(">f"),
    0x80: struct.Struct(">Q"),
    0x81: struct.Struct(">q"),
    0x82: struct.Struct(">d"),
    0x83: struct.Struct(">q"),
    0x98: struct.Struct(">16s"),
}
_CONSTANT: dict[int, Any] = {0x40: None, 0x41: True, 0x42: False, 0x43: 0, 0x44: 0}


def decode(data: bytes, pos: int) -> tuple[Any, int]:
    """Decode the value at `pos` and return it with the position behind it.

    Strings and symbols become str, maps dict, lists and arrays list, uuids 16 bytes.

    Raises:
        LoadError: the constructor is none of AMQP 1.0's, or the value is cut off.
    """
    try:
        if data[pos] == 0:
            code, pos = decode(data, pos + 1)
            value, pos = decode(data, pos)
            return Described(code, value), pos
        return _plain(data[pos], data, pos + 1)
    except (IndexError, struct.error) as error:
        raise LoadError(f"the peer sent a value that is cut off at byte {pos}") from error


def _plain(ctor: int, data: bytes, pos: int) -> tuple[Any, int]:
    if ctor in _CONSTANT:
        return _CONSTANT[ctor], pos
    if ctor in _FIXED:
        fixed = _FIXED[ctor]
        return fixed.unpack_from(data, pos)[0], pos + fixed.size
    width = 1 if ctor & 0x10 == 0 else 4
    if ctor & 0xE0 == 0xA0:
        start = pos + width
        end = start + int.from_bytes(data[pos:start], "big")
        raw = data[start:end]
        return (raw if ctor & 0x0F == 0 else raw.decode()), end
    if ctor == 0x45:
        return [], pos
    if ctor in (0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0):
        return _compound(ctor, width, data, pos)
    raise LoadError(f"the peer sent the unknown constructor 0x{ctor:02x}")


def _compound(ctor: int, width: int, data: bytes, pos: int) -> tuple[Any, int]:
    count = int.from_bytes(data[pos + width : pos + 2 * width], "big")
    pos += 2 * width
    items: list[Any] = []
    if ctor in (0xE0, 0xF0):
        ctor_of_items = data[pos]
        pos += 1
        for _ in range(count):
            item, pos = _plain(ctor_of_items, data, pos)
            items.append(item)
        return items, pos
    for _ in range(count):
        item, pos = decode(data, pos)
        items.append(item)
    if ctor in (0xC1, 0xD1):
        return dict(zip(items[::2], items[1::2], strict=True)), pos
    return items, pos


def read_frame(data: bytes, pos: int, end: int) -> Frame:
    """Decode the whole frame that lies at `pos` and ends before `end`."""
    start = pos + 4 * data[pos + 4]
    kind = data[pos + 5]
    if start == end:
        return Frame(kind, 0, [], b"")
    body, behind = decode(data, start)
    if not isinstance(body, Described) or not isinstance(body.code, int) or not isinstance(body.value, list):
        raise LoadError(f"the peer sent a frame whose body is no performative: {body!r:.200}")
    return Frame(kind, body.code, body.value, data[behind:end])


def error_text(error: Any) -> str:
    """Say an AMQP `error` in words: its condition and description."""
    if not isinstance(error, Described):
        return "without an error"
    fields = [*error.value, None, None]
    return f"{fields[0]}: {fields[1]}"


def outcome_text(state: Any) -> str:
    """Say a delivery state in words; a rejection brings its error along."""
    if not isinstance(state, Described):
        return "no outcome"
    names = {0x23: "received", ACCEPTED: "accepted", REJECTED: "rejected", 0x26: "released", 0x27: "modified"}
    name = names.get(state.code, f"state {state.code!r}")
    if state.code == REJECTED:
        return f"{name}, {error_text(state.value[0] if state.value else None)}"
    return name
