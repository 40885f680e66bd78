"""Error conditions that no other test provokes over the wire, each by its name."""

from __future__ import annotations

from typing import Any

import pytest
from kit_place import Place, accept, ask, message, outcome, refusal, send

from duobus.amqp import Closed, LinkDetached
from duobus.amqp.frames import frame
from duobus.amqp.performatives import Open
from duobus.broker import Queue
from duobus.codec import Int
from kits.raw_client import Refused


def closed_with(place: Place, data: bytes) -> str:
    """The condition with which the broker closes a connection that says this."""
    with place.client() as client:
        client.session  # noqa: B018 - begun, so that the handshake is over
        client.receiver("q/$management")
        client.socket.sendall(data)
        error = client.wait(Closed).error
        assert error is not None
        return str(error.condition)


@pytest.mark.parametrize(
    ("data", "condition"),
    [
        (frame(0, Open(container_id="again").to_bytes()), "amqp:illegal-state"),
        (b"\x00\x00\x00\x07\x02\x00\x00\x00", "amqp:connection:framing-error"),
        (frame(0, b"\x40"), "amqp:decode-error"),
    ],
)
def test_a_connection_that_breaks_the_protocol_is_closed_with_its_condition(
    place: Place, data: bytes, condition: str
) -> None:
    place.create()
    assert closed_with(place, data) == condition
    with place.client() as client:
        send(client, b"others go on")


def test_entity_disabled_is_told_to_links_attaches_and_requests(place: Place) -> None:
    place.create()
    disabled = "com.microsoft:entity-disabled"
    with place.client() as client:
        sender, receiver = client.sender("q"), client.receiver("q")
        place.update("q", status="Disabled")
        for link in (sender, receiver):
            error = client.wait(LinkDetached, where=lambda event, link=link: event.link is link).error
            assert error is not None
            assert error.condition == disabled
        for attach in (client.sender, client.receiver):
            with pytest.raises(Refused) as refused:
                attach("q")
            assert refused.value.error.condition == disabled
        body = {"from-sequence-number": 0, "message-count": Int(1)}
        assert ask(client, "peek-message", body)[:2] == (400, disabled)
        place.update("q", status="Active")
        send(client, b"again")


def test_session_cannot_be_locked_is_told_while_another_link_has_it(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client, place.client() as other:
        link = accept(client, "s")
        for rival in (client, other):
            with pytest.raises(Refused) as refused:
                accept(rival, "s")
            assert refused.value.error.condition == "com.microsoft:session-cannot-be-locked"
        link.detach()
        client.wait(LinkDetached, where=lambda event: event.link is link)
        accept(other, "s")


def test_not_allowed_is_told_to_whoever_sends_to_dead_letters_or_forgets_the_session(place: Place) -> None:
    place.create(requires_session=True)
    with place.client() as client:
        with pytest.raises(Refused) as refused:
            client.sender("q/$DeadLetterQueue")
        assert refused.value.error.condition == "amqp:not-allowed"
        link = client.sender("q")
        assert refusal(outcome(client, client.send(link, message(b"m")))) == "amqp:not-allowed"
        assert place.messages() == []


def test_internal_error_answers_a_request_that_runs_into_a_fault_of_ours(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def faulty(*_arguments: Any) -> None:
        raise ZeroDivisionError("planted")

    place.create()
    body = {"from-sequence-number": 0, "message-count": Int(1)}
    with place.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Queue, "peek", faulty)
            reply = ask(client, "peek-message", body)
        assert (reply.status, reply.condition) == (500, "amqp:internal-error")
        assert ask(client, "peek-message", body).status == 204
