"""How many messages are written at a time, whether each of them has a slot or not."""

from __future__ import annotations

import pytest

from duobus.broker import Stretch
from duobus.gateway.amqp.slices import WRITTEN_BYTES, fitting

HALF = WRITTEN_BYTES // 2


@pytest.mark.parametrize("each", [-1, HALF])
@pytest.mark.parametrize(("offset", "number", "fits"), [(0, 1, 1), (0, 2, 2), (0, 3, 2), (1, 4, 2), (3, 2, 2)])
def test_as_many_are_written_as_fit(each: int, offset: int, number: int, fits: int) -> None:
    stretch = Stretch(1, [0] * 5, [bytes(HALF)] * 5, each)
    assert fitting(stretch, offset, number) == fits
    assert fitting(stretch.slots(), offset, number) == fits


def test_one_is_written_however_large_it_is() -> None:
    stretch = Stretch(1, [0, 0], [bytes(2 * WRITTEN_BYTES)] * 2)
    assert fitting(stretch, 0, 2) == fitting(stretch.slots(), 0, 2) == 1
