"""Client-side availability for programs without asyncio, over ``azure.servicebus``: generated from ``duobus.ha.aio``.

Not here yet: pairs of namespaces and the syphon, which are for asyncio.
"""

from duobus.ha.sync.credentials import LastingCredential
from duobus.ha.sync.idempotent import IdempotentReceiver
from duobus.ha.sync.outbox_sender import OutboxSender
from duobus.ha.sync.overlap import OverlappedSender, Sending
from duobus.ha.sync.replication import ActiveReplicationSender, PassiveReplicationSender, ReplicatedReceiver

__all__ = [
    "ActiveReplicationSender",
    "IdempotentReceiver",
    "LastingCredential",
    "OutboxSender",
    "OverlappedSender",
    "PassiveReplicationSender",
    "ReplicatedReceiver",
    "Sending",
]
