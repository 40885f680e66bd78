"""What is sent: the source files of the Python standard library, each with what the receiver must find."""

from __future__ import annotations

import hashlib
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path

#: Longest message id that a broker takes (Azure: quotas).
MESSAGE_ID_LENGTH_MAX = 128

#: Application property that carries the SHA-256 of the body, hexadecimal.
DIGEST_PROPERTY = "sha256"

_FOREIGN_FOLDERS = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Outgoing:
    """One message to send.

    Attributes:
        message_id: Unique among all that are sent in a run.
        partition_key: None leaves the placement to the broker.
    """

    __slots__ = ("_body", "_path", "message_id", "partition_key")

    def __init__(
        self, message_id: str, *, partition_key: str | None = None, body: bytes | None = None, path: Path | None = None
    ) -> None:
        self.message_id = message_id
        self.partition_key = partition_key
        self._body = body
        self._path = path

    def read(self) -> bytes:
        """Return the body; that of a file is read when it is sent, so that the library is not kept in memory."""
        if self._body is not None:
            return self._body
        assert self._path is not None
        return self._path.read_bytes()


def digest_of(body: bytes) -> str:
    """Return what DIGEST_PROPERTY must hold for a body."""
    return hashlib.sha256(body).hexdigest()


def standard_library() -> list[Outgoing]:
    """Return a message for every source file of the standard library, in an order that mixes the packages."""
    root = Path(sysconfig.get_path("stdlib"))
    return sorted(source_files(root), key=lambda item: (zlib.crc32(item.message_id.encode()), item.message_id))


def source_files(root: Path) -> Iterator[Outgoing]:
    """Yield a message for every ``*.py`` under ``root`` that is not an installed package.

    The message id is the path relative to ``root``, or a hash of it where that is too long. Every second message, by
    a hash of its path, has its package as partition key: the top folder, or the module's name.
    """
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if _FOREIGN_FOLDERS.isdisjoint(relative.parts) and path.is_file():
            name = relative.as_posix()
            has_key = zlib.crc32(b"key:" + name.encode()) & 1
            package = relative.parts[0] if len(relative.parts) > 1 else relative.stem
            yield Outgoing(
                name if len(name) <= MESSAGE_ID_LENGTH_MAX else digest_of(name.encode()),
                partition_key=package if has_key else None,
                path=path,
            )
