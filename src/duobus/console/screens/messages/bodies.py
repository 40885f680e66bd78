"""Bodies for people: unpacked, laid out by what they are, and bounded.

Nothing in a body is resolved or executed: JSON and XML are laid out by moving their own signs into lines, so that
numbers keep their digits and entities stay names.
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from duobus.console.screens.messages.records import visible

#: Bytes of a body that a page shows, packed or not.
SHOWN_BYTES_MAX: Final = 256 << 10
#: Bytes of a body that a page shows as hexadecimal digits.
DUMPED_BYTES_MAX: Final = 16 << 10

JSON: Final = "json"
XML: Final = "xml"
TEXT: Final = "text"
HEX: Final = "hex"
AUTO: Final = "auto"
VIEWS: Final = {AUTO: "As it is", TEXT: "Text", HEX: "Hex"}

_GZIP: Final = b"\x1f\x8b"
_ROW: Final = 16
_DEEP: Final = 40
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_BARE: Final = re.compile(r'[^\s"{}\[\],:]+')
_CHARSET: Final = re.compile(r"charset\s*=\s*\"?([\w.:-]{1,40})", re.IGNORECASE)
_CHARSETS: Final = frozenset({"utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso8859-1", "cp1252", "ascii", "utf-32"})


class Body(NamedTuple):
    """A body as a page shows it.

    Attributes:
        kind: ``json``, ``xml``, ``text``, ``hex`` or ``empty``.
        text: What is shown.
        size: Bytes of the body.
        notes: Sentences about what was done with the body, or left out.
    """

    kind: str
    text: str
    size: int
    notes: list[str]


def shown(data: bytes, content_type: str, content_encoding: str, view: str = AUTO) -> Body:
    """Lay a body out.

    Args:
        data: The whole body.
        content_type: As the message says; empty for nothing.
        content_encoding: Likewise.
        view: ``auto``, ``text`` or ``hex``.
    """
    size, notes = len(data), list[str]()
    if not data:
        return Body("empty", "", 0, [])
    if view != HEX:
        data = _unpacked(data, content_encoding, notes)
    is_cut = len(data) > SHOWN_BYTES_MAX
    if is_cut:
        notes.append(f"Only the first {SHOWN_BYTES_MAX >> 10} KiB are shown. The download has everything.")
        data = data[:SHOWN_BYTES_MAX]
    text = None if view == HEX else _decoded(data, content_type, is_cut=is_cut)
    if text is None:
        if view == TEXT:
            notes.append("The body is no text.")
        if len(data) > DUMPED_BYTES_MAX:
            notes.append(f"Only the first {DUMPED_BYTES_MAX >> 10} KiB are shown as digits.")
        return Body(HEX, hex_dump(data[:DUMPED_BYTES_MAX]), size, notes)
    kind, laid_out = (TEXT, text) if view == TEXT or is_cut else _laid_out(text, content_type)
    return Body(kind, visible(laid_out), size, notes)


def _unpacked(data: bytes, encoding: str, notes: list[str]) -> bytes:
    encoding = encoding.strip().lower()
    if encoding not in ("gzip", "x-gzip", "deflate") and not data.startswith(_GZIP):
        return data
    for window in (zlib.MAX_WBITS | 32, -zlib.MAX_WBITS):
        unpacker = zlib.decompressobj(window)
        try:
            found = unpacker.decompress(data, SHOWN_BYTES_MAX + 1)
        except zlib.error:
            continue
        notes.append(f"The body is packed ({encoding or 'gzip'}) and is shown unpacked.")
        if not unpacker.eof and len(found) <= SHOWN_BYTES_MAX:
            notes.append("The packed data ends too early.")
        return found
    notes.append(f"The message says that its body is packed ({encoding or 'gzip'}), but it cannot be unpacked.")
    return data


def _decoded(data: bytes, content_type: str, *, is_cut: bool) -> str | None:
    """The body as text; None when it is none."""
    found = _CHARSET.search(content_type)
    names = ["utf-8-sig"]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        names.insert(0, "utf-16")
    if found is not None:
        try:
            name = codecs.lookup(found[1]).name
        except LookupError:
            name = ""
        # Not every codec of Python is one of text.
        if name in _CHARSETS:
            names.insert(0, name)
    for name in names:
        try:
            text = codecs.getincrementaldecoder(name)().decode(data, not is_cut)
        except UnicodeDecodeError:
            continue
        if not _is_binary(text):
            return text
    return None


def _is_binary(text: str) -> bool:
    sample = text[:4_096]
    strange = sum(sign < " " and sign not in "\t\n\r\f\x1b" for sign in sample)
    return strange > 2 + len(sample) // 10


def _laid_out(text: str, content_type: str) -> tuple[str, str]:
    start = text.lstrip()[:1]
    media = content_type.lower()
    if start and (start in "{[" or "json" in media):
        pretty = pretty_json(text)
        if pretty is not None:
            return JSON, pretty
    if start == "<" or "xml" in media:
        pretty = pretty_xml(text)
        if pretty is not None:
            return XML, pretty
    return TEXT, text


# -- JSON -----------------------------------------------------------------------------------------------------------


def pretty_json(text: str) -> str | None:
    """JSON in lines, with every value written as it was; None for what is no JSON."""
    try:
        json.loads(text)
    except RecursionError:
        # Deeper than Python's own reader goes, which is no reason not to show it.
        pass
    except ValueError:
        return None
    lines: list[str] = []
    line, depth = "", 0
    tokens = list(_json_tokens(text))
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else ""
        if token in ("{", "["):
            line += token
            if following not in ("}", "]"):
                depth += 1
                lines.append(line)
                line = _indent(depth)
        elif token in ("}", "]"):
            if not line.endswith(("{", "[")):
                depth -= 1
                lines.append(line)
                line = _indent(depth)
            line += token
        elif token == ",":
            lines.append(line + token)
            line = _indent(depth)
        else:
            line += ": " if token == ":" else token
    return "\n".join([*lines, line])


def _indent(depth: int) -> str:
    return "  " * min(depth, _DEEP)


def _json_tokens(text: str) -> Iterator[str]:
    pos = 0
    while pos < len(text):
        sign = text[pos]
        if sign in "{}[],:":
            yield sign
            pos += 1
            continue
        found = _STRING.match(text, pos) if sign == '"' else _BARE.match(text, pos)
        if found is None:
            pos += 1
            continue
        yield found[0]
        pos = found.end()


# -- XML ------------------------------------------------------------------------------------------------------------


def pretty_xml(text: str) -> str | None:
    """XML in lines, with entities left as names; None for what is no XML, or declares entities."""
    parts = _xml_parts(text)
    if parts is None:
        return None
    lines: list[str] = []
    depth = 0
    for index, part in enumerate(parts):
        if part.startswith("</"):
            depth -= 1
            opened = parts[index - 1] if index else ""
            # <a>text</a> and <a></a> stay in one line.
            if lines and _is_start(opened):
                lines[-1] += part
            elif index > 1 and not opened.startswith("<") and _is_start(parts[index - 2]):
                lines[-2:] = [lines[-2] + lines[-1].strip() + part]
            else:
                lines.append(_indent(depth) + part)
        else:
            lines.append(_indent(depth) + part)
            depth += _is_start(part)
        if depth < 0:
            return None
    return "\n".join(lines) if depth == 0 and lines else None


def _is_start(part: str) -> bool:
    return part.startswith("<") and not part.startswith(("</", "<?", "<!")) and not part.endswith("/>")


def _xml_parts(text: str) -> list[str] | None:
    """Tags, comments and texts in their order; each search for an end goes on where the last one ended."""
    parts: list[str] = []
    pos = 0
    while pos < len(text):
        start = text.find("<", pos)
        between = text[pos : start if start >= 0 else len(text)].strip()
        if between:
            parts.append(between)
        if start < 0:
            break
        if text.startswith("<!DOCTYPE", start) or text.startswith("<!ENTITY", start):
            return None
        ends = {"<!--": "-->", "<![CDATA[": "]]>", "<?": "?>"}
        ending = next((end for begin, end in ends.items() if text.startswith(begin, start)), ">")
        end = text.find(ending, start)
        if end < 0:
            return None
        pos = end + len(ending)
        parts.append(text[start:pos])
    return parts


# -- bytes ----------------------------------------------------------------------------------------------------------


def hex_dump(data: bytes) -> str:
    """Bytes as hexadecimal digits, sixteen in a line, with the signs of ASCII beside them."""
    lines = []
    for start in range(0, len(data), _ROW):
        row = data[start : start + _ROW]
        digits = f"{row[:8].hex(' ')}  {row[8:].hex(' ')}"
        signs = "".join(chr(code) if 32 <= code < 127 else "." for code in row)
        lines.append(f"{start:08x}  {digits:<48}  {signs}")
    return "\n".join(lines)
