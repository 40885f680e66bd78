"""Management nodes of entities: how messages are looked at, and removed, without receiving them.

The SDK has a public way to these operations on a receiver only, which needs a session where the entity has sessions,
and takes Python's values for AMQP's. The SDK's own handler for lists of sessions needs no link to the entity; a test
holds this use of the handler. Opening one takes some tenths of a second, so that a session of the console keeps a few.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from azure.servicebus.aio._async_utils import create_authentication

from duobus.console.namespace.failures import TOLD, NamespaceError, clean, told
from duobus.console.screens.messages.places import MEMORY, entity_of
from duobus.ha.sdk import release_thread
from duobus.model.json.deliveries import Delivery

if TYPE_CHECKING:
    from duobus.console.sessions import Session

#: Nodes that a session keeps open.
NODES_MAX: Final = 6
#: After so long without a request a node is opened anew: a server may have closed the connection meanwhile.
_IDLE_MS: Final = 20_000
#: How long one request may take, in seconds; a message of 100 MB takes its time.
_REQUEST_S: Final = 120.0
#: Messages that one request removes at most, here and on Azure.
_REMOVED_MAX: Final = 4_000

_PEEK: Final = b"com.microsoft:peek-message"
_DELETE: Final = b"com.microsoft:batch-delete-messages"
_PURGE: Final = b"duobus:purge-messages"
#: How often an opening connection is looked at, in seconds.
_STEP_S: Final = 0.002
#: How long a connection that nobody waits for any more may take to open, in seconds.
_FINISH_S: Final = 5.0
_EMPTY: Final = (HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT)


class Node:
    """The management node of one queue, subscription or dead-letter queue.

    Args:
        session: Of the person.
        path: Of the queue.
    """

    def __init__(self, session: Session, path: str) -> None:
        self.path = path
        self._namespace = session.namespace
        self._handler: Any = None
        self._used_ms = 0
        self._lock = asyncio.Lock()

    async def ask(self, operation: bytes, body: Mapping[str, Any], *, is_once: bool = False) -> Mapping[bytes, Any]:
        """Send a request and return the body of its answer, which is empty when there is nothing to tell.

        Args:
            operation: Its name.
            body: Its body.
            is_once: A request that must not be sent again when its answer is lost.

        Raises:
            NamespaceError: The namespace refuses, or does not answer.
        """
        namespace = self._namespace
        try:
            async with self._lock, namespace.telling(entity_of(self.path).what, _REQUEST_S):
                status, found, text = await self._ask(operation, body, is_once=is_once)
        except NamespaceError as error:
            # The service refuses the token for an entity that is not there; one with Manage is good for all that are.
            if error.status == HTTPStatus.FORBIDDEN and namespace.rights.manage and not namespace.entity:
                raise NamespaceError(HTTPStatus.NOT_FOUND, f"There is no {entity_of(self.path).what}.") from error
            raise
        if status in _EMPTY:
            return {}
        if status != HTTPStatus.OK:
            raise told(status, clean(text) or f"The namespace answered {status}.")
        answer: Mapping[bytes, Any] = found or {}
        return answer

    async def _ask(self, operation: bytes, body: Mapping[str, Any], *, is_once: bool) -> tuple[int, Any, str]:
        clock = self._namespace.clock
        if self._handler is not None and clock.monotonic_ms() - self._used_ms > _IDLE_MS:
            await self.close()
        if self._handler is None:
            # Neither the maker nor the handler has types.
            messaging: Any = self._namespace.messaging
            self._handler = messaging._create_session_browser(self.path)
        handler = self._handler
        send = partial(_send_once, handler) if is_once else handler._mgmt_request_response_with_retry
        try:
            if not handler._running:
                await _finished(_open(handler))
            answer: tuple[int, Any, str] = await send(operation, body, _answer_of, keep_alive_associated_link=False)
        except BaseException:
            # Whatever was on its way would be taken for the answer of the next request.
            await self.close()
            raise
        self._used_ms = clock.monotonic_ms()
        return answer

    async def peek(
        self, first: int, number: int, *, session_id: str | None = None, with_bodies: bool = True
    ) -> list[Delivery]:
        """Messages from a sequence number on; fewer than asked for say nothing of the end, none at all is the end."""
        body: dict[str, Any] = {
            "from-sequence-number": {"TYPE": "LONG", "VALUE": first},
            "message-count": {"TYPE": "INT", "VALUE": number},
        }
        if session_id is not None:
            body["session-id"] = session_id
        if not with_bodies:
            body["omit-message-body"] = True
        answer = await self.ask(_PEEK, body)
        return [Delivery(bytes(message[b"message"])) for message in answer.get(b"messages", ())]

    async def delete(self, until_ms: int) -> int:
        """Remove active messages that were enqueued before a time, some thousands at a time; return how many."""
        body = {
            "message-count": {"TYPE": "INT", "VALUE": _REMOVED_MAX},
            "enqueued-time-utc": {"TYPE": "TIMESTAMP", "VALUE": until_ms},
        }
        answer = await self.ask(_DELETE, body, is_once=True)
        return int(answer.get(b"message-count", 0))

    async def purge(self) -> tuple[int, int, bool]:
        """Remove whatever nobody holds, for some seconds; return (removed, held by receivers, whether that is all)."""
        # The SDK sends an empty map as no body at all.
        answer = await self.ask(_PURGE, {"session-id": None}, is_once=True)
        return (
            int(answer.get(b"message-count", 0)),
            int(answer.get(b"locked-count", 0)),
            bool(answer.get(b"is-complete", True)),
        )

    @property
    def is_busy(self) -> bool:
        """Whether a request is under way."""
        return self._lock.locked()

    async def close(self) -> None:
        """Close the connection; another request would open a new one."""
        handler, self._handler = self._handler, None
        if handler is not None:
            release_thread(handler._handler)
            # Of a connection that is broken nothing has to be waited for.
            with suppress(*TOLD):
                async with asyncio.timeout(_FINISH_S):
                    # To its end also when whoever closes is cancelled meanwhile: the handler is known to nobody else,
                    # and its socket would stay open.
                    await _finished(handler.close())


async def _send_once(handler: Any, *request: Any, **options: Any) -> Any:
    """Send a request that is not sent again when its answer is lost; what fails is told as the SDK tells it."""
    try:
        return await handler._mgmt_request_response(*request, **options)
    except Exception as error:
        raise await handler._handle_exception(error) from error


async def _finished(work: Coroutine[Any, Any, None]) -> None:
    """Do something that has to come to its end also when whoever waits for it is cancelled.

    The SDK does not close the socket of a connection that is only half open.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        done, _ = await asyncio.wait([task], timeout=_FINISH_S)
        for one in done:
            # Its fault, where it has one, is nobody's any more.
            one.cancelled() or one.exception()
        raise


