# SPDX-License-Identifier: Apache-2.0
"""Many queries of a Connect client: `python connect_battery.py URL true|false ONE_IN`, with Volley enabled or not.

Prints a line of JSON for each: its name, which engine ran it, and what the client saw. It runs without Volley, as
clients do.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zlib import crc32

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

Session = Any
Frame = Any

_TYPES = """
    id bigint, tiny tinyint, small smallint, i int, f float, d double, price decimal(12, 3), huge decimal(38, 10),
    flag boolean, s string, raw binary, day date, at timestamp, ntz timestamp_ntz, list array<int>,
    pair struct<x: int, y: string, z: array<timestamp>>, by_key map<string, double>, span interval day to second
"""
_DOUBLES = [0.0, -0.0, 1.5, math.nan, math.inf, -math.inf, 1e308, -1e-300]
_TEXTS = ["", "a", "straße", "日本", "it's", "A\nB", "  padded ", "\u0000", "z" * 40]


def _data() -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for n in range(60):
        at = datetime(1969, 12, 31) + timedelta(days=n * 333, seconds=n * 12345, microseconds=n)
        row: list[Any] = [
            *(n, n % 128, -n, n * 1_000_003 % 2_000_000_000, n / 3, _DOUBLES[n % 8]),
            *(Decimal(n * 7919 - 99999).scaleb(-3), Decimal(n).scaleb(20) + Decimal("0.0000000001")),
            *(n % 3 == 0, _TEXTS[n % 9], bytes([n, 0, 255]), date(1900 + n, 1 + n % 12, 28), at, at),
            *([n, None, n % 5], (n % 4, _TEXTS[n % 9], [at]), {"k": n / 2, str(n): math.nan}),
            timedelta(days=n, microseconds=n),
        ]
        # Every column has NULLs, in other rows than its neighbours.
        rows.append(
            tuple(None if place and (n + place) % 7 == 0 else value for place, value in enumerate(row))
        )
    return rows


def prepare(spark: Session) -> None:
    """The views that the queries read."""
    spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    spark.createDataFrame(_data(), _TYPES).createOrReplaceTempView("t")
    spark.range(200).selectExpr("id", "id % 11 as k", "id * 2 as v").createOrReplaceTempView("u")


def _read_queries() -> Iterator[tuple[str, str]]:
    text = Path(__file__).with_suffix(".sql").read_text("utf-8")
    for part in text.removeprefix("-- ").split("\n-- "):
        name, _, query = part.partition("\n")
        yield name, query.rstrip().removesuffix(";")


def _columns() -> dict[str, str]:
    """Each type as a result, as a key, in an aggregate, in a list and in a struct."""
    names = re.findall(r"(\w+) [a-z]", re.sub(r"<.*?>+| day to second", "", _TYPES))
    queries = {}
    for name in names:
        queries[f"column {name}"] = f"select id, {name}, array({name}) as l, struct({name}) as st from t"
        if name != "by_key":
            queries[f"group {name}"] = f"select {name} as key, count(*) as n from t group by {name}"
            queries[f"extremes {name}"] = (
                f"select min({name}) as low, max({name}) as high, count({name}) as n from t"
            )
        queries[f"collected {name}"] = (
            f"select id % 4 as k, sort_array(collect_list(id)) as l, max_by({name}, id) as last from t group by 1"
        )
    return queries


SQL: dict[str, str] = {**_columns(), **dict(_read_queries())}

FRAMES: dict[str, Callable[[Session], Frame]] = {
    "range": lambda spark: spark.range(5, 50, 3),
    "local rows": lambda spark: spark.createDataFrame(
        [(1, "a", None), (2, None, 1.5)], "n int, s string, d double"
    ),
    "local rows, no schema": lambda spark: spark.createDataFrame(
        [{"a": 1, "b": [1, 2]}, {"a": None, "b": []}]
    ),
    "no local rows": lambda spark: spark.createDataFrame([], "n int, s string"),
    "local pandas": lambda spark: spark.createDataFrame(_pandas()),
    "local arrow": lambda spark: spark.createDataFrame(_arrow()),
    "table": lambda spark: spark.table("t"),
    "select": lambda spark: spark.table("t").select(
        "id", F.col("s").alias("t"), (F.col("i") % 7).cast("string")
    ),
    "where": lambda spark: spark.table("t").where((F.col("id") > 10) & F.col("s").isNotNull()).drop("raw"),
    "group": lambda spark: spark.table("u").groupBy("k").agg(F.sum("v"), F.avg("v"), F.max("id").alias("m")),
    "group pivot": lambda spark: spark.table("u").groupBy(F.col("k") % 2).pivot("k", [1, 2]).sum("v"),
    "cube": lambda spark: spark.table("t").cube("flag", F.col("tiny") % 2).count(),
    "join using": lambda spark: spark.table("t").select("id", "s").join(spark.table("u"), "id", "left"),
    "join on": lambda spark: (
        spark.table("t")
        .alias("a")
        .join(spark.table("u").alias("b"), F.col("a.id") == F.col("b.v"))
        .select("a.id", "b.k")
    ),
    "broadcast": lambda spark: spark.table("t").select("id", "s").join(F.broadcast(spark.table("u")), "id"),
    "cross join": lambda spark: spark.range(4).crossJoin(spark.range(3).toDF("other")),
    "union by name": lambda spark: spark.range(3).unionByName(
        spark.range(2).withColumn("x", F.lit("y")), allowMissingColumns=True
    ),
    "distinct": lambda spark: spark.table("u").select("k").distinct(),
    "drop duplicates": lambda spark: (
        spark.table("u").select("k", F.col("k").alias("j")).dropDuplicates(["k"])
    ),
    "sort": lambda spark: spark.table("t").select("id", "s").orderBy(F.desc_nulls_first("s"), "id"),
    "limit": lambda spark: spark.table("u").orderBy("id").limit(9).offset(4),
    "tail of sort": lambda spark: spark.createDataFrame(spark.table("u").orderBy("id").tail(3)),
    "window": lambda spark: spark.table("u").withColumn(
        "r", F.dense_rank().over(Window.partitionBy("k").orderBy("v"))
    ),
    "fill": lambda spark: spark.table("t").select("id", "d", "s", "i").fillna({"s": "?", "i": 0}),
    "drop nulls": lambda spark: spark.table("t").select("id", "d", "s").dropna(),
    "replace": lambda spark: spark.table("t").select("id", "s").replace("a", "b"),
    "with columns": lambda spark: spark.range(5).withColumns({"a": F.col("id") + 1, "b": F.lit(None)}),
    "renamed": lambda spark: spark.range(5).withColumnRenamed("id", "a b"),
    "metadata": lambda spark: spark.range(2).select(F.col("id").alias("x", metadata={"comment": "mine"})),
    "to schema": lambda spark: spark.table("u").to(spark.sql("select 1L as v, 'x' as k").schema),
    "unpivot": lambda spark: spark.table("t").unpivot("id", ["tiny", "small"], "n", "v"),
    "hint": lambda spark: spark.table("u").hint("coalesce", 2).where("k = 1"),
    "repartition": lambda spark: spark.table("u").repartition(3, "k").select("k", "v"),
    "exploded": lambda spark: spark.table("t").select("id", F.explode_outer("list").alias("x")),
    "random": lambda spark: spark.range(0, 100, 1, 3).select(
        "id", F.rand(7).alias("r"), F.randn(3).alias("n")
    ),
    "sampled": lambda spark: spark.range(0, 500, 1, 3).sample(fraction=0.2, seed=5),
    "random split": lambda spark: spark.range(0, 100, 1, 2).randomSplit([1.0, 2.0], seed=3)[1],
    "lateral join": lambda spark: spark.sql(
        "select * from u, lateral (select u.k + 1 as k1) where u.id < 20"
    ),
    "sql with names": lambda spark: spark.sql(
        "select :a + id, :s as s from range(3)", args={"a": 4, "s": "it's"}
    ),
    "sql with places": lambda spark: spark.sql(
        "select ? + id, ? as d from range(3)", args=[4, date(2020, 2, 29)]
    ),
    "sql with frames": lambda spark: spark.sql(
        "select sum(k) as s from {frame} where v > {low}", frame=spark.table("u"), low=20
    ),
    "scalar function": lambda spark: spark.range(6).select(
        F.udf(lambda n: f"<{n}>", "string")("id").alias("x")
    ),
    "pandas function": lambda spark: spark.range(6).select(_plus_one()("id").alias("x")),
    "map in pandas": lambda spark: spark.range(6).mapInPandas(_double, "id bigint"),
    "apply in pandas": lambda spark: (
        spark.table("u").groupBy("k").applyInPandas(_largest, "k bigint, v bigint")
    ),
    "registered function": lambda spark: _registered(spark),
    "cached": lambda spark: spark.table("u").where("k < 3").cache(),
    "global view": lambda spark: _global_view(spark),
    "checkpointed": lambda spark: spark.table("u").where("k = 2").localCheckpoint(),
    "summary": lambda spark: spark.table("u").summary("count", "mean", "max"),
    "describe": lambda spark: spark.table("u").describe("v"),
    "crosstab": lambda spark: spark.table("u").where("id < 9").stat.crosstab("k", "v"),
    "observed": lambda spark: spark.table("u").observe("seen", F.count(F.lit(1)).alias("n")),
    "catalog": lambda spark: spark.createDataFrame(
        [(table.name,) for table in spark.catalog.listTables()], "n string"
    ).where("n in ('t', 'u')"),
    "transposed": lambda spark: spark.sql("select 'a' as k, 1 as x, 2 as y").transpose(),
    "wide": lambda spark: spark.range(3).select(*[(F.col("id") + n).alias(f"c{n}") for n in range(300)]),
    "deep": lambda spark: _deep(spark),
    "large": lambda spark: spark.range(0, 30000, 1, 4).selectExpr("id", "repeat('x', 200) as s"),
    "error: function": lambda spark: spark.range(3).select(F.udf(lambda n: 1 // (n - n), "int")("id")),
    "error: ambiguous": lambda spark: spark.range(3).join(spark.range(3), F.expr("id = 1")),
}


def _pandas() -> Any:
    import pandas as pd

    return pd.DataFrame(
        {
            "n": [1, 2, None],
            "s": ["a", None, "c"],
            "t": pd.to_datetime(["2024-01-01", None, "2024-07-01 12:00"]),
        }
    )


def _arrow() -> Any:
    import pyarrow as pa

    return pa.table(
        {
            "n": pa.array([1, None], pa.int32()),
            "l": pa.array([["a"], None]),
            "d": pa.array([Decimal("1.5"), None], pa.decimal128(9, 2)),
        }
    )


def _plus_one() -> Any:
    from pyspark.sql import functions

    make: Any = functions.pandas_udf  # type: ignore[attr-defined]
    return make(lambda column: column + 1, "bigint")


def _double(frames: Any) -> Any:
    for frame in frames:
        yield frame * 2


def _largest(frame: Any) -> Any:
    return frame.nlargest(1, "v")[["k", "v"]]


def _registered(spark: Session) -> Frame:
    spark.udf.register("thrice", lambda n: n * 3, "bigint")
    return spark.sql("select thrice(id) as x from range(4)")


def _global_view(spark: Session) -> Frame:
    spark.range(4).createOrReplaceGlobalTempView("battery")
    return spark.table("global_temp.battery")


def _deep(spark: Session) -> Frame:
    frame = spark.range(10)
    for n in range(40):
        frame = frame.withColumn("id", F.col("id") + n)
    return frame


ACTIONS = ("count", "pandas", "head", "empty", "iterator", "tail", "show")


def look(spark: Session, make: Callable[[Session], Frame], action: str) -> tuple[dict[str, Any], str]:
    """What a client sees of a frame and of one of its other actions, and the engine."""
    try:
        frame = make(spark)
        rows = frame.collect()
        ran = frame.executionInfo.metrics.toText() if frame.executionInfo else ""
        seen: dict[str, Any] = {
            "rows": sorted(map(_show, rows)),
            "schema": frame.schema.json(),
            "arrow": str(frame.toArrow().schema),
        }
        seen[action] = _act(frame, action)
    except Exception as error:
        condition = getattr(error, "getCondition", lambda: "")()
        parameters = getattr(error, "getMessageParameters", lambda: "")()
        # Plans have ids, and messages of Python functions have traces.
        text = re.sub(r"#\d+L?", "", str(error).partition("JVM stacktrace")[0]) if condition else ""
        return {"error": [type(error).__name__, condition, parameters, text]}, "error"
    engine = ran.partition("Volley ")[2].partition("(")[0] if "Volley " in ran else "spark"
    return seen, engine


def _act(frame: Frame, action: str) -> Any:
    if action == "count":
        return frame.count()
    if action == "pandas":
        found = frame.toPandas()
        return {str(place): str(kind) for place, kind in enumerate(found.dtypes)}, len(found)
    if action == "head":
        return [len(row) for row in frame.head(2)]
    if action == "empty":
        return frame.isEmpty()
    if action == "iterator":
        return sorted(map(_show, frame.toLocalIterator()))
    if action == "tail":
        return len(frame.tail(3))
    return len(frame._show_string(3, 20, False).splitlines())


def _show(value: Any) -> str:
    """Values with their types: 1 is not 1.0, and -0.0 not 0.0."""
    if hasattr(value, "__fields__"):
        return f"Row({', '.join(f'{name}={_show(item)}' for name, item in zip(value.__fields__, value, strict=True))})"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{_show(key)}: {_show(item)}' for key, item in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"{type(value).__name__}({', '.join(map(_show, value))})"
    return f"{type(value).__name__} {value!r}"


def _asks(text: str) -> Callable[[Session], Frame]:
    return lambda spark: spark.sql(text)


def main(url: str, enabled: str, one_in: str = "1") -> None:
    spark: Session = SparkSession.builder.remote(url).getOrCreate()
    spark.conf.set("spark.volley.enabled", enabled)
    prepare(spark)
    cases: dict[str, Callable[[Session], Frame]] = {
        **{name: _asks(text) for name, text in SQL.items()},
        **{f"frame: {name}": make for name, make in FRAMES.items()},
    }
    for number, (name, make) in enumerate(cases.items()):
        if crc32(name.encode()) % int(one_in) == 0:
            seen, engine = look(spark, make, ACTIONS[number % len(ACTIONS)])
            print(json.dumps({"name": name, "engine": engine, "seen": seen}, default=str), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
