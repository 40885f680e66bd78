"""The programs that tests start trust whom the system trusts."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from kits.authorities import authorities_by_folder


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file with all authorities of a system, beside those by themselves."""
    folder = tmp_path / "certs"
    folder.mkdir()
    (folder / "9d04f354.0").touch()
    found = folder / "all.crt"
    found.touch()
    (tmp_path / "cert.pem").symlink_to(found)
    paths = ssl.DefaultVerifyPaths(None, None, "SSL_CERT_FILE", str(tmp_path / "cert.pem"), "SSL_CERT_DIR", "none")
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    return found


def test_a_folder_named_by_hashes_takes_the_place_of_the_file_in_it(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": str(bundle.parent)}
    assert authorities_by_folder() == wanted
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    monkeypatch.setenv("SSL_CERT_DIR", str(bundle.parent))
    assert authorities_by_folder() == wanted


@pytest.mark.parametrize("name", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
def test_whoever_trusts_others_goes_on_to_trust_them(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, str(tmp_path / "others" / "others.crt"))
    assert authorities_by_folder() == {}


def test_a_system_without_such_a_folder_stays_as_it_is(bundle: Path) -> None:
    (bundle.parent / "9d04f354.0").unlink()
    assert authorities_by_folder() == {}
