"""The end of a query: its last batch is removed if it is committed, although Spark does not tell the source so.

Spark tells a source that a batch is committed when it begins the next batch. After the last batch of a query Spark only
ends the process of the source, with SIGTERM, whether that batch is committed or not. The commit log says which, so a
process that knows the query's checkpoint can settle the last batch. Messages of a batch that is not committed stay
deferred: tasks may have handed them over, and the query continues with them when it is started again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from duobus.spark.claims.engine import ClaimEngine
from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.claims.sdk_access import SdkAccess
from duobus.spark.connection import Place, counts_deferrals, namespace_of
from duobus.spark.errors import CheckpointError, OptionError
from duobus.spark.offsets import ClaimOffset
from duobus.spark.recovery import batches_in, claims_in

#: Module that Spark runs in the process of a source.
RUNNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
#: How long a process that was told to end goes on settling; what is left then is settled by the query's next start.
ENDING_S: Final = 30.0

_log = logging.getLogger("duobus.spark")


def local_folder(location: str) -> Path | None:
    """The folder that a location of Spark names, when it is on this machine's disks; None when it is elsewhere."""
    scheme = urlsplit(location).scheme
    if not scheme:
        return Path(location)
    return Path(unquote(urlsplit(location).path)) if scheme == "file" else None


def newest_claims(checkpoint: Path) -> list[ClaimOffset] | None:
    """The claims of the newest batch of a query, if the batch is committed; None when it is not.

    Raises:
        CheckpointError: A file of the checkpoint cannot be read.
    """
    newest = max(batches_in(checkpoint / "offsets"), default=None)
    if newest is None or newest not in batches_in(checkpoint / "commits"):
        return None
    return claims_in(checkpoint / "offsets" / str(newest))


def settle_committed(place: Place, location: str, only: Any = None) -> None:
    """Remove the messages of the newest batch of a query that is over, if the batch is committed; never fails.

    Messages that cannot be removed now are removed when the query is started again.

    Args:
        place: The namespace.
        location: The query's checkpoint.
        only: The one offset to settle, in Spark's form; None: all offsets of the batch that are of this namespace.
    """
    folder = local_folder(location)
    if folder is None:
        _log.info("the checkpoint %s is not on this machine; its last batch is settled by the next start", location)
        return
    try:
        for offset in newest_claims(folder) or ():
            if offset.at == namespace_of(place) and (only is None or offset == ClaimOffset.from_json(only)):
                _settle(place, offset)
    except (CheckpointError, OptionError, OSError):
        # The last two: a secret that only the nodes have, or a folder that is going away.
        _log.warning("the last batch is settled when the query is started again", exc_info=True)


def _settle(place: Place, offset: ClaimOffset) -> None:
    if not offset.claim:
        return
    entities = tuple(sorted({key.entity for key in offset.claim}))
    access = SdkAccess(place, entities)
    try:
        # As a process does that was started again: what is deferred by this query is looked up, and that is removed.
        engine = ClaimEngine(offset.at, entities, counted=counts_deferrals(place))
        ClaimRunner(engine, access).commit(offset.to_json())
    finally:
        access.close()


class Ended(BaseException):
    """Raised when the process has to end; ends the call of the source that is under way."""


class Ending:
    """The work of a source's process when Spark ends it; in other processes nothing is changed.

    Args:
        work: The work, which is done once and may take ``ENDING_S`` seconds at most.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._is_called = self._is_installed = False

    def install(self) -> None:
        """Handle SIGTERM, if this is the process of a source."""
        spec = getattr(sys.modules.get("__main__"), "__spec__", None)
        is_source = getattr(spec, "name", None) == RUNNER and threading.current_thread() is threading.main_thread()
        if is_source and not self._is_installed:
            self._is_installed = True
            signal.signal(signal.SIGTERM, self._told)

    def ignore(self) -> None:
        """Do not end before the work under way is done; Spark has ended the query already."""
        if self._is_installed:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Run a call of Spark, which is ended when the process has to end; its links stay as they are then."""
        self._is_called = True
        try:
            yield
        except Ended:
            self._end()
        finally:
            self._is_called = False

    def _told(self, *_: Any) -> None:
        self.ignore()
        if self._is_called:
            raise Ended
        self._end()

    def _end(self) -> None:
        guard = threading.Timer(ENDING_S, os._exit, (1,))
        guard.daemon = True
        guard.start()
        # Whatever goes wrong: nobody waits for an answer any more, and the next start of the query does what is left.
        with suppress(BaseException):
            self._work()
        os._exit(0)
