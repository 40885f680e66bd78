# Generated from duobus/ha/aio/state_reports.py by `make twins`; change that one.
"""A paired client tells its state, and takes the wishes of an operator, by a queue of the secondary."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from azure.core.exceptions import ResourceExistsError

from duobus.concurrency import sync as tasks
from duobus.ha.reports.message import REPORT_S, Report, read_wish, report_message
from duobus.ha.sdk_errors import explained

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusSender
    from azure.servicebus.management import ServiceBusAdministrationClient

#: After a change further ones are waited for, so that an outage of a thousand entities is no thousand messages.
_TOGETHER_S: Final = 1.0
#: How often a client looks for wishes while something is away, and only then.
_LOOK_S: Final = 10.0
#: Messages that one look takes in, and calls in which it does so.
_PEEKED: Final = 250
_CALLS_MAX: Final = 8
#: Wishes that are remembered as taken.
_TAKEN_MAX: Final = 1_000
_LIMIT_S: Final = 20.0
#: What the service writes for a duration without end.
_FOREVER: Final = "P10675199DT2H48M5.4775807S"
_log = logging.getLogger("duobus.ha")


class StateReports:
    """Reports the state of a pair, at each change and every minute.

    What fails is logged once and tried again with the next report: a pair never waits for its reports.

    Args:
        secondary: Client of the namespace that has the queue.
        queue: Its path.
        describe: Returns the report, now.
        mark: Called with the path of an entity that an operator wants to count as healthy.
        administration: Makes the queue unless it is there; None when it has to be there.
    """

    def __init__(
        self,
        secondary: ServiceBusClient,
        queue: str,
        describe: Callable[[], Report],
        mark: Callable[[str], None],
        administration: ServiceBusAdministrationClient | None = None,
    ) -> None:
        self._administration = administration
        self._secondary = secondary
        self._queue = queue
        self._describe = describe
        self._mark = mark
        self._changed = tasks.Signal()
        self._sender: ServiceBusSender | None = None
        self._taken: dict[int, None] = {}
        self._is_told = False

    def tell(self) -> None:
        """Something has changed: report soon."""
        self._changed.set()

    def run(self) -> None:
        """Report until cancelled."""
        try:
            while True:
                self._changed.clear()
                report = self._describe()
                self._try(self._send, report)
                left_s = REPORT_S
                while left_s > 0 and not self._changed.wait(min(left_s, _LOOK_S) if report.entities else left_s):
                    left_s -= _LOOK_S if report.entities else left_s
                    if report.entities:
                        self._try(self._look, report)
                tasks.sleep(_TOGETHER_S)
        finally:
            self._close()

    def _try(self, work: Callable[[Report], None], report: Report) -> None:
        tasks.check()
        try:
            tasks.within(_LIMIT_S, partial(work, report))
        except Exception as error:  # noqa: BLE001 - whatever it is, the pair goes on
            self._close()
            if not self._is_told:
                _log.warning("The state of the pair is not reported to %s: %s", self._queue, explained(error))
            self._is_told = True
        else:
            self._is_told = False

    def _send(self, report: Report) -> None:
        if self._administration is not None:
            _provide(self._administration, self._queue)
            self._administration = None
        if self._sender is None:
            self._sender = self._secondary.get_queue_sender(self._queue)
        self._sender.send_messages(report_message(report))

    def _look(self, _report: Report) -> None:
        with self._secondary.get_queue_receiver(self._queue) as receiver:
            first = 1
            for _ in range(_CALLS_MAX):
                messages = receiver.peek_messages(max_message_count=_PEEKED, sequence_number=first)
                for message in messages:
                    entity = read_wish(message)
                    number = message.sequence_number or 0
                    if entity is not None and number not in self._taken:
                        self._taken[number] = None
                        self._mark(entity)
                if len(messages) < _PEEKED:
                    break
                first = max(message.sequence_number or 0 for message in messages) + 1
        while len(self._taken) > _TAKEN_MAX:
            del self._taken[next(iter(self._taken))]

    def _close(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            with contextlib.suppress(Exception):
                tasks.within(_LIMIT_S, sender.close)


def _provide(administration: ServiceBusAdministrationClient, queue: str) -> None:
    """Make the queue of the reports unless it is there; reports expire, and nobody wants them as dead letters."""
    with contextlib.suppress(ResourceExistsError):
        administration.create_queue(
            queue,
            auto_delete_on_idle=_FOREVER,
            dead_lettering_on_message_expiration=False,
        )
