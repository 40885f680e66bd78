"""Settings of one server: the options of ``duobus serve`` and what its configuration file asks for, frozen.

Imports nothing that is slow to load: the command line reads this module before it knows what is wanted.
"""

from __future__ import annotations

import json
import os
import re
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from duobus.errors import ConfigurationError
from duobus.model.options import HttpOptions, TokenOptions
from duobus.model.quotas import STORE_TIMEOUT_S, Quotas
from duobus.model.topology.config_file import NamespaceConfig, read_config_file
from duobus.server.access.token_file import read_token_file
from duobus.storage.postgres.address import PostgresAddress

__all__ = [
    "EMULATOR_KEY",
    "NamespaceConfig",
    "ReadyFile",
    "Settings",
    "is_loopback",
    "load_settings",
    "ready_members",
]

#: Key of the default rule in emulator mode: the emulator's well-known text (the emulator's documentation).
EMULATOR_KEY = "SAS_KEY_VALUE"

#: Where everything listens unless the user says otherwise. Plain AMQP carries tokens and logins in clear text,
#: so other interfaces are a decision.
DEFAULT_HOST = "127.0.0.1"

#: Each store has a thread and a file of its own; beyond this a machine gains nothing.
STORES_MAX = 64

EMULATOR_NAMESPACE = "sbemulatorns"
DEFAULT_NAMESPACE = "duobus"

#: Two and a half messages of the largest kind.
DEFAULT_INCOMING_BYTES_MAX = 256 << 20

#: How long a start waits for the database of a shared catalog: machines that start together have come up by then.
JOIN_WAIT_S = 60.0

LOG_FORMATS = ("text", "json")

#: What a start does with entities of the configuration file: it creates those that are missing, and nothing else; or it
#: changes and deletes, too.
ADD = "add"
APPLY = "apply"
CONFIG_MODES = (ADD, APPLY)

#: A DNS name (RFC 1123, section 2.1, and the underscore that container engines allow), perhaps with * as its first
#: part, and one of its parts.
_PART = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,253}}\Z)(\*\.)?{_PART}(\.{_PART})*")

#: A label of a server.
_LABEL = re.compile(r"[A-Za-z0-9._-]{1,60}=[A-Za-z0-9._-]{1,60}")

