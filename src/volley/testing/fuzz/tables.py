# SPDX-License-Identifier: Apache-2.0
"""Random small tables of all types, full of awkward values, and the ways in which a session can hold them.

Rows are kept as SQL literals, so that the rows of a failing case can be printed, removed and read again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

from volley.spark_versions.classic import collect_table, local_frame
from volley.testing.fuzz.choices import Choices
from volley.testing.session import conf
from volley.testing.sources import Numbers

LEAVES = (
    "values",
    "parquet",
    "bounded",
    "unmeasured",
    "partitioned",
    "rows",
    "arrow",
    "pandas",
    "range",
    "cached",
    "udf",
    "cte",
    "source",
    "csv",
    "json",
    "orc",
    "table",
)
"""How a table is stored: VALUES, Parquet in two files, the same with statistics of decimals and without any
statistics, Parquet in folders, `createDataFrame` of Rows, of Arrow and of pandas, joined to `spark.range`, cached by
Spark, computed by a Python function, a view over another query, joined to a Python data source, other file formats, a
table of the catalog with CHAR and VARCHAR."""
FILES = ("parquet", "bounded", "unmeasured", "partitioned", "csv", "json", "orc")
"""Leaves whose files can be written anew."""

# What Spark has to read keeps most of a plan from running natively, and Python functions are slow.
_WEIGHTS = {"parquet": 8, "partitioned": 6, "cached": 1, "udf": 1}

# Statistics of decimals are trusted only where they are stored as integers.
_WRITER: dict[str, dict[str, bool]] = {
    "parquet": {},
    "bounded": {"store_decimal_as_integer": True},
    "unmeasured": {"write_statistics": False},
}


@dataclass(frozen=True)
class Column:
    name: str
    type: str

    @property
    def kind(self) -> str:
        """The family of the type, as the grammar of expressions names it."""
        return KINDS.get(self.type.partition("(")[0], "other")


@dataclass(frozen=True)
class Table:
    name: str
    leaf: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def values(self) -> str:
        """The rows as a query."""
        casts = ", ".join(f"cast({c.name} as {c.type}) {c.name}" for c in self.columns)
        names = ", ".join(c.name for c in self.columns)
        if not self.rows:
            empty = ", ".join(f"cast(null as {c.type}) {c.name}" for c in self.columns)
            return f"select * from (select {empty}) where {self.columns[0].name} = 'x' and 1 = 0"
        lines = ",\n  ".join("(" + ", ".join(row) + ")" for row in self.rows)
        return f"select {casts} from values\n  {lines}\n  as v({names})"

    def rotated(self) -> Table:
        """The same values in other rows: each id gets those of the next one."""
        others = self.rows[1:] + self.rows[:1]
        rows = tuple((mine[0], *other[1:]) for mine, other in zip(self.rows, others, strict=True))
        return replace(self, rows=rows)


KINDS = {
    "boolean": "bool",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "int",
    "decimal": "dec",
    "float": "float",
    "double": "float",
    "string": "str",
    "char": "str",
    "varchar": "str",
    "binary": "bin",
    "date": "date",
    "timestamp": "ts",
    "timestamp_ntz": "ntz",
    "array<int>": "arr",
    "struct<a:int,b:string>": "struct",
    "map<string,int>": "map",
    "interval day to second": "span",
}

_DECIMALS = (
    "decimal(18,0)",
    "decimal(19,9)",
    "decimal(38,18)",
    "decimal(38,38)",
    "decimal(5,5)",
    "decimal(7,2)",
    "decimal(15,2)",
    "decimal(10,0)",
    "decimal(20,3)",
    "decimal(38,6)",
    "decimal(38,0)",
)
_NESTED = (
    "array<int>",
    "array<string>",
    "array<double>",
    "struct<a:int,b:string>",
    "array<array<int>>",
    "array<struct<a:int,b:date>>",
    "struct<x:decimal(10,2),y:array<string>>",
    "map<string,int>",
)
_TYPES = (
    (5, "int"),
    (3, "bigint"),
    (4, "string"),
    (2, "boolean"),
    (1, "tinyint"),
    (1, "smallint"),
    (3, "double"),
    (1, "float"),
    (3, "decimal"),
    (3, "date"),
    (2, "timestamp"),
    (1, "timestamp_ntz"),
    (1, "binary"),
    (2, "nested"),
    (1, "interval day to second"),
    (1, "map<string,int>"),
)

# Values that are common in real data first, those at the limits of a type after them.
_VALUES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "boolean": (("true", "false"), ()),
    "tinyint": (("0", "1", "2", "-3"), ("127Y", "-128Y")),
    "smallint": (("0", "1", "2", "-3"), ("32767S", "-32768S")),
    "int": (("0", "1", "2", "3", "-7", "10"), ("2147483647", "-2147483648", "2147483646", "1073741824", "46341")),
    "bigint": (
        ("0", "1", "2", "3", "-5", "1000000000000"),
        ("9223372036854775807L", "-9223372036854775808L", "9223372036854775806L", "4611686018427387904L",
         "3037000500L", "9007199254740993L"),
    ),
    "double": (
        ("0.0D", "-0.0D", "1.5D", "2.5D", "-2.25D", "double('NaN')", "double('Infinity')", "double('-Infinity')"),
        ("1.7976931348623157E308D", "4.9E-324D", "1.0E20D", "0.1D", "-9007199254740993D"),
    ),
    "float": (
        ("float('0')", "float('-0')", "float('1.5')", "float('NaN')", "float('-2.5')"),
        ("float('3.4028235E38')", "float('1.4E-45')", "float('Infinity')", "float('0.1')"),
    ),
    "string": (
        ("'a'", "'b'", "''", "'ab'", "'é'", "'zz'", "'1'"),
        ("' a '", "'a '", "'日本'", "'ß'", "'A'", "'😀x'", "'%_'", "'12.5'", "'2020-01-01'", "'\\\\n'", "'NaN'",
         "'İ'", "'ŉ'", "'\\t'", "'more than twelve bytes 1'", "'more than twelve bytes 2'", "'2021-03-28 02:30:00'",
         "'e\u0301'", "' 1'", "'1e3'", "'true'"),
    ),
    "binary": (("X'61'", "X''", "X'6162'"), ("X'FF00'", "X'C3'")),
    "date": (
        ("date'2020-01-01'", "date'2020-02-29'", "date'1999-12-31'", "date'2020-01-02'"),
        ("date'1582-10-04'", "date'1582-10-15'", "date'0001-01-01'", "date'9999-12-31'", "date'1969-12-31'",
         "date'2018-11-04'", "date'1500-02-28'", "date'2021-03-28'"),
    ),
    "timestamp": (
        ("timestamp'2020-01-01 00:00:00'", "timestamp'2020-01-01 12:34:56.789012'", "timestamp'2019-12-31 23:59:59'"),
        ("timestamp'1969-12-31 23:59:59.999999'", "timestamp'0001-01-01 00:00:00'",
         "timestamp'9999-12-31 23:59:59.999999'", "timestamp'1582-10-10 00:00:00'",
         # Where clocks change: of Berlin, New York, Sao Paulo and Lord Howe, and those before standard time.
         "timestamp'2021-03-28 02:30:00'", "timestamp'2021-03-28 01:30:00'", "timestamp'2021-10-31 02:30:00'",
         "timestamp'2021-10-31 00:30:00'", "timestamp'2021-03-14 02:30:00'", "timestamp'2021-11-07 05:30:00'",
         "timestamp'2018-11-04 00:00:00'", "timestamp'2021-04-03 15:15:00'", "timestamp'1883-11-18 12:00:00'"),
    ),
    "array<int>": (("array(1, 2)", "array()", "array(null, 3)"), ("array(2147483647)",)),
    "array<string>": (("array('a', 'b')", "array()", "array(null)"), ("array('', 'é')",)),
    "array<double>": (("array(1.5D, double('NaN'))", "array(-0.0D)"), ("array()",)),
    "struct<a:int,b:string>": (("struct(1, 'a')", "struct(null, 'b')", "struct(2, null)"), ("struct(null, null)",)),
    "array<array<int>>": (("array(array(1), array())", "array()"), ("array(null, array(2))",)),
    "array<struct<a:int,b:date>>": (("array(struct(1, date'2020-01-01'))", "array()"), ("array(null)",)),
    "struct<x:decimal(10,2),y:array<string>>": (("struct(1.25, array('a'))", "struct(null, null)"), ()),
    "map<string,int>": (("map('a', 1)", "map('b', 2, 'a', 3)"), ("map('a', null)", "map('', 1, 'é', 2)")),
    "interval day to second": (
        ("interval '1' day", "interval '0' second", "interval '-1 02:03:04.5' day to second"),
        ("interval '100000' day", "interval '-1' second"),
    ),
}  # fmt: skip


def literals(type: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Literals of a type: common values, and those at its limits."""
    if type.startswith("decimal"):
        precision, scale = (int(n) for n in type[8:-1].split(","))
        top = "9" * (precision - scale) + ("." + "9" * scale if scale else "")
        if precision == scale:
            # Not 0: with an integer among them, VALUES would round the limit of DECIMAL(38,38) to 1.
            return ("0.0", "0.1", "0.25", "-0.5"), (f"0{top}", f"-0{top}")
        return ("0", "1", "1.5" if scale else "15", "-2", "12.34" if scale > 1 else "12"), (top, f"-{top}")
    if type.startswith(("char", "varchar")):
        return _VALUES["string"][0], ("'a '", "'日本'", "'A'")
    if type == "timestamp_ntz":
        common, wild = _VALUES["timestamp"]
        return tuple(v.replace("timestamp'", "timestamp_ntz'") for v in common), tuple(
            v.replace("timestamp'", "timestamp_ntz'") for v in wild
        )
    return _VALUES[type]


