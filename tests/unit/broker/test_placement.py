"""Where messages go: vectors that hold for ever, splitting, turns, and stores that are away."""

from __future__ import annotations

from typing import Any

import pytest

from duobus.broker import slot_of, string_key
from duobus.broker.entities.placement import Placement
from duobus.broker.fragment_handle import FragmentHandle
from duobus.errors import ArgumentInvalid, StoreUnavailable
from duobus.model.batches import SendBatch
from kits.fragment import Box

#: Recorded when placement was written; a change would move the messages of every partitioned entity (I25).
VECTORS = [
    ("", 16, 11),
    ("a", 16, 4),
    ("k", 16, 10),
    ("order-4711", 16, 7),
    ("Müller", 16, 1),
    ("会议", 16, 9),
    ("x" * 128, 16, 13),
    ("A", 4, 0),
    ("session/1", 4, 3),
    ("order-4711", 3, 1),
]


class Away:
    """Stands for a fragment engine; only its being there counts, and whether it has room."""

    is_full = False

    def has_room(self, size: int) -> bool:
        """See Fragment."""
        return not self.is_full


class Store:
    """Stands for a message broker; only its disk counts, and whether it answers."""

    def __init__(self, disk: int = 1, *, is_late: bool = False) -> None:
        self.disk = disk
        self.is_late = is_late
        self.submit = None


def handles(number: int, away: tuple[int, ...] = (), stores: tuple[Store, ...] = (Store(),)) -> list[FragmentHandle]:
    """Fragments of an entity, in these stores by turns, some of them with their store away."""
    found = [FragmentHandle(stores[index % len(stores)], 1, index) for index in range(number)]  # type: ignore[arg-type]
    for handle in found:
        if handle.number not in away:
            handle.fragment = Away()  # type: ignore[assignment]
    return found


def batch(*keys: str | None, atomic: bool = False) -> SendBatch:
    """Messages with these keys."""
    made = SendBatch(0, [b"m"] * len(keys), True, Box())
    if any(key is not None for key in keys):
        made.keys = [None if key is None else string_key(key) for key in keys]
    made.atomic = atomic
    return made


def numbers(runs: list[Any]) -> list[tuple[int, list[int] | None, bool]]:
    """Runs with the fragment's number instead of the fragment."""
    return [(handle.number, indices, keyless) for handle, indices, keyless in runs]


@pytest.mark.parametrize(("key", "slots", "slot"), VECTORS)
def test_a_key_belongs_to_the_same_slot_for_ever(key: str, slots: int, slot: int) -> None:
    """PE12."""
    assert slot_of(string_key(key), slots) == slot


def test_keys_spread_over_all_slots_about_evenly() -> None:
    found = [0] * 16
    for index in range(16_000):
        found[slot_of(string_key(f"key-{index}"), 16)] += 1
    assert min(found) > 850
    assert max(found) < 1150


def test_a_store_that_is_late_is_passed_over_unless_all_are() -> None:
    stores = (Store(is_late=True), Store(is_late=True), Store())
    placement = Placement(handles(3, stores=stores))
    assert placement.keyless().number == 2
    stores[2].is_late = True
    assert placement.keyless().number == 2


def test_keyless_messages_of_one_turn_stay_together_until_the_commit_starts() -> None:
    placement = Placement(handles(3))
    assert [numbers(placement.split(batch(None, None))[0]) for _ in range(2)] == [[(0, None, True)]] * 2
    placement.commit_started(placement.fragments[0])
    assert numbers(placement.split(batch(None))[0]) == [(1, None, True)]
    # The commit of another fragment changes nothing.
    placement.commit_started(placement.fragments[0])
    assert placement.keyless().number == 1


def test_turns_visit_every_fragment_and_start_again() -> None:
    placement = Placement(handles(3))
    seen = []
    for _ in range(7):
        handle = placement.keyless()
        seen.append(handle.number)
        placement.commit_started(handle)
    assert seen == [0, 1, 2, 0, 1, 2, 0]


def turns_of(placement: Placement, number: int) -> list[int]:
    """The fragments that the next turns go to."""
    seen = []
    for _ in range(number):
        handle = placement.keyless()
        seen.append(handle.number)
        placement.commit_started(handle)
    return seen


def test_turns_visit_the_fragments_of_a_store_one_after_the_other() -> None:
    placement = Placement(handles(8, stores=(Store(), Store(), Store())))
    assert turns_of(placement, 10) == [0, 3, 6, 1, 4, 7, 2, 5, 0, 3]


