"""Client-side availability for programs without asyncio, over ``azure.servicebus``: the twin of ``duobus.ha.aio``."""

from duobus.ha.options import SendAvailabilityPairedNamespaceOptions
from duobus.ha.sync.credentials import LastingCredential
from duobus.ha.sync.idempotent_receiver import IdempotentReceiver
from duobus.ha.sync.outbox_sender import OutboxSender
from duobus.ha.sync.overlapped_sender import OverlappedSender, Sending
from duobus.ha.sync.paired_namespace import PairedNamespace, pair_namespace
from duobus.ha.sync.paired_sender import PairedSender
from duobus.ha.sync.replication import ActiveReplicationSender, PassiveReplicationSender, ReplicatedReceiver
from duobus.ha.sync.syphon import Syphon

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
