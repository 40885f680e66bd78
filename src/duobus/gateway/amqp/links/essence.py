"""What is kept of a peer's attach as long as its link lives."""

from __future__ import annotations

from typing import Final

from duobus.amqp import Attach, Source, Target
from duobus.codec import Int
from duobus.model.descriptions import QUEUE, SUBSCRIPTION, TOPIC

#: Tells clients what they have attached to; the numbers are those of the .NET and Java SDKs.
ENTITY_TYPE: Final = "com.microsoft:entity-type"
_ENTITY_TYPES: Final = {QUEUE: Int(0), TOPIC: Int(1), SUBSCRIPTION: Int(2)}

#: Characters of either address of a link: both are kept as long as it lives.
ADDRESS_MAX: Final = 1024


def summarize_attach(remote: Attach) -> Attach:
    """What is looked at later; the rest of an attach may be large, and nobody needs it any more."""
    addresses = [getattr(terminus, "address", None) for terminus in (remote.source, remote.target)]
    source, target = (address if is_short(address) else None for address in addresses)
    return Attach(
        name=remote.name,
        handle=remote.handle,
        role=remote.role,
        snd_settle_mode=remote.snd_settle_mode,
        rcv_settle_mode=remote.rcv_settle_mode,
        source=Source(address=source),
        target=Target(address=target),
    )


def about_entity(kind: str) -> dict[str, Int]:
    """Properties of the answer to an attach: which kind of entity it is to; a sub-queue is of its entity's kind."""
    return {ENTITY_TYPE: _ENTITY_TYPES[kind]}


def is_short(address: object) -> bool:
    """Whether an address is one that can be kept."""
    return isinstance(address, str) and len(address) <= ADDRESS_MAX
