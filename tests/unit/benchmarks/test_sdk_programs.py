"""What the two programs of the official SDK told is put together, and checked."""

from typing import Any

import pytest

from benchmarks import sdk_programs
from benchmarks.load.wire import LoadError

SENT: dict[str, Any] = {"messages": 100, "started": 10.0, "p50": 0.001, "p99": 0.004, "cpu": 0.02}
RECEIVED: dict[str, Any] = {
    "messages": 100,
    "different": 100,
    "finished": 12.0,
    "p50": 0.002,
    "p99": 0.005,
    "cpu": 0.01,
}


def test_the_rate_is_of_messages_that_went_all_the_way() -> None:
    result = sdk_programs.result(SENT, RECEIVED)
    assert result.workload == "SDK1"
    assert (result.messages, result.seconds, result.rate) == (100, 2.0, 50.0)
    assert (result.send_p50_ms, result.send_p99_ms) == (1.0, 4.0)
    assert (result.end_to_end_p50_ms, result.end_to_end_p99_ms) == (2.0, 5.0)
    assert result.generator_cpu_us == pytest.approx(300.0)


@pytest.mark.parametrize("wrong", [{"messages": 99}, {"messages": 101}, {"different": 99}])
def test_messages_that_are_lost_or_doubled_void_the_measurement(wrong: dict[str, Any]) -> None:
    with pytest.raises(LoadError, match="100 messages were sent"):
        sdk_programs.result(SENT, RECEIVED | wrong)
