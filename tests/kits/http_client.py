"""A client at the level of HTTP's own bytes: header names keep their case, and nothing is done behind one's back."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple
from urllib.parse import quote

from duobus.auth import sign_token
from duobus.server.settings import EMULATOR_KEY
from kits.gateway import RULE, TcpStream

ENTRY = (
    '<entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">'
    '<{kind} xmlns="http://schemas.microsoft.com/netservices/2010/10/servicebus/connect" '
    'xmlns:i="http://www.w3.org/2001/XMLSchema-instance">{inside}</{kind}></content></entry>'
)


def entry(inside: str = "", kind: str = "QueueDescription") -> str:
    """The body of a request that creates or updates."""
    return ENTRY.format(kind=kind, inside=inside)


def token(
    path: str = "", *, rule: str = RULE, key: str = EMULATOR_KEY, expires_s: int | None = None, host: str = "localhost"
) -> str:
    """A signature for a path of the server, good for a minute."""
    return sign_token(f"https://{host}/{path}", rule, key, expires_s or int(time.time()) + 60)


class Reply(NamedTuple):
    """One response; ``headers`` in their order, with the letters' case of the wire."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    #: What the first line has behind the status.
    reason: str = ""

    @property
    def text(self) -> str:
        return self.body.decode()

    def header(self, name: str) -> str | None:
        """The value of a header, whatever the case of its name."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


class Http:
    """One keep-alive connection."""

    def __init__(self, stream: TcpStream, authorization: str | None) -> None:
        self.stream = stream
        self.authorization = authorization
        self._data = b""

    @classmethod
    async def connect(cls, port: int, authorization: str | None = "", **options: Any) -> Http:
        """``authorization``: empty for one with all rights, None for none."""
        stream = await TcpStream.connect(port, **options)
        return cls(stream, token() if authorization == "" else authorization)

    async def ask(
        self, method: str, target: str, body: bytes | str = b"", headers: dict[str, str] | None = None
    ) -> Reply:
        await self.start(method, target, body, headers)
        return await self.reply()

    async def start(
        self, method: str, target: str, body: bytes | str = b"", headers: dict[str, str] | None = None
    ) -> None:
        """Send a request without waiting for its answer."""
        data = body.encode() if isinstance(body, str) else body
        fields = {"Host": "localhost", "Content-Length": str(len(data))}
        if self.authorization is not None:
            fields["Authorization"] = self.authorization
        fields |= headers or {}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
        await self.stream.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def reply(self) -> Reply:
        """Read one response."""
        while b"\r\n\r\n" not in self._data:
            await self._more()
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = [(line.partition(": ")[0], line.partition(": ")[2]) for line in lines]
        _, status, reason = first.split(" ", 2)
        size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
        while len(self._data) < size:
            await self._more()
        body, self._data = self._data[:size], self._data[size:]
        return Reply(int(status), headers, body, reason)

    async def _more(self) -> None:
        data = await self.stream.read()
        if not data:
            raise ConnectionError(f"the server closed the connection; there is {self._data!r}")
        self._data += data


def path_of(name: str) -> str:
    """A name as it stands in a request target."""
    return "/" + quote(name, safe="/$")


async def both(*what: Any) -> list[Any]:
    """Run coroutines beside each other."""
    return list(await asyncio.gather(*what))
