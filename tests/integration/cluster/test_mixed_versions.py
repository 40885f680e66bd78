"""Servers of an earlier commit and of the working tree share a catalog: each does for the other what its own kind does.

``DUOBUS_OLD_COMMIT`` names another commit. The tests are skipped where the clone does not hold it.
"""

from __future__ import annotations

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusClient, ServiceBusMessage, ServiceBusReceiver
from azure.servicebus.exceptions import ServiceBusError
from kit_cluster import Cluster

from duobus.model.access_rules import sign_token
from kits.earlier_commits import FIRST, package_of, unpack_commit, words_before
from kits.postgres import running_postgres

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    # The SDK leaves the sockets of a server that has stopped to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]

COMMIT: Final = os.environ.get("DUOBUS_OLD_COMMIT", FIRST)
OLD, NEW = 0, 1
#: What is waited for comes within a second where nothing else runs.
LIMIT_S: Final = 60.0
#: Queues that lie in one store each; both servers own some.
QUEUES: Final = tuple(f"q{number}" for number in range(4))


class Mixed(Cluster):
    """A server of the earlier commit and one of the working tree."""

    def __init__(self, folder: Path, postgres: Any, old: Path) -> None:
        super().__init__(folder, postgres, servers=2, stores=4, more=lambda _number: ["--spread"])
        self._old = old
        #: A queue that each of them owns.
        self.owned: dict[int, str] = {}

    def words(self, number: int) -> list[str]:
        return words_before(self._old) if number == OLD else []

    def owner_of(self, queue: str) -> int | None:
        """The server that lists the fragment of a queue as its own."""
        for number in self.servers:
            with urllib.request.urlopen(f"{self.http(number)}/metrics", timeout=60) as answer:
                lines = answer.read().decode().splitlines()
            if any(line.startswith("duobus_fragment_available") and f'entity="{queue}"' in line for line in lines):
                return number
        return None

    def create_at(self, owner: int, name: str, **about: Any) -> str:
        """Create queues until one lies in a store of that server; its name."""
        with self.admin(owner) as admin:
            for number in range(16):
                queue = f"{name}-{number}"
                admin.create_queue(queue, **about)
                wait_until(lambda: self.owner_of(queue) is not None)  # noqa: B023 - it is over before the next
                if self.owner_of(queue) == owner:
                    return queue
        raise AssertionError(name)

    def share_out(self) -> None:
        """Find a queue that each server owns, once all stores are served.

        A server that paused for longer than its lease gets its stores back from the other one only by and by.
        """
        self.await_served()
        wait_until(self._are_shared_out)

    def _are_shared_out(self) -> bool:
        self.owned = {}
        for queue in QUEUES:
            owner = self.owner_of(queue)
            if owner is not None:
                self.owned.setdefault(owner, queue)
        return sorted(self.owned) == [OLD, NEW]


def wait_until(what: Callable[[], bool]) -> None:
    """Ask until that is so."""
    end = time.monotonic() + LIMIT_S
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def send(client: ServiceBusClient, queue: str, texts: list[str], **about: Any) -> None:
    with client.get_queue_sender(queue) as sender:
        sender.send_messages([ServiceBusMessage(text, **about) for text in texts])


def receive(receiver: ServiceBusReceiver, count: int) -> list[Any]:
    """So many messages, which stay locked; fewer when they do not come."""
    found: list[Any] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < end:
        found += receiver.receive_messages(count - len(found), max_wait_time=2)
    return found


