"""A job that follows a query tells how far the query is."""

from __future__ import annotations

from typing import Any

from duobus.spark.jobs.job import followed
from duobus.spark.source.status import Status


class Query:
    """A query that has ended one batch more at each look.

    Args:
        batches: Rows of each batch, and how much was behind when the batch was planned.
    """

    def __init__(self, batches: list[tuple[int, int | None]]) -> None:
        self._batches = batches
        self._looks = -1
        self.is_stopped = False

    def awaitTermination(self, _: float) -> bool:
        self._looks += 1
        return self._looks == len(self._batches)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        return [
            {
                "batchId": number,
                "numInputRows": rows,
                "sources": [{"latestOffset": Status("duobus[queue=q, mode=claim]", behind=behind).to_json()}],
            }
            for number, (rows, behind) in enumerate(self._batches[: self._looks])
        ]

    def stop(self) -> None:
        self.is_stopped = True


def told_of(batches: list[tuple[int, int | None]]) -> list[tuple[str, int | None, int | None]]:
    told: list[Any] = []
    query: Any = Query(batches)
    assert followed(query, told.append)["messages"] == sum(rows for rows, _ in batches)
    assert query.is_stopped
    return [(str(step), step.done, step.total) for step in told]


def test_messages_that_wait_are_the_rest_of_the_total() -> None:
    assert told_of([(50, 30), (30, 0)]) == [
        ("first batch:", 0, None),
        ("batch 1:", 50, 80),
        ("batch 2:", 80, 80),
    ]


def test_without_the_right_to_count_there_is_no_total() -> None:
    assert told_of([(50, None)]) == [("first batch:", 0, None), ("batch 1:", 50, None)]
