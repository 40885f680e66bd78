"""How processes of Spark reach a namespace: from options that name a secret, to clients that each process opens itself.

A ``Place`` travels in pickles to every worker; a client or a resolved secret never does. The one exception is the
option ``connectionString``, because Spark sends options to workers.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from duobus.clock import Clock
from duobus.spark.errors import AddressError, OptionError
from duobus.spark.options import Parsed

if TYPE_CHECKING:
    from azure.servicebus import ServiceBusClient
    from azure.servicebus.management import ServiceBusAdministrationClient

#: The ways to say which namespace; exactly one is given.
ADDRESS_OPTIONS: Final = ("connectionString", "connectionStringEnv", "connectionStringFile", "endpoint")

#: Where an emulator manages entities when its address names no port.
EMULATOR_HTTP_PORT: Final = 5300
#: Where messages go when an address names no port: over TLS, and to an emulator.
AMQP_PORT: Final = 5671
EMULATOR_PORT: Final = 5672
#: How long a job or query that begins tries an address at which nobody listens; the SDK's own attempts, task by task,
#: take more than a minute. A broker that starts at the same time has so long to come up.
REACH_S: Final = 5.0
#: Between two attempts to reach it.
REACH_PAUSE_S: Final = 0.25
#: Clients, receivers and senders that a process keeps open; the one that was used longest ago goes.
KEPT_MAX: Final = 64
#: What has not been used for so long is closed when another is asked for: nothing tells a worker that a query ended.
IDLE_MS: Final = 120_000
#: Bytes of a file with a connection string.
FILE_BYTES_MAX: Final = 65_536

_AZURE: Final = re.compile(r"(?i)\.servicebus\.[a-z.]+$")
_SECRETS: Final = re.compile(r"(?i)(SharedAccessKey|SharedAccessSignature|\bsig)=[^;&\s]+")


@dataclass(frozen=True, slots=True)
class Place:
    """A namespace, without its secret unless that was given as an option itself.

    Attributes:
        option: Name of the option that names the namespace.
        value: Value of that option.
        provider: ``module:function`` of the credential, with ``endpoint``.
        ca_file: Certificate authority to trust.
        management: Base URL of the management API, if it is elsewhere.
        retries: Number of retries of the SDK.
    """

    option: str
    value: str = field(repr=False)
    provider: str | None = None
    ca_file: str | None = None
    management: str | None = None
    retries: int = 3


def place_of(options: Parsed) -> Place:
    """Return the place that the options name.

    Raises:
        OptionError: No option names a namespace, several do, or an option that belongs to it is missing.
    """
    given = [option for option in ADDRESS_OPTIONS if options[option] is not None]
    if len(given) != 1:
        told = " and ".join(f"'{option}'" for option in given) if given else "none of them"
        raise OptionError(f"One of the options {', '.join(ADDRESS_OPTIONS)} says which namespace; {told} was given.")
    option = given[0]
    if (option == "endpoint") != (options["credentialProvider"] is not None):
        raise OptionError("The options 'endpoint' and 'credentialProvider' go together.")
    return Place(
        option,
        options[option],
        options["credentialProvider"],
        options["caFile"],
        options["managementEndpoint"],
        options["retryTotal"],
    )


def masked(text: str) -> str:
    """Return a text without the keys and signatures in it."""
    return _SECRETS.sub(r"\1=***", text)


class _Resolved:
    """What a place says in this process: the address, and what authenticates."""

    __slots__ = ("address", "credential", "is_plain", "text")

    def __init__(self, place: Place) -> None:
        self.text: str | None = None
        self.credential: Any = None
        if place.option == "endpoint":
            self.credential = _provided(place)
            if isinstance(self.credential, str):
                self.text, self.credential = self.credential, None
        else:
            self.text = _connection_string(place)
        members = _members(self.text) if self.text is not None else {}
        self.is_plain = members.get("usedevelopmentemulator", "").lower() == "true"
        endpoint = members.get("endpoint") or place.value
        self.address = _split(endpoint if "://" in endpoint else f"sb://{endpoint}", place.option)


def _members(text: str) -> dict[str, str]:
    parts = (part.partition("=") for part in text.strip().strip(";").split(";"))
    return {name.strip().lower(): value.strip() for name, _, value in parts}


def _connection_string(place: Place) -> str:
    if place.option == "connectionStringEnv":
        text = os.environ.get(place.value, "")
        if not text:
            raise OptionError(
                f"The environment variable '{place.value}' that 'connectionStringEnv' names is not set in the process "
                f"{os.getpid()}. It has to be set for the driver and on every node."
            )
    elif place.option == "connectionStringFile":
        try:
            with Path(place.value).open("rb") as file:
                text = file.read(FILE_BYTES_MAX).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"The file of 'connectionStringFile' cannot be read: {error}") from None
    else:
        text = place.value
    members = _members(text)
    if "endpoint" not in members:
        raise OptionError(
            f"What '{place.option}' gives is no connection string; it has the form "
            "Endpoint=sb://HOST;SharedAccessKeyName=NAME;SharedAccessKey=KEY."
        )
    return text.strip()


def _provided(place: Place) -> Any:
    module, _, function = (place.provider or "").partition(":")
    if not module or not function:
        raise OptionError(f"The option 'credentialProvider' is {place.provider!r}; it has to be module:function.")
    try:
        made = getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise OptionError(
            f"The function '{place.provider}' of 'credentialProvider' cannot be had on this node: {error}"
        ) from error
    if made is None:
        raise OptionError(f"The function '{place.provider}' of 'credentialProvider' returned nothing.")
    return made


def _split(url: str, option: str) -> Any:
    """Take an address apart, which is quoted in no error, since a key may have got into it."""
    try:
        found = urlsplit(url)
        if not found.hostname or found.username:
            raise ValueError(url)
        _ = found.port
    except ValueError:
        raise OptionError(f"The address that '{option}' gives is none. It has the form sb://HOST or HOST.") from None
    return found


def namespace_of(place: Place) -> str:
    """Host of the namespace, with its port if one was given: what the column ``namespace`` holds."""
    return str(_Resolved(place).address.netloc)


def demand_reachable(place: Place, clock: Clock | None = None) -> None:
    """Make sure that a server listens at the address of a namespace, before work is divided into tasks.

    Args:
        place: The namespace.
        clock: Time.

    Raises:
        AddressError: For ``REACH_S`` seconds no server listens there, or the host is unknown.
    """
    here, clock = _Resolved(place), clock or Clock()
    port = here.address.port or (EMULATOR_PORT if here.is_plain else AMQP_PORT)
    until_ms = clock.monotonic_ms() + int(REACH_S * 1000)
    while True:
        left_s = (until_ms - clock.monotonic_ms()) / 1000
        try:
            with socket.create_connection((here.address.hostname, port), timeout=max(left_s, REACH_PAUSE_S)):
                return
        except OSError as error:
            if clock.monotonic_ms() + REACH_PAUSE_S * 1000 >= until_ms:
                raise AddressError(
                    f"Nobody answers at {here.address.hostname}:{port}, the address that '{place.option}' gives "
                    f"({error.strerror or error}). Is the broker running, and is the address right?"
                ) from None
        Event().wait(REACH_PAUSE_S)


def counts_deferrals(place: Place) -> int | None:
    """The number by which a deferral raises the delivery count in a namespace; None: it has to be found out.

    In duobus it is 0. Azure's documentation says the same; this was not measured.
    """
    return 0 if is_duobus(place) else None


def is_duobus(place: Place) -> bool:
    """Whether a namespace is not Azure's, by its host name; what Azure does not know is asked for only there."""
    return not _AZURE.search(str(_Resolved(place).address.hostname))


