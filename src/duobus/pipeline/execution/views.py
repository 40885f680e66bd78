"""The rows that a stage takes: its sources and tables under their names, and the views over them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from duobus.pipeline.document.model import Pipeline, Stage, View
from duobus.pipeline.execution.errors import StageError, place_of_view, sentence_of
from duobus.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows_of(
    spark: SparkSession,
    pipeline: Pipeline,
    stage: Stage,
    table: Callable[[str], DataFrame | None],
    checkpoint: str,
) -> DataFrame | None:
    """The rows that a stage takes; None where a table that it reads has nothing yet.

    Args:
        spark: A session of the stage alone, which gets a temporary view for each name.
        pipeline: The document.
        stage: The stage.
        table: Gives the rows of a table by its name; None where there are none yet.
        checkpoint: Of the stage, if it is a stream.

    Raises:
        StageError: A view or function is wrong.
        OptionError: An option of a source is wrong.
    """
    frames: dict[str, DataFrame] = {}
    for name in stage.sources:
        reader = spark.readStream.format("duobus").options(**pipeline.sources[name].options)
        frames[name] = reader.option("checkpointLocation", checkpoint).load()
    for name in stage.tables:
        frame = table(name)
        if frame is None:
            return None
        frames[name] = frame
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    for name in stage.views:
        frames[name] = _view(spark, pipeline.views[name], frames)
        frames[name].createOrReplaceTempView(name)
    assert stage.reads is not None
    return frames[stage.reads]


def _view(spark: SparkSession, view: View, frames: dict[str, DataFrame]) -> DataFrame:
    from pyspark.errors import PySparkException

    try:
        if view.function is None:
            return spark.sql(view.sql or "")
        found = function_of(view.function)(*(frames[name] for name in view.inputs))
    except (StageError, OptionError):
        raise
    except PySparkException as error:
        raise StageError(sentence_of(error, view)) from error
    except Exception as error:
        raise StageError(f"In the {place_of_view(view)}: {type(error).__name__}: {error}") from error
    if not hasattr(found, "createOrReplaceTempView"):
        raise StageError(
            f"In the {place_of_view(view)}: the function returned {type(found).__name__}, and a DataFrame is needed."
        )
    frame: DataFrame = found
    return frame


def function_of(name: str) -> Callable[..., Any]:
    """A function of the document's modules.

    Raises:
        StageError: It cannot be had.
    """
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except Exception as error:
        raise StageError(f"The function {name!r} cannot be had: {type(error).__name__}: {error}") from error
    return found


def add_folder(folder: str) -> None:
    """Let modules of a folder be imported in this process."""
    if folder not in sys.path:
        sys.path.insert(0, folder)
