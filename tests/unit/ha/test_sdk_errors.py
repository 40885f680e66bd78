"""The table of what the SDK's errors mean: it has a row for every error there is, and only its rows blame a message."""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import azure.core.exceptions
import azure.servicebus
import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusMessageBatch
from azure.servicebus import exceptions as sdk
from azure.servicebus._common import constants
from azure.servicebus._pyamqp import error as amqp

import duobus.errors
import duobus.ha.errors
from duobus.ha.outage import Verdict, outage
from duobus.ha.sdk_errors import CLASSES, CONDITIONS, OWN, PLACES, Meaning, explained, is_message_fault, meaning, row_of

SDK_ROOT = Path(inspect.getfile(azure.servicebus)).parent
#: Conditions of AMQP 1.0 and of Service Bus that a client may be answered with, beside those of the SDK and of ours.
OF_THE_SERVICE = """
    amqp:internal-error amqp:not-found amqp:unauthorized-access amqp:decode-error amqp:invalid-field amqp:not-allowed
    amqp:not-implemented amqp:resource-limit-exceeded amqp:resource-deleted amqp:resource-locked
    amqp:precondition-failed com.microsoft:precondition-failed amqp:illegal-state amqp:frame-size-too-small
    amqp:connection:forced amqp:connection:framing-error amqp:connection:redirect amqp:session:errant-link
    amqp:session:handle-in-use amqp:session:unattached-handle amqp:session:window-violation amqp:link:detach-forced
    amqp:link:stolen amqp:link:redirect amqp:link:message-size-exceeded amqp:link:transfer-limit-exceeded
    amqp:transaction:unknown-id amqp:transaction:rollback amqp:transaction:timeout com.microsoft:server-busy
    com.microsoft:timeout com.microsoft:operation-cancelled com.microsoft:message-lock-lost
    com.microsoft:session-lock-lost com.microsoft:session-cannot-be-locked com.microsoft:message-not-found
    com.microsoft:session-not-found com.microsoft:entity-disabled com.microsoft:entity-already-exists
    com.microsoft:argument-error com.microsoft:argument-out-of-range com.microsoft:auth-failed
    com.microsoft:no-matching-subscription com.microsoft:store-lock-lost com.microsoft:partition-not-owned
    com.microsoft:publisher-revoked com.microsoft:address-already-in-use com.microsoft:container-close
    com.microsoft:store-unavailable
"""
#: Python's errors that are known by their text alone; what is an OSError passes by itself.
BY_TEXT = {"ValueError", "TypeError", "RuntimeError", "AttributeError", "NotImplementedError", "ImportError"}


def classes() -> list[type[BaseException]]:
    """Every class of error that the SDK defines, wherever in its package, and those of azure.core."""
    modules = [azure.core.exceptions]
    for module in pkgutil.walk_packages(azure.servicebus.__path__, "azure.servicebus."):
        if "_uamqp_transport" not in module.name:  # that other transport is not installed
            modules.append(import_module(module.name))
    found = {
        one
        for module in modules
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, BaseException) and one.__module__.startswith("azure.")
    }
    return sorted(found, key=lambda one: one.__qualname__)


def test_every_class_of_error_of_the_sdk_has_a_row_of_its_own() -> None:
    names = {kind.__name__ for kind in classes()}
    assert {"ServiceBusError", "MessageAlreadySettled", "AMQPLinkError", "ClientAuthenticationError"} <= names
    assert len(names) > 40
    assert names - set(CLASSES) == set(), "these may mean anything"


def conditions() -> list[str]:
    """Those of the contract, those that the SDK knows, and those that this broker answers with."""
    of_the_sdk = [one.value.decode() for one in amqp.ErrorCondition]
    of_the_sdk += [value.decode() for name, value in vars(constants).items() if name.startswith("ERROR_CODE_")]
    ours = [
        kind.condition
        for kind in vars(duobus.errors).values()
        if inspect.isclass(kind) and issubclass(kind, duobus.errors.ServiceBusError)
    ]
    return sorted({*OF_THE_SERVICE.split(), *of_the_sdk, *ours})


