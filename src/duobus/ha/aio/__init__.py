"""Client-side availability for asyncio, over ``azure.servicebus.aio``."""

from duobus.ha.aio.credentials import LastingCredential
from duobus.ha.aio.idempotent_receiver import IdempotentReceiver
from duobus.ha.aio.outbox_sender import OutboxSender
from duobus.ha.aio.overlapped_sender import OverlappedSender, Sending
from duobus.ha.aio.paired_namespace import PairedNamespace, pair_namespace
from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.replication import ActiveReplicationSender, PassiveReplicationSender, ReplicatedReceiver
from duobus.ha.aio.syphon import Syphon
from duobus.ha.options import SendAvailabilityPairedNamespaceOptions

__all__ = [
    "ActiveReplicationSender",
    "IdempotentReceiver",
    "LastingCredential",
    "OutboxSender",
    "OverlappedSender",
    "PairedNamespace",
    "PairedSender",
    "PassiveReplicationSender",
    "ReplicatedReceiver",
    "SendAvailabilityPairedNamespaceOptions",
    "Sending",
    "Syphon",
    "pair_namespace",
]
