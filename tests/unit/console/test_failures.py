"""Errors of the SDK become a status, the sentence of the broker, and the tracking id."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError, ServiceRequestError
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
    ServiceBusError,
    ServiceBusQuotaExceededError,
    ServiceBusServerBusyError,
    SessionCannotBeLockedError,
)

from duobus.console.namespace.failures import clean, detail_of, namespace_error

TAIL = "TrackingId:741d1c6d-4699-4936-a0db-fc49fa2997ac_G0, SystemTracker:ns:q, Timestamp:2026-11-26T22:20:58"


def told(error: BaseException, masked: Any = lambda text: text) -> Any:
    return namespace_error(error, "queue orders", "shop", masked)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (MessagingEntityNotFoundError(message="x"), 404),
        (ResourceNotFoundError("x"), 404),
        (ServiceBusAuthenticationError(message="x"), 401),
        (ServiceBusAuthorizationError(message="x"), 403),
        (ResourceExistsError("x"), 409),
        (MessageLockLostError(message="x"), 410),
        (SessionCannotBeLockedError(message="x"), 409),
        (ServiceBusQuotaExceededError(message="x"), 507),
        (ServiceBusServerBusyError(message="x"), 503),
        (ServiceBusConnectionError(message="x"), 502),
        (ServiceRequestError("x"), 502),
        (TimeoutError(), 504),
        (OSError("x"), 502),
        (ValueError("x"), 400),
        (ServiceBusError("x"), 502),
    ],
)
def test_each_error_has_the_status_that_fits(error: BaseException, status: int) -> None:
    assert told(error).status == status
    assert told(error).text


def test_a_status_of_the_broker_wins_over_the_class_that_the_sdk_chose() -> None:
    error = HttpResponseError("x")
    error.status_code = 409
    assert told(error).status == 409


def test_the_sentence_comes_out_of_the_frame_of_the_management_api_without_its_tail() -> None:
    error = HttpResponseError(f"<Error><Code>400</Code><Detail>The name &lt;b&gt; is none. {TAIL}</Detail></Error>")
    found = told(error)
    assert found.text == "The name <b> is none."
    assert found.tracking_id == "741d1c6d-4699-4936-a0db-fc49fa2997ac_G0"


def test_only_a_namespace_that_was_not_reached_is_said_not_to_answer() -> None:
    assert told(ServiceRequestError("refused")).text == "shop does not answer: refused"
    assert told(ServiceBusError("strange")).text == "strange"
    assert told(TimeoutError()).text == "shop did not answer in time about queue orders."


def test_keys_are_taken_out_before_anything_else() -> None:
    found = told(ValueError("wrong key secret"), lambda text: text.replace("secret", "***"))
    assert found.text == "wrong key ***"


def test_a_text_is_one_bounded_line() -> None:
    assert clean("a\nb\x1b[31m\u202e") == "a b [31m"
    assert len(clean("x" * 5_000)) == 2_001
    assert detail_of("plain\n") == "plain"
