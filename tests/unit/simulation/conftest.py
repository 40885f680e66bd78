"""What the simulation needs of the code that it runs."""

from __future__ import annotations

import pytest

from duobus.compiled import compiled_rooms


@pytest.fixture(autouse=True)
def _fragment_in_python() -> None:
    """The simulation watches the fragment, and plants bugs in it, by replacing functions inside of it.

    Compiled code does not look its own functions up: nothing would be seen and every bug would be missed, or, worse,
    a run that fails for this reason would count as a bug caught. ``make test-compiled`` runs these tests with
    codec and engine compiled and the fragment as Python.
    """
    if "fragment" in compiled_rooms():
        pytest.skip("the compiled fragment cannot be watched, nor bugs planted in it")
