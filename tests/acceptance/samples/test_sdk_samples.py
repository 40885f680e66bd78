"""Every program among the samples that the SDK for Python publishes runs unchanged against the broker.

Left out are those that need a proxy, and one that has to be edited first. The package of the SDK for JavaScript carries
no samples; they are counted as not run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest
from kit_samples import OF_THE_ENVIRONMENT, REQUIRED, IslandServer, Samples

from kits.programs import do_without
from kits.published import INSTALL_LIMIT_S, Island, obtained

#: A sample waits for messages that do not come, again and again.
LIMIT_S = 90.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALL_LIMIT_S + 4 * LIMIT_S)]

#: Set to run those that sleep for minutes; ``make samples`` does.
LONG = "DUOBUS_LONG_SAMPLES"
LONG_LIMIT_S = 420.0

#: Samples without an end, and what they print when they have done what they are to show.
ENDLESS = {
    "receive_iterator_queue": "of the feeder",
    "failure_and_recovery": "Data 9",
}
#: Samples that wait for messages of others.
FED = {"sample_code_servicebus", "receive_iterator_queue"}
ENVIRONMENT: dict[str, dict[str, str]] = {
    # EnvironmentCredential, as its name says.
    "client_identity_authentication": OF_THE_ENVIRONMENT,
}
#: Whose subscription has to require sessions.
OF_SESSIONS = {"list_sessions"}
SLEEPING = {"auto_lock_renew"}
#: Why one is not run.
LEFT_OUT = {
    "proxy": "needs a proxy",
    "connection_to_custom_endpoint_address": "has to be edited first: its address is '<custom_endpoint_hostname>'",
}
PROGRAMS = [
    "authenticate_client_connstr",
    "authenticate_using_azure_named_key_credential",
    "authenticate_using_azure_sas_credential",
    "auto_lock_renew",
    "client_identity_authentication",
    "connection_to_custom_endpoint_address",
    "deadletter_messages_and_correct",
    "failure_and_recovery",
    "generate_sas_token_and_authenticate_client",
    "list_sessions",
    "mgmt_queue",
    "mgmt_rule",
    "mgmt_subscription",
    "mgmt_topic",
    "proxy",
    "receive_deadlettered_messages",
    "receive_deferred_message_queue",
    "receive_iterator_queue",
    "receive_peek",
    "receive_queue",
    "receive_subscription",
    "sample_code_servicebus",
    "schedule_messages_and_cancellation",
    "schedule_topic_messages_and_cancellation",
    "send_and_receive_amqp_annotated_message",
    "send_queue",
    "send_topic",
    "session_pool_receive",
    "session_send_receive",
    "topic_subscription_with_rule_operations",
]
#: Those that exist synchronous only.
SYNC_ONLY = {"failure_and_recovery", "generate_sas_token_and_authenticate_client"}


#: Programs that run at a time: most of their time they wait.
AT_A_TIME = 10


def path_of(name: str, flavour: str) -> Path:
    return Path("sync_samples", f"{name}.py") if flavour == "sync" else Path("async_samples", f"{name}_async.py")


ALL = [(name, "sync") for name in PROGRAMS] + [(name, "asyncio") for name in PROGRAMS if name not in SYNC_ONLY]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samples]:
    found = obtained(REQUIRED)
    island = Island()
    try:
        if not island.is_up:
            do_without("no network of its own can be made here (unshare)", REQUIRED)
        places = range(len(ALL))
        with (
            IslandServer(island, tmp_path_factory.mktemp("samples-server"), places) as server,
            Samples(found, tmp_path_factory.mktemp("samples"), island, server) as made,
        ):
            yield made
    finally:
        island.close()


def failure_of(samples: Samples, name: str, flavour: str) -> str:
    """What went wrong with a sample; empty when it did what it says."""
    program, place = path_of(name, flavour), ALL.index((name, flavour))
    limit_s = LONG_LIMIT_S if name in SLEEPING else LIMIT_S
    environment = samples.entities(place, has_sessions=name in OF_SESSIONS) | ENVIRONMENT.get(name, {})
    with samples.feeding(environment) if name in FED else nullcontext():
        if name in ENDLESS:
            printed = samples.run_until(program, ENDLESS[name], limit_s, environment)
            return "" if ENDLESS[name] in printed else f"{name}: {printed[-2000:]}"
        try:
            done = samples.run(program, limit_s, environment)
        except subprocess.TimeoutExpired as error:
            return f"{name}: {error}"
    return "" if done.returncode == 0 else f"{name}: {done.stdout[-1000:]}\n{done.stderr[-2000:]}"


def test_every_program_that_was_obtained_is_in_the_list(samples: Samples) -> None:
    found = {str(path.relative_to(samples.folder)) for path in samples.folder.glob("*/*.py")}
    assert found == {str(path_of(name, flavour)) for name, flavour in ALL}


@pytest.mark.parametrize("wanted", ["sync", "asyncio"])
def test_every_sample_runs_unchanged(samples: Samples, wanted: str) -> None:
    names = [name for name, flavour in ALL if flavour == wanted and name not in LEFT_OUT and name not in SLEEPING]
    assert len(names) == {"sync": 27, "asyncio": 25}[wanted]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        failures = list(pool.map(lambda name: failure_of(samples, name, wanted), names))
    assert not any(failures), "\n".join(failures)


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("name", sorted(SLEEPING))
def test_a_sample_that_sleeps_for_minutes_runs_unchanged(
    request: pytest.FixtureRequest, name: str, flavour: str
) -> None:
    if not os.environ.get(LONG):
        pytest.skip(f"{LONG}=1 runs it, as make samples does")
    failure = failure_of(request.getfixturevalue("samples"), name, flavour)
    assert not failure, failure


@pytest.mark.parametrize("flavour", ["sync", "asyncio"])
@pytest.mark.parametrize("name", sorted(LEFT_OUT))
def test_samples_that_cannot_run_are_counted(name: str, flavour: str) -> None:
    pytest.skip(f"{path_of(name, flavour)}: {LEFT_OUT[name]}")


def test_samples_for_javascript_are_counted() -> None:
    pytest.skip("the package @azure/service-bus on the registry carries no samples")
