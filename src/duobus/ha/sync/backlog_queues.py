# Generated from duobus/ha/aio/backlog_queues.py by `make twins`; change that one.
"""The backlog queues of a pair: made when they are missing, chosen at random, left alone when they fail."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ResourceExistsError
from azure.core.exceptions import ResourceNotFoundError as NotFound
from azure.servicebus.exceptions import (
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
)

from duobus.concurrency import sync as tasks
from duobus.ha.errors import BacklogUnavailable
from duobus.ha.events import (
    BacklogCreateFailed,
    BacklogDepth,
    BacklogLockShort,
    BacklogMissing,
    BacklogRestored,
    Reporter,
)
from duobus.ha.options import BACKLOG_DIGITS_MAX
from duobus.ha.outage import token_refusal
from duobus.ha.sdk_errors import Meaning, meaning

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import QueueProperties, QueueRuntimeProperties, ServiceBusAdministrationClient

    from duobus.clock import Clock, Entropy

#: A backlog queue that failed is tried again after this time; without it one bad minute of the secondary would leave a
#: pair without any, for ever.
REST_MS: Final = 60_000
#: Queues that are looked at side by side at pairing.
AT_ONCE: Final = 10
TRIES: Final = 3
TRY_AGAIN_S: Final = 30.0
#: A link to a backlog queue that was not opened in this time is not there.
LOOK_LIMIT_S: Final = 60.0
#: What no other queue would answer otherwise; without any of them the pair does.
_NO_RIGHTS: Final = (ClientAuthenticationError, ServiceBusAuthenticationError, ServiceBusAuthorizationError)

#: The lock of a backlog queue in the documents: the time in which a syphon has to deliver what it received.
LOCK: Final = timedelta(minutes=1)
#: What the service writes for a duration without end.
_FOREVER: Final = "P10675199DT2H48M5.4775807S"
_DELIVERIES: Final = 2_147_483_647
#: The most that Azure takes today; the documents ask for more.
_DELIVERIES_OF_AZURE: Final = 2_000

_log = logging.getLogger("duobus.ha")


def paths(primary_name: str, count: int) -> list[str]:
    """Return the paths of the backlog queues of a primary, ``contoso/x-servicebus-transfer/0`` and so on (PN5)."""
    return [f"{primary_name}/x-servicebus-transfer/{index}" for index in range(count)]


def name_of(client: ServiceBusClient) -> str:
    """Return the name of a namespace: the first label of its host name."""
    return str(client.fully_qualified_namespace).split(".", 1)[0].split(":", 1)[0]


class Rotation:
    """The backlog queues that senders may choose among; shared by all senders of a pair (PN4).

    Args:
        queues: Paths of the backlog queues.
        clock: The time.
        entropy: Randomness, for the choice.
        reporter: Gets an event when a queue that had failed is back.
    """

    def __init__(self, queues: Sequence[str], clock: Clock, entropy: Entropy, reporter: Reporter | None = None) -> None:
        self.queues = tuple(queues)
        self._reporter = reporter
        self._clock = clock
        self._entropy = entropy
        self._resting: dict[str, int] = {}

    def choose(self) -> str | None:
        """Return a queue of the rotation, each as likely as the others; None when all have failed."""
        there = [queue for queue in self.queues if self.is_in(queue)]
        if not there:
            return None
        # 64 bits, so that no queue is ever noticeably more likely than another.
        return there[self._entropy.number(64) % len(there)]

    def is_in(self, queue: str) -> bool:
        """Tell whether a queue is in the rotation."""
        until = self._resting.get(queue)
        if until is None:
            return True
        if self._clock.monotonic_ms() < until:
            return False
        # Several senders may find it at the same time; one of them tells.
        if self._resting.pop(queue, None) is not None and self._reporter is not None:
            self._reporter.tell(BacklogRestored(queue))
        return True

    @property
    def resting(self) -> int:
        """Number of queues that are out of the rotation."""
        now_ms = self._clock.monotonic_ms()
        # A copy first: metrics ask from a thread of their own.
        return sum(now_ms < until for until in list(self._resting.values()))

    def drop(self, queue: str) -> None:
        """Take a queue out of the rotation, for all senders."""
        self._resting[queue] = self._clock.monotonic_ms() + REST_MS


def provide(
    client: ServiceBusClient,
    administration: ServiceBusAdministrationClient | None,
    wanted: Sequence[str],
    reporter: Reporter,
) -> list[str]:
    """Make the missing ones of the wanted queues, and return those that exist.

    A queue that exists is used as it is (PN7). Without ``administration`` no queue is made: opening a link to each
    shows whether the queue exists.

    Raises:
        BacklogUnavailable: No queue exists; or, without ``administration``, the token for every queue was refused, and
            the SDK does not say why.
        ClientAuthenticationError, ServiceBusAuthenticationError, ServiceBusAuthorizationError: The credentials have no
            right to do this.
    """
    answers: dict[str, Exception | None] = {}
    for first in range(0, len(wanted), AT_ONCE):
        part = wanted[first : first + AT_ONCE]
        looks = [
            partial(_look, client, queue)
            if administration is None
            else partial(_provide_one, administration, queue, reporter)
            for queue in part
        ]
        answers |= zip(part, tasks.together(*looks), strict=True)
        for answer in answers.values():
            if answer is not None and _forbids(answer):
                raise answer
    for queue, answer in answers.items():
        if answer is not None:
            reporter.tell(BacklogMissing(queue, str(answer)))
    found = [queue for queue, answer in answers.items() if answer is None]
    if not found:
        how = "Pass administration=, so that they can be made." if administration is None else "See the cause."
        cause = answers[wanted[0]]
        if cause is not None and token_refusal(cause) is not None:
            how += " If they are there, its key is wrong: it took no token for them."
        text = f"The secondary has none of {len(wanted)} backlog queues ({wanted[0]} ...). {how}"
        raise BacklogUnavailable(text) from cause
    return found


def _forbids(error: Exception) -> bool:
    """Whether an error says that the credentials may not, and not that a queue may be missing."""
    refusal = token_refusal(error)
    if refusal is None:
        return isinstance(error, _NO_RIGHTS)
    # The SDK tells the status of few answers; without it a queue that is missing looks as one that may not be used.
    return refusal.status not in (None, 404)


def _look(client: ServiceBusClient, queue: str) -> None:
    sender = client.get_queue_sender(queue)
    tasks.within(LOOK_LIMIT_S, sender.__enter__)
    sender.close()


def _provide_one(administration: ServiceBusAdministrationClient, queue: str, reporter: Reporter) -> None:
    for left in reversed(range(TRIES)):
        try:
            try:
                found = _find(administration, queue)
            except NotFound:
                _create(administration, queue)
            else:
                # It is taken as it is (PN7), and its owner hears what that means.
                short = short_lock(getattr(found, "lock_duration", None))
                if short is not None:
                    reporter.tell(BacklogLockShort(queue, round(short.total_seconds() * 1000)))
                    _log.warning("%s", short_lock_text(queue, short))
        except BacklogUnavailable:
            raise
        except Exception as error:
            # What its owner has to mend is the same after a pause.
            if not left or meaning(error) in (Meaning.OWNER, Meaning.MISSING):
                raise
            reporter.tell(BacklogCreateFailed(queue, str(error) or type(error).__name__, left))
            tasks.sleep(TRY_AGAIN_S)
        else:
            return


def _find(administration: ServiceBusAdministrationClient, queue: str) -> QueueProperties:
    """A backlog queue that is there; raises BacklogUnavailable where its path is a topic's."""
    try:
        return administration.get_queue(queue)
    except AttributeError:
        # The SDK has no other words for an entity of another kind.
        if not _is_topic(administration, queue):
            raise
        text = f"{queue!r} is a topic in the secondary, and a backlog queue is needed. Delete the topic."
        raise BacklogUnavailable(text) from None


