"""The marker that has a messaging store away for a test (see docs/how-to/test-your-application.md)."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

PLUGIN = () if entry_points(group="pytest11", name="duobus") else ("-p", "duobus.testing.plugin")


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *options, timeout=60)


def test_a_store_is_away_in_the_tests_that_are_marked_after_their_fixtures_and_only_there(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        """
        import pytest
        from azure.servicebus import ServiceBusClient, ServiceBusMessage

        @pytest.fixture
        def queue(namespace):
            namespace.create_queue("q", enable_partitioning=True)
            return "q"

        def send(connection_string, queue):
            with ServiceBusClient.from_connection_string(connection_string) as client:
                with client.get_queue_sender(queue) as sender:
                    for _ in range(16):  # a round: one to each fragment
                        sender.send_messages(ServiceBusMessage("m"), timeout=16)

        @pytest.mark.duobus_drill(2)
        def test_failing(queue, connection_string, drill):
            send(connection_string, queue)
            assert drill.stores() == {1: "open", 2: "failed"}

        @pytest.mark.duobus_drill(store=1, how="stall")
        class TestStalling:
            def test_stalling(self, queue, connection_string, drill):
                send(connection_string, queue)
                assert drill.stores() == {1: "failed", 2: "open"}

        def test_healed(queue, connection_string, drill):
            send(connection_string, queue)
            assert drill.stores() == {1: "open", 2: "open"}
        """
    )
    run(pytester, "--strict-markers").assert_outcomes(passed=3)


def test_a_marker_that_asks_for_what_there_is_not_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.duobus_drill(2, how="explode")
        def test_a_way_that_there_is_not():
            pass

        @pytest.mark.duobus_drill(9)
        def test_a_store_that_there_is_not():
            pass
        """
    )
    result = run(pytester)
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*how is 'explode', and can be fail or stall.*"])
    result.stdout.fnmatch_lines(["*no messaging store 9*"])
