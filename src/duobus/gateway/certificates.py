"""Certificates that can be exchanged while the server runs."""

from __future__ import annotations

import ssl
from pathlib import Path

from duobus.clock import Clock
from duobus.errors import ConfigurationError
from duobus.gateway.tls import CertificateText, read_certificate, server_context
from duobus.telemetry.logs import Log

#: New connections look at the files this often at most.
CHECK_MS = 2_000

_Stamp = tuple[tuple[int, int, int], ...]


class Certificates:
    """The context for new connections, made again when a file has changed.

    Connections that exist keep the context they began with. A file that cannot be used is logged once, and the
    context before it stays: an operator who replaces two files one after the other passes through such a moment.
    """

    def __init__(self, certificate: Path, key: Path, clock: Clock, log: Log) -> None:
        """Read the files.

        Args:
            certificate: Chain, PEM.
            key: Its private key, PEM.
            clock: Time, for how often to look.
            log: Where reloads and their failures go.

        Raises:
            ConfigurationError: A file cannot be used.
        """
        self._certificate = certificate
        self._key = key
        self._clock = clock
        self._log = log
        # Before the files are read: a change in between is then seen as one.
        self._seen = self._stamp()
        self._context = server_context(certificate, key)
        self._looked_ms = clock.monotonic_ms()
        # Files that were read for this, and what the certificate in them says.
        self._told: tuple[_Stamp, CertificateText | None] | None = None

    def __call__(self) -> ssl.SSLContext:
        """Return the context for a new connection."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms >= CHECK_MS:
            self._looked_ms = now_ms
            if self._stamp() != self._seen:
                self.reload()
        return self._context

    def reload(self) -> None:
        """Read the files again, whether they look changed or not; never raises for what is in them."""
        self._seen = self._stamp()
        try:
            self._context = server_context(self._certificate, self._key)
        except ConfigurationError as error:
            self._log.error("certificate not reloaded, the old one stays in use", reason=str(error))
            return
        self._log.info("certificate reloaded", file=self._certificate.name)

    def describe(self) -> CertificateText | None:
        """What the certificate that is in use says of itself; None when its file cannot be read."""
        if self._told is None or self._told[0] != self._seen:
            self._told = (self._seen, read_certificate(self._certificate))
        return self._told[1]

    @property
    def end_ms(self) -> int | None:
        """When the certificate that is in use ends, in milliseconds since 1970; None when its file cannot be read."""
        found = self.describe()
        return None if found is None else found.end_ms

    def _stamp(self) -> _Stamp:
        found = []
        for path in (self._certificate, self._key):
            try:
                status = path.stat()
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return tuple(found)
