"""What the commands on entities and messages share: which server, how to reach it, how failures are told.

The official SDK speaks, so that the same command line works against duobus and Azure. It is imported by the commands,
not here.
"""

from __future__ import annotations

import functools
import html
import json
import logging
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from duobus.cli.data_folder import server_of
from duobus.cli.failures import NotFound, Refused, Unreachable, failure
from duobus.cli.output import clean, query_option
from duobus.clock import Clock
from duobus.errors import ArgumentInvalid
from duobus.model.access_rules import sign_token
from duobus.model.durations import format_duration, parse_duration

if TYPE_CHECKING:
    from azure.core.pipeline.transport import RequestsTransport
    from azure.servicebus import ServiceBusClient

#: What ``duobus serve --emulator`` takes with its default ports; the key is public.
LOCAL: Final = (
    "Endpoint=sb://localhost;SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;"
    "UseDevelopmentEmulator=true;"
)

#: Where an emulator manages entities when its address names no port.
EMULATOR_HTTP_PORT: Final = 5300

#: How long the token of a command with many requests is good, in seconds.
_TOKEN_LONG_S: Final = 3_600

OUTPUTS: Final = ("table", "json", "jsonl", "yaml", "tsv")

_PRINTED_BYTES: Final = re.compile(r"""(?<=failed\. )b(["'])(.*)\1\.""")
_SECRETS: Final = ("sharedaccesskey", "sharedaccesssignature")
_SHORT: Final = re.compile(r"(\d{1,9})(s|m|h|d)")


def duration(text: str) -> str:
    """Read an ISO 8601 duration, or a short one as 90s, 5m, 2h, 7d; return the ISO 8601 text that goes on the wire."""
    written = text
    short = _SHORT.fullmatch(text)
    if short is not None:
        written = f"P{short[1]}D" if short[2] == "d" else f"PT{short[1]}{short[2].upper()}"
    try:
        return format_duration(parse_duration(written))
    except ArgumentInvalid:
        raise click.BadParameter(f"{text!r} is no duration; write it like PT1M, P14D, 90s or 5m.") from None


