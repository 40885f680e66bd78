"""Client-side availability for asyncio, over ``azure.servicebus.aio``."""

from duobus.ha.aio.paired_sender import PairedSender
from duobus.ha.aio.pairing import PairedNamespace, pair_namespace
from duobus.ha.aio.syphon import Syphon

__all__ = ["PairedNamespace", "PairedSender", "Syphon", "pair_namespace"]