_PORT_MAX = 65_535


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a server is told at its start.

    Attributes:
        data: Folder of catalog, stores, certificates and metering; None with ``ephemeral``.
        config: Configuration file in the emulator's format, or None.
        config_mode: What a start does with entities of that file: ``add`` creates those that are missing, ``apply``
            changes and deletes, too.
        config_prune: With ``apply``, what the file no longer has is deleted with the messages in it.
        host: Address or name of the interface to listen on.
        port: AMQP port; 0 lets the system pick, as for all ports.
        tls_port: AMQP over TLS; offered only with certificates.
        http_port: Management and runtime HTTP, TLS told apart by the first byte.
        https_port: HTTPS and WebSocket; None does not offer it.
        stores: Number of messaging stores in files of the data folder.
        places: Where those in PostgreSQL are.
        tls_self_signed: Make and use a self-signed authority.
        tls_names: Host names and addresses that its certificate is for, beside the machine's own.
        tls_cert: Certificate chain to use, PEM, with ``tls_key``.
        tls_key: Its private key, PEM.
        emulator: Behave as the emulator: its key, its namespace.
        ephemeral: Keep everything in memory.
        journal: Commits to stores in files are appends to a journal (decision 0059).
        ready_file: File to write once clients can connect, or None.
        log_format: ``text`` or ``json``.
        log_file: File that the logs are written to, or None for standard error.
        namespaces: What the configuration file asks for; the first is the default namespace. At least one.
        incoming_bytes_max: What messages may hold in memory, over all connections, before a store has them.
        memory_bytes_max: What all messages may hold in memory; others are read from their store when they are wanted.
        websocket_origins: Hosts beside the server's own whose pages may connect; ``*`` for all.
        quotas: How many there may be of what.
        http: What can be chosen about the HTTP APIs.
        store_timeout_s: How long a store may take for a call before it counts as failed.
        drain_delay_s: How long a server that is told to stop goes on, so that a balancer can take it out.
        allow_drills: Let an operator make stores fail and stall.
        backup_to: Folder in which backups are made on request, or None for none.
        bearer_tokens: File of issuers and clients, or None.
        tokens: What it says, or None.
        metrics_token_file: File with the token that ``/metrics`` asks for, or None for none.
        join: The catalog in PostgreSQL that this server shares with others, or None.
        join_wait_s: How long a start waits for the database of that catalog.
        advertise: Host name or address by which the others reach it; ``host`` unless given.
        cluster_ca: Whose certificates the other servers have; None: they are reached without TLS.
        weight: This server's share of the stores, in proportion to the weights of the others.
        labels: What it is called by preferences of stores, as in ``zone=a``.
        otlp_endpoint: Address of a collector that the broker's own spans go to, or None for none.
        console_port: Port of the console that runs beside the server; None for no console.
        console_host: Address that the console listens on; None for this machine alone.
        console_url: Address of the console for browsers, or None for the local one.
        accept_clock: The machine's clock is right, however far ahead of what was recorded it is.
        warnings: What the operator should read at the start, one text each.
    """

    data: Path | None
    config: Path | None = None
    config_mode: str = ADD
    config_prune: bool = False
    host: str = DEFAULT_HOST
    port: int = 5672
    tls_port: int = 5671
    http_port: int = 5300
    https_port: int | None = None
    stores: int = 4
    places: tuple[PostgresAddress, ...] = ()
    tls_self_signed: bool = False
    tls_names: tuple[str, ...] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    emulator: bool = False
    ephemeral: bool = False
    journal: bool = True
    ready_file: Path | None = None
    log_format: str = "text"
    log_file: Path | None = None
    namespaces: tuple[NamespaceConfig, ...] = ()
    incoming_bytes_max: int = DEFAULT_INCOMING_BYTES_MAX
    memory_bytes_max: int = 2 * DEFAULT_INCOMING_BYTES_MAX
    websocket_origins: tuple[str, ...] = ()
    quotas: Quotas = Quotas()
    http: HttpOptions = HttpOptions()
    store_timeout_s: float = STORE_TIMEOUT_S
    drain_delay_s: float = 0.0
    allow_drills: bool = False
    backup_to: Path | None = None
    bearer_tokens: Path | None = None
    tokens: TokenOptions | None = None
    metrics_token_file: Path | None = None
    join: PostgresAddress | None = None
    join_wait_s: float = JOIN_WAIT_S
    advertise: str | None = None
    cluster_ca: Path | None = None
    weight: int = 1
    labels: tuple[str, ...] = ()
    accept_clock: bool = False
    otlp_endpoint: str | None = None
    console_port: int | None = None
    console_host: str | None = None
    console_url: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def offers_tls(self) -> bool:
        """Whether there are certificates, so that ``tls_port`` and ``https_port`` can be opened."""
        return self.tls_self_signed or self.tls_cert is not None

    @property
    def is_loopback(self) -> bool:
        """Whether nobody outside this machine can connect."""
        return is_loopback(self.host)


def load_settings(options: Settings) -> Settings:
    """Return ``options`` checked, with its configuration file read.

    Raises:
        ConfigurationError: Options contradict each other or are out of range, or the file is wrong; the text names
            the option or the JSON path and the remedy.
    """
    check_options(options)
    warnings: list[str] = []
    namespaces: tuple[NamespaceConfig, ...] = ()
    if options.config is not None:
        contents = read_config_file(options.config)
        namespaces = contents.namespaces
        if options.http.tier.is_partitioned:
            namespaces = tuple(map(_partitioned, namespaces))
        warnings.extend(contents.warnings)
    if not namespaces:
        namespaces = (NamespaceConfig(name=EMULATOR_NAMESPACE if options.emulator else DEFAULT_NAMESPACE),)
    if options.emulator and not options.is_loopback:
        warnings.append(
            f"DANGER: --emulator with --host {options.host}: whoever can reach this machine can use every entity, "
            "because the emulator's key is public. Leave --host out, or --emulator."
        )
    if options.ephemeral:
        warnings.append("--ephemeral: messages and entities are kept in memory and gone when the server stops.")
    if options.allow_drills:
        warnings.append("--allow-drills: whoever may manage the namespace can make messaging stores fail and stall.")
    if any(place.is_unsafe for place in options.places):
        warnings.append(
            "DANGER: unsafe_no_sync in the address of a messaging store: acknowledged messages are lost when its server"
            " crashes. Leave it out."
        )
    if options.bearer_tokens is not None:
        options = msgspec.structs.replace(options, tokens=read_token_file(options.bearer_tokens))
    return msgspec.structs.replace(options, namespaces=namespaces, warnings=tuple(warnings))


def _partitioned(namespace: NamespaceConfig) -> NamespaceConfig:
    """A namespace of the file where every entity is partitioned, whatever the file says (Azure: partitioned entities).

    Elsewhere an entity of which the file does not say is not partitioned, as in the emulator, whose format it is.
    """
    return msgspec.structs.replace(
        namespace,
        queues=tuple(msgspec.structs.replace(queue, enable_partitioning=True) for queue in namespace.queues),
        topics=tuple(msgspec.structs.replace(topic, enable_partitioning=True) for topic in namespace.topics),
    )


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is this machine only."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


class ReadyFile:
    """The file that says where clients can connect (mode 0600, because it holds a key).

    Args:
        path: Where; it is replaced as a whole.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, members: dict[str, object]) -> None:
        """Write it; a reader sees all of it or nothing.

        Raises:
            ConfigurationError: It cannot be written.
        """
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            temporary.unlink(missing_ok=True)
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                json.dump(members, file, indent=2)
                file.write("\n")
            temporary.replace(self._path)
        except OSError as error:
            raise ConfigurationError(
                f"The ready file {self._path} cannot be written: {error.strerror}. Give another --ready-file."
            ) from error

    def remove(self) -> None:
        """Remove it, if it is still the one of this process; never raises."""
        try:
            if json.loads(self._path.read_text())["pid"] == os.getpid():
                self._path.unlink()
        except (OSError, ValueError, KeyError, TypeError):
            # Gone, or somebody else's by now: nothing of ours is left.
            return


