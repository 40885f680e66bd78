"""Which errors are an outage, in the three tables of docs/explanation/paired-namespaces.md (PN3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp.error import ErrorCondition, TokenAuthFailure

from duobus.ha.outage import CLASSIFIERS, Classifier, Verdict, token_refusal

OUTAGE, BUSY, REFUSED = Verdict.OUTAGE, Verdict.BUSY, Verdict.REFUSED

#: error, and what outage, documented and legacy make of it.
TABLE: list[tuple[BaseException, Verdict, Verdict, Verdict]] = [
    (sdk.OperationTimeoutError(message="x"), OUTAGE, OUTAGE, OUTAGE),
    (TimeoutError(), OUTAGE, OUTAGE, OUTAGE),
    (sdk.ServiceBusConnectionError(message="x"), OUTAGE, REFUSED, OUTAGE),
    (sdk.ServiceBusCommunicationError(message="x"), OUTAGE, REFUSED, OUTAGE),
    (ConnectionResetError(), OUTAGE, REFUSED, OUTAGE),
    (sdk.ServiceBusError("x", condition=b"amqp:internal-error"), OUTAGE, REFUSED, OUTAGE),
    (sdk.ServiceBusError("x", condition=b"amqp:connection:forced"), OUTAGE, REFUSED, OUTAGE),
    (sdk.ServiceBusError("x", condition=b"amqp:not-implemented"), REFUSED, REFUSED, OUTAGE),
    (sdk.ServiceBusServerBusyError(message="x"), BUSY, BUSY, OUTAGE),
    (sdk.ServiceBusServerBusyError(message="x StoreUnavailable:orders TrackingId:1"), OUTAGE, OUTAGE, OUTAGE),
    (sdk.ServiceBusServerBusyError(message="x StoreUnavailable:orders, Fragment:2/16"), OUTAGE, OUTAGE, OUTAGE),
    (sdk.ServiceBusError("x", condition=b"com.microsoft:store-unavailable"), REFUSED, REFUSED, OUTAGE),
    (sdk.ServiceBusAuthenticationError(message="x"), REFUSED, REFUSED, REFUSED),
    (sdk.ServiceBusAuthorizationError(message="x"), REFUSED, REFUSED, REFUSED),
    (sdk.MessagingEntityNotFoundError(message="x"), REFUSED, OUTAGE, REFUSED),
    (sdk.MessagingEntityDisabledError(message="x"), REFUSED, OUTAGE, REFUSED),
    (sdk.MessageSizeExceededError(message="x"), REFUSED, OUTAGE, REFUSED),
    (sdk.ServiceBusQuotaExceededError(message="x"), REFUSED, OUTAGE, REFUSED),
    (ValueError("x"), REFUSED, REFUSED, REFUSED),
    (asyncio.CancelledError(), REFUSED, REFUSED, REFUSED),
]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{type(row[0]).__name__}-{getattr(row[0], '_condition', '')}")
def test_an_error_means_what_the_table_says(row: tuple[BaseException, Verdict, Verdict, Verdict]) -> None:
    error, *verdicts = row
    assert [CLASSIFIERS[name](error) for name in ("outage", "documented", "legacy")] == verdicts


@pytest.mark.parametrize("classifier", CLASSIFIERS.values(), ids=list(CLASSIFIERS))
@pytest.mark.parametrize("kind", [sdk.ServiceBusAuthenticationError, sdk.ServiceBusConnectionError])
@pytest.mark.parametrize("status", [None, 400, 401, 404, 499])
def test_a_token_that_was_not_taken_is_no_outage_whatever_class_the_sdk_gives_it(
    classifier: Classifier, kind: type[sdk.ServiceBusError], status: int | None
) -> None:
    error = kind(error=TokenAuthFailure(status, b"said"))  # type: ignore[no-untyped-call]
    assert classifier(error) is REFUSED
    assert token_refusal(error) == (status, "said")


@pytest.mark.parametrize("status", [0, 399, 500, 503, ErrorCondition.ClientError])
def test_a_token_that_got_no_answer_or_one_of_a_namespace_that_is_not_well_is_judged_by_its_class(status: Any) -> None:
    error = sdk.ServiceBusConnectionError(error=TokenAuthFailure(status, b"said"))  # type: ignore[no-untyped-call]
    assert token_refusal(error) is None
    assert CLASSIFIERS["outage"](error) is OUTAGE
