"""The pytest plugin: isolation, virtual time, names that give way, and nothing at all for those who don't use it."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from importlib.metadata import entry_points

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusConnectionError, ServiceBusError

from duobus.errors import ArgumentInvalid, EntityAlreadyExists, EntityNotFound
from duobus.testing.broker import BrokerThread
from duobus.testing.namespace import Broker, BrokerProcess, Namespace, Remote

#: Loads the plugin where the installed package does not announce it.
PLUGIN = () if entry_points(group="pytest11", name="duobus") else ("-p", "duobus.testing.plugin")

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module", params=[BrokerThread, BrokerProcess])
def started(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """The broker in both of its forms."""
    remote: Remote = request.param()
    made = Broker(remote)
    made.start()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def space(started: Broker) -> Iterator[Namespace]:
    """A namespace of its own."""
    with started.namespace() as made:
        yield made


def client(connection_string: str) -> ServiceBusClient:
    """An SDK client that shows errors at once."""
    return ServiceBusClient.from_connection_string(connection_string, retry_total=0)


def send(connection_string: str, queue: str, message: ServiceBusMessage | None = None) -> None:
    """Send one message."""
    with client(connection_string) as opened, opened.get_queue_sender(queue) as sender:
        sender.send_messages(message or ServiceBusMessage("m"))


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    """Run pytest with the plugin, as a user does."""
    return pytester.runpytest_subprocess(*PLUGIN, "-p", "no:cacheprovider", *options, timeout=60)


def test_namespaces_do_not_see_queues_of_each_other(started: Broker, space: Namespace) -> None:
    """IN3, IN5."""
    space.create_queue("q")
    send(space.connection_string, "q")
    with started.namespace() as other:
        assert other.name != space.name
        other.create_queue("q")
        assert other.messages("q") == []
    assert [message.body for message in space.messages("q")] == [b"m"]


def test_the_key_of_one_namespace_does_not_open_another(started: Broker, space: Namespace) -> None:
    space.create_queue("q")
    with started.namespace() as other:
        (key,) = re.findall(r"SharedAccessKey=([^;]+)", other.connection_string)
        forged = re.sub(r"SharedAccessKey=[^;]+", lambda _: f"SharedAccessKey={key}", space.connection_string)
        with pytest.raises(ServiceBusAuthenticationError):
            send(forged, "q")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_namespace_that_is_gone_takes_no_more_connections(started: Broker) -> None:
    with started.namespace() as made:
        made.create_queue("q")
        send(made.connection_string, "q")
    with pytest.raises((ServiceBusConnectionError, ServiceBusError)):
        send(made.connection_string, "q")


def test_scheduled_messages_become_active_and_are_received_when_time_is_advanced(space: Namespace) -> None:
    space.create_queue("q", enable_partitioning=True)
    with client(space.connection_string) as opened, opened.get_queue_sender("q") as sender:
        due = datetime.now(UTC) + timedelta(hours=2)
        sender.schedule_messages([ServiceBusMessage(str(number)) for number in range(20)], due)
        space.advance(7000)
        assert {message.state for message in space.messages("q")} == {"scheduled"}
        space.advance(300)
        assert {message.state for message in space.messages("q")} == {"active"}
        with opened.get_queue_receiver("q") as receiver:
            found = 0
            while messages := receiver.receive_messages(max_message_count=20, max_wait_time=0.5):
                found += len(messages)
    assert found == 20


def test_a_receiver_that_waits_is_woken_by_the_end_of_a_lock(space: Namespace) -> None:
    space.create_queue("q", lock_duration=timedelta(minutes=5))
    send(space.connection_string, "q")
    with client(space.connection_string) as first, client(space.connection_string) as second:
        holder, waiter = first.get_queue_receiver("q"), second.get_queue_receiver("q")
        (held,) = holder.receive_messages(max_wait_time=20)
        assert space.messages("q")[0].is_locked
        counts: list[int | None] = []
        thread = threading.Thread(
            target=lambda: counts.extend(m.delivery_count for m in waiter.receive_messages(max_wait_time=10))
        )
        thread.start()
        space.advance(301)
        thread.join(60)
        assert counts == [1]
        assert held.delivery_count == 0
        holder.close()
        waiter.close()


def test_messages_end_with_their_time_to_live(space: Namespace) -> None:
    space.create_queue("gone", default_message_time_to_live=timedelta(minutes=1))
    space.create_queue("dead", dead_lettering_on_message_expiration=True)
    send(space.connection_string, "gone")
    send(space.connection_string, "dead", ServiceBusMessage("m", time_to_live=timedelta(minutes=1)))
    space.advance(61)
    assert space.messages("gone") == []
    (letter,) = space.messages("dead")
    assert (letter.state, letter.dead_letter_reason) == ("dead-letter", "TTLExpiredException")


def test_time_is_the_present_again_in_the_next_namespace(started: Broker) -> None:
    with started.namespace() as made:
        made.advance(1_000_000)
    with started.namespace() as made:
        made.create_queue("q")
        with client(made.connection_string) as opened, opened.get_queue_sender("q") as sender:
            sender.schedule_messages(ServiceBusMessage("m"), datetime.now(UTC) + timedelta(hours=1))
        assert [message.state for message in made.messages("q")] == ["scheduled"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_reset_leaves_nothing_but_the_connection_string(space: Namespace) -> None:
    space.create_queue("q")
    send(space.connection_string, "q")
    space.reset()
    with pytest.raises(EntityNotFound, match="create_queue"):
        space.messages("q")
    space.create_queue("q")
    send(space.connection_string, "q")
    assert len(space.messages("q")) == 1


def test_what_cannot_be_is_refused_with_its_own_error(space: Namespace) -> None:
    space.create_queue("q")
    with pytest.raises(EntityAlreadyExists):
        space.create_queue("Q")
    with pytest.raises(ArgumentInvalid, match="ForwardTo"):
        space.create_queue("forwards", forward_to="other")
    with pytest.raises(EntityNotFound):
        space.messages("forwards")
    with pytest.raises(ArgumentInvalid, match="colour"):
        space.create_queue("r", colour="red")
    with pytest.raises(ArgumentInvalid, match="timedelta"):
        space.create_queue("r", lock_duration=30)
    with pytest.raises(ArgumentInvalid, match="back"):
        space.advance(-1)


def test_bodies_of_every_kind_are_shown_as_bytes(space: Namespace) -> None:
    space.create_queue("q")
    bodies = ({"data_body": [b"one", b"two"]}, {"value_body": "text"}, {"sequence_body": [["a", 1]]})
    with client(space.connection_string) as opened, opened.get_queue_sender("q") as sender:
        for body in bodies:
            sender.send_messages(AmqpAnnotatedMessage(**body))
        sender.send_messages(ServiceBusMessage("m", subject="s"))
    found = space.messages("q")
    assert [message.body for message in found] == [b"onetwo", b"text", b"['a', 1]", b"m"]
    assert [message.subject for message in found] == [None, None, None, "s"]
    assert re.fullmatch("[0-9a-f]{32}", found[0].message_id or "")


def test_whoever_uses_no_fixture_pays_nothing_for_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, threading
        def test_nothing_was_loaded_or_started():
            loaded = {name for name in sys.modules if name.startswith("duobus")}
            assert loaded <= {"duobus", "duobus.testing", "duobus.testing.plugin"}
            assert "asyncio" not in sys.modules or not any("duobus" in t.name for t in threading.enumerate())
        """
    )
    run(pytester).assert_outcomes(passed=1)


