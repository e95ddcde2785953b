# SPDX-License-Identifier: Apache-2.0
"""Range frames over keys of every type, with Spark as the oracle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.rows import assert_same_rows

BOUNDS = {
    "n": ("2 preceding and current row", "1 preceding and 3 following"),
    "f": ("1.5D preceding and current row", "0.25D following and 1e300D following"),
    "g": ("0.1F preceding and 0.1F following", "2F preceding and 1F preceding"),
    "m": ("1.5 preceding and 0.01 following", "0.25 following and unbounded following"),
    "wide": ("1 preceding and current row", "10 preceding and 1 following"),
    "d": (
        "interval 3 days preceding and current row",
        "interval '1' month preceding and interval '1' month following",
        "interval '1-2' year to month preceding and current row",
    ),
    "t": (
        "interval 36 hours preceding and current row",
        "interval '1' day preceding and interval '2' day following",
        "interval '1' month preceding and interval '1' month following",
    ),
    "z": (
        "interval '0.000001' second preceding and current row",
        "interval 7 days preceding and interval 1 day preceding",
        "current row and interval '13' month following",
    ),
    "lasts": ("interval '1 02' day to hour preceding and current row",),
}
HOURS = (
    "count(*) over (order by t range between interval 90 minutes preceding and interval 1 minute following)"
)


@pytest.fixture
def keys(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    path = tmp_path_factory.mktemp("keys")
    numbers = "double('NaN'), double('inf'), double('-inf'), -0.0D, 0.0D, 1e300D, 1e-300D, 0.1D, 0.35D, null"
    spark.range(0, 120, 1, 2).selectExpr(
        "id",
        "id % 3 k",
        "if(id % 11 = 0, null, int(id * 37 % 41)) n",
        f"element_at(array({numbers}), int(id * 7 % 20) + 1 - if(id * 7 % 20 > 9, 10, 0)) + id % 5 f",
        f"float(element_at(array({numbers}), int(id * 3 % 10) + 1)) + float(id % 4) * float(0.1) g",
        "if(id % 7 = 0, null, cast(id * 37 % 101 as decimal(6,2)) / 4) m",
        "cast(id * 37 % 19 as decimal(30,3)) wide",
        "if(id % 13 = 0, null, date_add(date'2020-01-25', int(id * 29 % 97))) d",
        "timestamp_seconds(1583550000 + id * 37 % 211 * 4321) t",
        "timestamp_ntz'1499-12-30 00:00:00' + make_dt_interval(int(id * 17 % 90), 0, 0, id % 3 / 1e6) z",
        "make_dt_interval(int(id % 5), int(id * 7 % 23)) lasts",
    ).write.parquet(str(path), mode="overwrite")
    spark.read.parquet(str(path)).selectExpr(
        "* except (lasts)", "cast(lasts as interval day to hour) lasts"
    ).createOrReplaceTempView("keys")
    yield spark
    spark.catalog.dropTempView("keys")


@pytest.mark.parametrize("key", BOUNDS)
def test_offsets(keys: SparkSession, key: str) -> None:
    calls = [
        f"{call} over (partition by k order by {key} {direction} range between {bounds})"
        for bounds in BOUNDS[key]
        for direction in ("", "desc", "nulls last")
        for call in ("count(*)", "sum(id)", "max_by(id, id)")
    ]
    assert_same_rows(keys, f"select id, {', '.join(calls)} from keys")


def test_days_are_those_of_the_session_time_zone(keys: SparkSession) -> None:
    """Offsets below a day are the same in every zone."""
    keys.conf.set("spark.sql.session.timeZone", "America/New_York")
    assert_same_rows(keys, f"select id, {HOURS} from keys")
    for bound in ("interval 2 days", "interval 1 month"):
        query = f"select count(*) over (order by t range between {bound} preceding and current row) from keys"
        verdict = volley.explain(keys.sql(query))
        assert not verdict.native
        assert "America/New_York" in str(verdict)
    days = "select id, count(*) over (order by z range between interval 2 days preceding and current row) from keys"
    assert_same_rows(keys, days)
