"""Structured logs: one event a line, as text or JSON, with tracking ids and without secrets.

Built on the standard library's ``logging``, so that what asyncio and aiohttp say comes out in the same form.
Control characters are escaped and keys, signatures and tokens masked (I66) in every line, whoever wrote it.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TextIO

from duobus.clock import Clock, Entropy

#: Name of the parent of all our loggers.
ROOT = "duobus"

#: Longest value of one field and longest text, in characters; the rest is cut, since peers choose some of it.
VALUE_LENGTH_MAX = 4096

MASK = "***"

_FIELDS_KEY = "duobus_fields"

# The value ends where the notation that it stands in ends: connection string, query, JSON, quoted text.
_SECRET_MEMBERS = re.compile(
    r"(?i)((?:shared_?access_?key|(?:primary|secondary)_?key|password|sig)[\"']?\s*[=:]\s*[\"']?)([^;&\s\"',}]+)"
)
_SIGNATURES = re.compile(r"(?i)(shared_?access_?signature[ =]+)([^\s\"';,]+)")
# Whatever its scheme: what stands behind the header's name, or behind the name of a scheme that carries a secret.
_AUTHORIZATIONS = re.compile(r"(?i)((?:proxy-|servicebus|servicebussupplementary)?authorization[\"']?\s*[:=]\s*).*")
_SCHEMES = re.compile(r"\b((?i:Bearer|Basic|Negotiate|Digest|NTLM)\s+)([^\s\"',;]{8,})")
_JSON_WEB_TOKENS = re.compile(r"\beyJ[\w-]{8,}\.[\w-]+\.[\w-]*")
#: Whatever one of these patterns finds has one of these words in it, in lower case.
_SECRET_WORDS = ("key", "password", "sig", "eyj", "authorization", "bearer", "basic", "negotiate", "digest", "ntlm")


class Log:
    """Writes events under one name; fields are keyword arguments, named with their unit.

    ``log.warning("A store was closed", store_id=2, tracking_id=...)``: the text is constant, what varies is a field.
    """

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{ROOT}.{name}")

    def debug(self, text: str, /, **fields: Any) -> None:
        """Write what only a developer wants."""
        self._write(logging.DEBUG, text, fields)

    def info(self, text: str, /, **fields: Any) -> None:
        """Write what happened in the normal course of things."""
        self._write(logging.INFO, text, fields)

    def warning(self, text: str, /, **fields: Any) -> None:
        """Write what an operator should look at."""
        self._write(logging.WARNING, text, fields)

    def error(self, text: str, /, *, exception: BaseException | None = None, **fields: Any) -> None:
        """Write a fault, with the traceback of ``exception`` where there is one."""
        self._write(logging.ERROR, text, fields, exception)

    def _write(self, level: int, text: str, fields: dict[str, Any], exception: BaseException | None = None) -> None:
        logger = self._logger
        if logger.isEnabledFor(level):
            # What ``Logger.log`` does but for the search of the caller's source line, which no line of ours tells: a
            # peer that is refused all the time costs the others each of its lines.
            about = None if exception is None else (type(exception), exception, exception.__traceback__)
            record = logger.makeRecord(logger.name, level, "", 0, "%s", (text,), about, extra={_FIELDS_KEY: fields})
            logger.handle(record)


class _Handler(logging.StreamHandler[TextIO]):
    """Tells our handler from those of others, so that a second set-up replaces the first."""


class LogFile(_Handler):
    """Appends lines to a file that can be moved away while the server runs.

    A line that the file does not take, because its disk is full for example, goes to standard error.

    Args:
        path: The file; it is made with mode 0640 if it is missing.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(self._opened())

    def reopen(self) -> None:
        """Open the file by its name again, and close what was open; OSError leaves that open."""
        before = self.setStream(self._opened())
        if before is not None:
            # Lines that the disk has no room for went to standard error already.
            with suppress(OSError):
                before.close()

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            self.stream.close()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of the base class
        """Write a line that the file has not taken to standard error."""
        with suppress(OSError, ValueError):
            sys.stderr.write(self.format(record) + self.terminator)
            sys.stderr.flush()

    def _opened(self) -> TextIO:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        return os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")