def test_fixtures_of_the_user_and_of_other_plugins_keep_their_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        other_plugin="""
        import pytest
        @pytest.fixture
        def broker():
            return "of the other plugin"
        """,
        conftest="""
        import pytest
        @pytest.fixture
        def namespace():
            return "of the conftest"
        """,
        test_names="""
        def test_that_names_lead_where_they_did(broker, namespace):
            assert (broker, namespace) == ("of the other plugin", "of the conftest")
        def test_that_the_others_are_there(connection_string, duobus_namespace):
            assert connection_string == duobus_namespace.connection_string
        """,
    )
    pytester.syspathinsert()
    run(pytester, "-p", "other_plugin").assert_outcomes(passed=2)


def test_workers_of_xdist_have_a_broker_each(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        @pytest.mark.parametrize("number", range(2))
        def test_the_queue_is_mine(namespace, number):
            namespace.create_queue("q")
            assert namespace.messages("q") == []
        """
    )
    run(pytester, "-n", "2").assert_outcomes(passed=2)


def test_a_queue_with_sessions_is_made_and_shown(space: Namespace) -> None:
    space.create_queue("q", requires_session=True)
    with ServiceBusClient.from_connection_string(space.connection_string) as client:
        with client.get_queue_sender("q") as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="s"))
        with client.get_queue_receiver("q", session_id="s") as receiver:
            receiver.session.set_state("kept")
            space.advance(3600)
            assert len(space.messages("q")) == 1


def test_a_topic_has_its_subscriptions_each_with_what_its_filter_takes(space: Namespace) -> None:
    space.create_topic("orders", subscriptions=["audit"], max_size_in_megabytes=2048)
    space.create_subscription("orders", "painters", filter="colour = 'red'", max_delivery_count=2)
    with client(space.connection_string) as opened, opened.get_topic_sender("orders") as sender:
        for colour in ("red", "blue"):
            sender.send_messages(ServiceBusMessage(colour, application_properties={"colour": colour}))
    assert [message.body for message in space.messages("orders/Subscriptions/painters")] == [b"red"]
    assert [message.body for message in space.messages("orders/subscriptions/AUDIT")] == [b"red", b"blue"]
    with pytest.raises(ArgumentInvalid, match="TopicProperties"):
        space.create_topic("other", lock_duration=timedelta(seconds=5))
    with pytest.raises(ArgumentInvalid):
        space.create_subscription("orders", "wrong", filter="colour =")
    with pytest.raises(EntityNotFound):
        space.create_subscription("missing", "any")
    space.reset()
    space.create_topic("orders")
