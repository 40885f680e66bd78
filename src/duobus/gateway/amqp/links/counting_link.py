"""CountingLink: a receiving link that tells its client how many messages there are, and so needs no credit to wait.

Another server attaches it to one shard of a sharded queue (``cluster/sharding/link.py``). It gives credit, always to be
drained, only when it was told that something is available; so credit never lies where nothing is, and a client's credit
can be good for whichever shard has messages first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duobus.gateway.amqp.links.outgoing_link import OutgoingLink

if TYPE_CHECKING:
    from duobus.amqp import Attach

#: In the properties of an attach: who receives wants to be told what is available.
TELLS: Final = "com.duobus:tell-available"
_TOLD_MAX: Final = (1 << 31) - 1


class CountingLink(OutgoingLink):
    """One link on which another server receives in the name of its client."""

    __slots__ = ("_has_told", "_scheduler")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # What is told stands until the other side does something about it.
        self._has_told = False
        self._scheduler = self.queue.schedulers[self._sub_queue]
        self._scheduler.watchers[self] = None
        self.wake()

    def offered(self) -> None:
        """See credit_scheduler.AvailabilityWatcher."""
        if not self._has_told:
            self.wake()

    def flow(self) -> None:
        """See OutgoingLink."""
        self._has_told = False
        super().flow()

    def deliver_answers(self) -> None:
        """See OutgoingLink; also tell what is available."""
        super().deliver_answers()
        if self._has_told or self.link.credit or self._draining or not self.link.is_attached:
            return
        number = self.available()
        if number:
            self._send_count(number)
            self.link.flow()

    def _send_count(self, number: int) -> None:
        self.link.available = min(number, _TOLD_MAX)
        self._has_told = number > 0

    def _answer_drain(self) -> None:
        # It was asked for because something was there: not a receive that has ended with nothing (I59).
        self._is_asked = False
        self._send_count(self.available())
        super()._answer_drain()

    def ask_no_more(self) -> None:
        """See OutgoingLink."""
        self._scheduler.watchers.pop(self, None)
        super().ask_no_more()


def wants_telling(remote: Attach) -> bool:
    """Whether an attach asks for a BranchLink."""
    return any(str(key) == TELLS for key in remote.properties or ())
