"""What is kept of a peer's attach as long as its link lives."""

from __future__ import annotations

from typing import Final

from duobus.amqp import Attach, Source, Target

#: Characters of either address of a link: both are kept as long as it lives.
ADDRESS_MAX: Final = 1024


def essence(remote: Attach) -> Attach:
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


def is_short(address: object) -> bool:
    """Whether an address is one that can be kept."""
    return isinstance(address, str) and len(address) <= ADDRESS_MAX
