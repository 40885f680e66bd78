"""What the programs share: the arguments of the test, a connection, and the one line of JSON that the test looks at."""

import json
import sys
from collections.abc import Callable
from typing import Any

from proton import Event
from proton.handlers import MessagingHandler
from proton.reactor import Container
from proton.utils import BlockingConnection

#: What the test gives: url, username, password, queue.
GIVEN: dict[str, Any] = json.loads(sys.argv[1])

TIMEOUT_S = 10


def connect(**options: Any) -> BlockingConnection:
    """A blocking connection with a PLAIN login."""
    login = {"user": GIVEN["username"], "password": GIVEN["password"], "allowed_mechs": "PLAIN"}
    return BlockingConnection(GIVEN["url"], timeout=TIMEOUT_S, **{**login, **options})


class Program(MessagingHandler):
    """An event-driven program; subclasses add the events that they are about."""

    def __init__(self, prefetch: int = 0) -> None:
        super().__init__(prefetch=prefetch, auto_accept=False, auto_settle=False)

    def on_start(self, event: Event) -> None:
        """Log in, and open what the program needs."""
        connection = event.container.connect(
            GIVEN["url"],
            user=GIVEN["username"],
            password=GIVEN["password"],
            allowed_mechs="PLAIN",
            reconnect=False,
        )
        self.opened(event.container, connection)

    def opened(self, container: Container, connection: Any) -> None:
        """The connection is under way; links may be made."""

    def run(self) -> None:
        """Run until the connection is closed."""
        Container(self).run()


def tell(**found: Any) -> None:
    """Print what the test looks at."""
    print(json.dumps(found))


def failure(what: Callable[[], Any]) -> tuple[str, str]:
    """Name and text of the error that something ends in; empty when it does not."""
    try:
        what()
    except Exception as error:  # noqa: BLE001 - which one comes is what the test wants to know
        return type(error).__name__, str(error)
    return "", ""
