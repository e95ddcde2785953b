# SPDX-License-Identifier: Apache-2.0
"""Random programs: a query in SQL, sometimes continued with DataFrame methods, and the settings to run it with.

A program is one Python expression over `spark` and `F`, so that it can be printed as a test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.grammar import NUMBERS, ORDERABLE, TYPE_OF, Expressions
from volley.testing.fuzz.queries import Queries
from volley.testing.fuzz.relations import Query
from volley.testing.fuzz.tables import Column, Table
from volley.testing.limits import DISTRIBUTED_SETTINGS, UNMERGED_SETTINGS


@dataclass(frozen=True)
class Program:
    text: str
    ordered: bool
    settings: dict[str, str] = field(default_factory=dict)
    repeated: bool = False
    """Whether it runs natively twice: what is kept of the first run must not change the second."""

    def frame(self, spark: SparkSession) -> DataFrame:
        scope: dict[str, Any] = {"spark": spark, "F": F}
        result: DataFrame = eval(self.text, scope)
        return result


def draw_settings(choices: Choices) -> dict[str, str]:
    """Options of the session for the native run; ANSI mode and the time zone apply to both engines."""
    settings = {
        "spark.sql.ansi.enabled": choices.pick(["true", "false"]),
        "spark.volley.local.workers": choices.pick(["1", "3"]),
        "spark.sql.adaptive.enabled": choices.pick(["true", "false"]),
        "spark.sql.shuffle.partitions": choices.pick(["4", "1", "7"]),
        "spark.sql.session.timeZone": choices.weighted(((12, "UTC"), *((1, zone) for zone in _ZONES))),
    }
    for key, value in _MEANINGS:
        if choices.percent(4):
            settings[key] = value
    if choices.percent(10):
        # Otherwise Spark plans runtime filters for large tables only.
        settings["spark.sql.optimizer.runtime.bloomFilter.applicationSideScanSizeThreshold"] = "0"
    if choices.percent(25):
        settings["spark.sql.autoBroadcastJoinThreshold"] = "-1"
    if choices.percent(15):
        settings["spark.sql.optimizer.excludedRules"] = choices.pick(_RULES)
    settings |= choices.weighted(((2, {}), (2, DISTRIBUTED_SETTINGS), (1, UNMERGED_SETTINGS)))
    return settings


_ZONES = (
    "America/New_York",
    "Asia/Kolkata",
    "Europe/Berlin",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",
    "Africa/Monrovia",
    "-08:30",
)
# Settings that change what a query means.
_MEANINGS = (
    ("spark.sql.caseSensitive", "true"),
    ("spark.sql.decimalOperations.allowPrecisionLoss", "false"),
    ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
    ("spark.sql.legacy.sizeOfNull", "true"),
    ("spark.sql.groupByOrdinal", "false"),
    ("spark.sql.crossJoin.enabled", "false"),
    ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
)
MEANING = frozenset({key for key, _ in _MEANINGS} | {"spark.sql.ansi.enabled", "spark.sql.session.timeZone"})
"""Settings that apply to both engines."""

_RULES = [
    f"org.apache.spark.sql.catalyst.optimizer.{name}"
    for name in (
        "ConvertToLocalRelation",
        "DecimalAggregates",
        "ConstantFolding",
        "PushDownPredicates",
        "ColumnPruning",
    )
]


def draw_program(choices: Choices, tables: Sequence[Table], rare_percent: int) -> Program:
    query = Queries(choices, tables, rare_percent).draw()
    text, ordered = f'spark.sql("""{query.text}""")', query.ordered
    if choices.percent(30):
        for _ in range(1 + choices.below(3)):
            text, query = _step(choices, text, query, tables, rare_percent)
        ordered = query.ordered
    return Program(text, ordered, repeated=choices.percent(15))


def _step(
    choices: Choices, text: str, query: Query, tables: Sequence[Table], rare_percent: int
) -> tuple[str, Query]:
    """One more method call."""
    columns = query.columns
    draw = Expressions(choices, columns, rare_percent)
    keys = [c for c in columns if c.kind in ORDERABLE]
    numbers = [c for c in columns if c.kind in NUMBERS and c.kind != "float"]
    if not keys or not numbers:
        return f"{text}.where({draw.condition()!r})", query
    key, number = choices.pick(keys), choices.pick(numbers)
    new = f"z{len(text)}"
    match choices.below(14):
        case 0:
            return f"{text}.where({draw.condition()!r})", query
        case 1:
            kind = draw.any_kind()
            return f"{text}.withColumn({new!r}, F.expr({draw.draw(kind)!r}))", Query(
                "", (*columns, Column(new, TYPE_OF.get(kind, "int"))), query.ordered
            )
        case 2:
            call = choices.pick(["sum", "avg", "min", "max", "count", "count_distinct"])
            calls = f"F.{call}({number.name!r}).alias({new!r}), F.count('*').alias('n{new}')"
            made = f"{text}.groupBy({key.name!r}).agg({calls})"
            return made, Query("", (key, Column(f"n{new}", "int")))
        case 3:
            shape = choices.pick(["rollup", "cube"])
            made = f"{text}.{shape}({key.name!r}).agg(F.max({number.name!r}).alias({new!r}))"
            return made, Query("", (key, Column(new, number.type)))
        case 4:
            return f"{text}.distinct()", Query("", columns)
        case 5:
            if len(keys) < len(columns):
                return f"{text}.distinct()", Query("", columns)
            ways = [
                f"F.col({c.name!r}).{choices.pick(['asc', 'desc', 'asc_nulls_last', 'desc_nulls_first'])}()"
                for c in keys
            ]
            tail = choices.pick(["", f".limit({choices.below(8)})", f".offset({choices.below(3)})"])
            return f"{text}.orderBy({', '.join(ways)}){tail}", Query("", columns, True)
        case 6:
            return f"{text}.unionByName({text})", Query("", columns)
        case 7:
            return f"{text}.exceptAll({text}.limit(0))", Query("", columns)
        case 8:
            return f"{text}.na.fill(0)", query
        case 9:
            return f"{text}.na.drop(subset=[{key.name!r}])", query
        case 10:
            return f"{text}.repartition(3, {key.name!r})", Query("", columns)
        case 11:
            table = choices.pick(tables)
            name = "k" if key.kind == "int" else "s" if key.kind == "str" else None
            if name is None:
                return f"{text}.coalesce(1)", query
            how = choices.pick(["inner", "left", "right", "full", "left_semi", "left_anti"])
            kept = f"F.col({name!r}).alias({key.name!r}), F.col('id').alias({new!r})"
            made = f"{text}.join(spark.table({table.name!r}).select({kept}), {key.name!r}, {how!r})"
            added = () if how.startswith("left_") else (Column(new, "bigint"),)
            return made, Query("", (*columns, *added))
        case 12:
            values = {"int": "[0, 1, 2]", "str": "['a', 'b']", "bool": "[True, False]"}.get(key.kind)
            other = choices.pick(keys)
            if values is None or other == key:
                return f"{text}.drop({key.name!r})", Query("", tuple(c for c in columns if c != key))
            made = f"{text}.groupBy({other.name!r}).pivot({key.name!r}, {values}).agg(F.sum({number.name!r}))"
            return made, Query("", (other,))
        case _:
            return f"{text}.select('*', F.lit(1).alias({new!r})).drop({key.name!r})", Query(
                "", (*(c for c in columns if c != key), Column(new, "int"))
            )
