"""The entities that a reader reads, and how the SDK opens and peeks at them."""

from __future__ import annotations

import fnmatch
import logging
import re
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from duobus.clock import Clock
from duobus.spark.connection import Place, masked, new_administration
from duobus.spark.errors import EntityError, OptionError
from duobus.spark.offsets import COUNT_BITS, COUNT_MASK, Key
from duobus.spark.options import NAMES_MAX, Parsed

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender

_log = logging.getLogger("duobus.spark")

#: Sub-queue to the end of an entity's name in offsets.
_SUFFIXES: Final = {"deadletter": "/$deadletterqueue", "transferdeadletter": "/$transfer/$deadletterqueue"}
_SUBSCRIPTION: Final = re.compile(r"(?i)(.+)/subscriptions/([^/]+)")
#: Options that give a pattern.
PATTERNS: Final = ("queuesPattern", "subscriptionsPattern")
_OF_TOPIC: Final = "/subscriptions/"
#: After so long a stream looks for entities that match its pattern and are new.
PATTERN_MS: Final = 60_000
#: Messages that one peek asks for.
PEEK: Final = 1_000


def entities_of(options: Parsed) -> tuple[str, ...]:
    """Return the entities that the options name, with the sub-queue; empty for a pattern, which the broker resolves.

    Raises:
        OptionError: No option names an entity, or several kinds of options are mixed.
    """
    given = [option for option in ("queue", "topic", "queues", *PATTERNS) if options[option] is not None]
    if len(given) != 1:
        told = " and ".join(f"'{option}'" for option in given) or "none of them"
        raise OptionError(
            "One of the options queue, topic with subscription, queues, queuesPattern and subscriptionsPattern says "
            f"what to read; {told} was given."
        )
    if (options["topic"] is None) != (options["subscription"] is None):
        raise OptionError("The options 'topic' and 'subscription' go together.")
    if pattern_of(options) is not None:
        if options["subscriptionsPattern"] is not None and _OF_TOPIC not in options["subscriptionsPattern"].lower():
            raise OptionError(
                f"The option 'subscriptionsPattern' is {options['subscriptionsPattern']!r}; it has to have the form "
                "topic/subscriptions/name, as prices/subscriptions/* or */subscriptions/audit."
            )
        return ()
    if options["topic"] is not None:
        names = (f"{options['topic']}/subscriptions/{options['subscription']}",)
    else:
        names = options["queues"] or (options["queue"],)
    return tuple(with_sub_queue(name, options["subQueue"]) for name in names)


def with_sub_queue(name: str, sub_queue: str | None) -> str:
    """The name of an entity's sub-queue, as offsets have it."""
    return name + _SUFFIXES.get(sub_queue or "", "")


def split_name(name: str) -> tuple[str, str | None]:
    """Take a name of offsets apart into the entity and its sub-queue."""
    # The longer suffix first: one is the end of the other.
    for sub_queue in ("transferdeadletter", "deadletter"):
        suffix = _SUFFIXES[sub_queue]
        if name.lower().endswith(suffix):
            return name[: -len(suffix)], sub_queue
    return name, None


def resolved(place: Place, options: Parsed) -> tuple[str, ...]:
    """Like ``entities_of``, with a pattern resolved.

    Raises:
        EntityError: No queue matches, or the namespace does not list its queues.
    """
    named = entities_of(options)
    if named:
        return named
    option = pattern_of(options) or ""
    pattern: str = options[option]
    with told(option), new_administration(place) as administration:
        listed = _queues(administration) if option == "queuesPattern" else _subscriptions(administration, pattern)
        found = [name for name in listed if fnmatch.fnmatch(name.lower(), pattern.lower())]
    what = "queue" if option == "queuesPattern" else "subscription"
    if not found:
        raise EntityError(f"No {what} matches the option '{option}' = {pattern!r}.")
    if len(found) > NAMES_MAX:
        raise EntityError(f"{len(found)} {what}s match '{option}' = {pattern!r}; {NAMES_MAX} can be read at once.")
    return tuple(sorted(with_sub_queue(name, options["subQueue"]) for name in found))


