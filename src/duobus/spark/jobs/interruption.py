"""How Ctrl-C or SIGTERM stops a job: after its present batch, and with its summary.

An exception from a signal handler would leave the connection to the JVM with an unread answer, and every later call
would get the answer of another call. So the handler raises nothing: a thread with a connection of its own stops the
queries or cancels the work, and the job comes to its end by itself.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long the batch that a query is at may take until it is broken off; it then stays claimed until the next start.
#: Less than the half minute that most platforms give a process.
GRACE_S: Final = 20.0
#: Between two looks at a query.
LOOK_S: Final = 0.05
#: Set when a job of this process was stopped, which it cannot tell from a query that came to its end.
WAS_STOPPED: Final = threading.Event()
#: How Spark says that a query is in the middle of a batch.
_BUSY: Final = "Processing new data"


class Stopping:
    """Stops the work of a session when a signal comes.

    Args:
        spark: The session.
        clock: Time.

    Attributes:
        signum: The signal that came; None: none did.
    """

    def __init__(self, spark: SparkSession, clock: Clock | None = None) -> None:
        self._spark = spark
        self._clock = clock or Clock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.signum: int | None = None

    @contextmanager
    def watching(self) -> Iterator[Stopping]:
        """Handle SIGINT and SIGTERM during the context. A second signal ends the process at once."""
        before = {signum: signal.signal(signum, self._told) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield self
        finally:
            self._over.set()
            for signum, handler in before.items():
                signal.signal(signum, handler)
            if self._thread is not None:
                self._thread.join(LOOK_S)

    def _told(self, signum: int, _: Any) -> None:
        if self.signum is not None:
            os._exit(128 + signum)
        self.signum = signum
        self._thread = threading.Thread(target=self.stop, name="stopping", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop each query after its present batch, or cancel other work that is under way."""
        WAS_STOPPED.set()
        until_ms = self._clock.monotonic_ms() + int(GRACE_S * 1000)
        # Whatever it answers: what has ended in the meantime need not be stopped.
        with suppress(Exception):
            queries = self._spark.streams.active
            for query in queries:
                while self._clock.monotonic_ms() < until_ms and query.status["message"].startswith(_BUSY):
                    if self._over.wait(LOOK_S):
                        return
                query.stop()
            while not queries and not self._over.wait(LOOK_S):
                # Again and again: the job may be between two actions.
                self._spark.sparkContext.cancelAllJobs()
