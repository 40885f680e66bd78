"""Options of servers that share a catalog: what excludes what, said before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duobus.errors import ConfigurationError
from duobus.server.config import Settings, load_settings
from duobus.stores.postgres_place import catalog_place

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
        ({"allow_drills": True}, "--allow-drills"),
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
