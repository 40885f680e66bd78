"""Message ids of the sink: the same for the same row of the same write, and for no other."""

from __future__ import annotations

import pytest

from duobus.spark.sink.message_ids import check_write_id, id_of, place_of


def test_a_streaming_row_is_named_by_query_batch_partition_and_number() -> None:
    assert id_of(place_of(None, "6b1d", "7", 2), 41) == "6b1d/7/2/41"


def test_a_batch_write_is_named_by_its_write_id() -> None:
    assert id_of(place_of("nightly-2026", None, None, 0), 0) == "nightly-2026/0/0"


def test_two_writes_of_one_foreach_batch_have_different_ids() -> None:
    assert place_of("first", "q", "1", 0) != place_of("second", "q", "1", 0)


def test_one_write_id_in_two_batches_of_a_query_gives_different_ids() -> None:
    assert place_of("same", "q", "1", 0) != place_of("same", "q", "2", 0)


def test_a_write_without_any_name_is_refused() -> None:
    with pytest.raises(ValueError, match="has to have a writeId"):
        place_of(None, None, None, 0)


def test_the_longest_derived_id_is_one_that_service_bus_takes() -> None:
    place = place_of("w" * 40, "6b1dd0a2-3b0f-4f2e-9f0e-5b6b5b8f7a55", str(2**31), 100_000)
    assert len(id_of(place, 2**40)) <= 128


@pytest.mark.parametrize("text", ["", "a/b", "a b", "x" * 41, "..", "ü"])
def test_a_write_id_that_could_be_mistaken_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="writeId has to be"):
        check_write_id(text)