class Remote:
    """The server that a command talks to.

    Args:
        connection_string: As applications have it; None for the emulator's on this machine.
        endpoint: Base URL of the management API, if it is to be another than the connection string says.
        ca: Certificate authority to trust, PEM.
    """

    def __init__(self, connection_string: str | None, endpoint: str | None, ca: Path | None) -> None:
        self._is_guessed = not connection_string
        text = (connection_string or LOCAL).strip().rstrip(";")
        members = dict(part.partition("=")[::2] for part in text.split(";"))
        self._members = {name.lower(): (name, value) for name, value in members.items()}
        self._ca = None if ca is None else str(ca)
        self._text = text
        self._token = ""
        self._token_until_ms = 0
        address = self._split(self._members.get("endpoint", ("", ""))[1])
        self.is_emulator = is_emulator = self.member("usedevelopmentemulator").lower() == "true"
        self.is_plain = is_emulator
        self.netloc = address.netloc
        self._custom = None if is_emulator or address.port is None else f"sb://{address.netloc}"
        if endpoint is not None:
            other = self._split(endpoint)
            self.is_plain, self.netloc = other.scheme == "http", other.netloc
        elif is_emulator and address.port is None:
            self.netloc = f"{address.netloc}:{EMULATOR_HTTP_PORT}"

    @property
    def text(self) -> str:
        """The connection string."""
        return self._text

    def member(self, name: str) -> str:
        """A member of the connection string, by its name in lower case; empty when it has none."""
        return self._members.get(name, ("", ""))[1]

    @property
    def url(self) -> str:
        """Base URL of the management API."""
        return f"{'http' if self.is_plain else 'https'}://{self.netloc}"

    @property
    def ca(self) -> str | None:
        """File of the certificate authority to trust, if it is not the system's."""
        return self._ca

    def access_key(self) -> tuple[str, str]:
        """Name and key of the rule that the connection string gives.

        Raises:
            click.UsageError: It gives a token or nothing.
        """
        name = self._members.get("sharedaccesskeyname", ("", ""))[1]
        key = self._members.get("sharedaccesskey", ("", ""))[1]
        if not name or not key:
            raise click.UsageError("Give a connection string with SharedAccessKeyName and SharedAccessKey.")
        return name, key

    def failure(self, status: int, text: str) -> click.ClickException:
        """The error of the command line for a refusal of the server, with a status of HTTP."""
        text = clean(text)
        if status == HTTPStatus.UNAUTHORIZED and self._is_guessed:
            text += (
                "\nNo connection string was given, so the emulator's key was tried. Give --data with the data folder, "
                "if the server is on this machine, or a connection string, best in DUOBUS_CONNECTION_STRING."
            )
        return failure(status, self.masked(text))

    def silence(self, reason: str) -> click.ClickException:
        """The error of the command line for a server that does not answer."""
        return Unreachable(
            f"{self.url} does not answer: {clean(reason)}\nStart a server there, or say with "
            "--connection-string or DUOBUS_CONNECTION_STRING which it is, or with --data which data folder of this "
            "machine it has. If it is its certificate that is not trusted: --ca, and duobus trust."
        )

    def said(self, error: BaseException) -> str:
        """What an error of the SDK says."""
        return said(error)

    def authorization(self) -> str:
        """A token for the requests of a command that sends many."""
        given = self.member("sharedaccesssignature")
        if given:
            return given
        now_ms = Clock().now_ms()
        if now_ms >= self._token_until_ms:
            name, key = self.member("sharedaccesskeyname"), self.member("sharedaccesskey")
            self._token = sign_token(self.url + "/", name, key, now_ms // 1000 + _TOKEN_LONG_S)
            # A new one is made when half of the time is over.
            self._token_until_ms = now_ms + _TOKEN_LONG_S * 500
        return self._token

    def string_for(self, name: str, key: str, entity: str | None) -> str:
        """The connection string by which applications use a key at this server."""
        address = self._split(self.member("endpoint"))
        text = f"Endpoint=sb://{address.netloc};SharedAccessKeyName={name};SharedAccessKey={key};"
        text += f"EntityPath={entity};" if entity else ""
        return text + ("UseDevelopmentEmulator=true;" if self.is_emulator else "")

    def _split(self, url: str) -> Any:
        """Take an address apart, which is quoted in no error, since a key may have got into it."""
        try:
            found = urlsplit(url)
            if not found.hostname or found.scheme not in {"sb", "http", "https"} or found.username:
                raise ValueError(url)
            _ = found.port
        except ValueError:
            raise click.UsageError(
                "The connection string or endpoint is none. Connection strings have the form Endpoint=sb://HOST;"
                "SharedAccessKeyName=NAME;SharedAccessKey=KEY, endpoints the form http://HOST:PORT."
            ) from None
        return found

    def masked(self, text: str) -> str:
        """Return a text without the keys and signatures of the connection string."""
        for name in _SECRETS:
            value = self._members.get(name, ("", ""))[1]
            if value:
                text = text.replace(value, "***")
        return re.sub(r"(?i)(SharedAccessKey|SharedAccessSignature|\bsig)=[^;&\s]+", r"\1=***", text)

    @contextmanager
    def administration(self, what: str) -> Iterator[Any]:
        """A client of the management API; what fails with an entity is told as errors of the command line."""
        with self._told(self.url, what):
            from azure.servicebus.management import ServiceBusAdministrationClient

            others = (f"{name}={value}" for low, (name, value) in self._members.items() if low != "endpoint")
            text = ";".join((f"Endpoint=sb://{self.netloc}", *others))
            options: dict[str, Any] = {"retry_connect": 0}
            if self.is_plain:
                options["transport"] = _plain_transport()
            elif self._ca is not None:
                options["connection_verify"] = self._ca
            with ServiceBusAdministrationClient.from_connection_string(text, **options) as client:
                yield client

    @contextmanager
    def messaging(self, what: str, retries: int = 1) -> Iterator[ServiceBusClient]:
        """A client of the messages; what fails with an entity is told as errors of the command line."""
        with self._told(self._members["endpoint"][1], what):
            from azure.servicebus import ServiceBusClient

            from duobus.ha.sdk import prompt_client

            options: dict[str, Any] = {"retry_total": retries}
            if self._custom is not None:
                # Over TLS the SDK drops the port of the namespace.
                options["custom_endpoint_address"] = self._custom
            if self._ca is not None:
                options["connection_verify"] = self._ca
            with prompt_client(ServiceBusClient.from_connection_string(self._text, **options)) as client:
                yield client

    @contextmanager
    def _told(self, address: str, what: str) -> Iterator[None]:
        try:
            from azure.core.exceptions import (
                AzureError,
                ResourceNotFoundError,
                ServiceRequestError,
                ServiceResponseError,
            )
            from azure.servicebus.exceptions import (
                MessagingEntityNotFoundError,
                ServiceBusAuthenticationError,
                ServiceBusAuthorizationError,
                ServiceBusConnectionError,
            )

            from duobus.ha.outage import token_refusal
        except ImportError as error:
            raise click.ClickException("This command needs the SDK: pip install 'duobus[ha]'") from error
        # The SDK tells its retries in the log, which nobody asked for.
        logging.getLogger("azure").addHandler(logging.NullHandler())
        try:
            yield
        except (ServiceRequestError, ServiceResponseError, ServiceBusConnectionError) as error:
            if token_refusal(error) is not None:
                raise self._without_token(what) from None
            raise Unreachable(
                f"{address} does not answer: {self.masked(said(error))}\nStart a server there, or say with "
                "--connection-string or DUOBUS_CONNECTION_STRING which it is, or with --data which data folder of this "
                "machine it has. If it is its certificate that is not trusted: --ca, and duobus trust."
            ) from None
        except (AzureError, ValueError, TypeError) as error:
            if token_refusal(error) is not None:
                raise self._without_token(what) from None
            # By its status: the SDK replaces some errors of a class of their own by a common one. A feed without
            # entries is how the cloud says that something is missing, and has the status 200.
            is_missing = isinstance(error, MessagingEntityNotFoundError | ResourceNotFoundError)
            is_missing = is_missing or getattr(error, "status_code", None) == HTTPStatus.NOT_FOUND
            if is_missing:
                raise NotFound(f"There is no {what}. {self.masked(said(error))}") from None
            is_refused = isinstance(error, ServiceBusAuthenticationError | ServiceBusAuthorizationError)
            status = HTTPStatus.UNAUTHORIZED if is_refused else getattr(error, "status_code", None) or 0
            raise self.failure(status, said(error)) from None

    def _without_token(self, what: str) -> click.ClickException:
        """The error for a token that was not taken, of which the SDK does not say why.

        A key that the management API takes is good, so that it is the entity that is missing. What that API says of a
        key that it does not take is the reason.
        """
        from azure.core.exceptions import AzureError

        try:
            with self.administration("namespace") as administration:
                administration.get_namespace_properties()
        except (AzureError, click.ClickException) as error:
            why = f" {error.message}" if isinstance(error, Refused) else ""
            return Refused(
                f"The token for {what} was not taken: the key is wrong or for something else, or there is no {what}."
                + why
            )
        return NotFound(f"There is no {what}: the namespace took no token for it, and the key is good.")


def said(error: BaseException) -> str:
    """What an error of the SDK says, without the frame that the management API puts around it.

    For some statuses the message of the SDK's error names only the status; the server's sentence, with its tracking id,
    is in the answer.
    """
    text = str(getattr(error, "message", "") or error)
    for place in (text, _body_of(error)):
        detail = re.search(r"<Detail>(.*?)</Detail>", place, re.DOTALL)
        if detail:
            return clean(html.unescape(detail[1]))
    # Of a management operation the SDK prints the server's sentence as Python writes bytes.
    return clean(_PRINTED_BYTES.sub(r"\2", text.replace("\n", " ")))


def _body_of(error: BaseException) -> str:
    """The answer that came with an error of the management API, as far as it was read."""
    read = getattr(getattr(error, "response", None), "text", None)
    try:
        return str(read()) if callable(read) else ""
    except (AttributeError, RuntimeError, ValueError):
        # Nothing was read, or what was read is no text.
        return ""


def _plain_transport() -> RequestsTransport:
    """HTTP without TLS: the SDK's administration client knows HTTPS only, but lets its transport be chosen."""
    from azure.core.pipeline.transport import RequestsTransport

    class PlainTransport(RequestsTransport):  # type: ignore[misc] # the class is loaded lazily by its module
        def send(self, request: Any, **options: Any) -> Any:
            request.url = re.sub("^https:", "http:", request.url)
            return super().send(request, **options)

    # Without the proxies of the environment, which do not reach a server on a development machine.
    return PlainTransport(use_env_settings=False)


class ServerChoice(NamedTuple):
    """The options that say which server is meant.

    Attributes:
        connection_string, endpoint, ca: As of ``Remote``.
        data: Data folder of a server on this machine, in place of all of them.
    """

    connection_string: str | None
    endpoint: str | None
    ca: Path | None
    data: Path | None

    def check(self) -> None:
        """Refuse options that exclude each other; --data wins over the environment.

        Raises:
            click.UsageError: They do.
        """
        context = click.get_current_context()
        for name in ("connection_string", "endpoint", "ca") if self.data is not None else ():
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"Give --data or --{name.replace('_', '-')}, not both.")

    def remote(self) -> Remote:
        """The server.

        Raises:
            click.ClickException: None runs on the data folder.
        """
        if self.data is None:
            return Remote(self.connection_string, self.endpoint, self.ca)
        found = server_of(self.data)
        return Remote(found.connection_string, found.admin_url, None)


