"""A changed Config.json takes effect at the next start: what is created, changed, deleted and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from duobus.cli.remote import Remote, operate
from duobus.telemetry.audit_log import read_audit
from duobus.testing.server import DemoFailed, ServerProcess

APPLY = ("--emulator", "--tls-self-signed", "--stores", "1", "--config-mode", "apply")
ADD = (*APPLY[:-1], "add")
PRUNE = (*APPLY, "--config-prune")


def queue(name: str, **properties: Any) -> dict[str, Any]:
    return {"Name": name, "Properties": properties}


def rule(name: str, expression: str) -> dict[str, Any]:
    return {"Name": name, "Properties": {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}}


class Site:
    """A data folder and a file, with which servers are started one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "Config.json"
        self.data = folder / "data"

    def write(
        self,
        queues: list[dict[str, Any]],
        topics: list[dict[str, Any]] | None = None,
        relays: list[dict[str, Any]] | None = None,
    ) -> None:
        namespace: dict[str, Any] = {"Name": "sbemulatorns", "Queues": queues, "Topics": topics or []}
        namespace |= {} if relays is None else {"Relays": relays}
        self.file.write_text(json.dumps({"UserConfig": {"Namespaces": [namespace]}}))

    def server(self, arguments: tuple[str, ...] = APPLY) -> ServerProcess:
        return ServerProcess(self.folder, data=self.data, config=self.file, arguments=arguments)

    def start(self, arguments: tuple[str, ...] = APPLY) -> tuple[list[str], str]:
        """Start and stop a server; returns the queues, topics and subscriptions that it has, and what it has said."""
        before = self.log()
        with self.server(arguments) as server, admin(server) as client:
            found = names(client)
        return found, self.log()[len(before) :]

    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text() if path.exists() else ""


def admin(server: ServerProcess) -> ServiceBusAdministrationClient:
    text = server.connection_string.replace(str(server.ready["amqp_port"]), str(server.ready["http_port"]))
    return ServiceBusAdministrationClient.from_connection_string(text, connection_verify=server.ca)


def names(client: ServiceBusAdministrationClient) -> list[str]:
    topics = [topic.name for topic in client.list_topics()]
    subscriptions = [f"{topic}/{one.name}" for topic in topics for one in client.list_subscriptions(topic)]
    return sorted([*(one.name for one in client.list_queues()), *topics, *subscriptions])


def send(server: ServerProcess, name: str, body: str = "x") -> None:
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        sender = client.get_topic_sender(name) if name == "news" else client.get_queue_sender(name)
        with sender:
            sender.send_messages(ServiceBusMessage(body))


def take(server: ServerProcess, name: str) -> list[str]:
    with (
        ServiceBusClient.from_connection_string(server.connection_string) as client,
        client.get_queue_receiver(name, receive_mode="receiveanddelete", max_wait_time=10) as receiver,
    ):
        return [str(message) for message in receiver.receive_messages()]


def remember(server: ServerProcess, name: str) -> None:
    """Leave the state of a session in a queue, and no message."""
    with ServiceBusClient.from_connection_string(server.connection_string) as client:
        with client.get_queue_sender(name) as sender:
            sender.send_messages(ServiceBusMessage("x", session_id="one"))
        with client.get_queue_receiver(name, session_id="one", max_wait_time=10) as receiver:
            (message,) = receiver.receive_messages()
            receiver.session.set_state("known")
            receiver.complete_message(message)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_entities_in_the_file_there_are_none_and_an_empty_file_ends_the_start(site: Site) -> None:
    site.write([])
    assert site.start()[0] == []
    site.file.write_text("")
    with pytest.raises(DemoFailed, match=r"Config\.json: line 1, column 1: Expecting value"):
        site.start()


def test_what_is_new_or_different_in_the_file_takes_effect_at_the_next_start_and_is_told_first(site: Site) -> None:
    site.write([queue("orders", LockDuration="PT30S")], [{"Name": "news", "Subscriptions": [{"Name": "one"}]}])
    with site.server() as server:
        send(server, "orders", "kept")
    site.write(
        [queue("orders", MaxDeliveryCount=9, ForwardTo="later"), queue("later")],
        [{"Name": "news", "Subscriptions": [{"Name": "one", "Rules": [rule("big", "size > 1")]}, {"Name": "two"}]}],
    )
    with site.server() as server, admin(server) as client:
        found = client.get_queue("orders")
        assert (found.max_delivery_count, found.lock_duration.total_seconds()) == (9, 60)  # type: ignore[union-attr]
        assert [one.name for one in client.list_rules("news", "one")] == ["big"]
        assert names(client) == ["later", "news", "news/one", "news/two", "orders"]
        assert take(server, "later") == ["kept"]
    said = site.log()
    changes = said.index("configuration: update namespace=sbemulatorns kind=queue entity=orders")
    assert "maxDeliveryCount: 3 -> 9" in said[changes:]
    assert "lockDuration: PT30S -> PT1M" in said[changes:]
    assert said.index("configuration compared create=2 update=4 delete=0") < changes < said.rindex("ready namespace")
    audited = [line for line in read_audit(site.data / "audit") if line["who"] == "configuration file"]
    assert {(line["operation"], line["path"]) for line in audited} == {
        ("update", "orders"),
        ("create", "news/one/big"),
        ("delete", "news/one/$Default"),
    }


def test_the_default_of_serve_creates_and_leaves_alone_what_differs(site: Site) -> None:
    options = ADD[:-2]
    site.write([queue("orders"), queue("gone")])
    assert site.start(options)[0] == ["gone", "orders"]
    site.write([queue("orders", MaxDeliveryCount=9), queue("new")])
    found, said = site.start(options)
    assert found == ["gone", "new", "orders"]
    assert "left alone" in said
    assert "max_delivery_count" in said
    # What the file made in that mode is known to be its.
    found, said = site.start()
    assert found == ["new", "orders"]
    assert "configuration compared create=0 update=1 delete=1" in said