def _is_topic(administration: ServiceBusAdministrationClient, path: str) -> bool:
    try:
        administration.get_topic(path)
    except Exception:  # noqa: BLE001 - whatever it says, it is not known to be one
        return False
    return True


def short_lock(lock: object) -> timedelta | None:
    """The lock of a backlog queue when it is shorter than that of the documents; None when it is long enough."""
    return lock if isinstance(lock, timedelta) and lock < LOCK else None


def short_lock_text(queue: str, lock: timedelta) -> str:
    """Explain what a lock that is too short means, and what to do."""
    return (
        f"The lock of the backlog queue {queue!r} lasts {lock.total_seconds():g} seconds instead of "
        f"{LOCK.total_seconds():g}: what a syphon holds longer comes again, and is delivered twice. Set its lock "
        "duration to a minute."
    )


def _create(administration: ServiceBusAdministrationClient, queue: str) -> None:
    """Create a backlog queue with the properties of the documents (PN6)."""
    for deliveries in (_DELIVERIES, _DELIVERIES_OF_AZURE):
        try:
            administration.create_queue(
                queue,
                max_size_in_megabytes=5120,
                max_delivery_count=deliveries,
                default_message_time_to_live=_FOREVER,
                auto_delete_on_idle=_FOREVER,
                lock_duration=LOCK,
                dead_lettering_on_message_expiration=True,
                enable_batched_operations=True,
            )
        except ResourceExistsError:
            return  # Somebody else was faster; theirs is taken as it is.
        except HttpResponseError as error:
            if error.status_code != 400 or deliveries == _DELIVERIES_OF_AZURE:
                raise
        else:
            return