def pattern_of(options: Parsed) -> str | None:
    """Name of the option that gives a pattern; None: the entities are named."""
    return next((option for option in PATTERNS if options[option] is not None), None)


def _queues(administration: Any) -> Iterator[str]:
    return (item.name for item in administration.list_queues())


def _subscriptions(administration: Any, pattern: str) -> Iterator[str]:
    """The subscriptions of the topics that a pattern allows."""
    topics = pattern.lower().rpartition(_OF_TOPIC)[0]
    for topic in administration.list_topics():
        if fnmatch.fnmatch(topic.name.lower(), topics):
            for item in administration.list_subscriptions(topic.name):
                yield f"{topic.name}{_OF_TOPIC}{item.name}"


class Entities:
    """The entities of a stream; those that a pattern means are looked up again while the stream runs.

    Args:
        place: The namespace.
        options: Of the source.
        clock: Time.
    """

    def __init__(self, place: Place, options: Parsed, clock: Clock | None = None) -> None:
        self._place = place
        self._options = options
        self._clock = clock or Clock()
        self._found: tuple[str, ...] = ()
        self._found_ms = 0

    def now(self) -> tuple[str, ...]:
        """The entities; those of a pattern as they were a minute ago at most, or longer where nobody answers.

        Raises:
            EntityError: There is none, at the first call.
        """
        now_ms = self._clock.monotonic_ms()
        if not self._found:
            self._found, self._found_ms = resolved(self._place, self._options), now_ms
        elif pattern_of(self._options) is not None and now_ms - self._found_ms >= PATTERN_MS:
            self._found_ms = now_ms
            try:
                self._found = resolved(self._place, self._options)
            except Exception as error:  # noqa: BLE001 - of whatever kind: the stream goes on with what it has
                _log.warning("the entities of the pattern were not looked up again: %s", said(error))
        return self._found


def open_receiver(client: ServiceBusClient, key: Key, *, removes: bool = False, **more: Any) -> ServiceBusReceiver:
    """Open a receiver of an entity, of one session when the key names one; the caller closes it."""
    from azure.servicebus import ServiceBusReceiveMode, ServiceBusSubQueue

    name, sub_queue = split_name(key.entity)
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE if removes else ServiceBusReceiveMode.PEEK_LOCK
    options: dict[str, Any] = {"receive_mode": mode, **more}
    if sub_queue is not None:
        options["sub_queue"] = ServiceBusSubQueue(sub_queue)
    if key.session is not None:
        options["session_id"] = key.session
    found = _SUBSCRIPTION.fullmatch(name)
    if found is not None:
        return client.get_subscription_receiver(found[1], found[2], **options)
    return client.get_queue_receiver(name, **options)


def open_sender(client: ServiceBusClient, key: Key) -> ServiceBusSender:
    """Open a sender to a queue; the caller closes it."""
    return client.get_queue_sender(key.entity)


def peek(receiver: Any, first: int, count: int = PEEK) -> list[Any]:
    """Peek at messages from a sequence number on, which is sent to the broker even if it is zero."""
    found: list[Any] = receiver.peek_messages(max_message_count=min(count, PEEK), sequence_number=max(first, 1))
    return found


def look(receiver: Any, numbers: list[int]) -> Iterator[Any]:
    """Yield those of some messages of one fragment that exist, in any state, and no others.

    A peek ignores a fragment that is away, as if it were empty (decision 0031). So a message counts as missing only
    when the fragment was there before the peek and after it.

    Args:
        receiver: Receiver of the entity, or of the session.
        numbers: Sequence numbers, ascending.

    Raises:
        ServiceBusServerBusyError: The fragment is away.
    """
    at, was_there = 0, False
    while at < len(numbers):
        fragment = numbers[at] >> COUNT_BITS
        page = peek(receiver, numbers[at], len(numbers) - at)
        within = [message for message in page if message.sequence_number >> COUNT_BITS == fragment]
        if within:
            wanted = set(numbers[at:])
            yield from (message for message in within if message.sequence_number in wanted)
            at, was_there = bisect_right(numbers, within[-1].sequence_number), False
            continue
        demand_there(receiver, fragment)
        if was_there:
            return
        was_there = True


