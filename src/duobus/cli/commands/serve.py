"""``duobus serve``: run a server until it is told to stop."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Final

import click
from click.core import ParameterSource

from duobus.cli.failures import NotFound
from duobus.cli.settings_file import GivenOptions, take_settings
from duobus.clock import Clock
from duobus.errors import ConfigurationError
from duobus.model.options import HttpOptions
from duobus.model.quotas import STORE_TIMEOUT_S, Quotas, parse_quotas
from duobus.model.tiers import TIERS, tier_named
from duobus.server.machine_memory import allowed_bytes, suggested_bytes
from duobus.server.settings import (
    ADD,
    CONFIG_MODES,
    DEFAULT_HOST,
    DEFAULT_INCOMING_BYTES_MAX,
    JOIN_WAIT_S,
    LOG_FORMATS,
    Settings,
    load_settings,
)
from duobus.storage.postgres.address import catalog_place, parse

_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)
_PORT = click.IntRange(0, 65_535)
_MIB = 1 << 20
#: Port of the console, where nobody gives another.
CONSOLE_PORT: Final = 8080
TIER_NAMES = tuple(TIERS)

_EXAMPLE = """
\b
Example:
  duobus serve --data ./bus --config Config.json --emulator --tls-self-signed

\b
Port 0 lets the system pick a port; the start message and --ready-file tell which.
SIGTERM or Ctrl-C drains and stops; a second one ends --drain-delay, or stops at once.
"""


def _memory(memory: int | None, incoming: int | None) -> tuple[int, int]:
    """Return the bytes for all messages and those for incoming ones, from what was given in MiB."""
    # Whoever asks for much room for incoming messages, and for nothing else, has the memory for it.
    total = memory * _MIB if memory else max(suggested_bytes(allowed_bytes()), 2 * _MIB * (incoming or 0))
    return total, min(DEFAULT_INCOMING_BYTES_MAX, total // 2) if incoming is None else incoming * _MIB


@click.command(name="serve", epilog=_EXAMPLE)
@click.option(
    "--settings",
    type=_FILE,
    envvar="DUOBUS_SETTINGS",
    is_eager=True,
    expose_value=False,
    callback=take_settings,
    help="Take options from this file, TOML; the command line wins. Or name it in DUOBUS_SETTINGS.",
)
@click.option(
    "--check-config", is_flag=True, help="Read all settings and files, tell what is wrong or would be done, and end."
)
@click.option("--data", type=_FOLDER, help="Folder to keep everything in; made if missing.")
@click.option("--config", type=_FILE, help="Namespaces and entities, in the emulator's Config.json format.")
@click.option(
    "--config-mode",
    type=click.Choice(CONFIG_MODES),
    default=ADD,
    show_default=True,
    help="What to do with entities of the file: add those that are missing, or apply it: change and delete, too.",
)
@click.option(
    "--config-prune",
    is_flag=True,
    help="With apply, delete what the file no longer has, even with messages in it.",
)
@click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", type=_PORT, default=5672, show_default=True, help="AMQP.")
@click.option(
    "--tls-port", type=_PORT, default=5671, show_default=True, help="AMQP over TLS, if there are certificates."
)
@click.option(
    "--http-port", type=_PORT, default=5300, show_default=True, help="HTTP, and HTTPS if there are certificates."
)
@click.option("--https-port", type=_PORT, help="HTTPS, if there are certificates; not offered unless given.")
@click.option("--stores", type=int, default=4, show_default=True, help="Messaging stores; more can be added later.")
@click.option(
    "--store",
    "places",
    multiple=True,
    metavar="URL",
    help="Messaging store in PostgreSQL, postgresql://user@host/database; without --stores there are no others."
    " Repeatable.",
)
@click.option("--tls-self-signed", is_flag=True, help="Make a certificate authority in the data folder and use it.")
@click.option(
    "--tls-name",
    "tls_names",
    multiple=True,
    metavar="NAME",
    help="Host name or address that the certificate of --tls-self-signed is for, too, as that of a service in Compose."
    " Repeatable.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Its private key, PEM.")
@click.option("--emulator", is_flag=True, help="Take the emulator's well-known key. For this machine only.")
@click.option("--ephemeral", is_flag=True, help="Keep everything in memory.")
@click.option(
    "--journal/--no-journal",
    default=True,
    show_default=True,
    envvar="DUOBUS_JOURNAL",
    help="Write commits to a journal beside each store's file first.",
)
@click.option(
    "--memory",
    type=click.IntRange(2),
    show_default="a quarter of the machine's or container's, 128 to 512",
    help="MiB that messages may take in memory; others are read from their store when a receiver is near them.",
)
@click.option(
    "--incoming-memory",
    type=click.IntRange(1),
    show_default="256, and at most half of --memory",
    help="MiB of these for incoming messages, over all connections, before they are stored.",
)
@click.option(
    "--websocket-origin",
    "websocket_origins",
    multiple=True,
    help="Host whose web pages may connect over WebSocket, beside this server's own names; * for all. Repeatable.",
)
@click.option(
    "--quota",
    "quotas",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Allow more or fewer of something, as in connections=20000; an unknown name shows all. Repeatable.",
)
@click.option(
    "--tier",
    type=click.Choice(TIER_NAMES),
    default=TIER_NAMES[0],
    show_default=True,
    help="Manage entities by the defaults and limits of this tier of Azure; all stands for no tier.",
)
@click.option(
    "--partition-by-default",
    is_flag=True,
    help="Partition a new entity when its creator does not say; the SDKs do not. Otherwise it has one fragment.",
)
@click.option(
    "--strict-api-version", is_flag=True, help="Demand api-version 2013-10 or later for partitioned entities over HTTP."
)
@click.option(
    "--bearer-tokens", type=_FILE, help="Issuers of bearer tokens to trust, and clients of an own token endpoint; JSON."
)
@click.option(
    "--metrics-token-file", type=_FILE, help="Answer /metrics only to clients that send the token in this file."
)
@click.option(
    "--store-patience",
    "store_timeout_s",
    type=click.FloatRange(0.1, 3600),
    default=STORE_TIMEOUT_S,
    show_default=True,
    help="Seconds that a messaging store may take to answer before it is taken out.",
)
@click.option(
    "--drain-delay",
    type=click.FloatRange(0, 3600),
    default=0.0,
    show_default=True,
    help="Seconds to go on serving after SIGTERM while /health/ready says 503, so that a balancer takes it out.",
)
@click.option("--allow-drills", is_flag=True, help="Let duobus store fail and stall the messaging stores.")
@click.option(
    "--no-operations",
    is_flag=True,
    help="Answer nothing over HTTP that Azure does not have: neither /$duobus nor /{entity}/$desk.",
)
@click.option("--backup-to", type=_FOLDER, help="Folder in which duobus backup makes backups while the server runs.")
@click.option(
    "--join",
    metavar="URL",
    help="Share the catalog in this PostgreSQL database with other servers, and the stores in it; postgresql://...",
)
@click.option("--advertise", help="Host name or address by which other servers reach this one; --host unless given.")
@click.option(
    "--cluster-ca", type=_FILE, help="Reach the other servers by TLS; the authority of their certificates, PEM."
)
@click.option(
    "--join-wait",
    type=click.FloatRange(0),
    default=JOIN_WAIT_S,
    show_default=True,
    help="Seconds that a start waits for the database of the catalog.",
)
@click.option(
    "--spread",
    "shards_queues",
    is_flag=True,
    help="No effect any more: partitioned queues lie in all joined stores. It will be gone.",
)
@click.option(
    "--weight",
    type=click.IntRange(0, 1000),
    default=1,
    show_default=True,
    help="Share of the joined stores that this server takes, beside the weights of the others; 0: none if it can be.",
)
@click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    help="What stores can be kept near by, as in zone=a: duobus cluster move 3 zone=a. Repeatable.",
)
@click.option(
    "--otlp-endpoint",
    metavar="URL",
    help="Send spans of what is done with messages that carry a trace context to this OpenTelemetry collector, as in"
    " http://localhost:4318.",
)
@click.option(
    "--console",
    "console_port",
    type=_PORT,
    is_flag=False,
    flag_value=CONSOLE_PORT,
    metavar="[PORT]",
    help=f"Run a console for the browser beside the server, on this port of the machine; {CONSOLE_PORT} unless given.",
)
@click.option("--console-host", metavar="ADDRESS", help="Address that the console listens on; 127.0.0.1 unless given.")
@click.option("--console-url", metavar="URL", help="Address of the console for browsers, where a proxy is before it.")
@click.option("--accept-clock", is_flag=True, help="Believe the clock although it is far ahead of the last start.")
@click.option("--ready-file", type=_FILE, help="Write ports and connection strings here once clients can connect.")
@click.option(
    "--log-format", type=click.Choice(LOG_FORMATS), default="text", show_default=True, help="Form of the logs."
)
@click.option("--log-file", type=_FILE, help="Write the logs here; SIGHUP opens the file anew. Else: standard error.")
@click.pass_context
def command(
    context: click.Context,
    check_config: bool,
    data: Path | None,
    config: Path | None,
    config_mode: str,
    config_prune: bool,
    host: str,
    port: int,
    tls_port: int,
    http_port: int,
    https_port: int | None,
    stores: int,
    places: tuple[str, ...],
    tls_self_signed: bool,
    tls_names: tuple[str, ...],
    tls_cert: Path | None,
    tls_key: Path | None,
    emulator: bool,
    ephemeral: bool,
    journal: bool,
    memory: int | None,
    incoming_memory: int | None,
    websocket_origins: tuple[str, ...],
    quotas: tuple[str, ...],
    tier: str,
    partition_by_default: bool,
    strict_api_version: bool,
    bearer_tokens: Path | None,
    metrics_token_file: Path | None,
    store_timeout_s: float,
    drain_delay: float,
    allow_drills: bool,
    no_operations: bool,
    backup_to: Path | None,
    join: str | None,
    advertise: str | None,
    cluster_ca: Path | None,
    join_wait: float,
    shards_queues: bool,
    weight: int,
    labels: tuple[str, ...],
    otlp_endpoint: str | None,
    console_port: int | None,
    console_host: str | None,
    console_url: str | None,
    accept_clock: bool,
    ready_file: Path | None,
    log_format: str,
    log_file: Path | None,
) -> None:
    """Run the broker until SIGTERM or Ctrl-C."""
    # Taken for the sake of units and settings files that give it.
    del shards_queues
    if places and context.get_parameter_source("stores") == ParameterSource.DEFAULT:
        stores = 0
    given = GivenOptions(context)
    memory_bytes, incoming_bytes = _memory(memory, incoming_memory)
    settings = Settings(
        data=data,
        config=config,
        config_mode=config_mode,
        config_prune=config_prune,
        host=host,
        port=port,
        tls_port=tls_port,
        http_port=http_port,
        https_port=https_port,
        stores=stores,
        places=given.read("store", lambda: tuple(map(parse, places)), ()),
        tls_self_signed=tls_self_signed,
        tls_names=tls_names,
        tls_cert=tls_cert,
        tls_key=tls_key,
        emulator=emulator,
        ephemeral=ephemeral,
        journal=journal,
        incoming_bytes_max=incoming_bytes,
        memory_bytes_max=memory_bytes,
        websocket_origins=websocket_origins,
        quotas=given.read("quota", lambda: parse_quotas(quotas), Quotas()),
        http=HttpOptions(
            tier=tier_named(tier, partition_by_default=partition_by_default),
            strict_api_version=strict_api_version,
            operations=not no_operations,
        ),
        bearer_tokens=bearer_tokens,
        metrics_token_file=metrics_token_file,
        store_timeout_s=store_timeout_s,
        drain_delay_s=drain_delay,
        allow_drills=allow_drills,
        backup_to=backup_to,
        join=None if join is None else given.read("join", lambda: catalog_place(join), None),
        advertise=advertise,
        cluster_ca=cluster_ca,
        join_wait_s=join_wait,
        weight=weight,
        labels=labels,
        otlp_endpoint=otlp_endpoint,
        console_port=console_port,
        console_host=console_host,
        console_url=console_url,
        accept_clock=accept_clock,
        ready_file=ready_file,
        log_format=log_format,
        log_file=log_file,
    )
    if check_config:
        sys.exit(_tell_check(settings, given))
    try:
        given.demand()
        settings = load_settings(settings)
        # Here and not above: --help, --version and a wrong option answer without loading the server.
        from duobus.server.process import serve

        status = serve(settings)
    except ConfigurationError as error:
        raise click.ClickException(given.told(str(error))) from error
    sys.exit(status)


def _tell_check(settings: Settings, given: GivenOptions) -> int:
    """Print what a start would do with these settings, and what is wrong with them; return the exit status."""
    from duobus.server.config_check import check_config

    report = check_config(settings, Clock(), has_all_options=not given.faults)
    faults = [*given.faults, *map(given.told, report.faults)]
    if given.file is not None:
        click.echo(f"settings: {given.file} gives {', '.join(given.from_file) or 'nothing that counts'}")
    for line in report.lines:
        click.echo(line)
    for warning in report.warnings:
        click.echo(f"Warning: {warning}", err=True)
    for fault in faults:
        click.echo(f"Error: {fault}", err=True)
    click.echo(f"faults: {len(faults)}" if faults else "The configuration is right.")
    return 1 if faults else 0


# ``duobus trust``: what each language needs to trust the authority that ``--tls-self-signed`` makes.

_TRUST: Final = """
\b
Example:
  duobus trust --data ./bus
  duobus trust --data ./bus --language javascript
