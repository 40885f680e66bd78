"""``sweep``: deferred messages that no checkpoint names."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from duobus.spark.jobs.job import connection_of, needed, settings_of
from duobus.spark.jobs.progress import Tell, untold
from duobus.spark.options import CHOICE, NAMES, TEXT, Option

NAME: Final = "sweep"
HELP: Final = "Find deferred messages of an entity that no checkpoint names, and free them."
EXAMPLE: Final = (
    "duobus spark sweep --connection-string-env DUOBUS_CONNECTION_STRING --entity orders "
    "--checkpoints /data/checkpoints/orders"
)
CONNECTS: Final = True
NEEDS_SPARK: Final = False
OPTIONS: Final = (
    Option("entity", TEXT, None, "queue, or topic/subscriptions/name"),
    Option("checkpoints", NAMES, None, "folders of the progress of all queries on it, with commas; they are stopped"),
    Option(
        "action",
        CHOICE,
        "report",
        "only report the messages, make them active again, or move them to the dead-letter queue",
        choices=("report", "reactivate", "dead-letter"),
    ),
)


def run(_: Any, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Sweep; see ``duobus.spark.sweep``."""
    settings = settings_of(cfg, OPTIONS)
    tell("sweeping")
    # By name: what it needs of the SDK is loaded when it is called.
    sweep = import_module("duobus.spark.recovery").sweep
    entity, checkpoints = needed(settings, "entity"), needed(settings, "checkpoints")
    found = sweep(entity, checkpoints, connection_of(settings), action=settings["action"])
    return {"job": NAME, **found}
