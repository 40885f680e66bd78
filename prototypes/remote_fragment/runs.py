"""Today's way with one change, for a fair comparison: deliveries of several fragments in one read are passed on as runs.

``ProxiedLink.owner_transfers`` passes on what an owner gave in one read as one run when all of it is one, and message by
message otherwise. A shard has several fragments, so most of its reads are several runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from duobus.amqp import Transfers
from duobus.cluster.sharding.link import ShardLink
from duobus.cluster.sharding.receiver import ShardedReceiver
from duobus.codec import tag_counter, tag_of

_MASK = 0xFFFFFFFF


class RunsShardLink(ShardLink):
    """See the module."""

    __slots__ = ()

    def owner_transfers(self, event: Transfers) -> None:
        """See ProxiedLink."""
        uplink, session, number = self.uplink, self.session, len(event.payloads)
        if uplink is None or uplink.tags is None or session is None:
            return
        is_simple = not self._held and self.link.credit >= number and not event.settled and not event.message_format
        runs = list(_runs(uplink.tags[:number])) if is_simple else []
        if not runs or any(counter < 0 for _, _, counter in runs):
            super().owner_transfers(event)
            return
        tags, uplink.tags = uplink.tags[:number], uplink.tags[number:]
        self._owners.proxied_messages += number
        for start, end, counter in runs:
            heads, payloads = [b""] * (end - start), event.payloads[start:end]
            first = self.link.send_run(tags[start][:8], counter, heads, payloads, False)
            session.note_given((event.first_delivery_id + start) & _MASK, first, end - start)
        self.whole.given(self, event)


class RunsReceiver(ShardedReceiver):
    """See the module."""

    __slots__ = ()

    def shard_link_of(self, index: int, address: str) -> ShardLink:
        """See ShardedLink."""
        return RunsShardLink(self, index, address)


def _runs(tags: list[bytes]) -> Iterator[tuple[int, int, int]]:
    """(start, end, counter of the first) of tags that have one prefix and count up by one."""
    start = 0
    while start < len(tags):
        prefix, counter = tags[start][:8], tag_counter(tags[start])
        end = start + 1
        while end < len(tags) and counter >= 0 and tags[end] == tag_of(prefix, counter + end - start):
            end += 1
        yield start, end, counter
        start = end
