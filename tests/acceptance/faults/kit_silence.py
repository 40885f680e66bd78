"""Connections that fall silent without an end: a client process that is stopped, and a wire that is cut."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: Locks a message with the SDK, says so, and waits to be killed.
_HOLDER = """
import sys, threading
from azure.servicebus import ServiceBusClient
client = ServiceBusClient.from_connection_string(sys.argv[1])
with client, client.get_queue_receiver(sys.argv[2]) as receiver:
    print(len(receiver.receive_messages(max_wait_time=5)), flush=True)
    threading.Event().wait()
"""


@contextmanager
def holder(connection_string: str, queue: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock of one message."""
    words = [sys.executable, "-c", _HOLDER, connection_string, queue]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


class Wire:
    """A relay to a port; once cut, nothing passes any more and neither end learns of it."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = [self._listener]
        self._threads: list[threading.Thread] = []
        self._is_cut = threading.Event()
        self._start(self._accept)

    def cut(self) -> None:
        """From now on bytes of either side are swallowed."""
        self._is_cut.set()

    def close(self) -> None:
        """End everything."""
        for found in self._sockets:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()
        for thread in self._threads:
            thread.join(60)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                remote = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, remote]
                self._start(self._pump, near, remote)
                self._start(self._pump, remote, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                if not self._is_cut.is_set():
                    sink.sendall(data)
            if not self._is_cut.is_set():
                sink.shutdown(socket.SHUT_WR)