def test_what_the_file_no_longer_has_goes_when_it_is_empty_and_with_prune_in_any_case(site: Site) -> None:
    site.write(
        [queue("empty"), queue("full"), queue("stays"), queue("steps", RequiresSession=True)],
        [{"Name": "news", "Subscriptions": [{"Name": "one"}]}, {"Name": "old", "Subscriptions": [{"Name": "one"}]}],
    )
    with site.server() as server, admin(server) as client:
        send(server, "full")
        send(server, "news")
        remember(server, "steps")
        client.create_queue("of-a-client")
        client.create_subscription("old", "of-a-client")
    site.write([queue("stays")])
    found, said = site.start()
    assert found == ["full", "news", "news/one", "of-a-client", "old", "old/of-a-client", "old/one", "stays", "steps"]
    assert "queue kept namespace=sbemulatorns entity=full" in said
    assert "but it has 1 message;" in said
    assert "entity=steps reason=the configuration does not have it any more, but it has states of sessions" in said
    assert "topic kept namespace=sbemulatorns entity=news" in said
    assert "entity=old" in said
    assert "it has subscriptions that the configuration never had" in said
    # Again, and once it is empty.
    with site.server() as server:
        assert take(server, "full") == ["x"]
    assert "full" not in site.start()[0]
    assert site.start(PRUNE)[0] == ["of-a-client", "stays"]
    assert site.start(PRUNE)[0] == ["of-a-client", "stays"]


def test_a_property_that_cannot_change_ends_the_start_with_one_sentence_and_nothing_is_changed(site: Site) -> None:
    site.write([queue("orders"), queue("other")])
    site.start()
    site.write([queue("orders", RequiresSession=True), queue("other", MaxDeliveryCount=9), queue("new")])
    before = site.log()
    with pytest.raises(DemoFailed, match="ended at its start with status 1"):
        site.start()
    (line,) = [text for text in site.log()[len(before) :].splitlines() if text.startswith("Error: ")]
    assert line == (
        "Error: The configuration asks for RequiresSession true for the queue 'orders', where it is false: that cannot"
        " change while the entity exists, so take it back, or start with --config-mode add and delete the entity first;"
        " nothing was changed."
    )
    with site.server(ADD) as server, admin(server) as client:
        assert client.get_queue("other").max_delivery_count == 3
        client.delete_queue("orders")
    with site.server() as server, admin(server) as client:
        assert client.get_queue("orders").requires_session


def test_a_second_server_on_the_folder_changes_nothing(site: Site) -> None:
    site.write([queue("orders")])
    second = Site(site.folder / "second")
    second.folder.mkdir()
    second.data = site.data
    second.write([])
    with site.server() as server, admin(server) as client:
        with pytest.raises(DemoFailed, match="is in use by a server"):
            second.start()
        assert names(client) == ["orders"]


def test_a_server_that_keeps_nothing_has_what_its_file_says(site: Site) -> None:
    options = (*APPLY, "--ephemeral")
    site.write([queue("orders")])
    assert site.start(options)[0] == ["orders"]
    site.write([queue("other")])
    assert site.start(options)[0] == ["other"]


def relays_of(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """The relays of a server, with the keys of their access rules."""
    remote = Remote(server.connection_string, server.ready["admin_url"], Path(server.ca))
    return {one["name"]: one for one in operate(remote, "GET", "relays", {"keys": "true"})}


def test_relays_of_the_file_are_created_changed_and_deleted_and_those_of_clients_stay(site: Site) -> None:
    key = {"KeyName": "own", "PrimaryKey": "one", "SecondaryKey": "two", "Rights": ["Listen"]}
    site.write([], relays=[queue("shop/web", UserMetadata="first", AuthorizationRules=[key]), queue("old")])
    with site.server() as server:
        remote = Remote(server.connection_string, server.ready["admin_url"], Path(server.ca))
        operate(remote, "PUT", "relays/client/made", None, {})
        assert relays_of(server)["shop/web"]["authorizationRules"][0]["primaryKey"] == "one"
    site.write([], relays=[queue("shop/web", UserMetadata="second", Senders="http")])
    # In the mode add what is there stays as it is, and the difference is told.
    before = site.log()
    with site.server(ADD) as server:
        assert relays_of(server)["shop/web"]["userMetadata"] == "first"
    assert "relay 'shop/web' differs in" in site.log()[len(before) :]
    with site.server() as server:
        found = relays_of(server)
        assert sorted(found) == ["client/made", "shop/web"]
        assert (found["shop/web"]["userMetadata"], found["shop/web"]["senders"]) == ("second", "http")
        # The file had the rule at an earlier start, and has it no longer.
        assert "authorizationRules" not in found["shop/web"]
    lines = [line for line in read_audit(site.data / "audit") if line.get("kind") == "relay"]
    assert [(line["operation"], line["path"]) for line in lines] == [
        ("create", "client/made"),
        ("update", "shop/web"),
        ("delete", "old"),
    ]
    site.write([], relays=[queue("shop/web", RequiresClientAuthorization=False)])
    with pytest.raises(DemoFailed), site.server():
        pass
    assert "RequiresClientAuthorization false for the relay 'shop/web'" in site.log()
    site.write([queue("client/made")])
    with pytest.raises(DemoFailed), site.server():
        pass
    assert "'client/made' as a queue, which is a relay" in site.log()
