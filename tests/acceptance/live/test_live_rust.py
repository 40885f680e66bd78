"""The crate azservicebus' own live tests, unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kit_live import LiveServer, disagreements, expected_failures, is_asked_for, made_island, told
from kit_live_rust import BROKER, BUILD_LIMIT_S, PROGRAMS, REQUIRED, RustTests, obtained

LIMIT_S = 900.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_LIMIT_S + 3 * LIMIT_S)]


@pytest.fixture
def rust_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RustTests]:
    """The tests beside a broker, in a network that has nothing else."""
    if not is_asked_for(REQUIRED):
        pytest.skip(f"{REQUIRED}=1 runs them, as make rust does")
    folder = tmp_path_factory.mktemp("live-rust")
    found = obtained()
    with ExitStack() as stack:
        island = made_island([BROKER], folder, REQUIRED)
        stack.callback(island.close)
        yield RustTests(found, folder, island, stack.enter_context(LiveServer(island, folder / "server", BROKER)))


def test_the_live_tests_of_the_rust_crate_fail_as_listed(rust_tests: RustTests) -> None:
    expected = expected_failures("rust", "tls")
    results: dict[str, str] = {}
    for program in PROGRAMS:
        results.update(rust_tests.run(program, LIMIT_S))
    print(f"Rust: {told(results, expected)}")
    assert not disagreements(results, expected), "\n".join(disagreements(results, expected))