def ready_members(
    settings: Settings,
    *,
    amqp_port: int,
    tls_port: int | None,
    http_port: int | None,
    https_port: int | None,
    rule_name: str,
    key: str,
    ca: Path | None,
) -> dict[str, object]:
    """Return the members of the ready file for the ports that were got; None where a server is not offered.

    The connection strings name ``localhost`` when that reaches the server, because the emulator's and the
    self-signed certificate's users write it so.
    """
    host = _client_host(settings.host)
    credentials = f"SharedAccessKeyName={rule_name};SharedAccessKey={key}"
    has_tls = tls_port is not None
    return {
        "pid": os.getpid(),
        "amqp_port": amqp_port,
        "tls_port": tls_port,
        "http_port": http_port,
        "https_port": https_port,
        "connection_string": f"Endpoint=sb://{host}:{amqp_port};{credentials};UseDevelopmentEmulator=true;",
        "connection_string_tls": f"Endpoint=sb://{host}:{tls_port};{credentials};" if has_tls else None,
        "admin_url": None if http_port is None else f"http://{host}:{http_port}",
        "ca": None if ca is None else str(ca.resolve()),
    }


def _client_host(host: str) -> str:
    if is_loopback(host):
        return "localhost" if host in {DEFAULT_HOST, "localhost"} else _bracketed(host)
    try:
        return "localhost" if ip_address(host).is_unspecified else _bracketed(host)
    except ValueError:
        return host


def _bracketed(host: str) -> str:
    return f"[{host.strip('[]')}]" if ":" in host else host


def check_options(options: Settings) -> None:
    """Refuse options that contradict each other or are out of range, without a look into any file.

    Raises:
        ConfigurationError: The text names the option and the remedy.
    """
    if options.data is None and not options.ephemeral:
        raise ConfigurationError("Give --data DIR, the folder to keep everything in, or --ephemeral.")
    if options.places and options.ephemeral:
        raise ConfigurationError("--store and --ephemeral exclude each other.")
    least = 0 if options.places else 1
    if not least <= options.stores <= STORES_MAX:
        raise ConfigurationError(f"--stores is {options.stores}; it must be from {least} to {STORES_MAX}.")
    if options.stores + len(options.places) > STORES_MAX:
        raise ConfigurationError(f"--stores and --store ask for more than {STORES_MAX} messaging stores.")
    if options.backup_to is not None and options.ephemeral:
        raise ConfigurationError("--backup-to and --ephemeral exclude each other; what is in memory has no backup.")
    _check_join(options)
    _check_config_mode(options)
    if options.log_format not in LOG_FORMATS:
        raise ConfigurationError(f"--log-format is {options.log_format!r}; it must be text or json.")
    if options.incoming_bytes_max <= 0:
        raise ConfigurationError("--incoming-memory must be at least 1 (MiB).")
    if options.incoming_bytes_max > options.memory_bytes_max // 2:
        raise ConfigurationError(
            f"--incoming-memory is {options.incoming_bytes_max >> 20} MiB; it must be at most half of --memory,"
            f" which is {options.memory_bytes_max >> 20} MiB."
        )
    if not options.host:
        raise ConfigurationError("--host is empty; give an address, or leave it out.")
    _check_ports(options)
    _check_tls(options)
    _check_collector(options.otlp_endpoint)
    _check_console(options)