class _Formatter(logging.Formatter):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def members(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the parts of a line in their order, masked; times are UTC to the ms."""
        found: dict[str, Any] = {
            "time": timestamp(self._clock.now_ms()),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _clean(record.getMessage()),
        }
        for name, value in getattr(record, _FIELDS_KEY, {}).items():
            # A field may not take the place of a part of every line.
            key = f"field_{name}" if name in found else name
            found[key] = value if value is None or isinstance(value, bool | int | float) else _clean(str(value))
        if record.exc_info:
            found["exception"] = _clean(self.formatException(record.exc_info))
        return found


class JsonFormatter(_Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end; JSON itself escapes every control character."""
        return json.dumps(self.members(record))


class TextFormatter(_Formatter):
    """For people: time, level, logger, text, then ``name=value``."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end, control characters escaped."""
        members = self.members(record)
        head = f"{members.pop('time')} {members.pop('level'):7} {members.pop('logger')}: {members.pop('event')}"
        return escape_controls(" ".join([head, *(f"{name}={value}" for name, value in members.items())]))


class JournalFormatter(logging.Formatter):
    """Puts the priority of a line in front of it, as the journal of systemd reads it (sd-daemon(3))."""

    def __init__(self, lines: logging.Formatter) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its end."""
        level = next((priority for least, priority in _PRIORITIES if record.levelno >= least), _DEBUG)
        return f"<{level}>{self._lines.format(record)}"


#: Level from which on a line has a priority of syslog.
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7


def is_journal(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Whether a stream is the journal of systemd: ``JOURNAL_STREAM`` has its device and inode (systemd.exec(5))."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        # A stream without a descriptor, as tests have.
        return False
    return environment.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


def set_up_logs(
    log_format: str,
    clock: Clock,
    target: TextIO | LogFile,
    level: int = logging.INFO,
    *,
    has_priorities: bool = False,
) -> None:
    """Send all logs to a stream or a file as ``text`` or ``json``; a second call replaces the first.

    Args:
        log_format: The form of a line.
        clock: Time.
        target: Where lines go.
        level: The least that is written.
        has_priorities: The target is the journal of systemd.
    """
    handler = target if isinstance(target, LogFile) else _Handler(target)
    lines = JsonFormatter(clock) if log_format == "json" else TextFormatter(clock)
    handler.setFormatter(JournalFormatter(lines) if has_priorities else lines)
    root = logging.getLogger()
    for old in [found for found in root.handlers if isinstance(found, _Handler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger(ROOT).setLevel(level)


def new_tracking_id(entropy: Entropy) -> str:
    """Return an id that goes into an error's text and into the log line about it."""
    return str(entropy.uuid())


def tracking_suffix(tracking_id: str, system: str, host: str, path: str, now_ms: int) -> str:
    """Return what follows the sentence of an error text, in the service's form (Azure: AMQP protocol guide)."""
    where = escape_controls(f"{host}:{path}")
    return f" TrackingId:{tracking_id}_{system}, SystemTracker:{where}, Timestamp:{timestamp(now_ms)[:19]}"


def timestamp(at_ms: int) -> str:
    """Return ``2026-11-21T00:20:27.123Z`` for ms since the epoch."""
    return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def mask_connection_string(text: str) -> str:
    """Return a text with the values of ``SharedAccessKey`` and its like replaced by MASK."""
    return _SECRET_MEMBERS.sub(rf"\1{MASK}", text)


def mask_token(text: str) -> str:
    """Return a text with every shared access signature, JSON web token and header Authorization replaced by MASK."""
    plain = _AUTHORIZATIONS.sub(rf"\1{MASK}", _JSON_WEB_TOKENS.sub(MASK, _SIGNATURES.sub(rf"\1{MASK}", text)))
    return _SCHEMES.sub(rf"\1{MASK}", plain)


def escape_controls(text: str) -> str:
    """Return a text on one line: control characters, line separators and lone surrogates as escapes."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def _clean(text: str) -> str:
    # Cut first: masking a cut text cannot leave a secret whose name was cut off, since names stand before values.
    if len(text) > VALUE_LENGTH_MAX:
        text = text[:VALUE_LENGTH_MAX] + "…"
    lowered = text.casefold()
    # Four plain searches; the patterns, each of which needs one of these words, take ten times as long.
    if any(word in lowered for word in _SECRET_WORDS):
        return mask_connection_string(mask_token(text))
    return text
