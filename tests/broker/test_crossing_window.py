"""The one window that forwarding between servers leaves (``docs/explanation/forwarding.md``), shown as it is (I14).

An origin's new owner knows nothing of parcels that were under way. It sends their messages again, which the ledger
knows; one that expires before is a dead letter at its origin, and at its destination, too. Nothing is lost by it, and
nothing is at the destination twice.
"""

from __future__ import annotations

import asyncio

from broker_kit import Hall, batch, simulated_over
from test_crossing import Town, _there

from duobus.broker import DEAD_LETTER
from duobus.model.description import QueueDescription

TTL_MS = 10_000


async def _moved_while_in_doubt(hall: Hall, away_s: float) -> tuple[Town, str, str]:
    """The owner of an origin changes, ``away_s`` after the destination took a message and before that was heard."""
    town = Town(hall)
    await town.give(town.a, 1)
    await town.give(town.b, 2)
    source, target = town.names_of(1, 1)[0], town.names_of(2, 1)[0]
    await town.b.owner.unit.create_queue("n", QueueDescription(name=target))
    await town.a.look_again()
    about = QueueDescription(
        name=source,
        forward_to=target,
        default_message_time_to_live_ms=TTL_MS,
        dead_lettering_on_message_expiration=True,
    )
    await town.a.owner.unit.create_queue("n", about)
    await town.a.look_again()
    await town.b.look_again()
    line = await town.a.wire("b", "n")
    town.a.owner.queue(source).send(batch(b"0"))
    await asyncio.sleep(0.5)
    line.late = []
    town.a.owner.queue(source).send(batch(b"1"))
    await asyncio.sleep(0.5)
    assert await _there(town.b, target) == [b"0", b"1"]
    town.a.owner.unit.drop(1, "its lease has ended")
    await asyncio.sleep(away_s)
    await town.give(town.b, 1)
    await asyncio.sleep(3)
    return town, source, target


@simulated_over(2, 3600)
async def test_an_origin_that_moves_in_time_has_its_message_at_the_destination_alone(hall: Hall) -> None:
    town, source, target = await _moved_while_in_doubt(hall, TTL_MS / 2000)
    assert await _there(town.b, target) == [b"0", b"1"]
    assert await _there(town.b, source) == await _there(town.b, source, DEAD_LETTER) == []


@simulated_over(2, 3600)
async def test_a_message_that_expires_while_its_origin_has_no_owner_is_a_dead_letter_there_as_well(hall: Hall) -> None:
    town, source, target = await _moved_while_in_doubt(hall, 2 * TTL_MS / 1000)
    # Its time to live has gone with it.
    assert await _there(town.b, source) == await _there(town.b, target) == []
    assert await _there(town.b, source, DEAD_LETTER) == [b"1"]