def new_client(place: Place) -> ServiceBusClient:
    """Open a client of messages; the caller closes it."""
    from azure.servicebus import ServiceBusClient as SdkClient

    from duobus.ha.sdk import prompt_client

    _quieten()
    here = _Resolved(place)
    options: dict[str, Any] = {"retry_total": place.retries}
    if not here.is_plain and here.address.port is not None:
        # Over TLS the SDK drops the port of the namespace.
        options["custom_endpoint_address"] = f"sb://{here.address.netloc}"
    if place.ca_file is not None:
        options["connection_verify"] = place.ca_file
    if here.text is not None:
        return prompt_client(SdkClient.from_connection_string(here.text, **options))
    return prompt_client(SdkClient(here.address.hostname, here.credential, **options))


def new_administration(place: Place) -> ServiceBusAdministrationClient:
    """Open a client of the management API; the caller closes it."""
    from azure.servicebus.management import ServiceBusAdministrationClient

    _quieten()
    here = _Resolved(place)
    netloc, is_plain = here.address.netloc, here.is_plain
    if place.management is not None:
        other = _split(place.management, "managementEndpoint")
        netloc, is_plain = other.netloc, other.scheme == "http"
    elif is_plain and here.address.port is None:
        netloc = f"{netloc}:{EMULATOR_HTTP_PORT}"
    options: dict[str, Any] = {"retry_connect": 0, "retry_total": place.retries}
    if is_plain:
        options["transport"] = _plain_transport()
    elif place.ca_file is not None:
        options["connection_verify"] = place.ca_file
    if here.text is None:
        return ServiceBusAdministrationClient(netloc, here.credential, **options)
    others = (part for part in here.text.strip(";").split(";") if not part.lower().startswith("endpoint="))
    return ServiceBusAdministrationClient.from_connection_string(
        ";".join((f"Endpoint=sb://{netloc}", *others)), **options
    )


