"""ShardedReceiver: a client receives from a sharded queue. Its credit is granted to whichever shard has messages.

The owner of a shard says what is available in it (``counting_link.py``) and gets credit for no more than that, to be
used or given back at once. What is granted together never passes what the client has given, and what one shard does not
use another gets (I29).
"""

from __future__ import annotations

from typing import Any, Final

from duobus.amqp import Transfers
from duobus.cluster.sharding.link import ShardedLink, ShardLink

#: Credit granted to one shard at a time.
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
        for shard_link in self.open_branches:
            shard_link.resume()
            if shard_link.pending and not self._removes:
                shard_link.give_back()
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
        granted = sum(shard_link.granted + shard_link.pending for shard_link in branches)
        free = self.link.credit - granted
        ready = [
            shard_link
            for shard_link in branches
            if not shard_link.granted and shard_link.uplink is not None and shard_link.uplink.told
        ]
        ready.sort(key=lambda shard_link: (shard_link.index <= self._turn, shard_link.index))
        for position, shard_link in enumerate(ready):
            uplink = shard_link.uplink
            if free <= 0 or uplink is None:
                break
            number = min(-(-free // (len(ready) - position)), uplink.told, QUANTUM)
            free -= number
            granted += number
            self._grant(shard_link, number)
        if self.link.drain and not granted:
            self.link.drained()
            self.peer.write_soon()

    def _grant(self, shard_link: ShardLink, number: int) -> None:
        assert shard_link.uplink is not None
        self._turn = shard_link.index
        shard_link.granted = number
        self._doubtful[shard_link.index] = number
        shard_link.uplink.told = 0
        shard_link.uplink.grant(number, drain=True)
        shard_link.write()

    def shard_flow(self, shard_link: ShardLink) -> None:
        """See ShardedLink: a shard has something, or has answered."""
        uplink = shard_link.uplink
        if uplink is not None and shard_link.granted and not uplink.drain:
            shard_link.granted = 0
            if self._doubtful.pop(shard_link.index, 0) and uplink.told:
                # It gave nothing though it had something, so something holds it up.
                self._doubtful[shard_link.index] = -uplink.told
                uplink.told = 0
        self.match()

    def outlives(self, shard_link: ShardLink) -> bool:
        """See ShardedLink; locks of what the client holds of the shard have ended, which a detached link tells it."""
        return shard_link.session is None or not shard_link.session.holds

    def shard_gone(self) -> None:
        """See ShardedLink: what it had is free again."""
        self.match()

    def tick(self, monotonic_ms: int) -> None:
        """See ShardedLink."""
        for index, number in list(self._doubtful.items()):
            shard_link = self.branches.get(index)
            if number < 0:
                del self._doubtful[index]
                if shard_link is not None and shard_link.uplink is not None and not shard_link.granted:
                    shard_link.uplink.told = max(shard_link.uplink.told, -number)
        super().tick(monotonic_ms)
        self.match()

    # -- deliveries ---------------------------------------------------------------------------------------------

    def given(self, shard_link: ShardLink, event: Transfers) -> None:
        """A shard has given messages, and they are on their way to the client."""
        number = len(event.payloads)
        shard_link.granted = max(0, shard_link.granted - number)
        self._doubtful.pop(shard_link.index, None)

    def resume(self) -> None:
        """See ProxiedLink."""
        for shard_link in self.open_branches:
            shard_link.resume()

    def stop(self) -> None:
        """Nothing is taken from a client that receives."""
