# SPDX-License-Identifier: Apache-2.0
"""Queries that call Python functions, or read a cached table, on Volley and on Spark.

The functions do little, so the way to them counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.functions import udtf
from pyspark.sql.pandas.functions import arrow_udf, pandas_udf
from rich.table import Table

import volley
from volley.bench.compare import difference
from volley.bench.queries import query_text
from volley.spark_versions.classic import collect_table

_NET_PRICE = "l_extendedprice * (1 - l_discount)"
_NET_CALL = "net(cast(l_extendedprice as double), cast(l_discount as double))"


@dataclass(frozen=True)
class Sizes:
    """`rows` rows in `groups` groups, for the functions that are measured alone."""

    rows: int
    groups: int


@dataclass(frozen=True)
class UdfRun:
    """The best of an engine's runs of one case. `native` is None for Spark."""

    case: str
    engine: str
    seconds: float
    rows: int
    native: bool | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Case = Callable[[SparkSession, Sizes], DataFrame]


def scalar_udf(spark: SparkSession, sizes: Sizes) -> DataFrame:
    return _total(_numbers(spark, sizes).select(F.udf(lambda number: number + 1, "long")("id").alias("v")))


def pickled_udf(spark: SparkSession, sizes: Sizes) -> DataFrame:
    function = F.udf(lambda number: number + 1, "long", useArrow=False)
    return _total(_numbers(spark, sizes).select(function("id").alias("v")))