def _check_console(options: Settings) -> None:
    if options.console_port is None and options.console_host is not None:
        raise ConfigurationError("--console-host is where a console listens that the server starts. Give --console.")
    if options.console_url is None:
        return
    if options.console_port is None:
        raise ConfigurationError("--console-url is the address of a console that the server starts. Give --console.")
    address = urlsplit(options.console_url)
    if address.scheme not in {"http", "https"} or not address.hostname or address.username:
        raise ConfigurationError(
            "--console-url is no address that browsers open. Write it like https://console.example.com."
        )


def _check_collector(endpoint: str | None) -> None:
    if endpoint is None:
        return
    try:
        address = urlsplit(endpoint)
        is_good = (
            address.scheme in {"http", "https"}
            and bool(address.hostname)
            and address.port != 0
            and not address.username
        )
    except ValueError:
        is_good = False
    if not is_good:
        # Without the address itself: it may have a password in it.
        raise ConfigurationError("--otlp-endpoint is no address of a collector; give one like http://localhost:4318.")


def _check_ports(options: Settings) -> None:
    ports = {"--port": options.port, "--http-port": options.http_port}
    if options.offers_tls:
        ports["--tls-port"] = options.tls_port
    if options.https_port is not None:
        ports["--https-port"] = options.https_port
    taken: dict[int, str] = {}
    for option, port in ports.items():
        if not 0 <= port <= _PORT_MAX:
            raise ConfigurationError(f"{option} is {port}; it must be from 0 (pick one) to {_PORT_MAX}.")
        if port and port in taken:
            raise ConfigurationError(f"{taken[port]} and {option} are both {port}; give them different ports.")
        taken[port] = option


def _is_host(name: str) -> bool:
    """Whether a certificate can be for it: an address, or a DNS name, perhaps with * as its first part."""
    try:
        ip_address(name)
    except ValueError:
        return _HOST.fullmatch(name) is not None
    return True


def _check_tls(options: Settings) -> None:
    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key belong together; give both or neither.")
    if options.tls_self_signed and options.tls_cert is not None:
        raise ConfigurationError("--tls-self-signed and --tls-cert exclude each other; give one of them.")
    if options.tls_self_signed and options.data is None:
        raise ConfigurationError("--tls-self-signed keeps its authority in the data folder. Give --data.")
    if options.tls_names and not options.tls_self_signed:
        raise ConfigurationError(
            "--tls-name is for the certificate that --tls-self-signed makes. Give that, too; a certificate of your own "
            "has its names already."
        )
    for name in options.tls_names:
        if not _is_host(name):
            raise ConfigurationError(
                f"--tls-name {name!r} is no host name or address. Give it without scheme and port, as clients have it "
                "in their connection strings; other letters than a to z in their ASCII form (xn--)."
            )
    if options.https_port is not None and not options.offers_tls:
        raise ConfigurationError("--https-port needs --tls-self-signed, or --tls-cert and --tls-key.")


def _check_config_mode(options: Settings) -> None:
    if options.config_mode not in CONFIG_MODES:
        raise ConfigurationError(f"--config-mode is {options.config_mode!r}; it must be add or apply.")
    if options.config_prune and options.config_mode != APPLY:
        raise ConfigurationError("--config-prune deletes, and --config-mode add never does. Give --config-mode apply.")
    if options.config_mode == APPLY and options.join is not None:
        raise ConfigurationError(
            "--join excludes --config-mode apply: servers that share a catalog may have different files. Use duobus"
            " topology import."
        )


def _check_join(options: Settings) -> None:
    if options.join is None:
        if options.advertise is not None or options.cluster_ca is not None:
            raise ConfigurationError("--advertise and --cluster-ca are for servers that share a catalog. Give --join.")
        if options.labels or options.weight != 1:
            raise ConfigurationError("--label and --weight are for servers that share a catalog. Give --join.")
        return
    if options.ephemeral or options.backup_to is not None:
        raise ConfigurationError(
            "--join excludes --ephemeral and --backup-to: the stores are PostgreSQL's to keep and to back up."
        )
    for label in options.labels:
        if not _LABEL.fullmatch(label):
            raise ConfigurationError(
                f"--label is {label[:80]!r}; write it like zone=a, with letters, digits and . _ - on both sides."
            )
    if options.cluster_ca is not None and not options.offers_tls:
        raise ConfigurationError("--cluster-ca demands that this server has a certificate, too. Give --tls-cert.")
    if options.advertise is None and options.host in ("0.0.0.0", "::", "[::]"):
        raise ConfigurationError(f"--host {options.host} is no address that others can use. Give --advertise.")
