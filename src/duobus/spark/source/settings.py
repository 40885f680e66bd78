"""The common beginning of both modes of the source: options are checked as a whole and made into settings for tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from duobus.spark.connection import namespace_of, place_of
from duobus.spark.entities import entities_of
from duobus.spark.errors import OptionError
from duobus.spark.options import CONNECTION_OPTIONS, SOURCE_OPTIONS, Parsed, demand_mode, parse
from duobus.spark.source.partition_reader import Reading

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def source_options(given: Mapping[str, str], mode: str) -> Parsed:
    """Check the options of a reader.

    Args:
        given: The options that Spark gives.
        mode: The mode, unless the options name another one.

    Raises:
        OptionError: An option is wrong, or belongs to the other mode.
    """
    options = _checked(given)
    options["readMode"] = options["readMode"] or mode
    demand_mode(options, SOURCE_OPTIONS, options["readMode"])
    return options


def check_early(given: Mapping[str, str]) -> None:
    """Check options as far as it can be done before it is known whether a batch or a stream is read.

    Spark asks for the columns when ``load`` is called, with the options, but without saying whether a batch or a stream
    is read. An option that is refused here is refused before a query starts, with a text that no engine has wrapped.

    Args:
        given: By Spark.

    Raises:
        OptionError: One is wrong, whatever is read.
    """
    if given.get("provider") == "duobus":
        # Options of a table are among its properties when it is made, and nowhere when it is read.
        raise OptionError(
            "A table cannot be read from duobus, since Spark hands the options of CREATE TABLE to no source written in "
            "Python; make a view: CREATE TEMPORARY VIEW name USING duobus OPTIONS (...)."
        )
    options = _checked(given)
    if options["readMode"] is not None:
        demand_mode(options, SOURCE_OPTIONS, options["readMode"])


def _checked(given: Mapping[str, str]) -> Parsed:
    options = parse(given, (*CONNECTION_OPTIONS, *SOURCE_OPTIONS))
    place_of(options)
    entities_of(options)
    if (options["minMessagesPerTrigger"] is None) != (options["maxTriggerDelay"] is None):
        raise OptionError("The options 'minMessagesPerTrigger' and 'maxTriggerDelay' go together.")
    if (options["maxAttempts"] is None) != (options["attemptsPath"] is None):
        raise OptionError("The options 'maxAttempts' and 'attemptsPath' go together.")
    return options


def reading_of(options: Parsed, schema: StructType) -> Reading:
    """The settings that tasks need."""
    place = place_of(options)
    return Reading(
        place,
        namespace_of(place),
        schema,
        options["includeBody"],
        options["failOnDataLoss"],
        options["claimTimeout"] / 1000,
    )
