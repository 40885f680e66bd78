"""What ``duobus doctor`` finds of a server that runs: whether it answers, its stores, its clock, its certificate."""

from __future__ import annotations

import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import click

from duobus.cli.remote import Remote, operate
from duobus.cli.watch.data_folder import of_certificate
from duobus.cli.watch.findings import FAILURE, OK, WARNING, Finding
from duobus.cli.watch.machine import installed_version
from duobus.clock import Clock
from duobus.model.descriptions import ACTIVE

_TIMEOUT_S: Final = 5.0
#: Tokens are good for 300 s past their end: a clock that is off by less than a tenth of that harms nobody.
_CLOCKS_APART_MS: Final = 30_000
_AHEAD_MS: Final = 60_000
_INCOMING_HIGH: Final = 0.75
_HTTPS_PORT: Final = 443
#: Relays that a finding names.
_NAMED_MAX: Final = 5


def of_health(status: str, message: str) -> Finding:
    """What the server says of itself to everybody."""
    if status == "healthy":
        return Finding("health", OK, message)
    word = WARNING if status == "degraded" else FAILURE
    return Finding("health", word, message, "The stores below say why; so does the server's log.")


def of_server(about: Mapping[str, Any], now_ms: int, own_version: str) -> Iterator[Finding]:
    """What the server says of itself to who may listen."""
    theirs = about["version"]
    if theirs != own_version:
        found = (
            f"the server runs {theirs or 'an unknown version'}, this command is of {own_version or 'an unknown one'}"
        )
        yield Finding("server's version", WARNING, found, "Use the command line of the same release.")
    else:
        yield Finding("server's version", OK, theirs or "unknown, as this command's")
    apart_ms = abs(about["nowMs"] - now_ms)
    if apart_ms > _CLOCKS_APART_MS:
        remedy = "Set the clock that is wrong: tokens that are made here may be refused there."
        yield Finding("server's clock", WARNING, f"{apart_ms // 1000} s from the clock here", remedy)
    else:
        yield Finding("server's clock", OK, f"{apart_ms / 1000:.1f} s from the clock here")
    ahead_ms = about["clockAheadMs"]
    if ahead_ms is not None and abs(ahead_ms) > _AHEAD_MS:
        found = f"the server's clock and broker time are {abs(ahead_ms) / 3_600_000:.1f} hours apart"
        yield Finding("broker time", WARNING, found, "docs/how-to/wrong-clock.md")
    share = about["incomingBytes"] / (about["incomingLimitBytes"] or 1)
    if share > _INCOMING_HIGH:
        remedy = "Messages come faster than the stores take them. If the disk is quick, raise --incoming-memory."
        yield Finding("incoming messages", WARNING, f"{share:.0%} of the room for them is taken", remedy)


def of_store(store: Mapping[str, Any]) -> Iterator[Finding]:
    """How one messaging store is."""
    subject = f"store {store['store']}"
    if store["state"] != "open":
        found = f"is {store['state']}: {store['reason'] or 'no reason was told'}"
        yield Finding(
            subject, FAILURE, found, "It is opened again by itself once it can be: docs/how-to/lost-store.md."
        )
    if store["quarantined"]:
        remedy = "The log names them. Look for a failing disk, and restore from a backup."
        yield Finding(subject, FAILURE, f"{store['quarantined']} messages are damaged and put aside", remedy)
    if store["state"] == "open" and store["failures"]:
        found = f"was closed for a failure {store['failures']} times since the start"
        yield Finding(subject, WARNING, found, "The log has the error of the disk or database.")


def of_relays(relays: Sequence[Mapping[str, Any]], *, is_shared: bool) -> Iterator[Finding]:
    """How the relays are: one that is active and has no listener refuses its senders.

    ``is_shared``: other servers share the catalog, and may have the listeners.
    """
    if not relays:
        return
    listeners = sum(relay["listeners"] for relay in relays)
    found = f"{len(relays)}, with {listeners} listeners" + (" at this server" if is_shared else "")
    bare = [relay["name"] for relay in relays if relay["status"] == ACTIVE and not relay["listeners"]]
    if bare and not is_shared:
        names = ", ".join(bare[:_NAMED_MAX]) + (f" and {len(bare) - _NAMED_MAX} more" if len(bare) > _NAMED_MAX else "")
        remedy = "Start the services that listen there, or set the relays to Disabled: duobus relay update."
        yield Finding("relays", WARNING, f"{found}; nobody listens on {names}", remedy)
    else:
        yield Finding("relays", OK, found)


def server_findings(remote: Remote, clock: Clock, *, is_asked_for: bool, has_key: bool = True) -> Iterator[Finding]:
    """Look at a server.

    Args:
        remote: The server.
        clock: Time.
        is_asked_for: Somebody said which one, so that one has to be there.
        has_key: The connection string is for it; otherwise only what it tells everybody is asked.
    """
    try:
        told = _health(remote)
    except (OSError, ValueError) as error:
        # What urllib wraps is what has happened.
        reason = getattr(error, "reason", error)
        found = f"{remote.url} does not answer: {remote.masked(str(reason))}"
        remedy = "Start the server, or say with --connection-string or --endpoint which it is."
        if isinstance(reason, ssl.SSLError):
            remedy = "Trust the authority of its certificate with --ca; duobus trust tells how."
        yield Finding("server", FAILURE if is_asked_for else WARNING, found, remedy)
        return
    yield Finding("server", OK, f"{remote.url} answers")
    yield of_health(told["status"], told["message"])
    if has_key:
        yield from _asked(remote, clock)
    else:
        yield Finding("stores", OK, "not asked: give --connection-string for that")
    if not remote.is_plain:
        yield from _certificate(remote, clock)


def _health(remote: Remote) -> Mapping[str, Any]:
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if not remote.is_plain:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=remote.ca)))
    try:
        with urllib.request.build_opener(*handlers).open(f"{remote.url}/health", timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        # Unhealthy is an answer, too.
        text = error.read()
    told = json.loads(text)
    if not isinstance(told, dict) or not {"status", "message"} <= told.keys():
        raise ValueError("what answers is no duobus server")
    return told


def _asked(remote: Remote, clock: Clock) -> Iterator[Finding]:
    try:
        about = operate(remote, "GET", "server")
    except click.ClickException as error:
        found = error.message.splitlines()[0]
        yield Finding(
            "key", FAILURE, found, "Give the connection string of a rule with Manage, or with Listen for less."
        )
        return
    yield from of_server(about, clock.now_ms(), installed_version())
    try:
        stores = operate(remote, "GET", "stores")
    except click.ClickException:
        yield Finding("stores", OK, "not asked: the key does not have Manage")
        return
    # A version before relays does not know the question.
    with suppress(click.ClickException):
        yield from of_relays(operate(remote, "GET", "relays"), is_shared=bool(about.get("servers")))
    bad = [finding for store in stores for finding in of_store(store)]
    yield from bad or [Finding("stores", OK, f"{len(stores)} open")]


def _certificate(remote: Remote, clock: Clock) -> Iterator[Finding]:
    from cryptography import x509

    address = urlsplit(remote.url)
    host, port = address.hostname or "", address.port or _HTTPS_PORT
    context = ssl.create_default_context(cafile=remote.ca)
    with (
        socket.create_connection((host, port), _TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    if shown is not None:
        end = x509.load_der_x509_certificate(shown).not_valid_after_utc
        yield of_certificate(f"of {host}:{port}", int(end.timestamp() * 1000), clock.now_ms(), renews_itself=False)
