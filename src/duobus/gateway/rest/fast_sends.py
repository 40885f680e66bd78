"""Fast sends: sends over HTTP that are answered without a task, a future or a request object.

A connection begins here and stays as long as all it brings are plain sends (``runtime/heads``). With the first
request that is anything else it becomes the general HTTP server's, for good, together with that request: so the rules
of HTTP stand in one place only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE

from duobus.clock import Clock
from duobus.errors import ServiceBusError
from duobus.gateway.rest.connection_limit import CountedServer
from duobus.gateway.rest.runtime.header_values import write_date
from duobus.gateway.rest.runtime.send_head import HEAD_BYTES_MAX, Head, read_head
from duobus.gateway.rest.runtime.sends import Sends, Sent
from duobus.model.batches import Mailbox

#: Bytes of requests behind the one that is under way, before no more are read.
AHEAD_BYTES_MAX: Final = 65_536
#: How often connections are looked at. One whose request is not whole for this long, or twice that, is the general
#: server's, which has its own limits for the slow.
SWEEP_S: Final = 5.0

_END: Final = b"\r\n\r\n"


class FastSendServer:
    """The connections of the fast path; calling it makes the protocol of one more.

    Attributes:
        is_open: Whether requests are taken here; if not, all are the general server's.
        is_relayed: Whether a host and a path are those of a relay, whose requests are the general server's.

    Args:
        server: Makes the protocols of the general server.
        sends: Takes what is sent.
        clock: Time.
        keep_alive_s: How long a connection may do nothing.
    """

    def __init__(self, server: CountedServer, sends: Sends, clock: Clock, keep_alive_s: float) -> None:
        self.server = server
        self.sends = sends
        self.is_open = True
        self.is_relayed: Callable[[str, str], bool] = lambda host, path: False
        self._clock = clock
        self._sweeps_max = keep_alive_s / SWEEP_S
        self._open: set[FastSendConnection] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._empty: asyncio.Future[None] | None = None
        self._second = -1
        self._created = b""

    @property
    def connections(self) -> Sequence[asyncio.Protocol]:
        """All HTTP connections, those of the general server too."""
        return [*self.server.connections, *self._open]

    def __call__(self) -> asyncio.Protocol:
        """Make the protocol of a connection."""
        return FastSendConnection(self) if self.is_open else self.server()

    def __len__(self) -> int:
        """How many connections are on it."""
        return len(self._open)

    def created(self) -> bytes:
        """The answer to a send that is durable."""
        second = self._clock.now_ms() // 1000
        if second != self._second:
            self._second = second
            self._created = self.answer(web.Response(status=201))
        return self._created

    def answer(self, response: web.Response) -> bytes:
        """An answer as the general server would write it."""
        body = response.body if isinstance(response.body, bytes) else b""
        fields = dict(response.headers)
        fields["Content-Length"] = str(len(body))
        fields["Date"] = write_date(self._clock.now_ms()) or ""
        fields["Server"] = SERVER_SOFTWARE
        lines = [f"HTTP/1.1 {response.status} {response.reason}", *(f"{name}: {text}" for name, text in fields.items())]
        return "\r\n".join(lines).encode() + _END + body

    def add(self, connection: FastSendConnection) -> None:
        """A connection begins."""
        self._open.add(connection)
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_now)

    def remove(self, connection: FastSendConnection) -> None:
        """It has ended, or is the general server's."""
        self._open.discard(connection)
        if not self._open and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def close(self, limit_s: float) -> None:
        """Close all connections; what is under way is answered first, unless that takes too long."""
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self._open):
            connection.finish()
        if self._open:
            self._empty = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._empty], timeout=limit_s)
            for connection in list(self._open):
                connection.abort()

    def _sweep_now(self) -> None:
        self._sweep = None
        for connection in list(self._open):
            connection.look(self._sweeps_max)
        if self._open:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_now)


