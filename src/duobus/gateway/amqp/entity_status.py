"""What an entity's status allows, and what becomes of live links when it changes or goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker import MAIN, Queue
from duobus.errors import DetachForced, EntityDisabled, NotAllowed, ServiceBusError
from duobus.model.address import not_found
from duobus.model.descriptions import ACTIVE, RECEIVE_DISABLED, SEND_DISABLED

if TYPE_CHECKING:
    from duobus.gateway.amqp.links.link import Endpoint
    from duobus.gateway.amqp.peer import Peer

_SENDING = (ACTIVE, RECEIVE_DISABLED)
_RECEIVING = (ACTIVE, SEND_DISABLED)

#: Operations of ``$management`` that a status may forbid. Locks that are held stay good: they are renewed and settled
#: whatever the status.
_OPERATIONS = {
    "com.microsoft:schedule-message": _SENDING,
    "com.microsoft:peek-message": _RECEIVING,
    "com.microsoft:receive-by-sequence-number": _RECEIVING,
    "com.microsoft:batch-delete-messages": _RECEIVING,
}


def demand_sending(queue: Queue) -> None:
    """Raise EntityDisabled when the queue's status forbids to send."""
    _demand(queue, _SENDING)


def demand_receiving(queue: Queue, sub_queue: int = MAIN) -> None:
    """Refuse to receive from a queue that its status forbids to receive from, or that forwards its messages.

    Raises:
        EntityDisabled: By its status.
        NotAllowed: It forwards them (Azure: autoforwarding).
    """
    _demand(queue, _RECEIVING)
    target = queue.description.forward_to
    if target is not None and sub_queue == MAIN:
        raise NotAllowed(
            f"The queue '{queue.path}' forwards its messages to '{target}', so none can be received from it. Receive "
            "from there, or remove ForwardTo."
        )


def demand_operation(queue: Queue, name: str) -> None:
    """Raise EntityDisabled when the queue's status forbids an operation of ``$management``."""
    allowed = _OPERATIONS.get(name)
    if allowed is not None:
        _demand(queue, allowed)


def _demand(queue: Queue, allowed: tuple[str, ...]) -> None:
    status = queue.description.status
    if status not in allowed:
        raise EntityDisabled(f"The {queue.kind} '{queue.path}' has the status {status}. Enable it, then try again.")


def entity_changed(peer: Peer, queue: Queue) -> None:
    """Detach the links of a connection that the entity does not allow any more; tell the others."""
    for link, endpoint in peer.endpoints():
        # A link of the queue's own, or one of its management node's.
        if endpoint.queue is not queue and (endpoint.node is None or endpoint.node.queue is not queue):
            continue
        if queue.is_leaving and not queue.has_moved:
            endpoint.stop()
            continue
        error = _forbidden(queue, endpoint)
        if error is not None:
            peer.detach(link, error, queue.path)
        else:
            endpoint.entity_changed()
    if queue.is_leaving:
        peer.write_soon()


def _forbidden(queue: Queue, endpoint: Endpoint) -> ServiceBusError | None:
    if queue.is_deleted:
        return not_found(f"sb://{queue.namespace}/{queue.path}")
    if queue.has_moved:
        return DetachForced(f"'{queue.path}' moves to another server. Attach again.")
    try:
        endpoint.demand_enabled()
    except (EntityDisabled, NotAllowed) as error:
        return error
    return None
