"""What the operator has chosen for the console."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web

from duobus.errors import ConfigurationError

#: Port of the console unless the operator chooses another one.
DEFAULT_PORT: Final = 8080
#: A session ends after this many seconds without a request, and after that many in any case.
IDLE_S: Final = 30 * 60
ABSOLUTE_S: Final = 12 * 3600
#: Largest request that the console reads, in bytes: a file of dead letters that somebody uploads.
REQUEST_BYTES_MAX: Final = 32 << 20
#: Sessions that are kept at a time; the one that was not used for longest gives way to a new one.
SESSIONS_MAX: Final = 200


@dataclass(frozen=True)
class ConsoleSettings:
    """The options of one console.

    Attributes:
        host, port: Where the console listens; port 0 lets the system pick one.
        connection_string: Of the namespace that the sign-in page offers. A connection string without a key names the
            namespace only; people then sign in with a rule's name and key.
        management_url: Base URL of the management API, where the connection string does not lead there.
        ca: Certificate authority to trust, PEM.
        profiles: File with saved namespaces; None for no such file.
        pipelines: Folder with the states of pipelines on Spark, which the console shows; None for no such folder.
        public_url: Address under which people reach the console, where a proxy stands before the console.
        any_namespace: Whether people may sign in to a namespace that neither the operator nor a profile names; None
            for "when the console is reached from this machine only".
        idle_s, absolute_s: When sessions end.
        request_bytes_max: Largest request.
        sessions_max: Most sessions.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    connection_string: str | None = None
    management_url: str | None = None
    ca: Path | None = None
    profiles: Path | None = None
    pipelines: Path | None = None
    public_url: str | None = None
    any_namespace: bool | None = None
    idle_s: int = IDLE_S
    absolute_s: int = ABSOLUTE_S
    request_bytes_max: int = REQUEST_BYTES_MAX
    sessions_max: int = SESSIONS_MAX

    @property
    def is_local(self) -> bool:
        """Whether only programs of this machine reach the console."""
        if self.host == "localhost":
            return self.public_url is None
        try:
            return ipaddress.ip_address(self.host).is_loopback and self.public_url is None
        except ValueError:
            return False

    @property
    def takes_any_namespace(self) -> bool:
        """Whether people may sign in to every namespace.

        A console that others reach would otherwise connect to whatever address a stranger types in.
        """
        return self.is_local if self.any_namespace is None else self.any_namespace

    @property
    def public_host(self) -> str | None:
        """Host name of the public URL, in lower case."""
        return None if self.public_url is None else _public_host(self.public_url)

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the console by HTTPS only, so that cookies are for HTTPS only."""
        return self.public_url is not None and self.public_url.lower().startswith("https:")


#: Where an application holds the settings.
SETTINGS: Final = web.AppKey("settings", ConsoleSettings)


def _public_host(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"{url!r} is no address of a console; write it like https://console.example.com.")
    return parts.hostname
