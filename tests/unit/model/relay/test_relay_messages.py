"""Messages of the control channel of a relay: what is written is read again, and what others write is understood."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duobus.model.relay.limits import MESSAGE_BYTES_MAX
from duobus.model.relay.messages import (
    Accept,
    MalformedMessage,
    RemoteEndpoint,
    Rendezvous,
    RenewToken,
    Request,
    Response,
    to_listener,
    to_relay,
)

ADDRESS = "wss://host:443/$hc/path?sb-hc-action=accept&sb-hc-id=4cb5_G2"
REMOTE = RemoteEndpoint("198.51.100.7", 51234)


@pytest.mark.parametrize(
    "message",
    [
        Accept(ADDRESS, "4cb5_G2", {"Sec-WebSocket-Key": "k", "X-Text": 'a "quoted" \u00e9'}, REMOTE),
        Accept(ADDRESS, ""),
        Request(ADDRESS, "42", "/path/api?a=1", "POST", {"Via": "1.1 host"}, True, REMOTE),
        Request(ADDRESS, "42", "/path", "GET"),
        Rendezvous(ADDRESS),
    ],
)
def test_what_a_relay_writes_a_listener_reads_again(message: Accept | Request | Rendezvous) -> None:
    assert to_listener(message.to_json()) == message


@pytest.mark.parametrize(
    "message",
    [Response("42", 200, "OK", {"content-type": "text/plain"}, True), Response("42", 204), RenewToken("SharedAcc")],
)
def test_what_a_listener_writes_a_relay_reads_again(message: Response | RenewToken) -> None:
    assert to_relay(message.to_json()) == message


def test_a_request_over_the_channel_always_says_its_method_and_whether_a_body_follows() -> None:
    """hyco-https decides by ``method`` and .NET by ``body`` what a request is."""
    written = json.loads(Request(ADDRESS, "42", "/path", "GET").to_json())["request"]
    assert (written["method"], written["body"]) == ("GET", False)
    assert json.loads(Rendezvous(ADDRESS).to_json()) == {"request": {"address": ADDRESS}}


def _response(**members: Any) -> str:
    return json.dumps({"response": {"requestId": "42", "statusCode": 200, **members}})


def test_a_status_may_be_a_text_as_samples_of_the_service_show() -> None:
    found = to_relay(_response(statusCode="201"))
    assert isinstance(found, Response)
    assert found.status == 201


def test_values_of_headers_that_are_no_texts_are_taken_as_their_texts() -> None:
    found = to_relay(_response(responseHeaders={"A": 1, "B": True, "C": ["x", "y"], "D": None, "E": " z "}))
    assert isinstance(found, Response)
    assert found.headers == {"A": "1", "B": "true", "C": "x, y", "E": "z"}


@pytest.mark.parametrize(
    "members",
    [
        {"statusCode": None},
        {"statusCode": True},
        {"statusCode": 99},
        {"statusCode": 1000},
        {"statusCode": "20"},
        {"statusCode": "2x0"},
        {"responseHeaders": []},
        {"responseHeaders": {"a b": "c"}},
        {"responseHeaders": {"": "c"}},
        {"responseHeaders": {"A": "b\r\nSet-Cookie: c"}},
        {"responseHeaders": {"A": "b\0"}},
        {"responseHeaders": {"A": {}}},
    ],
)
def test_a_malformed_response_tells_which_request_it_is_about(members: dict[str, Any]) -> None:
    with pytest.raises(MalformedMessage) as caught:
        to_relay(_response(**members))
    assert caught.value.request_id == "42"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "1",
        '{"response":1}',
        '{"response":{}}',
        '{"response":{"requestId":5}}',
        '{"response":{"requestId":""}}',
        '{"renewToken":{}}',
        '{"renewToken":"text"}',
        '{"renewToken":{"token":"\\ud800"}}',
        "[" * 100_000,
        '{"a":"' + "b" * MESSAGE_BYTES_MAX + '"}',
    ],
)
def test_what_is_no_message_of_a_listener_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        to_relay(text)
    assert caught.value.request_id == ""


@pytest.mark.parametrize(
    "text", ["", "{}}", '{"accept":{}}', '{"accept":[]}', '{"request":{"address":"a","method":"GET"}}']
)
def test_what_is_no_message_of_a_relay_is_refused(text: str) -> None:
    with pytest.raises(MalformedMessage):
        to_listener(text)


def test_members_that_are_not_known_are_ignored() -> None:
    assert to_relay('{"injectFault":{},"later":1}') is None
    assert to_listener("{}") is None
    assert to_listener('{"response":{"requestId":"1","statusCode":200}}') is None
    assert to_relay('{"renewToken":{"token":"t","more":1},"other":[]}') == RenewToken("t")


def test_where_a_sender_is_may_be_missing_or_odd() -> None:
    for odd in (None, 1, {"address": 5, "port": 6}, {"address": "a", "port": 70_000}, {"address": "a"}):
        found = to_listener(json.dumps({"accept": {"address": "a", "remoteEndpoint": odd}}))
        assert isinstance(found, Accept)
        assert found.remote is None


def test_a_token_is_not_shown_where_its_message_is() -> None:
    assert "secret" not in repr(RenewToken("secret"))