def draw_type(choices: Choices) -> str:
    found = choices.weighted(_TYPES)
    if found == "decimal":
        return choices.pick(_DECIMALS)
    return choices.pick(_NESTED) if found == "nested" else found


def draw_tables(choices: Choices, leaves: Sequence[str] = LEAVES) -> list[Table]:
    """A few tables. All have an int key `k` and a string `s`, so that joins find partners."""
    tables = []
    for number in range(3 + choices.below(3)):
        leaf = choices.weighted([(_WEIGHTS.get(leaf, 4), leaf) for leaf in leaves])
        columns = [Column("id", "bigint"), Column("k", "int"), Column("s", "string")]
        columns += [
            Column(choices.weighted(_NAMES).format(n), draw_type(choices))
            for n in range(2 + choices.below(6))
        ]
        if leaf == "table":
            columns = [_as_padded(choices, column) for column in columns]
        wild = [choices.percent(20) for _ in columns]
        absent = [choices.percent(4) for _ in columns]
        count = choices.pick([7, 3, 12, 25, 0, 1])
        rows = [
            tuple(
                str(row)
                if c.name == "id"
                else "null"
                if absent[position]
                else _draw_value(choices, c.type, wild[position])
                for position, c in enumerate(columns)
            )
            for row in range(count)
        ]
        tables.append(Table(f"t{number}", leaf, tuple(columns), tuple(rows)))
    return tables


