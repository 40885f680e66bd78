"""ViaLink: a client sends to one entity by way of another, which stores the messages first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duobus.broker import Queue, address
from duobus.gateway.amqp.links.incoming_link import IncomingLink
from duobus.model.address import are_shards_of_one
from duobus.model.descriptions import Right

if TYPE_CHECKING:
    from duobus.amqp import Link, Transfers
    from duobus.gateway.amqp.links.link import Claim
    from duobus.gateway.amqp.mapping import Incoming
    from duobus.gateway.amqp.peer import Peer
    from duobus.model.batches import SendBatch


class ViaLink(IncomingLink):
    """One link on which a client sends via ``queue``.

    Attributes:
        destination: Path of the entity where the messages go.
    """

    __slots__ = ("destination",)

    is_via = True

    def __init__(self, peer: Peer, link: Link, queue: Queue, segments: tuple[str, ...], destination: str) -> None:
        super().__init__(peer, link, queue, segments)
        self.destination = destination

    def needs(self) -> tuple[Claim, ...]:
        """See Endpoint: the client has to have the right at both entities."""
        return ((tuple(self.destination.lower().split("/")), (Right.SEND,)), *super().needs())

    def _singles(self, event: Transfers) -> None:
        self._singles_with_metadata(event)

    def _demand_session(self, incoming: Incoming) -> None:
        """Whether a session is required is asked at the destination."""

    def _columns(self, first_delivery_id: int, parts: list[Incoming], *, unsettled: bool) -> SendBatch:
        batch = super()._columns(first_delivery_id, parts, unsettled=unsettled)
        address(batch, self.queue, self.destination)
        return batch

    def _send_in(self, txn_id: bytes, batch: SendBatch | None) -> None:
        queue = self.queue
        if batch is not None and batch.keys is None:
            # Without a key of its own it goes where the other work of its transaction is: that may be another shard.
            chosen = self._peer.transactions.find(txn_id).transaction.queue
            if chosen is not None and are_shards_of_one(chosen.path, queue.path):
                queue = chosen
        self._peer.transactions.send(txn_id, queue, batch, is_via=True)