def take_all(mixed: Mixed, number: int, queue: str, count: int) -> list[str]:
    """Receive and complete what is in a queue; the client attaches again when a store has moved."""
    found: list[str] = []
    end = time.monotonic() + LIMIT_S
    while len(found) < count and time.monotonic() < end:
        try:
            with mixed.client(number, retry_total=1) as client, client.get_queue_receiver(queue) as receiver:
                for message in receiver.receive_messages(count - len(found), max_wait_time=2):
                    receiver.complete_message(message)
                    found.append(str(message))
        except (ServiceBusError, OSError):
            time.sleep(0.1)
    return sorted(found)


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of the earlier commit; where to import it from."""
    return unpack_commit(COMMIT, tmp_path_factory.mktemp("old"))


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory, old: Path) -> Iterator[Mixed]:
    """Both servers, with what they own. The earlier one has made the catalog and the stores."""
    with running_postgres(durable=True) as postgres:
        cluster = Mixed(tmp_path_factory.mktemp("mixed"), postgres, old)
        try:
            for number in (OLD, NEW):
                cluster.start(number)
                cluster.await_ready(number)
            cluster.await_served()
            for index, queue in enumerate(QUEUES):
                with cluster.admin(index % 2) as admin:
                    admin.create_queue(queue, lock_duration=timedelta(seconds=30))
            cluster.share_out()
            yield cluster
        finally:
            cluster.close()


def test_each_server_runs_its_own_version(mixed: Mixed, old: Path) -> None:
    assert package_of(mixed.words(OLD)) == old / "duobus"
    assert not package_of(mixed.words(NEW)).is_relative_to(old)


@pytest.mark.parametrize(("here", "owner"), [(OLD, NEW), (NEW, OLD)], ids=["new-behind-old", "old-behind-new"])
def test_a_client_uses_a_queue_of_the_other_version_as_one_of_its_own(mixed: Mixed, here: int, owner: int) -> None:
    queue = mixed.owned[owner]
    with mixed.client(here) as client:
        send(client, queue, ["completed", "deferred", "dead", "abandoned"])
        with client.get_queue_sender(queue) as sender, client.get_queue_receiver(queue) as receiver:
            assert len(receiver.peek_messages(10)) == 4
            by_text = {str(message): message for message in receive(receiver, 4)}
            assert sorted(by_text) == ["abandoned", "completed", "dead", "deferred"]
            assert receiver.renew_message_lock(by_text["completed"]) > datetime.now(UTC)
            receiver.complete_message(by_text["completed"])
            receiver.defer_message(by_text["deferred"])
            receiver.dead_letter_message(by_text["dead"], reason="because")
            receiver.abandon_message(by_text["abandoned"])
            [again] = receive(receiver, 1)
            assert (str(again), again.delivery_count) == ("abandoned", 1)
            receiver.complete_message(again)
            [deferred] = receiver.receive_deferred_messages([by_text["deferred"].sequence_number])
            receiver.complete_message(deferred)
            numbers = sender.schedule_messages([ServiceBusMessage("later")], datetime.now(UTC) + timedelta(hours=1))
            sender.cancel_scheduled_messages(numbers)
            assert receiver.peek_messages(10) == []
        with client.get_queue_receiver(queue, sub_queue="deadletter") as dead:
            [letter] = receive(dead, 1)
            assert (str(letter), letter.dead_letter_reason) == ("dead", "because")
            dead.complete_message(letter)


@pytest.mark.parametrize(("here", "owner"), [(OLD, NEW), (NEW, OLD)], ids=["new-behind-old", "old-behind-new"])
def test_locks_of_many_messages_are_passed_on_and_settled(mixed: Mixed, here: int, owner: int) -> None:
    """The versions count locks in delivery tags in different ways."""
    queue = mixed.owned[owner]
    texts = [f"m{number:03}" for number in range(300)]
    with mixed.client(here) as client, client.get_queue_receiver(queue) as receiver:
        send(client, queue, texts)
        found = receive(receiver, 300)
        assert [str(message) for message in found] == texts
        assert len({message.lock_token for message in found}) == 300
        for message in found[::50]:
            assert receiver.renew_message_lock(message) > datetime.now(UTC)
        for message in found:
            receiver.complete_message(message)
        assert receiver.peek_messages(10) == []


@pytest.mark.parametrize(("here", "owner"), [(OLD, NEW), (NEW, OLD)], ids=["new-behind-old", "old-behind-new"])
def test_a_client_holds_a_session_of_a_queue_of_the_other_version(mixed: Mixed, here: int, owner: int) -> None:
    queue = mixed.create_at(owner, f"sessions-{owner}", requires_session=True)
    with mixed.client(here) as client:
        send(client, queue, ["first", "second"], session_id="s")
        next_one: Any = NEXT_AVAILABLE_SESSION
        with client.get_queue_receiver(queue, session_id=next_one, max_wait_time=10) as receiver:
            assert receiver.session.session_id == "s"
            receiver.session.set_state(b"half")
            found = receive(receiver, 2)
            assert [str(message) for message in found] == ["first", "second"]
            receiver.complete_message(found[0])
            receiver.abandon_message(found[1])
        with client.get_queue_receiver(queue, session_id="s", max_wait_time=10) as receiver:
            assert receiver.session.get_state() == b"half"
            [again] = receive(receiver, 1)
            assert str(again) == "second"
            receiver.complete_message(again)


@pytest.mark.parametrize(("here", "owner"), [(OLD, NEW), (NEW, OLD)], ids=["new-behind-old", "old-behind-new"])
def test_a_request_over_http_reaches_a_queue_of_the_other_version(mixed: Mixed, here: int, owner: int) -> None:
    address = mixed.http(here)
    token = sign_token(address, "RootManageSharedAccessKey", "SAS_KEY_VALUE", int(time.time()) + 600)

    def ask(method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        url = f"{address}/{mixed.owned[owner]}/{path}"
        request = urllib.request.Request(url, body, {"Authorization": token}, method=method)
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return answer.status, answer.read()

    assert ask("POST", "messages", b"web")[0] == 201
    assert ask("DELETE", "messages/head?timeout=10") == (200, b"web")
    assert ask("DELETE", "messages/head?timeout=0")[0] == 204


@pytest.mark.parametrize(("start", "end"), [(OLD, NEW), (NEW, OLD)], ids=["old-to-new", "new-to-old"])
def test_what_a_server_forwards_to_one_of_the_other_version_arrives_once(mixed: Mixed, start: int, end: int) -> None:
    target = mixed.owned[end]
    forwarding = mixed.create_at(start, f"from-{start}", forward_to=target)
    texts = sorted(f"m{number}" for number in range(40))
    for number in mixed.servers:
        # A client at either of them may send.
        with mixed.client(number) as client:
            send(client, forwarding, texts[number::2])

    assert take_all(mixed, start, target, len(texts)) == texts
    with mixed.client(end) as client, client.get_queue_receiver(target) as receiver:
        assert receiver.peek_messages(10) == []


def test_both_versions_serve_all_of_a_partitioned_queue_whichever_has_made_it(mixed: Mixed) -> None:
    """The earlier one spreads it, as it was told; the present one lays it into one store while the other is there."""
    for maker in mixed.servers:
        queue = f"spread-{maker}"
        with mixed.admin(maker) as admin:
            admin.create_queue(queue, enable_partitioning=True, lock_duration=timedelta(seconds=30))
        for number in mixed.servers:
            with mixed.client(number) as client, client.get_queue_sender(queue) as sender:
                for index in range(16):
                    sender.send_messages(ServiceBusMessage(f"{number} {index}"))
                send(client, queue, [f"{number} {index}" for index in range(16, 20)], partition_key="k")
        with mixed.admin(1 - maker) as admin:
            assert admin.get_queue_runtime_properties(queue).active_message_count == 40
        for number in mixed.servers:
            with mixed.client(number) as client, client.get_queue_receiver(queue) as receiver:
                seen = receiver.peek_messages(100)
                assert len(seen) == 40
                # A part of a spread queue has four fragments, and each server owns two of the four parts.
                assert len({((message.sequence_number or 0) >> 48) // 4 for message in seen}) == 4
        for number in mixed.servers:
            with mixed.client(number) as client, client.get_queue_receiver(queue) as receiver:
                found = receive(receiver, 20)
                assert receiver.renew_message_lock(found[0]) > datetime.now(UTC)
                for message in found:
                    receiver.complete_message(message)
                assert len(found) == 20
        with mixed.client(maker) as client, client.get_queue_receiver(queue) as receiver:
            assert receiver.peek_messages(10) == []


def test_stores_go_from_one_version_to_the_other_and_back_with_what_is_in_them(mixed: Mixed) -> None:
    """An upgrade, one server after the other, and its way back: no format has been raised."""
    for leaving, staying in ((OLD, NEW), (NEW, OLD)):
        for queue in QUEUES:
            with mixed.client(leaving) as client:
                send(client, queue, [f"{queue} before"])
        mixed.terminate(leaving)
        mixed.await_served(staying)
        for queue in QUEUES:
            assert take_all(mixed, staying, queue, 1) == [f"{queue} before"]
            with mixed.client(staying) as client:
                send(client, queue, [f"{queue} meanwhile"])
        mixed.start(leaving)
        mixed.await_ready(leaving)
        mixed.share_out()
        for queue in QUEUES:
            assert take_all(mixed, leaving, queue, 1) == [f"{queue} meanwhile"]
