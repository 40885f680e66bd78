"""TLS: a self-signed authority on request, and the server's context.

The authority is for machines without certificates of their own: made once, kept in ``DATA/tls``, and renewed
without changing the authority that clients trust as long as that lasts.
"""

from __future__ import annotations

import os
import ssl
from asyncio import sslproto
from collections.abc import Iterable
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.file_sync import sync_file

#: Read buffer of one TLS connection that the server opens, to another server for a proxied client. asyncio's own is 256
#: KiB, allocated up front; those that clients open have none of their own (``tls_transport``).
TLS_BUFFER_BYTES = 16_384

#: Names that every server certificate has, beside the host's own.
LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")

_DAY_MS = 86_400_000
_AUTHORITY_DAYS = 3650
#: Clients refuse server certificates of more than 398 days.
_SERVER_DAYS = 397
#: A certificate is renewed at a start when it has fewer days left, so that the server can run for a month.
_RENEW_DAYS = 30
#: Certificates begin a day early: the clock of a client may be behind.
_EARLY_DAYS = 1

#: Forward-secret key exchange and authenticated encryption only, for TLS 1.2; TLS 1.3 has nothing else.
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


class TlsFiles:
    """Paths of the authority's certificate (for clients), the server's chain, and the server's key (mode 0600)."""

    __slots__ = ("authority", "certificate", "key")

    def __init__(self, authority: Path, certificate: Path, key: Path) -> None:
        self.authority = authority
        self.certificate = certificate
        self.key = key


class SelfSigned:
    """The self-signed authority of one data folder. Its calls block: use them before serving."""

    def __init__(self, folder: Path, clock: Clock, entropy: Entropy) -> None:
        self._folder = folder
        self._clock = clock
        self._entropy = entropy

    def ensure(self, names: Iterable[str]) -> TlsFiles:
        """Return the files of a server certificate for LOCAL_NAMES and ``names``, made or renewed where needed.

        What exists is used again when it is whole, matches its key, has a month left and covers all names.

        Raises:
            ConfigurationError: The folder cannot be written, or holds something that is no certificate or key.
        """
        wanted = list(dict.fromkeys((*LOCAL_NAMES, *(name.lower() for name in names))))
        files = TlsFiles(self._folder / "ca.pem", self._folder / "server.pem", self._folder / "server-key.pem")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            authority_key, authority, is_new = self._authority(files.authority)
            if is_new or not self._is_usable(files, authority, wanted):
                self._issue(files, authority_key, authority, wanted)
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"The certificates in {self._folder.name} cannot be used: {error}. Remove the folder to make new ones."
            ) from error
        return files

    def _authority(self, path: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate, bool]:
        key_path = self._folder / "ca-key.pem"
        if path.exists() and key_path.exists():
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            key = _load_key(key_path)
            # The server's certificate may not outlive the authority.
            if certificate.public_key() == key.public_key() and self._days_left(certificate) > _SERVER_DAYS:
                return key, certificate, False
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "duobus self-signed authority")])
        certificate = (
            self._builder(name, name, key, _AUTHORITY_DAYS)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        _write(key_path, _key_pem(key), 0o600)
        _write(path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        return key, certificate, True

    def _issue(
        self,
        files: TlsFiles,
        authority_key: ec.EllipticCurvePrivateKey,
        authority: x509.Certificate,
        names: list[str],
    ) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "duobus")])
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        certificate = (
            self._builder(subject, authority.subject, key, _SERVER_DAYS)
            .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(authority_id, critical=False)
            .sign(authority_key, hashes.SHA256())
        )
        _write(files.key, _key_pem(key), 0o600)
        _write(files.certificate, certificate.public_bytes(serialization.Encoding.PEM), 0o644)

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        now_ms = self._clock.now_ms()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            # Positive and at most 20 bytes long, as RFC 5280 (4.1.2.2) asks.
            .serial_number(self._entropy.number(150) | 1)
            .not_valid_before(_instant(now_ms - _EARLY_DAYS * _DAY_MS))
            .not_valid_after(_instant(now_ms + days * _DAY_MS))
        )

    def _is_usable(self, files: TlsFiles, authority: x509.Certificate, names: list[str]) -> bool:
        if not (files.certificate.exists() and files.key.exists()):
            return False
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        covered = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return (
            certificate.public_key() == _load_key(files.key).public_key()
            and certificate.issuer == authority.subject
            and self._days_left(certificate) > _RENEW_DAYS
            and set(map(_general_name, names)) <= set(covered)
        )

    def _days_left(self, certificate: x509.Certificate) -> float:
        return (certificate.not_valid_after_utc.timestamp() * 1000 - self._clock.now_ms()) / _DAY_MS


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a context for servers: TLS 1.2 or newer, authenticated encryption, no compression or renegotiation.

    Raises:
        ConfigurationError: A file cannot be read, or key and certificate do not belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            f"The certificate {certificate.name} and key {key.name} cannot be used: {error}. "
            "Both must be readable PEM files that belong together."
        ) from error
    return context


