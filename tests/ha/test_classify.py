"""Which errors are an outage, in the three tables of docs/explanation/paired-namespaces.md (PN3)."""

from __future__ import annotations

import asyncio

import pytest
from azure.servicebus import exceptions as sdk

from duobus.ha.classify import CLASSIFIERS, Verdict

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