def demand_there(receiver: Any, fragment: int) -> None:
    """Make sure that a fragment is there, by asking for a message that it cannot have.

    The request changes and locks nothing: it fails because the number is missing, and with another error when the
    fragment is away.

    Raises:
        ServiceBusServerBusyError: The fragment is away.
    """
    from azure.servicebus.exceptions import MessageNotFoundError

    with suppress(MessageNotFoundError):
        receiver.receive_deferred_messages([fragment << COUNT_BITS | COUNT_MASK])


@contextmanager
def told(entity: str) -> Iterator[None]:
    """Raise an error that no retry mends in words that name the entity and what to do.

    Raises:
        EntityError: The entity is missing, disabled, refuses these rights, or needs sessions.
    """
    from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
    from azure.servicebus import exceptions

    from duobus.ha.outage import token_refusal

    try:
        try:
            yield
        except exceptions.ServiceBusError as error:
            if token_refusal(error) is None:
                raise
            # The SDK does not say why, and for a namespace with an address of its own the class is a lost connection's.
            raise EntityError(
                f"There is no '{entity}' in the namespace, or the key does not suffice for it: its token was not "
                "taken. Create it, correct its name, or correct the key."
            ) from None
    except exceptions.MessagingEntityNotFoundError as error:
        raise EntityError(f"There is no '{entity}' in the namespace: {said(error)}") from None
    except exceptions.MessagingEntityDisabledError as error:
        raise EntityError(f"'{entity}' is disabled: {said(error)}") from None
    except (
        exceptions.ServiceBusAuthorizationError,
        exceptions.ServiceBusAuthenticationError,
        ClientAuthenticationError,
    ) as error:
        raise EntityError(
            f"The rights do not suffice to read '{entity}'; Listen is needed, Manage for queuesPattern: {said(error)}"
        ) from None
    except HttpResponseError as error:
        raise EntityError(f"The management API refused to tell about '{entity}': {said(error)}") from None
    except exceptions.ServiceBusError as error:
        if "session" in str(error).lower() and "require" in str(error).lower():
            raise EntityError(
                f"'{entity}' cannot be read this way: {said(error)} An entity that requires sessions is read by a "
                "stream with exclusive=true, one that does not without it."
            ) from None
        raise


def said(error: BaseException) -> str:
    """The text of an error in one line, without keys."""
    return masked(" ".join(str(getattr(error, "message", "") or error).split()))[:1_000]


# How many messages wait, which is what a run with ``availableNow`` takes and no more.


def waiting_messages(place: Place, entities: tuple[str, ...]) -> int | None:
    """Return how many messages can be received from some entities now; None when the management API refuses to say.

    The right Listen is enough to read messages, but not for this question.
    """
    try:
        with new_administration(place) as administration:
            return sum(waiting_in(administration, entity) for entity in entities)
    except Exception as error:  # noqa: BLE001 - of whatever kind: the run ends by another rule then
        _log.warning(
            "the number of waiting messages is not known (%s); the run ends when nothing is left, or with messages "
            "that came after its start",
            said(error),
        )
        return None


def waiting_in(administration: Any, entity: str) -> int:
    """How many messages can be received from an entity."""
    name, sub_queue = split_name(entity)
    found = _SUBSCRIPTION.fullmatch(name)
    if found is not None:
        numbers = administration.get_subscription_runtime_properties(found[1], found[2])
    else:
        numbers = administration.get_queue_runtime_properties(name)
    member = {
        None: "active_message_count",
        "deadletter": "dead_letter_message_count",
        "transferdeadletter": "transfer_dead_letter_message_count",
    }[sub_queue]
    return int(getattr(numbers, member) or 0)
