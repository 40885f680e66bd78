"""Which of two endpoints is active, and what one operation does when an endpoint fails (IN6, I52).

Pure: errors and ``now_ms`` go in, attempts come out. The rules:

- The maker of ``Roles`` draws the first active endpoint at random; afterwards the choice stays.
- An operation tries the active endpoint. When the error tells of an outage, and the request may be sent again, the
  operation tries the backup.
- The roles are swapped when the backup has answered, and only then. The swap compares the generation of the roles with
  that at the beginning of the operation: of many operations that failed on one active endpoint, one swaps.
- When both endpoints fail, the roles stay as they are, and the first error is raised with the second one attached.
- One deadline covers both attempts; a share of the time is kept for the second.
- A WebSocket connection that breaks makes the next one begin with the backup. That is no swap.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from duobus.relay.errors import RelayError

#: The share of the time that is kept for the second attempt.
SHARE_DEFAULT: Final = 0.5


class Choice(NamedTuple):
    """The roles at one moment.

    Attributes:
        active: 0 or 1.
        generation: Number of swaps until then.
    """

    active: int
    generation: int


class Roles:
    """The roles of two endpoints.

    Args:
        first: The endpoint that is active at first, 0 or 1.
    """

    __slots__ = ("_broken", "_choice")

    def __init__(self, first: int) -> None:
        if first not in (0, 1):
            raise ValueError(f"the first endpoint has to be 0 or 1, not {first}")
        self._choice = Choice(first, 0)
        #: The roles under which a connection broke, until the next connection was tried.
        self._broken: Choice | None = None

    @property
    def choice(self) -> Choice:
        """The roles now."""
        return self._choice

    def swap(self, choice: Choice) -> bool:
        """Swap the roles unless another operation has swapped them since ``choice``; tell whether this one did."""
        if choice != self._choice:
            return False
        self._choice = Choice(1 - choice.active, choice.generation + 1)
        self._broken = None
        return True

    def note_broken(self, choice: Choice) -> None:
        """Note that a connection to the active endpoint broke; one of earlier roles says nothing of the present."""
        if choice == self._choice:
            self._broken = choice

    def take_broken(self) -> bool:
        """Tell whether a connection to the active endpoint broke; this is told once."""
        is_broken, self._broken = self._broken is not None, None
        return is_broken


class Attempt(NamedTuple):
    """One try of an operation.

    Attributes:
        endpoint: 0 or 1.
        connect_ms: Longest time until the relay takes the connection.
        limit_ms: Longest time of the whole try.
        is_second: Whether the other endpoint has failed.
    """

    endpoint: int
    connect_ms: int
    limit_ms: int
    is_second: bool = False


class Operation:
    """One request, or the opening of one connection, over either endpoint.

    Args:
        roles: The roles; shared by all operations of a pair.
        now_ms: The time, on a clock that only goes forward.
        timeout_ms: Time for all of it.
        share: The part of the time that is kept for a second attempt; 0 to below 1.
        may_repeat: Whether the request may be sent again though the first one may have been executed.
        is_connection: Whether a WebSocket connection is opened.

    Attributes:
        error: The first error; after both endpoints have failed, that error has the second one attached.
    """

    __slots__ = ("_attempt", "_choice", "_end_ms", "_may_repeat", "_roles", "_share", "error")

    def __init__(
        self,
        roles: Roles,
        now_ms: int,
        timeout_ms: int,
        *,
        share: float = SHARE_DEFAULT,
        may_repeat: bool = True,
        is_connection: bool = False,
    ) -> None:
        self._roles = roles
        self._choice = roles.choice
        self._end_ms = now_ms + timeout_ms
        self._share = share
        self._may_repeat = may_repeat or is_connection
        self.error: RelayError | None = None
        active = self._choice.active
        first = 1 - active if is_connection and roles.take_broken() else active
        connect_ms = max(1, int(timeout_ms * (1 - share)))
        # A request that may not be sent again gains nothing by being given up early.
        self._attempt = Attempt(first, connect_ms, connect_ms if self._may_repeat else timeout_ms)

    @property
    def choice(self) -> Choice:
        """The roles when the operation began."""
        return self._choice

    @property
    def attempt(self) -> Attempt:
        """The try that is made now."""
        return self._attempt

    def on_success(self) -> bool:
        """The relay has brought an answer; tell whether the roles were swapped by it."""
        return self._attempt.endpoint != self._choice.active and self._roles.swap(self._choice)

    def on_failure(self, error: RelayError, now_ms: int) -> Attempt | None:
        """Return the next try; None when ``error`` of this object is to be raised."""
        if self.error is not None:
            self.error.second = error
            return None
        self.error = error
        left_ms = self._end_ms - now_ms
        if not error.fails_over or left_ms <= 0 or not (self._may_repeat or error.precedes_delivery):
            return None
        self._attempt = Attempt(1 - self._attempt.endpoint, left_ms, left_ms, is_second=True)
        return self._attempt
