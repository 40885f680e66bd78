"""TLS: the self-signed authority and the server's context, by real handshakes over memory buffers."""

from __future__ import annotations

import ssl
import stat
from asyncio import sslproto
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.gateway.tls import TLS_BUFFER_BYTES, SelfSigned, TlsFiles, limit_tls_buffers, server_context

_DAY_MS = 86_400_000


class _LaterClock(Clock):
    def __init__(self, days: float = 0) -> None:
        self.days = days

    def now_ms(self) -> int:
        return super().now_ms() + int(self.days * _DAY_MS)


def _ensure(folder: Path, *names: str, days: float = 0) -> TlsFiles:
    return SelfSigned(folder, _LaterClock(days), Entropy()).ensure(names)


def _load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def _handshake(files: TlsFiles, name: str, client: ssl.SSLContext | None = None) -> str:
    """Return the cipher of a connection to ``name`` that verifies against the authority."""
    client = client or ssl.create_default_context(cafile=str(files.authority))
    server = server_context(files.certificate, files.key)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    ]
    done: set[ssl.SSLObject] = set()
    for _ in range(10):
        for end in reversed(ends):
            try:
                end.do_handshake()
                done.add(end)
            except ssl.SSLWantReadError:
                continue
        if len(done) == 2:
            break
    assert len(done) == 2
    cipher = ends[1].cipher()
    assert cipher is not None
    return cipher[0]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return _ensure(tmp_path_factory.mktemp("data") / "tls", "Host.Example", "192.0.2.1")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1", "host.example", "192.0.2.1"])
def test_clients_that_trust_the_authority_verify_every_name(files: TlsFiles, name: str) -> None:
    assert _handshake(files, name).startswith("TLS_")


def test_another_name_fails_verification_at_the_client(files: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(files, "elsewhere.example")


def test_a_client_that_does_not_know_the_authority_refuses(files: TlsFiles) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        _handshake(files, "localhost", ssl.create_default_context())


def test_strict_verification_of_certificates_passes(files: TlsFiles) -> None:
    client = ssl.create_default_context(cafile=str(files.authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    assert _handshake(files, "localhost", client)


def test_tls_1_2_works_with_forward_secrecy_only(files: TlsFiles) -> None:
    client = ssl.create_default_context(cafile=str(files.authority))
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    assert _handshake(files, "localhost", client).startswith("ECDHE-")
    client.set_ciphers("AES128-SHA:AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError):
        _handshake(files, "localhost", client)


def test_the_context_refuses_versions_before_1_2(files: TlsFiles) -> None:
    context = server_context(files.certificate, files.key)
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    ciphers = {cipher["name"] for cipher in context.get_ciphers()}
    assert all(any(word in name for word in ("GCM", "CHACHA20")) for name in ciphers)


def test_keys_are_readable_by_their_owner_only(files: TlsFiles) -> None:
    folder = files.key.parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("server-key.pem", "ca-key.pem"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert not list(folder.glob("*.new"))


def test_certificates_are_used_again_while_they_are_good(tmp_path: Path) -> None:
    first = _ensure(tmp_path, "a.example")
    content = [path.read_bytes() for path in (first.authority, first.certificate, first.key)]
    second = _ensure(tmp_path, days=300)
    assert [path.read_bytes() for path in (second.authority, second.certificate, second.key)] == content


def test_a_certificate_near_its_end_is_renewed_under_the_same_authority(tmp_path: Path) -> None:
    first = _ensure(tmp_path)
    authority, server = first.authority.read_bytes(), first.certificate.read_bytes()
    second = _ensure(tmp_path, days=370)
    assert second.authority.read_bytes() == authority
    assert second.certificate.read_bytes() != server
    left = _load(second.certificate).not_valid_after_utc - datetime.now(UTC)
    assert left.days > 700


def test_an_authority_near_its_end_is_replaced_with_its_certificate(tmp_path: Path) -> None:
    first = _ensure(tmp_path)
    authority = first.authority.read_bytes()
    second = _ensure(tmp_path, days=3650 - 300)
    assert second.authority.read_bytes() != authority
    _load(second.certificate).verify_directly_issued_by(_load(second.authority))


def test_a_new_name_makes_a_new_certificate_with_it(tmp_path: Path) -> None:
    _ensure(tmp_path)
    files = _ensure(tmp_path, "fe80::1", "new.example")
    names = _load(files.certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "new.example"]
    assert ip_address("fe80::1") in names.get_values_for_type(x509.IPAddress)


def test_a_key_that_does_not_fit_its_certificate_is_replaced(tmp_path: Path) -> None:
    files = _ensure(tmp_path)
    files.key.write_bytes((tmp_path / "ca-key.pem").read_bytes())
    _ensure(tmp_path)
    assert _handshake(files, "localhost")


def test_a_damaged_file_is_a_clear_error_and_not_replaced(tmp_path: Path) -> None:
    files = _ensure(tmp_path / "tls")
    files.authority.write_bytes(b"damaged")
    with pytest.raises(ConfigurationError, match="tls"):
        _ensure(tmp_path / "tls")
    assert files.authority.read_bytes() == b"damaged"


def test_certificates_of_the_user_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    files = _ensure(tmp_path)
    with pytest.raises(ConfigurationError, match=r"missing\.pem"):
        server_context(tmp_path / "missing.pem", files.key)
    with pytest.raises(ConfigurationError, match="belong together"):
        server_context(files.certificate, tmp_path / "ca-key.pem")


def test_the_buffer_of_a_tls_connection_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sslproto.SSLProtocol, "max_size", 262_144)
    limit_tls_buffers()
    assert sslproto.SSLProtocol.max_size == TLS_BUFFER_BYTES == 16_384
