"""Mistakes of forwarding between servers, to be found; see ``servers``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from duobus.cluster.forwarding.receiver import PendingAccept
from duobus.cluster.forwarding.sender import RemoteForwarder
from duobus.fragment import forward_dedup
from duobus.fragment.forward_dedup import ForwardDedup
from simulation.mutants.forwarding import forwarded_without_record


@contextmanager
def taken_before_it_is_durable() -> Iterator[None]:
    """The origin hears that its messages are there when their commit is asked for."""
    original = PendingAccept.submit

    def submit(self: PendingAccept, groups: Any) -> None:
        original(self, groups)
        self.end(None)

    with mock.patch.object(PendingAccept, "submit", submit):
        yield


@contextmanager
def forgotten_while_the_origin_has_it() -> Iterator[None]:
    """A record of accepted numbers forgets what comes from other servers, whether their origin still has it or not."""
    with (
        mock.patch.object(RemoteForwarder, "gone", lambda self, origin, counts: counts),
        mock.patch("duobus.broker.forwarding.service.SWEEP_S", 0.001),
    ):
        yield


@contextmanager
def dedup_not_recovered() -> Iterator[None]:
    """The next owner of a destination does not know what the one before has taken in."""
    with mock.patch.object(ForwardDedup, "recover", return_value=None):
        yield


@contextmanager
def expired_while_in_doubt() -> Iterator[None]:
    """A new life of an origin lets expire what it found, and asks nobody whether that was forwarded already."""
    with mock.patch.object(forward_dedup, "begin_in_doubt", return_value=None):
        yield


CROSSING_BUGS: Final[dict[str, Callable[[], Any]]] = {
    "taken-before-it-is-durable": taken_before_it_is_durable,
    "number-not-remembered": forwarded_without_record,
    "dedup-not-recovered": dedup_not_recovered,
    "expired-while-in-doubt": expired_while_in_doubt,
    "forgotten-while-the-origin-has-it": forgotten_while_the_origin_has_it,
}
