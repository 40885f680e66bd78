"""A plain AMQP client, rhea: what the broker owes those who know nothing of Service Bus."""

from __future__ import annotations

import pytest
from kit_node import INSTALL_LIMIT_S, Node, NodeBus

from kits.programs import LIMIT_S, PROMPT_S

pytestmark = pytest.mark.timeout(INSTALL_LIMIT_S + LIMIT_S)


def test_a_plain_login_lets_in_and_a_wrong_key_does_not(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_login", **node_bus.login(node_bus.queue()))
    assert (found["accepted"], found["body"], found["id"], found["tag"]) == (1, "in", 7, 16)
    assert found["refused"]["code"] != "none", found
    assert "authenticate" in found["refused"]["text"], found


def test_every_outcome_of_a_plain_client_has_its_effect(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_outcomes", **node_bus.login(node_bus.queue()))
    assert sorted(found["again"]) == [["modified", 1, "tried"], ["released", 0, None]]
    assert found["letter"] == "rejected"
    assert found["properties"]["DeadLetterReason"] == "test:broken"
    assert found["properties"]["DeadLetterErrorDescription"] == "beyond repair"
    assert found["credit"] == 0


def test_prefetched_messages_that_are_released_come_back_uncounted(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_leftovers", **node_bus.login(node_bus.queue()))
    assert found["rest"] == [[index, 0] for index in range(3, 10)]
    assert found["took"] < PROMPT_S


def test_a_receiver_that_settles_second_gets_the_outcome_it_asked_for(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_second", **node_bus.login(node_bus.queue()))
    assert found["answers"] == ["accepted", "modified", "rejected", "released"]


def test_a_drain_takes_the_credit_and_the_link_goes_on(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_drain", **node_bus.login(node_bus.queue()))
    assert found["atFirst"] == {"bodies": ["one", "two"], "credit": 0}
    assert found["onEmpty"] == {"bodies": 2, "credit": 0}
    assert found["later"] == "three"


def test_delivery_ids_of_ten_links_in_one_session_have_no_gap(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_many_links", number=10_000, **node_bus.login(node_bus.queue()))
    assert (found["distinct"], found["accepted"], found["gaps"]) == (10_000, 10_000, 0)
    assert found["window"]["announced"] == 2048
    assert found["window"]["exceeded"] == 0, found


def test_an_incoming_window_of_2048_stops_the_broker_exactly_there(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_window", **node_bus.login(node_bus.queue()))
    assert found == {"blocked": 2048, "all": 2100}


def test_what_is_not_offered_is_detached_with_a_readable_error(node: Node, node_bus: NodeBus) -> None:
    found = node.run("rhea_refusals", **node_bus.login(node_bus.queue()))
    assert found == {
        "missing": "amqp:not-found",
        "dynamic": "amqp:not-implemented",
        "browsing": "amqp:not-implemented",
        "relay": "amqp:not-implemented",
    }


@pytest.mark.parametrize("protocol", ["AMQPWSB10", "amqp"])
@pytest.mark.parametrize("path", ["/$servicebus/websocket", "/$servicebus/websocket/", "/%24servicebus/websocket"])
def test_a_websocket_is_taken_on_every_form_of_its_path(
    node: Node, node_bus: NodeBus, websockets: bool, path: str, protocol: str
) -> None:
    if not websockets:
        pytest.skip("the broker's HTTP port does not answer 101 on /$servicebus/websocket")
    login = node_bus.login(node_bus.queue())
    found = node.run("rhea_websocket", http=node_bus.http_port, path=path, protocol=protocol, **login)
    assert found == {"accepted": 1, "body": "over a socket of the web", "protocol": protocol}
