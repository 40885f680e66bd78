"""The screen of messages, and where messages lie: entities, their dead-letter queues, and what a message waits for."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, NamedTuple

from duobus.console.formats import entity_url
from duobus.console.visits import Refusal, Screen

#: The screen to which the pages of this package belong.
screen: Final = Screen("messages", label="Messages", key="m", order=30)
#: In front of the names of what this package keeps in the memory of a session.
MEMORY: Final = screen.name
#: What the audit log calls the things that a person changes here.
AUDITED: Final = "messages"

ACTIVE: Final = "active"
DEAD: Final = "deadletter"
TRANSFER: Final = "transfer"
SCHEDULED: Final = "scheduled"
DEFERRED: Final = "deferred"
SESSION: Final = "session"

#: Places by name, with their labels.
PLACES: Final = {
    ACTIVE: "Active",
    DEAD: "Dead letters",
    TRANSFER: "Transfer dead letters",
    SCHEDULED: "Scheduled",
    DEFERRED: "Deferred",
    SESSION: "Session",
}
#: States of messages by their number in the annotation ``x-opt-message-state``.
STATES: Final = ("active", "deferred", "scheduled")

_SUB_QUEUES: Final = {DEAD: "/$DeadLetterQueue", TRANSFER: "/$Transfer/$DeadLetterQueue"}
_SUBSCRIPTIONS: Final = "/subscriptions/"
_PATH_LENGTH_MAX: Final = 600


class MessageEntity(NamedTuple):
    """A queue, topic or subscription, as its path says.

    Attributes:
        path: As ``orders`` or ``prices/Subscriptions/alerts``.
        name: Of the queue or topic.
        subscription: Its name; empty for a queue or topic.
    """

    path: str
    name: str
    subscription: str

    @property
    def what(self) -> str:
        """For the sentence of an error."""
        return f"entity {self.path}"


def entity_of(path: str) -> MessageEntity:
    """Take a path apart.

    Raises:
        Refusal: The path is none.
    """
    path = path.strip("/")
    if not path or len(path) > _PATH_LENGTH_MAX:
        raise Refusal(HTTPStatus.NOT_FOUND, "There is no entity with such a path.")
    place = path.lower().rfind(_SUBSCRIPTIONS)
    if place < 0:
        return MessageEntity(path, path, "")
    name, subscription = path[:place], path[place + len(_SUBSCRIPTIONS) :]
    return MessageEntity(f"{name}/Subscriptions/{subscription}", name, subscription)


def place_of(text: str | None) -> str:
    """A place by its name; the active messages for every other text."""
    return text if text in PLACES else ACTIVE


def node_of(entity: MessageEntity, place: str) -> str:
    """The path of the queue that holds the messages of a place."""
    return entity.path + _SUB_QUEUES.get(place, "")


def state_of(place: str) -> str | None:
    """The state of the messages that belong to a place; None where messages of every state do."""
    return place if place in STATES else None


def tabs_of(entity: MessageEntity, *, may_listen: bool, may_send: bool) -> list[tuple[str, str, str]]:
    """Names, labels and addresses of the pages about the messages of an entity."""
    found = []
    if may_listen:
        found += [
            (place, label, entity_url(entity.path, "messages", place=None if place == ACTIVE else place))
            for place, label in PLACES.items()
            if place != SESSION
        ]
        found += [
            ("sessions", "Sessions", entity_url(entity.path, "sessions")),
            ("receive", "Receive", entity_url(entity.path, "receive")),
            ("tail", "Live", entity_url(entity.path, "tail")),
        ]
    if may_send and not entity.subscription:
        found.append(("send", "Send", entity_url(entity.path, "send")))
    return found
