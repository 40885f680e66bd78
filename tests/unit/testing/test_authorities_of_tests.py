"""The programs that tests start trust whom the system trusts."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from kits.authorities import authorities_by_folder


def test_a_folder_named_by_hashes_takes_the_place_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "9d04f354.0").touch()
    monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path))
    assert authorities_by_folder() == {"SSL_CERT_FILE": os.devnull, "SSL_CERT_DIR": str(tmp_path)}


def test_without_such_a_folder_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ssl.DefaultVerifyPaths(None, str(tmp_path), "SSL_CERT_FILE", "", "SSL_CERT_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: paths)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    assert authorities_by_folder() == {}
