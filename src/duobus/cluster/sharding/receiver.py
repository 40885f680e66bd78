"""SpreadReceiver: a client receives from a queue that is spread. Its credit is lent to whichever share has messages.

The owner of a share tells what is available in it (``branch_link.py``) and gets credit for no more than that, to be
used or given back at once. What is lent together never passes what the client has given, and what one share does not
use another gets (I29).
"""

from __future__ import annotations

from typing import Any, Final

from duobus.amqp import Transfers
from duobus.cluster.sharding.link import ShardedLink, ShardLink

#: Credit lent to one share at a time.
QUANTUM: Final = 500


class ShardedReceiver(ShardedLink):
    """See the module."""

    __slots__ = ("_doubtful", "_turn")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turn = -1
        # Shares that had something and gave nothing: asked again a little later.
        self._doubtful: dict[int, int] = {}

    # -- credit -------------------------------------------------------------------------------------------------

    def flow(self) -> None:
        """The client has changed its credit, or wants to drain."""
        for branch in self.open_branches:
            branch.pump()
            if branch.held and not self._removes:
                branch.give_back()
        self.match()
        if self.link.echo and not self.link.drain:
            self.link.flow()

    @property
    def _removes(self) -> bool:
        remote = self.link.remote
        return remote is not None and remote.snd_settle_mode == 1

    def match(self) -> None:
        """Lend what is free of the client's credit, and answer a drain when nothing more can come of it."""
        if not self._is_accepted or self.is_over:
            return
        branches = self.open_branches
        lent = sum(branch.lent + branch.held for branch in branches)
        free = self.link.credit - lent
        ready = [branch for branch in branches if not branch.lent and branch.uplink is not None and branch.uplink.told]
        ready.sort(key=lambda branch: (branch.index <= self._turn, branch.index))
        for position, branch in enumerate(ready):
            uplink = branch.uplink
            if free <= 0 or uplink is None:
                break
            number = min(-(-free // (len(ready) - position)), uplink.told, QUANTUM)
            free -= number
            lent += number
            self._lend(branch, number)
        if self.link.drain and not lent:
            self.link.drained()
            self.peer.write_soon()

    def _lend(self, branch: ShardLink, number: int) -> None:
        assert branch.uplink is not None
        self._turn = branch.index
        branch.lent = number
        self._doubtful[branch.index] = number
        branch.uplink.told = 0
        branch.uplink.grant(number, drain=True)
        branch.write()

    def branch_flow(self, branch: ShardLink) -> None:
        """See SpreadLink: a share has something, or has answered."""
        uplink = branch.uplink
        if uplink is not None and branch.lent and not uplink.drain:
            branch.lent = 0
            if self._doubtful.pop(branch.index, 0) and uplink.told:
                # It gave nothing though it had something, so something holds it up.
                self._doubtful[branch.index] = -uplink.told
                uplink.told = 0
        self.match()

    def branch_gone(self) -> None:
        """See SpreadLink: what it had is free again."""
        self.match()

    def tick(self, monotonic_ms: int) -> None:
        """See SpreadLink."""
        for index, number in list(self._doubtful.items()):
            branch = self.branches.get(index)
            if number < 0:
                del self._doubtful[index]
                if branch is not None and branch.uplink is not None and not branch.lent:
                    branch.uplink.told = max(branch.uplink.told, -number)
        super().tick(monotonic_ms)
        self.match()

    # -- deliveries ---------------------------------------------------------------------------------------------

    def given(self, branch: ShardLink, event: Transfers) -> None:
        """A share has given messages, and they are on their way to the client."""
        number = len(event.payloads)
        branch.lent = max(0, branch.lent - number)
        branch.was_used = branch.was_used or not event.settled
        self._doubtful.pop(branch.index, None)

    def pump(self) -> None:
        """See PassedLink."""
        for branch in self.open_branches:
            branch.pump()

    def stop(self) -> None:
        """Nothing is taken from a client that receives."""