class Found(NamedTuple):
    """A backlog queue of a primary that the secondary has.

    Attributes:
        path: Path of the queue.
        is_used: Whether its number is below the count of the options; otherwise it is surplus, and left alone (PN7).
        waiting: Number of messages that wait for the syphon.
        dead: Number of messages in its dead-letter queue.
    """

    path: str
    is_used: bool
    waiting: int
    dead: int


def backlogs_among(queues: Iterable[QueueRuntimeProperties], primary_name: str, count: int) -> list[Found]:
    """Return the queues that are backlog queues of a primary, by their paths, in order of number.

    Args:
        queues: All queues of the secondary.
        primary_name: Name of the primary in the paths.
        count: Number of backlog queues in the options; further queues are surplus.
    """
    prefix = f"{primary_name}/x-servicebus-transfer/"
    found: list[tuple[int, Found]] = []
    for queue in queues:
        name = str(queue.name)
        # The service gives paths back in the letters they were created with, and takes them in any.
        rest = name[len(prefix) :] if name.lower().startswith(prefix.lower()) else ""
        if rest.isascii() and rest.isdigit() and len(rest) <= BACKLOG_DIGITS_MAX and str(int(rest)) == rest:
            number = int(rest)
            waiting, dead = queue.active_message_count or 0, queue.dead_letter_message_count or 0
            found.append((number, Found(name, number < count, waiting, dead)))
    return [queue for _, queue in sorted(found)]


def watch_depths(
    administration: ServiceBusAdministrationClient, queues: Sequence[str], interval: timedelta, reporter: Reporter
) -> None:
    """Report the depth of each backlog queue, every ``interval``, until cancelled; a queue that fails is left out."""
    while True:
        for queue in queues:
            # The secondary may be away, too; then the last numbers stand until it is back.
            with contextlib.suppress(Exception):
                properties = administration.get_queue_runtime_properties(queue)
                waiting, dead = properties.active_message_count or 0, properties.dead_letter_message_count or 0
                reporter.tell(BacklogDepth(queue, waiting, dead))
        tasks.sleep(interval.total_seconds())