def scalar_pandas(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def add(numbers: pd.Series) -> pd.Series:
        return numbers + 1

    return _total(_numbers(spark, sizes).select(_pandas(add)("id").alias("v")))


def iterator_pandas(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def add(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for batch in batches:
            yield batch + 1

    return _total(_numbers(spark, sizes).select(_pandas(add)("id").alias("v")))


def scalar_arrow(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def add(numbers: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.add(numbers, 1)

    function: Any = arrow_udf(add, "long")  # type: ignore[call-overload]
    return _total(_numbers(spark, sizes).select(function("id").alias("v")))


def map_in_arrow(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches

    return _total(_numbers(spark, sizes).mapInArrow(same, "v long, g long"))


def map_in_pandas(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def add(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            yield pd.DataFrame({"v": batch["id"] + 1})

    return _total(_numbers(spark, sizes).mapInPandas(add, "v long"))


def apply_in_pandas(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def smallest(group: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"v": [int(group["id"].min())]})

    return _total(_numbers(spark, sizes).groupBy("g").applyInPandas(smallest, "v long"))


def cogrouped_map(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def count(left: pd.DataFrame, right: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame({"v": [len(left) + len(right)]})

    numbers = _numbers(spark, sizes)
    both = numbers.groupBy("g").cogroup(numbers.where("id % 2 = 0").groupBy("g"))
    return _total(both.applyInPandas(count, "v long"))


def grouped_aggregate(spark: SparkSession, sizes: Sizes) -> DataFrame:
    def largest(numbers: pd.Series) -> int:
        return int(numbers.max())

    return _total(_numbers(spark, sizes).groupBy("g").agg(_pandas(largest)("id").alias("v")))


def window_frame(spark: SparkSession, sizes: Sizes) -> DataFrame:
    """A tenth of the rows: the function is called for each."""

    def largest(numbers: pd.Series) -> int:
        return int(numbers.max())

    over = Window.partitionBy("g").orderBy("id").rowsBetween(-3, 0)
    fewer = _numbers(spark, replace(sizes, rows=-(-sizes.rows // 10)))
    return _total(fewer.select(_pandas(largest)("id").over(over).alias("v")))


def table_function(spark: SparkSession, sizes: Sizes) -> DataFrame:
    """A tenth of the rows: PySpark makes a batch of what the function returns for each."""

    class Neighbours:
        def eval(self, number: int) -> Iterator[tuple[int]]:
            yield (number - 1,)
            yield (number + 1,)

    function: Any = udtf(Neighbours, returnType="v long")
    spark.udtf.register("neighbours", function)
    _numbers(spark, replace(sizes, rows=-(-sizes.rows // 10))).createOrReplaceTempView("numbers")
    return _total(spark.sql("select v from numbers, lateral neighbours(id)"))


def _tpch(name: str) -> Case:
    def query(spark: SparkSession, sizes: Sizes) -> DataFrame:
        def net(price: pd.Series, discount: pd.Series) -> pd.Series:
            return price * (1 - discount)

        function: Any = pandas_udf(net, "double")  # type: ignore[call-overload]
        spark.udf.register("net", function)
        return spark.sql(query_text(name).replace(_NET_PRICE, _NET_CALL))

    return query


def _cached(name: str) -> Case:
    """The first run fills the cache, so that the best one reads it."""

    def query(spark: SparkSession, sizes: Sizes) -> DataFrame:
        if not spark.catalog.isCached("lineitem"):
            spark.catalog.cacheTable("lineitem")
        return spark.sql(query_text(name))

    return query


CASES: dict[str, Case] = {
    "scalar Python UDF": scalar_udf,
    "pickled Python UDF": pickled_udf,
    "scalar pandas UDF": scalar_pandas,
    "iterator pandas UDF": iterator_pandas,
    "scalar Arrow UDF": scalar_arrow,
    "mapInArrow": map_in_arrow,
    "mapInPandas": map_in_pandas,
    "applyInPandas": apply_in_pandas,
    "cogrouped map": cogrouped_map,
    "grouped aggregate": grouped_aggregate,
    "window frame": window_frame,
    "table function": table_function,
    "UDF in TPC-H q01": _tpch("q01"),
    "UDF in TPC-H q05": _tpch("q05"),
    "TPC-H q01 over cached lineitem": _cached("q01"),
    "TPC-H q06 over cached lineitem": _cached("q06"),
}


def measure(
    spark: SparkSession,
    sizes: Sizes,
    cases: Sequence[str],
    engines: Sequence[str],
    runs: int,
    told: Callable[[str], None],
) -> list[UdfRun]:
    """Run every case on the engines in turn, and compare their rows. The TPC-H tables are views of the session."""
    found = []
    for case in cases:
        seconds: dict[str, list[float]] = {engine: [] for engine in engines}
        tables: dict[str, pa.Table] = {}
        native: dict[str, bool | None] = {}
        for number in range(runs):
            for engine in engines:
                told(f"{case}: {engine}, run {number + 1}")
                spark.conf.set("spark.volley.enabled", str(engine == "volley").lower())
                frame = CASES[case](spark, sizes)
                started = time.perf_counter()
                tables[engine] = collect_table(frame)
                seconds[engine].append(time.perf_counter() - started)
                native[engine] = _is_native(spark) if engine == "volley" else None
        _compare(case, tables)
        spark.catalog.clearCache()
        found += [
            UdfRun(case, engine, min(seconds[engine]), tables[engine].num_rows, native[engine])
            for engine in engines
        ]
    return found


def udf_table(sizes: Sizes, runs: Sequence[UdfRun]) -> Table:
    table = Table(title=f"{sizes.rows:,} rows, {sizes.groups:,} groups")
    table.add_column("case")
    for name in ("volley (s)", "spark (s)", "times faster", "native"):
        table.add_column(name, justify="right")
    for case in dict.fromkeys(run.case for run in runs):
        ours, theirs = (
            next((run for run in runs if (run.case, run.engine) == (case, engine)), None)
            for engine in ("volley", "spark")
        )
        table.add_row(
            case,
            f"{ours.seconds:.2f}" if ours else "",
            f"{theirs.seconds:.2f}" if theirs else "",
            f"{theirs.seconds / ours.seconds:.2f}" if ours and theirs else "",
            ("yes" if ours.native else "no") if ours else "",
        )
    return table


def _numbers(spark: SparkSession, sizes: Sizes) -> DataFrame:
    return spark.range(sizes.rows).select("id", (F.col("id") % sizes.groups).alias("g"))


def _total(frame: DataFrame) -> DataFrame:
    return frame.agg(F.sum("v").alias("total"), F.count("*").alias("n"))


def _pandas(function: Callable[..., Any]) -> Callable[..., Column]:
    made: Callable[..., Column] = pandas_udf(function, "long")  # type: ignore[call-overload]
    return made


def _is_native(spark: SparkSession) -> bool:
    report = volley.last_query(spark)
    return report is not None and report.engine == "native"


def _compare(case: str, tables: dict[str, pa.Table]) -> None:
    first, *others = tables.values()
    for other in others:
        if problem := difference(first, other, None):
            raise AssertionError(f"{case}: the engines disagree: {problem}")
