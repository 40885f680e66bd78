"""Ports that stay a server's own while it is down."""

from __future__ import annotations

import socket
import sys
import weakref


class HeldPort:
    """A port of the loopback interface that nobody else gets, though a server may come and go on it.

    A port that the system has picked is free for all while its server is down: for another server, and for the
    connections that clients make meanwhile. A client that tries to connect to that very port may even be given it for
    its own end, and talk to itself. A socket that is bound and does not listen keeps all of them away, and on Linux a
    server that allows its address to be reused can listen beside it. Elsewhere the port is free again at once.
    """

    def __init__(self) -> None:
        holder = socket.socket()
        # Closed with the object at the latest: who keeps a server's ports has no end of them to think of.
        close = weakref.finalize(self, holder.close)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        self.number: int = holder.getsockname()[1]
        if sys.platform != "linux":
            close()
