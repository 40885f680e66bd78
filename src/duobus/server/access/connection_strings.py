"""Telling the operator how clients connect, without leaving a key where it is kept for others to read."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TextIO

from duobus.errors import ConfigurationError
from duobus.file_sync import sync_file

#: In the data folder: the connection string whose key was made at a start that no terminal showed.
FILE_NAME: Final = "connection-string"
_FILE_MAX: Final = 4096
#: Where ``duobus`` looks for a server when nothing is said: ``serve --emulator`` with its default ports.
LOCAL_HTTP_PORT: Final = 5300


def tell(
    text: str, *, is_public: bool, log_format: str, data: Path | None, output: TextIO, errors: TextIO
) -> Path | None:
    """Print a connection string, or write it to a file and print where.

    A public one is printed always; one with a key that was made just now only to a terminal: what is not a terminal is
    kept by somebody, in a log of a container most often.

    Args:
        text: The connection string.
        is_public: Its key is the emulator's.
        log_format: With ``json`` there is a JSON line on ``errors``, where all other lines are JSON, too.
        data: The data folder; without one the file is made among temporary files.
        output: Standard output.
        errors: Standard error.

    Returns:
        The file, if one was written.

    Raises:
        ConfigurationError: It cannot be written.
    """
    is_json = log_format == "json"
    stream = errors if is_json else output
    path = None
    if is_public:
        line = {"event": "connection string", "connection_string": text}
        plain = f"Connection string: {text}"
    elif output.isatty():
        # A terminal is there, and logs may go elsewhere.
        stream, is_json = output, False
        line = {}
        plain = f"Connection string (shown once): {text}"
    else:
        path = _write(data, text)
        line = {"event": "connection string written", "file": str(path)}
        plain = f"Connection string written to {path}"
    stream.write((json.dumps(line) if is_json else plain) + "\n")
    stream.flush()
    return path


def renew(data: Path, text: str) -> None:
    """Write the connection string into the file of an earlier start, if there is one and the key or port has changed.

    Raises:
        ConfigurationError: The file cannot be written.
    """
    try:
        is_stale = (data / FILE_NAME).read_text() != text + "\n"
    except OSError:
        # There is none, or only somebody else may read the file.
        return
    if is_stale:
        _write(data, text)


class Banner:
    """What a terminal shows when clients can connect: where the server listens, how clients get in, what comes next.

    What is no terminal gets the line of ``tell`` and nothing else, since programs read that.

    Args:
        members: Those of the ready file.
        data: The data folder.
        output: Standard output.
    """

    def __init__(self, members: Mapping[str, object], data: Path | None, output: TextIO) -> None:
        self._members = members
        self._data = data
        self._output = output
        self._text = str(members["connection_string"])

    def open(self) -> None:
        """Print the addresses."""
        members = self._members
        host = self._text.removeprefix("Endpoint=sb://").partition(";")[0].rpartition(":")[0]
        places = [f"AMQP {host}:{members['amqp_port']}"]
        if members["tls_port"] is not None:
            places.append(f"TLS {host}:{members['tls_port']}")
        if members["admin_url"] is not None:
            places.append(f"HTTP {members['admin_url']}")
        self._print(f"Serving {', '.join(places)}; Ctrl-C stops")

    def tell_of_earlier(self) -> None:
        """Print where the connection string of an earlier start is."""
        path = None if self._data is None else self._data / FILE_NAME
        key = self._text.partition("SharedAccessKey=")[2].partition(";")[0]
        rule = self._text.partition("SharedAccessKeyName=")[2].partition(";")[0]
        if path is not None and _holds(path, f"SharedAccessKey={key};"):
            self._print(f"Connection string: in {path.resolve()}")
        else:
            where = "" if self._data is None else f" --data {self._data}"
            self._print(f"Connection string: duobus key show {rule}{where}")

    def close(self) -> None:
        """Print the next step."""
        is_found = "SAS_KEY_VALUE" in self._text and self._text.startswith("Endpoint=sb://localhost:5672;")
        if is_found and self._members["http_port"] == LOCAL_HTTP_PORT:
            self._print("Next, in another terminal: duobus queue create orders")
        else:
            self._print("Next: DUOBUS_CONNECTION_STRING='that string' duobus queue create orders")

    def _print(self, line: str) -> None:
        self._output.write(line + "\n")
        self._output.flush()


def _holds(path: Path, text: str) -> bool:
    """Whether the file of an earlier start has the key that the server has now."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return text in file.read(_FILE_MAX)
    except OSError:
        return False


def _write(folder: Path | None, text: str) -> Path:
    """Write the file as a whole; it has its mode from the first moment, and no link is followed."""
    temporary = ""
    try:
        if folder is None:
            # Of its own, so that nobody else can have made it.
            folder = Path(tempfile.mkdtemp(prefix="duobus-"))
        path = folder / FILE_NAME
        # Mode 0600, and a name that nobody can know before.
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=f".{FILE_NAME}.")
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            file.flush()
            sync_file(file.fileno())
        # A link of this name is replaced, not written through.
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        raise ConfigurationError(
            f"The connection string cannot be written into {folder}: {error.strerror}. Make the folder writable, or "
            "start at a terminal."
        ) from error
    return path.resolve()
