"""The SDK for Go's own tests, unchanged, against brokers of the tiers standard and premium."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from kit_live import FAILED, LiveServer, disagreements, expected_failures, is_asked_for, made_island, told
from kit_live_go import BUILD_LIMIT_S, PACKAGES, PREMIUM, REQUIRED, STANDARD, GoTests, obtained

LIMIT_S = 1800.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(BUILD_LIMIT_S + 2 * LIMIT_S)]


@pytest.fixture
def go_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GoTests]:
    """The tests beside two brokers, in a network that has nothing else."""
    if not is_asked_for(REQUIRED):
        pytest.skip(f"{REQUIRED}=1 runs them, as make go does")
    folder = tmp_path_factory.mktemp("live-go")
    found = obtained()
    with ExitStack() as stack:
        island = made_island([STANDARD, PREMIUM], folder, REQUIRED)
        stack.callback(island.close)
        standard = stack.enter_context(LiveServer(island, folder / "standard", STANDARD))
        premium = stack.enter_context(LiveServer(island, folder / "premium", PREMIUM))
        yield GoTests(found, folder, island, standard, premium)


def test_the_live_tests_of_the_go_sdk_fail_as_listed(go_tests: GoTests) -> None:
    expected = expected_failures("go", "tls")
    results: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for part in pool.map(lambda package: go_tests.run(package, LIMIT_S), PACKAGES):
            results.update(part)
    # A busy machine lets tests fail that hold locks of seconds: what fails unexpectedly gets a second chance, alone.
    for name in [name for name in results if results[name] == FAILED and name not in expected]:
        package, _, test = name.rpartition("/")
        results.update(go_tests.run(package or ".", LIMIT_S, (test,)))
    print(f"Go: {told(results, expected)}")
    assert not disagreements(results, expected), "\n".join(disagreements(results, expected))
