"""Certificates that are exchanged while connections live."""

from __future__ import annotations

import shutil
import ssl
from pathlib import Path

import pytest

from duobus.amqp import ACCEPTED
from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.gateway.certificates import CHECK_MS, Certificates
from duobus.gateway.tls import SelfSigned, TlsFiles
from duobus.telemetry.logs import Log
from kits.gateway import Client, TcpStream, in_loop, serving


class _Clock(Clock):
    def __init__(self) -> None:
        self.ms = 0

    def monotonic_ms(self) -> int:
        return self.ms


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> list[TlsFiles]:
    return [SelfSigned(tmp_path_factory.mktemp("tls"), Clock(), Entropy()).ensure([]) for _ in range(2)]


@pytest.fixture
def used(authorities: list[TlsFiles], tmp_path: Path) -> TlsFiles:
    found = TlsFiles(tmp_path / "ca.pem", tmp_path / "server.pem", tmp_path / "key.pem")
    _put(authorities[0], found)
    return found


def _put(new: TlsFiles, used: TlsFiles) -> None:
    for name in ("authority", "certificate", "key"):
        shutil.copy(getattr(new, name), getattr(used, name))


def _made(used: TlsFiles) -> tuple[Certificates, _Clock]:
    clock = _Clock()
    return Certificates(used.certificate, used.key, clock, Log("tls")), clock


def test_files_that_stay_the_same_keep_their_context(used: TlsFiles) -> None:
    certificates, clock = _made(used)
    first = certificates()
    clock.ms += CHECK_MS
    assert certificates() is first


def test_a_changed_file_is_noticed_after_the_interval_and_not_before(
    used: TlsFiles, authorities: list[TlsFiles]
) -> None:
    certificates, clock = _made(used)
    first = certificates()
    _put(authorities[1], used)
    clock.ms += CHECK_MS - 1
    assert certificates() is first
    clock.ms += 1
    assert certificates() is not first


def test_a_reload_on_request_does_not_wait_for_the_interval(used: TlsFiles, authorities: list[TlsFiles]) -> None:
    certificates, _ = _made(used)
    first = certificates()
    _put(authorities[1], used)
    certificates.reload()
    assert certificates() is not first


@pytest.mark.parametrize("broken", ["garbage", "other key", "gone"])
def test_a_broken_file_is_logged_once_and_the_old_context_kept(
    broken: str, used: TlsFiles, authorities: list[TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    certificates, clock = _made(used)
    first = certificates()
    if broken == "garbage":
        used.certificate.write_text("no certificate")
    elif broken == "gone":
        used.key.unlink()
    else:
        shutil.copy(authorities[1].key, used.key)
    for _ in range(3):
        clock.ms += CHECK_MS
        assert certificates() is first
    assert [record.message for record in caplog.records] == ["certificate not reloaded, the old one stays in use"]
    # The other half arrives: from now on the new one is used.
    _put(authorities[1], used)
    clock.ms += CHECK_MS
    assert certificates() is not first


def test_a_broken_file_at_the_start_is_an_error(used: TlsFiles) -> None:
    used.certificate.write_text("no certificate")
    with pytest.raises(ConfigurationError):
        _made(used)


@in_loop
async def _exchange(used: TlsFiles, authorities: list[TlsFiles]) -> None:
    old, new = (ssl.create_default_context(cafile=str(files.authority)) for files in authorities)
    async with serving(tls_cert=used.certificate, tls_key=used.key) as server:
        port = server.port("tls")
        assert port is not None
        before = Client(await TcpStream.connect(port, ssl=old, server_hostname="localhost"))
        link = await before.sender()
        _put(authorities[1], used)
        server.reload_certificates()
        after = Client(await TcpStream.connect(port, ssl=new, server_hostname="localhost"))
        assert await after.send(await after.sender(), b"after") is ACCEPTED
        with pytest.raises(ssl.SSLCertVerificationError):
            await TcpStream.connect(port, ssl=old, server_hostname="localhost")
        assert await before.send(link, b"before") is ACCEPTED


def test_new_connections_get_the_new_certificate_and_old_ones_live_on(
    used: TlsFiles, authorities: list[TlsFiles]
) -> None:
    _exchange(used, authorities)