"""

#: What to do, and to what it applies, with the path of the authority's certificate for {ca}.
_INSTRUCTIONS: Final = {
    "python": (
        ("ServiceBusClient, and the administration client", "connection_verify={literal}"),
        ("instead, for the synchronous administration client", "export REQUESTS_CA_BUNDLE={ca}"),
        ("instead, for a program that takes no certificate, such as Celery", 'cat {ca} >> "$(python -m certifi)"'),
    ),
    "javascript": (("before Node.js starts", "export NODE_EXTRA_CA_CERTS={ca}"),),
    "dotnet": (
        ("Debian, Ubuntu", "sudo cp {ca} /usr/local/share/ca-certificates/duobus.crt && sudo update-ca-certificates"),
    ),
    "java": (
        (
            "trust store of the JVM",
            "keytool -importcert -cacerts -storepass changeit -noprompt -alias duobus -file {ca}",
        ),
    ),
    "go": (("Linux", "export SSL_CERT_FILE={ca}"),),
    "curl": (("per call", "curl --cacert {ca} ..."),),
    "duobus": (("this command line", "export DUOBUS_CA={ca}"),),
}


@click.command(name="trust", epilog=_TRUST)
@click.option(
    "--data",
    required=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Data folder of the server.",
)
@click.option("--language", type=click.Choice(tuple(_INSTRUCTIONS)), help="Only this one.")
def trust(data: Path, language: str | None) -> None:
    """Tell what makes each language trust the server's own authority. Changes nothing."""
    ca = (data / "tls" / "ca.pem").resolve()
    if not ca.is_file():
        raise NotFound(f"There is no {ca}. duobus serve --tls-self-signed makes it at its first start.")
    for name in [language] if language else _INSTRUCTIONS:
        for purpose, text in _INSTRUCTIONS[name]:
            click.echo(f"# {name}: {purpose}")
            click.echo(text.format(ca=shlex.quote(str(ca)), literal=repr(str(ca))))