def test_every_condition_has_a_row() -> None:
    assert set(conditions()) - set(CONDITIONS) == set(), "these may mean anything"
    for condition in conditions():
        error = sdk.ServiceBusError("said", condition=condition.encode())
        assert meaning(error) is CONDITIONS[condition].meaning


def raised_texts() -> Iterator[tuple[str, str]]:
    """Class and beginning of the text of each of Python's errors that the SDK raises."""
    for path in sorted(SDK_ROOT.rglob("*.py")):
        if "_generated" in path.parts or "uamqp_transport" in path.name:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
                name = node.exc.func.id
                if name in BY_TEXT and node.exc.args:
                    yield name, beginning(node.exc.args[0])


def beginning(node: ast.expr) -> str:
    """A text up to the first thing that is put into it."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return beginning(node.func.value)
    if isinstance(node, ast.BinOp):
        return beginning(node.left)
    return str(node.value).split("{", 1)[0] if isinstance(node, ast.Constant) else ""


def test_every_text_of_an_error_of_python_that_the_sdk_raises_has_a_row() -> None:
    # Without a text of its own begins the check of names by the management API.
    texts = {(name, text) for name, text in raised_texts() if text}
    assert any(text.startswith("The handler has already been shutdown.") for _, text in texts)
    assert len(texts) > 80
    unknown = {(name, text) for name, text in texts if row_of(getattr(builtins, name)(text)) is None}
    assert unknown == set(), "these may mean anything"


def test_every_error_of_our_own_that_a_sender_raises_has_a_row() -> None:
    kinds = [one for one in vars(duobus.ha.errors).values() if inspect.isclass(one) and issubclass(one, Exception)]
    ours = [kind for kind in kinds if kind.__module__ == "duobus.ha.errors"]
    assert {kind.__name__ for kind in ours} == set(OWN)
    assert meaning(duobus.ha.errors.TooLargeToDivert("x", 1)) is Meaning.WAIT
    assert meaning(duobus.ha.errors.PairFaulted("x")) is Meaning.OWNER


def test_the_functions_that_look_at_a_message_alone_are_there() -> None:
    for module, function in PLACES:
        loaded = import_module(module)
        owner = getattr(loaded, "PyamqpTransport", loaded)
        assert callable(getattr(owner, function, None) or getattr(loaded, function)), (module, function)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("something new"),
        TypeError("something new"),
        RuntimeError("a bug"),
        AttributeError("'NoneType' object has no attribute 'work'"),
        sdk.ServiceBusError("something new"),
        sdk.ServiceBusError("something new", condition=b"com.example:new"),
        sdk.ServiceBusError("Handler failed: new.", error=ValueError("new")),
        amqp.MessageSendFailed(condition=b"com.example:new"),
        KeyError("x"),
    ],
    ids=repr,
)
def test_what_is_unknown_is_never_the_fault_of_the_message(error: BaseException) -> None:
    assert meaning(error) is Meaning.UNKNOWN
    assert not is_message_fault(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("The handler has already been shutdown. Please use ServiceBusClient to create one."), "owner"),
        (sdk.ServiceBusAuthenticationError(), "owner"),
        (sdk.ServiceBusAuthorizationError(condition=b"amqp:unauthorized-access"), "owner"),
        (sdk.MessagingEntityDisabledError(), "owner"),
        (sdk.MessagingEntityNotFoundError(), "missing"),
        (sdk.ServiceBusQuotaExceededError(), "wait"),
        (sdk.ServiceBusServerBusyError(), "wait"),
        (sdk.ServiceBusConnectionError(condition=b"amqp:decode-error"), "retry"),
        (sdk.OperationTimeoutError(), "retry"),
        (TimeoutError(), "retry"),
        (ConnectionResetError(), "retry"),
        (sdk.MessageSizeExceededError(), "message"),
        (sdk.MessageAlreadySettled(), "gone"),
        (sdk.MessageLockLostError(), "gone"),
        (azure.core.exceptions.ClientAuthenticationError("x"), "owner"),
        (azure.core.exceptions.HttpResponseError("x"), "unknown"),
    ],
    ids=repr,
)
def test_an_error_means_what_its_row_says(error: BaseException, expected: str) -> None:
    assert meaning(error).value == expected


@pytest.mark.parametrize("condition", ["amqp:not-allowed", "amqp:decode-error", "com.microsoft:argument-error"])
def test_a_message_is_to_blame_when_it_was_refused_and_not_when_its_link_was(condition: str) -> None:
    def wrapped(inner: Exception) -> Exception:
        return sdk.ServiceBusError("said", condition=condition.encode(), error=inner)

    assert is_message_fault(wrapped(amqp.MessageSendFailed(condition=condition.encode())))
    assert not is_message_fault(wrapped(amqp.AMQPLinkError(condition=condition.encode())))
    assert not is_message_fault(wrapped(amqp.AMQPSessionError(condition=condition.encode())))


@pytest.mark.parametrize("value", [object(), 1 << 70, "\ud800"], ids=["object", "number", "text"])
def test_a_message_that_cannot_be_encoded_is_to_blame_whatever_the_encoder_raises(value: object) -> None:
    message = ServiceBusMessage("x", application_properties={"one": value})  # type: ignore[dict-item]
    with pytest.raises(Exception) as raised:  # noqa: PT011 - the encoder has several
        ServiceBusMessageBatch(1 << 20).add_message(message)
    assert is_message_fault(raised.value)
    assert is_message_fault(sdk.ServiceBusError(f"Handler failed: {raised.value}.", error=raised.value))


@pytest.mark.parametrize(("status", "expected"), [(401, "owner"), (404, "missing"), (503, "retry"), (None, "owner")])
def test_a_token_that_was_not_taken_means_what_its_status_says(status: int | None, expected: str) -> None:
    inner = amqp.TokenAuthFailure(status, b"said")  # type: ignore[no-untyped-call]
    assert meaning(sdk.ServiceBusAuthenticationError(error=inner)).value == expected
    # With a custom endpoint address the SDK takes the class of a lost connection.
    assert meaning(sdk.ServiceBusConnectionError(error=inner)).value == expected


def test_a_token_that_was_not_taken_for_no_reason_that_the_sdk_tells_may_be_that_of_a_missing_entity() -> None:
    error = sdk.ServiceBusAuthenticationError(message="said", error=amqp.TokenAuthFailure(None, None))  # type: ignore[no-untyped-call]
    assert "there is no such entity, or the key or token is wrong" in explained(error)
    assert not is_message_fault(error)


def test_what_its_owner_can_do_is_said() -> None:
    text = explained(ValueError("The handler has already been shutdown."))
    assert text == (
        "The handler has already been shutdown. The client or the sender was closed by its owner; make a new one."
    )
    assert explained(sdk.OperationTimeoutError()) == "Operation timed out."
    assert explained(RuntimeError()) == "RuntimeError"


@pytest.mark.parametrize("kind", [one for one in classes() if one.__module__ == "azure.servicebus.exceptions"])
def test_no_outage_is_blamed_on_a_message_or_its_owner(kind: type[Exception]) -> None:
    error = kind("x") if kind in (sdk.ServiceBusError, sdk.AutoLockRenewFailed, sdk.AutoLockRenewTimeout) else kind()
    if outage(error) is Verdict.OUTAGE:
        assert meaning(error) in (Meaning.RETRY, Meaning.WAIT)


def test_the_condition_counts_that_an_error_within_another_one_has() -> None:
    inner = amqp.MessageSendFailed(condition=b"amqp:not-allowed")
    assert is_message_fault(inner)
    assert is_message_fault(sdk.ServiceBusError("Handler failed.", error=inner))
