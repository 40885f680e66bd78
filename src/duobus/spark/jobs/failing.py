"""What Spark raises for work that failed, and what to tell of it."""

from __future__ import annotations

import re
from typing import Final

#: An exception of Python, as the last line of a traceback has it.
_RAISED: Final = re.compile(r"(?!org\.|java|scala|py4j\.)(?:\w+\.)*(?:(?<=\.)[A-Z]\w*|\w+(?:Error|Exception)): (.+)")
#: One of Java, below the line of Python that only tells which call failed, or as a cause.
_THROWN: Final = re.compile(r"(?:: |Caused by: )(?!py4j\.|\S+PythonException)(?:[\w$]+\.)+[\w$]+: (.+)")
#: Characters of a cause that are told: Spark may put a whole plan into its first line.
_TOLD: Final = 500


def spark_errors() -> tuple[type[Exception], ...]:
    """What Spark raises for work that failed: not all of it is an error of PySpark's own."""
    from pyspark.errors import PySparkException

    try:
        from py4j.protocol import Py4JError
    except ImportError:
        # The thin client of Spark Connect has no JVM to speak to.
        return (PySparkException,)
    # Also what PySpark raises when the JVM does not start, or dies.
    return (PySparkException, Py4JError)


def cause_of(error: BaseException) -> str:
    """What an error of Spark says, without its plans and the stack of the JVM around it."""
    java = getattr(error, "java_exception", None)
    text = str(getattr(error, "desc", None) or (error if java is None else java.getMessage()))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # What Python raised stands last in the traceback that Spark hands on.
    for line in reversed(lines):
        if (raised := _RAISED.fullmatch(line)) is not None:
            return raised[1]
        if (thrown := _THROWN.fullmatch(line)) is not None:
            return thrown[1][:_TOLD]
    return lines[0][:_TOLD] if lines else type(error).__name__