def test_stores_on_different_disks_take_turns() -> None:
    placement = Placement(handles(8, stores=(Store(1), Store(2), Store(1), Store(2))))
    assert turns_of(placement, 8) == [0, 1, 4, 5, 2, 3, 6, 7]
    placement = Placement(handles(4, stores=(Store(1), Store(2))))
    assert turns_of(placement, 4) == [0, 1, 2, 3]


def test_a_fragment_that_moves_within_a_round_gets_no_second_turn_in_it() -> None:
    first, second = Store(), Store()
    placement = Placement(handles(4, stores=(first, second)))
    assert turns_of(placement, 2) == [0, 2]
    placement.fragments[0].move_to(second)  # type: ignore[arg-type]
    assert turns_of(placement, 2) == [1, 3]
    assert turns_of(placement, 4) == [0, 1, 3, 2]


def test_a_fragment_whose_store_is_away_is_passed_over() -> None:
    placement = Placement(handles(4, away=(0, 1, 3)))
    assert placement.keyless().number == 2
    placement.commit_started(placement.fragments[2])
    assert placement.keyless().number == 2


def test_with_every_store_away_a_keyless_batch_is_refused_as_busy() -> None:
    runs, ((indices, error),) = Placement(handles(2, away=(0, 1))).split(batch(None))
    assert (runs, indices) == ([], None)
    assert isinstance(error, StoreUnavailable)
    assert error.condition == "com.microsoft:server-busy"


def test_a_mixed_batch_is_split_by_slot_and_keeps_its_order_within() -> None:
    placement = Placement(handles(16))
    keys = ["a", None, "k", "a", None, "k"]
    runs, refused = placement.split(batch(*keys))
    assert refused == []
    by_number = {number: (indices, keyless) for number, indices, keyless in numbers(runs)}
    assert by_number[slot_of(string_key("a"), 16)] == ([0, 3], False)
    assert by_number[slot_of(string_key("k"), 16)] == ([2, 5], False)
    assert ([1, 4], True) in by_number.values()


def test_keys_of_a_store_that_is_away_are_refused_and_the_others_go_on() -> None:
    away = slot_of(string_key("a"), 16)
    runs, refused = Placement(handles(16, away=(away,))).split(batch("a", "k", "a", None))
    assert [indices for indices, _ in refused] == [[0, 2]]
    assert isinstance(refused[0][1], StoreUnavailable)
    assert sorted(indices or [] for _, indices, _ in runs) == [[1], [3]]


def test_a_batch_transfer_over_several_slots_is_refused_as_a_whole() -> None:
    """I40."""
    runs, ((indices, error),) = Placement(handles(16)).split(batch("a", "k", atomic=True))
    assert (runs, indices) == ([], None)
    assert isinstance(error, ArgumentInvalid)
    assert not error.transient


@pytest.mark.parametrize("keys", [("a", "a"), (None, None), ("a",)])
def test_a_batch_transfer_of_one_slot_goes_as_a_whole(keys: tuple[str | None, ...]) -> None:
    ((number, indices, keyless),), refused = (
        numbers(found) if index == 0 else found
        for index, found in enumerate(Placement(handles(16)).split(batch(*keys, atomic=True)))
    )
    assert (indices, refused, keyless) == (None, [], keys[0] is None)
    assert keyless or number == slot_of(string_key("a"), 16)


def test_a_batch_transfer_of_keyed_and_keyless_messages_is_refused() -> None:
    runs, refused = Placement(handles(16)).split(batch("a", None, atomic=True))
    assert runs == []
    assert isinstance(refused[0][1], ArgumentInvalid)


def test_a_fragment_that_is_full_is_passed_over_while_another_has_room() -> None:
    found = handles(3, away=(1,))
    placement = Placement(found)
    found[0].fragment.is_full = True  # type: ignore[union-attr]
    assert numbers(placement.split(batch(None))[0]) == [(2, None, True)]
    found[2].fragment.is_full = True  # type: ignore[union-attr]
    # None has room: the fragment itself says so, with its numbers.
    assert len(placement.split(batch(None))[0]) == 1


def test_keys_have_their_slots_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duobus.broker.entities.placement._SLOTS_MAX", 3)
    placement = Placement(handles(4))
    keys = [f"k{number % 7}" for number in range(20)]
    wanted = {index: slot_of(string_key(key), 4) for index, key in enumerate(keys)}
    for _ in range(2):
        runs, refused = placement.split(batch(*keys))
        assert refused == []
        assert {index: handle.number for handle, indices, _ in runs for index in indices or ()} == wanted
        assert len(placement._slots) <= 3
