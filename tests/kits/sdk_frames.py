"""What the broker wrote into a message, where the SDK for Python takes it from a frame that may be another message's.

A receiver of the SDK has a thread that keeps its connection alive. Every 5 seconds that thread reads as well, beside
the thread that receives. When both have a message at the same moment, the first may be given the frame of the second:
its lock token and its delivery id. Settling it settles the other message.
"""

from __future__ import annotations

from typing import Any, Final

#: In the delivery annotations of each message that is locked.
_LOCK_TOKEN: Final = b"x-opt-lock-token"


def token_of(message: Any) -> str:
    """The token of a message's lock as the broker has written it into the message."""
    annotations = message.raw_amqp_message.delivery_annotations or {}
    return str(annotations.get(_LOCK_TOKEN) or message.lock_token)


def is_mispaired(message: Any) -> bool:
    """Whether the SDK has given a message the frame of another one."""
    return token_of(message) != str(message.lock_token)
