"""Options of servers that share a catalog: what excludes what, said before anything is opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from duobus.clock import Clock, Entropy
from duobus.errors import ConfigurationError
from duobus.server.cluster_server import ClusterServer
from duobus.server.settings import Settings, load_settings
from duobus.storage.postgres.address import catalog_place

URL = "postgresql://duobus@127.0.0.1/duobus"


def _load(**options: Any) -> Settings:
    return load_settings(Settings(**({"data": Path("bus"), "join": catalog_place(URL)} | options)))


def test_a_shared_catalog_has_a_schema_of_its_own_unless_the_address_names_one() -> None:
    assert catalog_place(URL).schema == "duobus_catalog"
    assert catalog_place(f"{URL}?schema=other").schema == "other"
    assert _load().join is not None


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"data": None, "ephemeral": True}, "--ephemeral"),
        ({"backup_to": Path("backups")}, "--backup-to"),
        ({"cluster_ca": Path("ca.pem")}, "--tls-cert"),
        ({"host": "0.0.0.0"}, "--advertise"),
        ({"join": None, "advertise": "bus1"}, "--join"),
    ],
)
def test_options_that_do_not_go_together_with_a_shared_catalog_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        _load(**options)


def test_a_server_that_listens_everywhere_says_where_the_others_reach_it() -> None:
    assert _load(host="0.0.0.0", advertise="bus1.example").advertise == "bus1.example"


@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), ("no certificate", "it holds no certificate")]
)
def test_authorities_that_cannot_be_read_are_one_sentence_before_anything_is_opened(
    tmp_path: Path, content: str | None, why: str
) -> None:
    authorities = tmp_path / "ca.pem"
    if content is not None:
        authorities.write_text(content)
    # Nobody listens there: that would be the complaint about the catalog.
    join = catalog_place("postgresql://duobus@127.0.0.1:1/duobus")
    settings = _load(data=tmp_path / "data", join=join, cluster_ca=authorities, tls_self_signed=True)

    async def start() -> None:
        await ClusterServer(settings, Clock(), Entropy()).start()

    with pytest.raises(ConfigurationError) as refused:
        asyncio.run(start())
    assert str(refused.value).startswith(f"--cluster-ca {authorities} cannot be used: {why}; give a readable PEM file")
    assert str(refused.value).count(". ") == 0
