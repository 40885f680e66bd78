"""Sockets that the SDK leaves unclosed when a server ends before it says so."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

#: What the warning of an unclosed socket tells of: the socket, its transport, that of TLS above it, or, with newer
#: versions of Python, a stream over TLS. A stream that is collected after its loop has ended, which happens on a busy
#: machine, tells of the loop alone.
NAMES: Final = ("socket", "sslprotocoltransport", "streamwriter", "loop is closed")


@contextmanager
def sockets_forgiven(when: Callable[[], bool]) -> Iterator[None]:
    """While this lasts, say nothing of an unclosed socket that is collected when ``when`` holds; all else counts."""
    told = sys.unraisablehook

    def pass_on(found: Any) -> None:
        is_socket = isinstance(found.exc_value, ResourceWarning) and any(
            name in str(found.exc_value).lower() for name in NAMES
        )
        if not (is_socket and when()):
            told(found)

    sys.unraisablehook = pass_on
    try:
        yield
    finally:
        sys.unraisablehook = told


def collect_sockets() -> None:
    """Collect them here, before another test is blamed for them; whatever else is found counts."""
    with sockets_forgiven(lambda: True):
        gc.collect()
