"""How many relay connections a namespace has: one number, right whatever comes and goes."""

from __future__ import annotations

import random

import pytest

from duobus.gateway.relay import relay_use
from duobus.gateway.relay.refusals import RelayRefusal
from duobus.gateway.relay.relay_use import NamespaceRoom, RelayUse


def test_the_number_of_connections_is_the_sum_over_all_relays_whatever_comes_and_goes() -> None:
    draw = random.Random(26)
    room = NamespaceRoom()
    uses: list[RelayUse[int, int, int]] = [RelayUse(room) for _ in range(3)]
    for step in range(2_000):
        use = draw.choice(uses)
        known = draw.randrange(step + 1)
        match draw.randrange(6):
            case 0 if len(use.listeners) < 25:
                use.listen(step, "path")
            case 1:
                listeners = use.listeners.all()
                use.leave(draw.choice([*listeners, -1]))
            case 2:
                use.wait(step, 0)
            case 3:
                use.waited(draw.choice([*use.pending, -1]))
            case 4:
                use.join((step, -step - 1))
            case 5:
                use.part(draw.choice([*use.spliced, known]))
        assert room.connections == sum(use.connections for use in uses)


def test_a_namespace_with_as_many_connections_as_it_may_takes_no_more_until_one_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relay_use, "CONNECTIONS_MAX", 3)
    room = NamespaceRoom()
    first: RelayUse[str, str, str] = RelayUse(room)
    second: RelayUse[str, str, str] = RelayUse(room)
    first.listen("listener", "first")
    first.wait("sender", "listener")
    first.join(("one", "other"))
    with pytest.raises(RelayRefusal) as refused:
        second.demand_room("second")
    assert (refused.value.status, "3 relay connections" in refused.value.text) == (503, True)
    first.part("one")
    second.demand_room("second")


def test_so_many_senders_wait_at_one_relay_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_use, "PENDING_MAX", 2)
    use: RelayUse[str, str, str] = RelayUse(NamespaceRoom())
    use.wait("a", "listener")
    use.wait("b", "listener")
    with pytest.raises(RelayRefusal) as refused:
        use.demand_room("path")
    assert (refused.value.status, refused.value.text) == (
        503,
        "2 senders wait for listeners of 'path', which is the most.",
    )
    use.waited("a")
    use.demand_room("path")
