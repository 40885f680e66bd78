"""Attaching and detaching one end of a link (part 2, section 2.6; wire contract, chapter 6).

REQUESTED --accept--> ATTACHED --detach (ours)--> DETACHING --detach (peer's)--> DETACHED
'------refuse--------------------------------^                                  ^
OFFERED ---attach (peer's)--> ATTACHED ----------detach (peer's)--------------------'
                                 '----detach (peer's)--> HELD --answer (ours)---'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from duobus.amqp.errors import Error
from duobus.amqp.performatives import Attach, Coordinator, Detach, Source, Target

if TYPE_CHECKING:
    from duobus.amqp.session import Session

REQUESTED: Final = "requested"  # The peer attached; our answer is awaited.
OFFERED: Final = "offered"  # We attached; the peer's answer is awaited.
ATTACHED: Final = "attached"
DETACHING: Final = "detaching"  # We detached; whatever the peer sends until its own detach is thrown away.
HELD: Final = "held"  # The peer detached; the owner has outcomes to tell before it is answered.
DETACHED: Final = "detached"

_NEXT: Final[dict[tuple[str, str], str]] = {
    (REQUESTED, "accept"): ATTACHED,
    (REQUESTED, "refuse"): DETACHING,
    (REQUESTED, "detach sent"): DETACHING,
    (REQUESTED, "detach received"): DETACHED,
    (REQUESTED, "session gone"): DETACHED,
    (OFFERED, "attach received"): ATTACHED,
    (OFFERED, "detach sent"): DETACHING,
    (OFFERED, "session gone"): DETACHED,
    (ATTACHED, "detach sent"): DETACHING,
    (ATTACHED, "detach received"): DETACHED,
    (ATTACHED, "detach held"): HELD,
    (ATTACHED, "session gone"): DETACHED,
    (HELD, "detach answered"): DETACHED,
    (HELD, "session gone"): DETACHED,
    (DETACHING, "attach received"): DETACHING,
    (DETACHING, "detach received"): DETACHED,
    (DETACHING, "session gone"): DETACHED,
}

SND_MIXED: Final = 2
RCV_FIRST: Final = 0


class Attachment:
    """The part of a link that is about its being there.

    Attributes:
        session: The session it belongs to.
        name: Chosen by whoever attached first.
        is_sender: Whether we send on it.
        handle: Our handle.
        state: One of the six names above.
        remote: The peer's attach; None until it came.
        context: For the owner; the engine never looks.
        max_message_size: The largest delivery we take, in bytes; None for no limit of its own.
        announced: Whether the owner knows of the link, and has not been told of its end.
    """

    __slots__ = (
        "announced",
        "context",
        "delivery_count",
        "handle",
        "initial_delivery_count",
        "is_sender",
        "max_message_size",
        "name",
        "remote",
        "session",
        "state",
    )

    def __init__(self, session: Session, name: str, is_sender: bool, handle: int, state: str) -> None:
        self.session = session
        self.name = name
        self.is_sender = is_sender
        self.handle = handle
        self.state = state
        self.remote: Attach | None = None
        self.context: Any = None
        self.max_message_size: int | None = None
        self.announced = True
        self.delivery_count = 0
        self.initial_delivery_count = 0

    @property
    def is_attached(self) -> bool:
        """Whether messages can travel."""
        return self.state == ATTACHED

    @property
    def is_held(self) -> bool:
        """Whether the peer has detached and waits for ``answer_detach``."""
        return self.state == HELD

    def __repr__(self) -> str:
        return f"<Link {self.name!r} {'sender' if self.is_sender else 'receiver'} {self.state}>"

    def move(self, step: str) -> bool:
        """Go to the state that follows after ``step``; return False if there is none."""
        following = _NEXT.get((self.state, step))
        if following is None:
            return False
        self.state = following
        return True

    def accept(
        self,
        *,
        source: Source | None = None,
        target: Target | Coordinator | None = None,
        max_message_size: int | None = None,
        properties: Mapping[str, Any] | None = None,
        initial_delivery_count: int = 0,
    ) -> bool:
        """Answer the peer's attach; the settle modes are echoed.

        Args:
            source: In place of the peer's own words, for instance with a filled filter.
            target: In place of the peer's own words.
            max_message_size: In bytes; on a link that we receive on larger deliveries are refused.
            properties: Of the link.
            initial_delivery_count: Where our count starts, if we are the sender.

        Returns:
            False when the link is gone already, which is no error: answers may take their time.
        """
        remote = self.remote
        if remote is None or not self.move("accept"):
            return False
        self.max_message_size = None if self.is_sender else max_message_size or None
        self.shift_counts(initial_delivery_count if self.is_sender else remote.initial_delivery_count or 0)
        self.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=SND_MIXED if remote.snd_settle_mode is None else remote.snd_settle_mode,
                rcv_settle_mode=RCV_FIRST if remote.rcv_settle_mode is None else remote.rcv_settle_mode,
                source=source or remote.source,
                target=target or remote.target,
                initial_delivery_count=initial_delivery_count if self.is_sender else None,
                max_message_size=max_message_size,
                properties=properties,
            )
        )
        return True

    def shift_counts(self, initial: int) -> None:
        """Let the delivery count start at ``initial``."""
        self.initial_delivery_count = initial
        self.delivery_count = initial

    def refuse(self, condition: str, description: str | None = None, info: Mapping[str, Any] | None = None) -> bool:
        """Refuse the peer's attach: an attach without termini, then a detach with the error (wire contract 6.3).

        Returns:
            False when the link is gone already, which is no error.
        """
        if not self.move("refuse"):
            return False
        self.write_empty_attach()
        self.write(Detach(handle=self.handle, closed=True, error=Error(condition, description, info)))
        return True

    def write_empty_attach(self) -> None:
        """Answer the peer's attach without termini: a detach is to follow."""
        remote = self.remote
        assert remote is not None  # only asked for after the peer's attach
        self.write(
            Attach(
                name=self.name,
                handle=self.handle,
                role=not self.is_sender,
                snd_settle_mode=SND_MIXED if remote.snd_settle_mode is None else remote.snd_settle_mode,
                rcv_settle_mode=RCV_FIRST if remote.rcv_settle_mode is None else remote.rcv_settle_mode,
                initial_delivery_count=0 if self.is_sender else None,
            )
        )

    def detach(
        self,
        condition: str | None = None,
        description: str | None = None,
        info: Mapping[str, Any] | None = None,
        *,
        closed: bool = True,
    ) -> bool:
        """Detach the link; LinkDetached comes when the peer has answered.

        Frames of this link that wait for the peer's window are dropped.

        Returns:
            False when the link is gone already, which is no error.
        """
        if self.state == REQUESTED:
            self.write_empty_attach()
        if not self.move("detach sent"):
            return False
        self.forget_deliveries()
        error = None if condition is None else Error(condition, description, info)
        self.write(Detach(handle=self.handle, closed=closed, error=error))
        return True

    def session_gone(self) -> None:
        """Forget everything: the session took the link with it."""
        self.move("session gone")
        self.forget_deliveries()
        self.announced = False

    def on_attach(self, attach: Attach) -> bool:
        """Take the peer's answer to our attach; return whether the link is attached now."""
        self.remote = attach
        self.move("attach received")
        if not self.is_sender:
            self.shift_counts(attach.initial_delivery_count or 0)
        return self.state == ATTACHED

    def forget_deliveries(self) -> None:
        """Drop credit and whatever is unfinished, in both directions."""
        raise NotImplementedError

    def write(self, performative: Attach | Detach) -> None:
        """Write a frame of the link's session."""
        self.session.connection.write_frame(self.session.channel, performative.to_bytes())
