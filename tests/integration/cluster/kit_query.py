"""A query of Spark without Spark: its two logs, a sink that takes each batch whole, and the driver of its claims."""

from __future__ import annotations

import json
import threading
import time
from typing import Any, Final

from azure.servicebus.exceptions import ServiceBusError

from duobus.spark.claims.engine import ClaimEngine
from duobus.spark.claims.runner import ClaimRunner
from duobus.spark.claims.sdk_access import SdkAccess
from duobus.spark.connection import Place, namespace_of
from duobus.spark.entities import look
from duobus.spark.errors import EntityError
from duobus.spark.offsets import ClaimOffset, Key, by_fragment

#: Messages of a batch.
BATCH: Final = 20
#: How long a query that fails is started again.
PATIENCE_S: Final = 90.0


class Query(threading.Thread):
    """Runs until it is told to finish, and then until its queue is empty; started again whenever it fails.

    Attributes:
        name: The queue.
        sink: By batch, the bodies that were handed over.
        starts: How often the driver was started.
        claimed_by_broker: Batches that the broker has claimed.
        failure: Why it was not started again.
    """

    def __init__(self, connection_string: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.sink: dict[int, list[str]] = {}
        self.starts = 0
        self.claimed_by_broker = 0
        # A text: the error itself would keep the connections of its frames until somebody else is blamed for them.
        self.failure: str | None = None
        self._place = Place("connectionString", connection_string, retries=1)
        self._offsets: list[str] = []
        self._commits = 0
        self._is_over = threading.Event()
        self.start()

    @property
    def batches(self) -> int:
        """How many batches were handed over."""
        return self._commits

    def rows(self) -> list[str]:
        """All that was handed over."""
        return [body for batch in list(self.sink.values()) for body in batch]

    def finish(self) -> None:
        """Take what is there, and end."""
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Until the end."""
        failing_s: float | None = None
        while True:
            self.starts += 1
            before = len(self.sink)
            try:
                self._drive()
                return
            except (ServiceBusError, EntityError, RuntimeError, OSError) as error:
                now_s = time.monotonic()
                failing_s = now_s if failing_s is None or len(self.sink) > before else failing_s
                if now_s - failing_s > PATIENCE_S:
                    self.failure = repr(error)
                    return
                time.sleep(0.2)

    def _drive(self) -> None:
        access = SdkAccess(self._place, (self.name,))
        try:
            self._driven(access)
        finally:
            access.close()

    def _driven(self, access: SdkAccess) -> None:
        engine = ClaimEngine(namespace_of(self._place), (self.name,), counted=0, new_name=lambda: f"{self.name}-stream")
        claim_runner = ClaimRunner(engine, access)
        start: Any = json.loads(self._offsets[-1]) if self._offsets else claim_runner.initial()
        if len(self._offsets) > self._commits:
            before = json.loads(self._offsets[-2]) if len(self._offsets) > 1 else claim_runner.initial()
            self._batch(claim_runner, access, before, start)
        while True:
            is_last = self._is_over.is_set()
            end, count = claim_runner.latest(start, BATCH, 500)
            if not count:
                if is_last:
                    return
                continue
            self._offsets.append(json.dumps(end))
            self.claimed_by_broker += ClaimOffset.from_json(end).parts > 0
            if self._commits:
                claim_runner.commit(start)
            self._batch(claim_runner, access, start, json.loads(self._offsets[-1]))
            start = json.loads(self._offsets[-1])

    def _batch(self, claim_runner: ClaimRunner, access: SdkAccess, start: Any, end: Any) -> None:
        numbers = claim_runner.plan(start, end).claim.get(Key(self.name), {})
        found: dict[int, str] = {}
        with access._reader(Key(self.name)) as receiver:
            for part in by_fragment(numbers).values():
                for message in look(receiver, part):
                    found[message.sequence_number] = str(message)
        if missing := numbers.keys() - found.keys():
            raise RuntimeError(f"{len(missing)} messages of the batch are gone")
        self.sink[len(self._offsets)] = list(found.values())
        self._commits = len(self._offsets)
