"""Faults that are planted into the relay are noticed by the tests of its promises."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from integration.gateway.relay.test_relay_http import (
    test_an_error_of_the_application_has_via_and_is_never_502_or_504 as answers_of_the_service_have_via,
)
from integration.gateway.relay.test_relay_websockets import (
    test_a_listener_is_dropped_when_its_token_its_right_or_its_life_ends as expired_listeners_are_dropped,
)
from integration.gateway.relay.test_relay_websockets import (
    test_the_address_of_a_rendezvous_is_good_once as addresses_are_good_once,
)

from duobus.gateway.relay import http_requests
from duobus.gateway.relay.hub import RelayHub
from duobus.gateway.relay.rendezvous import Rendezvous

pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning", "ignore::RuntimeWarning"
)


def test_an_address_of_a_rendezvous_that_works_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rendezvous, "redeem", lambda self, key, now_ms: self._open[key][0])
    with pytest.raises(AssertionError):
        addresses_are_good_once()
    gc.collect()


@pytest.mark.parametrize("cause", ["expired", "rule removed", "silent"])
def test_a_listener_that_is_kept_beyond_its_time_is_noticed(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayHub, "_look_at", lambda *_: None)
    with pytest.raises(AssertionError):
        expired_listeners_are_dropped(cause)
    gc.collect()


def test_an_answer_of_a_service_that_looks_like_the_relays_own_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_via(headers: Any, host: str) -> list[tuple[str, str]]:
        return list(headers)

    monkeypatch.setattr(http_requests, "via_appended", without_via)
    with pytest.raises((AssertionError, KeyError)):
        answers_of_the_service_have_via(503, 503)
    gc.collect()