class FastSendConnection(asyncio.Protocol, Mailbox):
    """The protocol of one connection; one request is under way at a time, as the answers go out in order.

    It is the mailbox of its own sends: the commit that makes one durable writes the answer.
    """

    __slots__ = (
        "_data",
        "_fast_sends",
        "_is_ending",
        "_is_full",
        "_is_paused",
        "_is_submitting",
        "_sent",
        "_sweeps",
        "_tr",
    )

    def __init__(self, fast_sends: FastSendServer) -> None:
        super().__init__()
        self._fast_sends = fast_sends
        self._tr: asyncio.Transport | None = None
        # What has come and is not under way.
        self._data = b""
        self._sent: Sent | None = None
        self._is_submitting = False
        # The peer does not read its answers.
        self._is_full = False
        self._is_paused = False
        self._is_ending = False
        # How often it was looked at since a request began or ended: bytes that drip don't count.
        self._sweeps = 0

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)
        self._tr = transport
        self._fast_sends.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol: what is under way is stored, and nobody is told."""
        self._tr = None
        self._data = b""
        self._fast_sends.remove(self)

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        if self._data:
            self._data += data
        else:
            self._data = data
            self._sweeps = 0
        if self._sent is None and not self._is_full:
            self._go_on()
        elif len(self._data) > AHEAD_BYTES_MAX and not self._is_paused and self._tr is not None:
            self._is_paused = True
            self._tr.pause_reading()

    def pause_writing(self) -> None:
        """See asyncio.Protocol: whoever doesn't read answers sends no more."""
        self._is_full = True

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        self._is_full = False
        self._go_on()

    # -- Mailbox ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """See Mailbox: the request under way has its result."""
        if self._is_submitting or self._sent is None or not self.ready:
            return
        self._end(self._sent)
        if self._data:
            # Not within the release of a commit.
            asyncio.get_running_loop().call_soon(self._go_on)

    # -- the requests -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Take the next request from what has come, if none is under way and it is whole."""
        transport, data = self._tr, self._data
        if not data or self._sent is not None or self._is_full or transport is None or transport.is_closing():
            return
        begin = data.find(_END) + len(_END)
        if begin < len(_END):
            self._wait_for_more() if len(data) < HEAD_BYTES_MAX else self._hand_over()
            return
        head = read_head(data[:begin]) if self._fast_sends.is_open else None
        if head is None or self._fast_sends.is_relayed(head.host, head.path):
            self._hand_over()
        elif len(data) < begin + head.length:
            self._wait_for_more()
        else:
            self._take(head, begin)

    def _wait_for_more(self) -> None:
        if self._is_paused and self._tr is not None:
            self._is_paused = False
            self._tr.resume_reading()

    def _take(self, head: Head, begin: int) -> None:
        data, end = self._data, begin + head.length
        try:
            sent = self._fast_sends.sends.prepare(head, data[begin:end], self)
        except ServiceBusError as error:
            self._data = data[end:]
            self._write(self._fast_sends.answer(self._fast_sends.sends.refusal(head, error)))
        except Exception:  # noqa: BLE001 - nothing has happened yet: the general server meets it again, and says so
            self._hand_over()
            return
        else:
            self._data = data[end:]
            self._submit(sent)
        if len(self._data) <= AHEAD_BYTES_MAX:
            self._wait_for_more()
        if self._data and self._sent is None:
            # One refusal a turn, as it is one send a commit: thousands that come at once hold up nobody.
            asyncio.get_running_loop().call_soon(self._go_on)

    def _submit(self, sent: Sent) -> None:
        self._sent = sent
        self._sweeps = 0
        # A refusal at once comes before ``send`` returns.
        self._is_submitting = True
        try:
            sent.queue.send(sent.batch)
        except Exception as error:  # noqa: BLE001 - nothing of ours is to show outside
            self._sent = None
            self._write(self._fast_sends.answer(self._fast_sends.sends.fault(sent, error)))
        finally:
            self._is_submitting = False
        if self.ready and self._sent is not None:
            self._end(sent)

    def _end(self, sent: Sent) -> None:
        result = self.ready.pop()
        self.ready.clear()
        self._sent = None
        self._sweeps = 0
        refusal = self._fast_sends.sends.done(sent, result.error)
        self._write(self._fast_sends.created() if refusal is None else self._fast_sends.answer(refusal))

    def _write(self, answer: bytes) -> None:
        if self._tr is None:
            return
        self._tr.write(answer)
        if self._is_ending:
            self._tr.close()

    def _hand_over(self) -> None:
        """From here on this is a connection of the general server."""
        transport, data = self._tr, self._data
        assert transport is not None
        self._tr = None
        self._data = b""
        self._fast_sends.remove(self)
        if self._is_paused:
            transport.resume_reading()
        protocol = self._fast_sends.server()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        protocol.data_received(data)

    # -- its life -----------------------------------------------------------------------------------------------

    def look(self, sweeps_max: float) -> None:
        """Some time has passed: end a connection that does nothing, and pass on one whose request does not end."""
        self._sweeps += 1
        if self._sent is not None or self._tr is None or self._tr.is_closing():
            return
        if self._is_full or not self._data:
            if self._sweeps > sweeps_max:
                self._tr.abort()
        elif self._sweeps > 1:
            self._hand_over()

    def finish(self) -> None:
        """Close it as soon as what is under way is answered."""
        self._is_ending = True
        if self._sent is None and self._tr is not None:
            self._tr.close()

    def abort(self) -> None:
        """Close it now."""
        if self._tr is not None:
            self._tr.abort()
