"""TransactionParticipant: another server that does transactions of a client, and the errors of such transactions.

A transaction whose first work is on an entity of another server is declared there, too, under the same name, and all
of it is done there. What a connection knows of that server is this protocol; ``cluster`` has the one that keeps it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from duobus.amqp import Rejected
from duobus.broker.transaction import ONE_ENTITY
from duobus.errors import NotAllowed, ServiceBusError, TransactionRolledBack

if TYPE_CHECKING:
    from duobus.amqp import DeliveryState

#: Requests that an owner lets a server make to its coordinator before it hears of them, for one client: a client has
#: at most 100 open transactions and 100 discharges under way, whose declares may be under way as well. An owner that
#: gives new credit at the half has done so before anybody could need it.
CREDIT: Final = 1_000
#: Bytes of the name of a transaction that a server may declare.
NAME_MAX: Final = 64

#: Who hears what became of a discharge: the owner's answer, why it was not asked, or None when nobody can say it.
Answered = Callable[["DeliveryState | ServiceBusError | None"], None]


class ParticipantTransaction(Protocol):
    """What this server knows of one transaction that another server does."""

    @property
    def coordinator(self) -> TransactionParticipant:
        """The server that does it."""

    def names(self, session: Any, ids: list[int]) -> None:
        """The transaction settles deliveries, named by the owner's ids; they stay unsettled until it is committed."""

    def ended(self, *, is_committed: bool) -> None:
        """The deliveries are settled now, or can be settled again."""


class TransactionParticipant(Protocol):
    """Another server, as far as it does the transactions of one connection.

    Attributes:
        is_gone: The way to it has ended: what was declared there is rolled back.
    """

    is_gone: bool

    def declare(self, name: bytes) -> ParticipantTransaction:
        """Begin a transaction there.

        Raises:
            ServerBusy: The server takes no more for now.
        """

    def roll_back(self, name: bytes) -> None:
        """End a transaction; a server that cannot be told has done so, or will when its time is over."""

    def commit(self, name: bytes, transaction: Any, answered: Answered) -> None:
        """End a transaction when all of its work is written; ``answered`` hears what became of it."""


def one_entity(path: str | None, other: str) -> NotAllowed:
    """Why a transaction that works on an entity cannot work on another one, or on what another server has of it."""
    if path == other:
        return NotAllowed(
            f"The transaction works on what one server has of '{path}' and cannot work on what another one has, too. "
            "Use a transaction for each session or partition key."
        )
    where = "an entity of another server" if path is None else f"'{path}'"
    return NotAllowed(
        f"{ONE_ENTITY} The transaction works on {where} and cannot work on '{other}', too. Use a transaction for each, "
        "or send via the entity that it works on."
    )


def rolled_back_with(state: DeliveryState | ServiceBusError | None) -> bool:
    """Whether an answer to a discharge says that nothing was done."""
    return isinstance(state, (Rejected, ServiceBusError))


def lost_with_its_owner() -> TransactionRolledBack:
    """Why a transaction can only be rolled back when the way to its owner has ended."""
    return TransactionRolledBack("The way to the server of its entity has ended, which has rolled it back.")


def lost_in_transit() -> TransactionRolledBack:
    """Why a transaction can only be rolled back when a link has ended with messages that were not written yet."""
    return TransactionRolledBack("A link has ended before all sent on it had reached the server of its entity.")
