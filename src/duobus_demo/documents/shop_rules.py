"""Rules of the shop that are easier to write in Python than in SQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def above_average(totals: DataFrame) -> DataFrame:
    """An alert for each customer who has bought for more than the average.

    An alert has the same id whenever it is sent, so that a receiver knows one that comes again.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

    average = totals.agg(F.avg("amount").alias("average"))
    large = totals.crossJoin(average).where("amount > average")
    return large.selectExpr(
        "concat('alert/', customer) as message_id",
        "customer as subject",
        "to_json(struct(customer, orders, amount)) as body",
    )