async def _open(handler: Any) -> None:
    """Open a handler of the SDK as the SDK does, which looks every 50 ms whether the next step is possible."""
    try:
        authenticate: Any = create_authentication
        handler._create_handler(await authenticate(handler))
        await handler._handler.open_async(connection=handler._connection)
        while not await handler._handler.client_ready_async():  # noqa: ASYNC110 - the SDK has no event for this
            await asyncio.sleep(_STEP_S)
    except Exception as error:
        # As the SDK tells this; some errors it raises itself, and returns the others. It closes the connection as well,
        # and would wait a second for its own task.
        release_thread(handler._handler)
        raise await handler._handle_exception(error) from error
    handler._running = True


class _Nodes:
    """The nodes that a session keeps, the latest used one last."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._nodes: dict[str, Node] = {}

    async def find(self, path: str) -> Node:
        node = self._nodes.pop(path, None) or Node(self._session, path)
        self._nodes[path] = node
        idle = [path for path, one in self._nodes.items() if one is not node and not one.is_busy]
        if len(self._nodes) > NODES_MAX and idle:
            await self._nodes.pop(idle[0]).close()
        return node

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()
        self._nodes.clear()


async def node_for(session: Session, path: str) -> Node:
    """The node of a path, which the session keeps for the next request."""
    nodes = session.memory.get(f"{MEMORY}-nodes")
    if nodes is None:
        nodes = session.memory[f"{MEMORY}-nodes"] = _Nodes(session)
        session.resources.push_async_callback(nodes.close)
    node: Node = await nodes.find(path)
    return node


@asynccontextmanager
async def own_node(session: Session, path: str) -> AsyncIterator[Node]:
    """A node for work that goes on beside other pages."""
    node = Node(session, path)
    try:
        yield node
    finally:
        await node.close()


def _answer_of(status: int, message: Any, description: Any, amqp_transport: Any) -> tuple[int, Any, str]:
    """Status, body and description of an answer; the SDK would make a broken connection of some refusals."""
    text = description.decode("utf-8", "replace") if isinstance(description, bytes) else str(description or "")
    return status, amqp_transport.get_message_value(message), text
