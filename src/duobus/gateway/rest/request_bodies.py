"""Reading the body of a request: in bounded time, and in bounded memory over all connections."""

from __future__ import annotations

import asyncio
from typing import Final

from aiohttp import HttpVersion11, web

from duobus.errors import ArgumentInvalid, MessageTooLarge, OperationTimeout, ServerBusy

#: A body arrives within this time, however slowly it drips.
BODY_TIMEOUT_S: Final = 30.0
#: What bodies that are being read, and their messages, may hold together, in bytes.
BODIES_BYTES_MAX: Final = 64 << 20


class BodyBudget:
    """The memory that the bodies of all requests may take.

    Attributes:
        used: Bytes that are held now.
    """

    __slots__ = ("_limit", "used")

    def __init__(self, limit: int = BODIES_BYTES_MAX) -> None:
        self._limit = limit
        self.used = 0

    def take(self, size: int) -> None:
        """Raise ServerBusy when there is not so much left."""
        if self.used + size > self._limit:
            raise ServerBusy("The server has too many requests with bodies at the moment. Try again in a few seconds.")
        self.used += size

    def give(self, size: int) -> None:
        """Give back what was taken."""
        self.used -= size


async def read_body(request: web.Request, limit: int, room: BodyBudget) -> bytes:
    """Return the whole body; the caller gives ``len`` of it back to ``room`` when it is done with it.

    Raises:
        MessageTooLarge: It has more bytes than ``limit``.
        OperationTimeout: It did not come in time.
        ServerBusy: There is no room.
        ArgumentInvalid: The connection ended before the body, or its framing is wrong.
    """
    length = request.content_length
    if length is not None and length > limit:
        raise _too_large(limit)
    if not request.body_exists:
        return b""
    if request.headers.get("Expect", "").lower() == "100-continue" and request.version == HttpVersion11:
        # Only now: who may not come in, or brings too much, is told before it sends anything.
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    content = request.content
    if content.is_eof() and content.exception() is None and content.total_bytes <= limit:
        # It came together with its head, as small ones do: nothing to wait for.
        room.take(content.total_bytes)
        return content.read_nowait()
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in content.iter_any():
                room.take(len(part))
                size += len(part)
                if size > limit:
                    raise _too_large(limit)
                parts.append(part)
    except TimeoutError:
        room.give(size)
        raise OperationTimeout(f"The body did not arrive within {BODY_TIMEOUT_S:g} s.") from None
    except (web.HTTPException, OSError, ValueError) as error:
        room.give(size)
        # The error's own text quotes what was sent.
        raise ArgumentInvalid(
            f"The body cannot be read ({type(error).__name__}). Compare its length, or its chunks, with the head."
        ) from None
    except BaseException:
        room.give(size)
        raise
    return b"".join(parts)


def _too_large(limit: int) -> MessageTooLarge:
    return MessageTooLarge(f"The body is larger than {limit} bytes, which is the most that is allowed here.")
