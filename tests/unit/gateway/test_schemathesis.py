"""schemathesis finds nothing wrong with the HTTP side, in a short run; ``make schemathesis`` has the long one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[3] / "tools"))

import schemathesis_run

LIMIT_S = 100.0


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S + 30)
def test_every_answer_is_one_that_the_description_names() -> None:
    if not schemathesis_run.PROGRAM.exists():
        pytest.skip("schemathesis is not there; make schemathesis gets it")
    found = schemathesis_run.run(examples=8, seed=7, limit_s=LIMIT_S)
    assert not found, found
