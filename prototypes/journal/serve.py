"""``duobus`` with journal stores, where it is taken from this working tree; an earlier commit beside it stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import duobus
from duobus.storage.sqlite import store

if Path(duobus.__file__).resolve().is_relative_to(Path(__file__).resolve().parents[2] / "src"):
    from prototypes.journal.store import JournalStore

    store.SqliteStore = JournalStore  # type: ignore[misc]

from duobus.cli.main import main  # noqa: E402

main()