def _plain_transport() -> Any:
    """HTTP without TLS: the SDK's administration client knows HTTPS only, but lets its transport be chosen."""
    from azure.core.pipeline.transport import RequestsTransport

    class PlainTransport(RequestsTransport):
        def send(self, request: Any, **options: Any) -> Any:
            request.url = re.sub("^https:", "http:", request.url)
            return super().send(request, **options)

    # Without the proxies of the environment, which do not reach a server on a development machine.
    return PlainTransport(use_env_settings=False)


def _quieten() -> None:
    # The SDK tells its retries in the log, which nobody asked for.
    logging.getLogger("azure").addHandler(logging.NullHandler())


class Kept:
    """Clients, receivers and senders that a process keeps open, by key, and closes when they have been idle.

    Workers are forked from a daemon. An object that another process opened is dropped without being closed, because its
    connection belongs to that process.

    Args:
        clock: Time.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pid = os.getpid()
        self._open: dict[tuple[Any, ...], tuple[int, Any]] = {}

    def get(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        """Return the object that is kept under a key, or make it.

        Args:
            key: Hashable: the kind of the object, then its place.
            make: Makes the object, which has a method ``close``.
        """
        if self._pid != os.getpid():
            self._pid, self._open = os.getpid(), {}
        now_ms = self._clock.monotonic_ms()
        self._use_client(key, now_ms)
        for other in [other for other, (used_ms, _) in self._open.items() if now_ms - used_ms > IDLE_MS]:
            if other != key:
                self.drop(other)
        kept = self._open.pop(key, None)
        made = make() if kept is None else kept[1]
        self._open[key] = now_ms, made
        self._use_client(key, now_ms)
        while len(self._open) > KEPT_MAX:
            self.drop(next(iter(self._open)))
        return made

    def _use_client(self, key: tuple[Any, ...], now_ms: int) -> None:
        """The client of a place is used with everything that was opened by it: closing it closes them too."""
        name = ("client", *key[1:2])
        if name in self._open:
            self._open[name] = now_ms, self._open.pop(name)[1]

    def drop(self, key: tuple[Any, ...]) -> None:
        """Close the object that is kept under a key, if there is one, for example after an error."""
        kept = self._open.pop(key, None)
        if kept is None or self._pid != os.getpid():
            return
        try:
            kept[1].close()
        except Exception:
            # The connection is given up either way.
            logging.getLogger("duobus.spark").debug("closing %s failed", key[0], exc_info=True)

    def clear(self) -> None:
        """Close everything."""
        for key in list(self._open):
            self.drop(key)


#: Of this process. Task workers live over many batches and queries, and reuse their connections.
KEPT: Final = Kept(Clock())


def client(place: Place, kept: Kept = KEPT) -> ServiceBusClient:
    """Return the client that is kept for a namespace, by default by this process; the caller must not close it."""
    made: ServiceBusClient = kept.get(("client", place), lambda: new_client(place))
    return made
