"""How far a job is: steps that the job tells, and the same steps as descriptions of jobs in Spark's UI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, Protocol, Self


class Step(str):
    """A line of text that says what a job is at, with figures where there are any.

    Attributes:
        done: What is done of this step.
        total: What there is to do, as far as it is known.
        unit: What is counted.
    """

    done: int | None
    total: int | None
    unit: str

    def __new__(cls, text: str, done: int | None = None, total: int | None = None, unit: str = "messages") -> Self:
        """Make a step; a plain text is one without figures."""
        made = super().__new__(cls, text)
        made.done, made.total, made.unit = done, total, unit
        return made


Tell = Callable[[str], None]


def untold(_: str) -> None:
    """Nobody is told."""


class Run(Protocol):
    """What every job offers."""

    def __call__(self, spark: Any, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
        """Run the job, and return its summary."""


def described(job: str) -> Callable[[Run], Run]:
    """Let the steps of a job stand in Spark's UI as the description of the work that Spark does meanwhile.

    Args:
        job: Name of the job, which is the name of the group as well.
    """

    def decorate(run: Run) -> Run:
        @wraps(run)
        def shown(spark: Any, cfg: Mapping[str, Any], tell: Tell = untold) -> dict[str, Any]:
            # Through Spark Connect there is no context, and no description.
            context: Any = None
            with suppress(Exception):
                context = spark.sparkContext

            def described_too(text: str) -> None:
                if context is not None:
                    context.setJobDescription(f"duobus {job}: {text}")
                tell(text)

            if context is None:
                return run(spark, cfg, tell)
            before = [context.getLocalProperty(name) for name in _PROPERTIES]
            context.setJobGroup(f"duobus {job}", f"duobus {job}")
            try:
                return run(spark, cfg, described_too)
            finally:
                # What the caller does afterwards is another work.
                for name, value in zip(_PROPERTIES, before, strict=True):
                    context.setLocalProperty(name, value)

        return shown

    return decorate


#: What ``setJobGroup`` sets.
_PROPERTIES = ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel")