# The last ones are references of Spark to columns with ids, and need quotes.
_NAMES = ((12, "c{}"), (1, "C{}"), (1, "`c {}`"), (1, "`ü{}`"), (1, "`c#{}`"))


def _as_padded(choices: Choices, column: Column) -> Column:
    if column.type != "string":
        return column
    return Column(column.name, choices.pick(["string", "char(9)", "varchar(24)"]))


def _draw_value(choices: Choices, type: str, wild: bool) -> str:
    if choices.percent(18):
        return "null"
    common, limits = literals(type)
    if wild and limits and choices.percent(35):
        return choices.pick(limits)
    return choices.pick(common)


def register(spark: SparkSession, table: Table, directory: Path) -> None:
    """Create the view of a table. Spark alone prepares it."""
    with conf(spark, {"spark.volley.enabled": "false", "spark.sql.ansi.enabled": "true"}):
        frame = spark.sql(table.values)
        _stored(spark, table, frame, directory / table.name).createOrReplaceTempView(table.name)


def _stored(spark: SparkSession, table: Table, frame: DataFrame, directory: Path) -> DataFrame:
    match table.leaf:
        case "parquet" | "bounded" | "unmeasured":
            directory.mkdir(parents=True, exist_ok=True)
            rows = collect_table(frame)
            half = rows.num_rows // 3
            # An order that the rows do not have: Spark does not look at it.
            claimed = [pq.SortingColumn(1)]
            claims: dict[str, Any] = {"sorting_columns": claimed, **_WRITER[table.leaf]}
            pq.write_table(rows.slice(0, half), directory / "first part.parquet", **claims)
            pq.write_table(rows.slice(half), directory / "100%.parquet", row_group_size=5, **claims)
            return spark.read.schema(frame.schema).parquet(str(directory))
        case "partitioned":
            frame.coalesce(1).write.mode("overwrite").partitionBy("s", "k").parquet(str(directory))
            return spark.read.schema(frame.schema).parquet(str(directory)).select(*frame.columns)
        case "rows":
            return spark.createDataFrame(frame.collect(), frame.schema)
        case "arrow":
            return local_frame(spark, collect_table(frame), frame.schema)
        case "pandas":
            return spark.createDataFrame(frame.select("id", "s").toPandas(), "id bigint, s string").join(
                frame.drop("s"), "id"
            )
        case "range":
            return spark.range(len(table.rows)).join(frame, "id", "left").select(*frame.columns)
        case "cached":
            cached = frame.cache()
            cached.count()
            return cached
        case "udf":
            return frame.withColumn("k", udf(lambda number: number, "int")(frame["k"]))
        case "cte":
            return spark.sql(f"with q as ({table.values}) select a.* from q a where a.id >= 0")
        case "source":
            spark.dataSource.register(Numbers)
            ids = spark.read.format("numbers").options(splits="2", rows=str(len(table.rows))).load()
            return ids.select("id").join(frame, "id", "left").select(*frame.columns)
        case "csv" | "json" | "orc" as name:
            # CSV has no nested values. The header is part of every file.
            plain = [c for c in table.columns if c.kind in ("other", "arr", "struct", "bin", "map")]
            kept = frame.drop(*(c.name.strip("`") for c in plain)) if name == "csv" else frame
            options = {"header": "true"} if name == "csv" else {}
            kept.coalesce(1).write.mode("overwrite").format(name).options(**options).save(str(directory))
            stored = spark.read.schema(kept.schema).format(name).options(**options).load(str(directory))
            empty = [f"cast(null as {c.type}) {c.name}" for c in plain] if name == "csv" else []
            return stored.selectExpr(*(f"`{column}`" for column in kept.columns), *empty)
        case "table":
            columns = ", ".join(f"{c.name} {c.type}" for c in table.columns)
            spark.sql(f"drop table if exists {table.name}_stored")
            spark.sql(f"create table {table.name}_stored ({columns}) using parquet location '{directory}'")
            spark.sql(f"insert overwrite {table.name}_stored {table.values}")
            return spark.table(f"{table.name}_stored")
        case _:
            return frame
