"""What a start with given settings would do, and all that is wrong with them, without opening a port or a store.

Files are read: the configuration, certificates, tokens, keys of issuers. Nothing is written, and no database is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeVar

from cryptography import x509

from duobus.clock import Clock
from duobus.errors import ConfigurationError
from duobus.gateway.tls import client_context, server_context
from duobus.model.options import TokenOptions
from duobus.model.topology.config_file import read_config_file
from duobus.server.access.issuer_keys import read_key_file
from duobus.server.access.metrics_token import MetricsToken
from duobus.server.access.token_file import is_url, read_token_file
from duobus.server.console_process import demand_console
from duobus.server.settings import Settings, check_options, load_settings

_Value = TypeVar("_Value")


class ConfigReport(NamedTuple):
    """What was found: what a start would do, what an operator should think about, what would end the start."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    faults: tuple[str, ...]


def check_config(options: Settings, clock: Clock, *, has_all_options: bool = True) -> ConfigReport:
    """Read everything that the options name.

    Args:
        options: As given, before ``load_settings``.
        clock: Time, for certificates that have ended.
        has_all_options: Whether the options are all that was meant. Where some could not be read, what the others
            say together is not looked at.
    """
    search = _Search(options, clock)
    search.read_files()
    if has_all_options:
        search.attempt(lambda: check_options(options))
    search.demand_driver()
    if search.faults or not has_all_options:
        return ConfigReport((), tuple(search.warnings), tuple(search.faults))
    settings = load_settings(options)
    return ConfigReport(
        tuple(_plan(settings, search.certificate)), (*settings.warnings, *search.warnings), tuple(search.faults)
    )


class _Search:
    """Reads the files one after the other, and goes on after a fault."""

    def __init__(self, options: Settings, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self.certificate: x509.Certificate | None = None

    def attempt(self, take: Callable[[], _Value]) -> _Value | None:
        try:
            return take()
        except ConfigurationError as error:
            self.faults.append(str(error))
            return None

    def read_files(self) -> None:
        options = self._options
        if (config := options.config) is not None:
            self.attempt(lambda: read_config_file(config))
        if (cert := options.tls_cert) is not None and (key := options.tls_key) is not None:
            self._read_certificate(cert, key)
        if (authorities := options.cluster_ca) is not None:
            self.attempt(lambda: client_context(authorities, "--cluster-ca"))
        if (token := options.metrics_token_file) is not None:
            self.attempt(lambda: MetricsToken(token))
        if (issuers := options.bearer_tokens) is not None:
            self._read_issuers(self.attempt(lambda: read_token_file(issuers)))
        for option, path in (("--log-file", options.log_file), ("--ready-file", options.ready_file)):
            if path is not None and not path.parent.is_dir():
                self.faults.append(f"{option} {path} cannot be written: there is no folder {path.parent}.")

    def demand_driver(self) -> None:
        if self._options.console_port is not None:
            self.attempt(demand_console)
        option = "--join" if self._options.join is not None else "--store"
        if (self._options.join is not None or self._options.places) and find_spec("psycopg") is None:
            self.faults.append(f"{option} needs more than is installed: pip install 'duobus[postgres]'")

    def _read_issuers(self, tokens: TokenOptions | None) -> None:
        for issuer in tokens.issuers if tokens is not None else ():
            if not is_url(issuer.keys):
                self.attempt(partial(read_key_file, Path(issuer.keys)))

    def _read_certificate(self, path: Path, key: Path) -> None:
        if self.attempt(lambda: server_context(path, key)) is None:
            return
        found = x509.load_pem_x509_certificates(path.read_bytes())
        self.certificate = found[0]
        ends_ms = int(self.certificate.not_valid_after_utc.timestamp() * 1000)
        if ends_ms < self._clock.now_ms():
            self.warnings.append(f"The certificate {path} has ended on {_day(self.certificate)}. Replace it.")


def _plan(settings: Settings, certificate: x509.Certificate | None) -> Iterator[str]:
    """One line for each thing that a start would do; addresses are shown without their secrets."""
    if settings.ephemeral:
        yield "data: in memory, gone when the server stops"
    elif settings.data is not None:
        yield f"data: {settings.data}, {'which is there' if settings.data.exists() else 'which would be made'}"
    if settings.join is not None:
        yield f"catalog: shared, {settings.join.url}, not asked"
        yield f"address for the other servers: {settings.advertise or settings.host}"
    where = (
        "in memory" if settings.ephemeral else "in the data folder" if settings.join is None else "beside the catalog"
    )
    yield f"stores: {settings.stores} {where}"
    for address in settings.places:
        yield f"store: {address.url}, not asked"
    for namespace in settings.namespaces:
        yield (
            f"namespace: {namespace.name}, with queues: {len(namespace.queues)}, topics: {len(namespace.topics)}, "
            f"access rules of the configuration: {len(namespace.rules)}"
        )
    yield from _listeners(settings)
    if settings.tls_self_signed:
        yield "certificate: of an authority in the data folder, made if missing"
    elif certificate is not None:
        yield f"certificate: {settings.tls_cert}, until {_day(certificate)}"
    if settings.tokens is not None:
        endpoint = "an own token endpoint" if settings.tokens.endpoint is not None else "no own token endpoint"
        yield f"bearer tokens: trusted issuers: {len(settings.tokens.issuers)}, {endpoint}"
    yield f"logs: {settings.log_format}, to {settings.log_file or 'standard error'}"


def _listeners(settings: Settings) -> Iterator[str]:
    ports: dict[str, int | None] = {"AMQP": settings.port}
    if settings.offers_tls:
        ports["AMQP over TLS"] = settings.tls_port
    ports["HTTP"] = settings.http_port
    ports["HTTPS"] = settings.https_port
    for name, port in ports.items():
        if port is not None:
            yield f"port: {name} on {settings.host}, {port or 'one that the system picks'}"


def _day(certificate: x509.Certificate) -> str:
    return f"{certificate.not_valid_after_utc:%Y-%m-%d}"