def remote_command(
    *, has_endpoint: bool = True, has_output: bool = True, is_chosen_later: bool = False
) -> Callable[[Any], Any]:
    """Add the options that say which server; the command gets a ``Remote`` and, if it prints, its output format.

    ``is_chosen_later``: it gets the ``ServerChoice`` in place of the ``Remote``, which takes a server that runs.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            connection_string: str | None,
            ca: Path | None,
            data: Path | None,
            endpoint: str | None = None,
            output: str | None = None,
            **given: Any,
        ) -> None:
            if has_output:
                given["output"] = output
            server = ServerChoice(connection_string, endpoint, ca, data)
            server.check()
            if is_chosen_later:
                function(server=server, **given)
            else:
                function(remote=server.remote(), **given)

        for option in reversed(list(_options(has_endpoint, has_output))):
            run = option(run)
        return run

    return decorate


def _options(has_endpoint: bool, has_output: bool) -> Iterator[Any]:
    yield click.option(
        "--connection-string",
        envvar="DUOBUS_CONNECTION_STRING",
        show_envvar=True,
        help="Of the namespace; without one, the emulator's on this machine. Better given in the environment.",
    )
    if has_endpoint:
        yield click.option(
            "--endpoint", metavar="URL", help="Where entities are managed, as in http://localhost:5300, if elsewhere."
        )
    yield click.option(
        "--ca",
        envvar="DUOBUS_CA",
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Certificate authority to trust, PEM.",
    )
    yield click.option(
        "--data",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="Data folder of a server that runs on this machine, where its address and a key are found.",
    )
    if has_output:
        yield click.option(
            "--output",
            "-o",
            type=click.Choice(OUTPUTS),
            help="Form of what is printed; by default table on a terminal, else jsonl.",
        )
        yield query_option


# Requests of duobus's own, which Azure has not: ``/$duobus/...`` over HTTP, with the key of the connection string.

#: How long the token of one command is good, and how long an answer may take, in seconds.
_TOKEN_S: Final = 300
_TIMEOUT_S: Final = 60


def is_duobus(remote: Remote) -> bool:
    """Whether a server has what only duobus offers.

    Raises:
        Unreachable: The server does not answer.
    """
    try:
        told = operate(remote, "GET", "server")
    except Unreachable:
        raise
    except click.ClickException:
        return False
    return isinstance(told, dict) and "version" in told


def operate(remote: Remote, method: str, path: str, query: Mapping[str, str] | None = None, body: object = None) -> Any:
    """Send one request and return the JSON of its answer, or None when that is empty.

    Raises:
        click.ClickException: The server does not answer, does not know the request (it is not a duobus), or refuses.
    """
    url = f"{remote.url}/$duobus/{urllib.parse.quote(path)}"
    if query:
        url += "?" + urllib.parse.urlencode(query)
    name, key = remote.access_key()
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": sign_token(remote.url + "/", name, key, Clock().now_ms() // 1000 + _TOKEN_S),
            "Content-Type": "application/json",
        },
    )
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if not remote.is_plain:
        handlers.append(urllib.request.HTTPSHandler(context=ssl.create_default_context(cafile=remote.ca)))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_TIMEOUT_S) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        reason = said(Exception(error.read().decode(errors="replace")))
        raise remote.failure(error.code, reason or f"{remote.url} answered {error.code}.") from None
    except (urllib.error.URLError, OSError) as error:
        raise Unreachable(
            f"{remote.url} does not answer: {error}\nStart a server there, or say with --connection-string, "
            "DUOBUS_CONNECTION_STRING or --endpoint which it is, or with --data which data folder of this machine "
            "it has."
        ) from None
    try:
        return json.loads(text) if text else None
    except ValueError:
        raise click.ClickException(f"{remote.url} is no duobus server: only those have this command.") from None
