# SPDX-License-Identifier: Apache-2.0
"""pandas and Arrow aggregates over frames of rows and of values."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.functions import pandas_udf

import volley
from volley.plan.python_nodes import RowFrame
from volley.testing.rows import assert_same_rows
from volley.worker.python.groups import add_bounds

# Spark 4.0 runs such windows itself.
pytestmark = [pytest.mark.embedded, pytest.mark.since("4.1")]

FRAMES = (
    "rows between 2 preceding and current row",
    "rows between unbounded preceding and 1 preceding",
    "rows between 1 following and unbounded following",
    "rows between 7 preceding and 5 preceding",
    "rows between 5 following and 7 following",
    "range between unbounded preceding and current row",
    "range between current row and unbounded following",
    "range between 3 preceding and 2 following",
    "range between 2 following and 4 following",
)
ROWS = """
    select id, case when id % 5 > 0 then cast(id * id % 11 as int) end as o, id % 3 as k, cast(id as double) / 3 as v,
        timestamp_seconds(id * 86400 * 31) as t, cast(id as string) as s
    from range(0, 40, 1, 2)
"""


def register(spark: SparkSession) -> None:
    def shown(values: pd.Series) -> str:
        return repr(list(values)) if len(values) else "none"

    def joined(values: pa.Array, names: pa.Array) -> str:
        return repr((values.to_pylist(), names.to_pylist()))

    from pyspark.sql.pandas.functions import arrow_udf  # which Spark 4.0 does not have

    as_pandas: Any = pandas_udf(shown, "string")  # type: ignore[call-overload]
    as_arrow: Any = arrow_udf(joined, "string")  # type: ignore[call-overload]
    spark.udf.register("shown", as_pandas)
    spark.udf.register("joined", as_arrow)
    spark.sql(ROWS).createOrReplaceTempView("windowed")


def in_frames(call: str, order: str, frames: tuple[str, ...] = FRAMES) -> str:
    over = ", ".join(
        f"{call} over (partition by k order by {order} {frame}) as f{n}" for n, frame in enumerate(frames)
    )
    return (
        f"select id, o, {over}, {call} over (partition by k order by {order}) as default_frame from windowed"
    )


def test_frames_give_the_rows_of_spark(spark: SparkSession) -> None:
    register(spark)
    of_rows = tuple(frame for frame in FRAMES if frame.startswith("rows"))
    of_values = tuple(frame for frame in FRAMES if frame.startswith("range"))
    # A function sees the rows of equal values in any order.
    assert_same_rows(spark, in_frames("shown(o)", "o", of_values))
    assert_same_rows(spark, in_frames("shown(o)", "o desc nulls first", of_values))
    assert_same_rows(spark, in_frames("shown(t)", "id", FRAMES))
    assert_same_rows(spark, in_frames("joined(v, s)", "v desc", of_rows))
    whole = (
        "shown(o) over (partition by k order by id rows between unbounded preceding and unbounded following)"
    )
    assert_same_rows(spark, f"select id, {whole}, shown(v) over (order by id rows 1 preceding) from windowed")


@pytest.mark.slow
def test_frames_on_several_workers(distributed: SparkSession) -> None:
    distributed.conf.set("spark.volley.local.workers", "3")
    register(distributed)
    assert_same_rows(distributed, in_frames("joined(v, s)", "id", FRAMES))


def test_frames_of_values_far_from_the_row(spark: SparkSession) -> None:
    register(spark)
    numbers = "shown(o) over (partition by k order by o + 0.5D range between 1.5D preceding and current row)"
    order = "partition by k order by timestamp_seconds(o * 40000)"
    days = f"shown(o) over ({order} range between {{}} preceding and current row)"
    for call in (numbers, days.format("interval 2 days"), days.format("interval 30 hours")):
        assert_same_rows(spark, f"select id, {call} from windowed")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    frame = spark.sql(f"select {days.format('interval 2 days')} from windowed")
    assert "America/New_York" in str(volley.explain(frame).reasons)


def test_bounds_of_rows_stay_in_their_group() -> None:
    group = [pa.record_batch({"x": [1, 2]}), pa.record_batch({"x": [3]})]
    found = add_bounds(group, [RowFrame(-1, 1), RowFrame(2, None), RowFrame(None, -2)])
    bounds = pa.Table.from_batches(found).select(range(1, 7))
    assert [column.to_pylist() for column in bounds.columns] == [
        [0, 0, 1], [2, 3, 3], [2, 3, 3], [3, 3, 3], [0, 0, 0], [0, 0, 1],
    ]  # fmt: skip