class CertificateText(NamedTuple):
    """What a certificate says of itself.

    Attributes:
        subject: Whom it is for, as RFC 4514 writes names.
        issuer: Who has signed it, in the same form.
        names: Hosts and addresses that it is good for.
        begin_ms, end_ms: From when and until when it is good, in milliseconds since 1970.
    """

    subject: str
    issuer: str
    names: list[str]
    begin_ms: int
    end_ms: int


def read_certificate(path: Path) -> CertificateText | None:
    """Return what the first certificate of a PEM file says of itself; None when there is none."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            names = []
        else:
            names = [str(name.value) for name in others if isinstance(name, x509.DNSName | x509.IPAddress)]
        return CertificateText(
            certificate.subject.rfc4514_string(),
            certificate.issuer.rfc4514_string(),
            names,
            int(certificate.not_valid_before_utc.timestamp() * 1000),
            int(certificate.not_valid_after_utc.timestamp() * 1000),
        )
    except (OSError, ValueError):
        return None


def certificate_end_ms(path: Path) -> int | None:
    """Return when the first certificate of a PEM file ends, in milliseconds since 1970; None when there is none."""
    found = read_certificate(path)
    return None if found is None else found.end_ms


def client_context(authorities: Path, option: str) -> ssl.SSLContext:
    """Return a context for clients of those whose certificates ``authorities`` vouches for; ``option`` named the file.

    Raises:
        ConfigurationError: The file cannot be read, or holds no certificate.
    """
    try:
        return ssl.create_default_context(cafile=authorities)
    except OSError as error:
        # An SSLError is one: the file is there, and no PEM.
        reason = error.strerror if error.strerror and not isinstance(error, ssl.SSLError) else "it holds no certificate"
        raise ConfigurationError(
            f"{option} {authorities} cannot be used: {reason}; give a readable PEM file with the certificates of the "
            "authorities that the other servers' certificates come from."
        ) from error


def limit_tls_buffers() -> None:
    """Make asyncio's TLS connections allocate TLS_BUFFER_BYTES; to be called once, before the first connection.

    The class attribute is how ``asyncio`` says its buffer size; there is no argument for it.
    """
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms // 1000, tz=UTC)


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path.name} is no elliptic-curve key")
    return key


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Replace a file as a whole; it has its mode from the first moment."""
    temporary = path.with_name(path.name + ".new")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
        file.flush()
        sync_file(file.fileno())
    temporary.replace(path)


def untrusted(address: str, error: ssl.SSLCertVerificationError) -> str:
    """What is wrong with another server's certificate, and whose matter it is."""
    return (
        f"the server at {address} shows a certificate that --cluster-ca does not vouch for "
        f"({error.verify_message}); give all servers certificates of one authority, for what --advertise names"
    )
