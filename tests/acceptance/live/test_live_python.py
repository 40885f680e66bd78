"""The SDK for Python's own live tests, unchanged, from its source package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kit_live import FAILED, PASSED, LiveServer, disagreements, expected_failures, is_asked_for, made_island, told
from kit_live_python import (
    ASYNC_ADMINISTRATION,
    AT_A_TIME,
    BROKER,
    MESSAGES,
    REQUIRED,
    SYNC_ADMINISTRATION,
    PythonTests,
)

from kits.published import INSTALL_LIMIT_S, obtained

SHORT_LIMIT_S, LIMIT_S = 60.0, 3600.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + SHORT_LIMIT_S)]

#: A few for every run of all tests: rights, credentials and administration, in seconds.
SHORT = [
    "test_sb_client.py::TestServiceBusClient::test_sb_client_readonly_credentials",
    "test_sb_client.py::TestServiceBusClient::test_client_sas_credential",
    "async_tests/test_sb_client_async.py::TestServiceBusClientAsync::test_client_azure_sas_credential_async",
    "mgmt_tests/test_mgmt_namespaces.py::TestServiceBusManagementClientNamespace::test_mgmt_namespace_get_properties",
]


@pytest.fixture(scope="module")
def python_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PythonTests]:
    """The tests beside a broker, in a network that has nothing else."""
    folder = tmp_path_factory.mktemp("live-python")
    found = obtained(REQUIRED)
    island = made_island([BROKER], folder, REQUIRED)
    try:
        with LiveServer(island, folder / "server", BROKER) as server:
            yield PythonTests(found, folder, island, server)
    finally:
        island.close()


def test_a_few_live_tests_of_the_python_sdk_pass_unchanged(python_tests: PythonTests) -> None:
    results = python_tests.run(MESSAGES, SHORT, SHORT_LIMIT_S)
    assert len(results) == len(SHORT)
    assert set(results.values()) == {PASSED}, results


@pytest.mark.timeout(LIMIT_S + INSTALL_LIMIT_S)
@pytest.mark.parametrize("form", ["tls", "emulator"])
def test_the_live_tests_of_the_python_sdk_fail_as_listed(python_tests: PythonTests, form: str) -> None:
    if not is_asked_for(REQUIRED):
        pytest.skip(f"{REQUIRED}=1 runs all of them, as make python-live does")
    expected = expected_failures("python", form)
    messages = ["--ignore=mgmt_tests", "--ignore=unittests", "--ignore=perf_tests", "."]
    runs = [
        (MESSAGES, messages, AT_A_TIME),
        (SYNC_ADMINISTRATION, ["--ignore=mgmt_tests/async", "mgmt_tests"], 0),
        (ASYNC_ADMINISTRATION, ["mgmt_tests/async"], 0),
    ]
    results: dict[str, str] = {}
    with ThreadPoolExecutor() as pool:
        for part in pool.map(
            lambda run: python_tests.run(run[0], run[1], LIMIT_S, form=form, at_a_time=run[2]),
            runs,
        ):
            results.update(part)
    # A busy machine lets tests fail that hold locks of seconds: what fails unexpectedly gets a second chance, alone.
    for name in [name for name in results if results[name] == FAILED and name not in expected]:
        namespace = SYNC_ADMINISTRATION if name.startswith("mgmt_tests") else MESSAGES
        results.update(python_tests.run(namespace, [name], LIMIT_S, form=form))
    (python_tests.folder / f"results-{form}.json").write_text(json.dumps(results, indent=1))
    print(f"Python, {form}: {told(results, expected)}")
    assert not disagreements(results, expected), "\n".join(disagreements(results, expected))
