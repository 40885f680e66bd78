"""``release``: frees the claim of a query that will not be started again."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

from duobus.spark.jobs.job import connection_of, needed, settings_of
from duobus.spark.jobs.progress import Tell, untold
from duobus.spark.options import CHOICE, NUMBER, TEXT, Option

NAME: Final = "release"
HELP: Final = "Free the messages that a stopped query has claimed and will not finish."
EXAMPLE: Final = (
    "duobus spark release --connection-string-env DUOBUS_CONNECTION_STRING --checkpoint /data/checkpoints/orders "
    "--action report"
)
CONNECTS: Final = True
NEEDS_SPARK: Final = False
OPTIONS: Final = (
    Option("checkpoint", TEXT, None, "folder of the query's progress, as this machine sees it; the query is stopped"),
    Option("batch", NUMBER, None, "this batch; by default the newest", most=2**31 - 1),
    Option(
        "action",
        CHOICE,
        "reactivate",
        "make the messages active again, move them to the dead-letter queue, or only report them",
        choices=("reactivate", "dead-letter", "report"),
    ),
)


def run(_: Any, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
    """Release; see ``duobus.spark.release``."""
    settings = settings_of(cfg, OPTIONS)
    tell("releasing")
    # By name: what it needs of the SDK is loaded when it is called.
    release = import_module("duobus.spark.recovery").release
    checkpoint = needed(settings, "checkpoint")
    found = release(checkpoint, connection_of(settings), action=settings["action"], batch=settings["batch"])
    return {"job": NAME, **found}
