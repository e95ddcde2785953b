"""Spark as the oracle for single expressions, row by row.

Under ANSI one bad row fails a whole query, and would hide every other row. So an expression is planned by Spark,
captured, and then evaluated twice on the same rows: by Catalyst itself, one row at a time, and by DataFusion.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from datafusion import SessionContext
from pyspark.sql import SparkSession

from volley.lower.expressions import column_name, lower_expression
from volley.plan.capture import capture
from volley.plan.expressions import Expression
from volley.plan.nodes import Project
from volley.plan.types import to_arrow
from volley.support.expressions import check_expression
from volley.support.reasons import Unsupported

FAILED = "<failed>"


@dataclass(frozen=True)
class Verdict:
    """How the two engines compare. `alarms` are rows that failed natively and not in Spark: slow, never wrong."""

    expression: str
    equal: int = 0
    alarms: int = 0
    wrong: tuple[str, ...] = ()


@dataclass
class ExpressionOracle:
    """Expressions over one set of columns, planned once and evaluated on any number of tables."""

    spark: SparkSession
    schema: pa.Schema
    directory: Path
    ansi: bool
    _planned: dict[str, _Planned] = field(default_factory=dict)
    _tables: int = 0

    def __post_init__(self) -> None:
        self._view = f"oracle_{id(self)}"
        self._rows(self.schema.empty_table())

    def refusal(self, expression: str) -> Unsupported | None:
        """Why the support table does not accept the expression, if it does not."""
        return next(iter(check_expression(self._plan(expression).expression)), None)

    def compare(self, table: pa.Table, expressions: Sequence[str]) -> Iterator[Verdict]:
        rows = self._rows(table)
        for text in expressions:
            planned = self._plan(text)
            expected = [planned.spark_value(row) for row in rows]
            yield _verdict(text, table, expected, planned.native_values(table))

    def _rows(self, table: pa.Table) -> list[Any]:
        self._tables += 1
        path = str(self.directory / f"{self._view}_{self._tables}.parquet")
        pq.write_table(table, path)
        frame = self.spark.read.parquet(path)
        if self._tables == 1:
            frame.createOrReplaceTempView(self._view)
        return list(frame._jdf.queryExecution().executedPlan().executeCollect())

    def _plan(self, text: str) -> _Planned:
        if text not in self._planned:
            before = self.spark.conf.get("spark.sql.ansi.enabled")
            self.spark.conf.set("spark.sql.ansi.enabled", str(self.ansi).lower())
            try:
                self._planned[text] = _plan(self.spark, text, self._view, self.schema)
            finally:
                self.spark.conf.set("spark.sql.ansi.enabled", str(before))
        return self._planned[text]


@dataclass(frozen=True)
class _Planned:
    """One expression in both engines' form. `columns` are the native names of the table's columns."""

    expression: Expression
    catalyst: Any
    columns: list[str]

    def spark_value(self, row: Any) -> Any:
        try:
            return _plain(self.catalyst.eval(row), to_arrow(self.expression.type))
        except Exception:  # whatever Catalyst raises means that Spark's query would fail
            return FAILED

    def native_values(self, table: pa.Table) -> list[Any]:
        """The values of all rows; where the table as a whole fails, row by row."""
        try:
            return self._evaluate(table)
        except _WrongType:
            raise
        except Exception:
            if table.num_rows == 1:
                return [FAILED]
        return [value for i in range(table.num_rows) for value in self.native_values(table.slice(i, 1))]

    def _evaluate(self, table: pa.Table) -> list[Any]:
        frame = SessionContext().from_arrow(table.rename_columns(self.columns))
        column = frame.select(lower_expression(self.expression).alias("value")).to_arrow_table().column(0)
        wanted = to_arrow(self.expression.type)
        if column.type != wanted:
            raise _WrongType(f"{column.type} in place of {wanted}")
        if pa.types.is_date(wanted):
            column = column.cast(pa.int32())
        elif pa.types.is_timestamp(wanted):
            column = column.cast(pa.int64())
        return [_plain(value, wanted) for value in column.to_pylist()]


class _WrongType(AssertionError):
    pass


def _plan(spark: SparkSession, text: str, view: str, schema: pa.Schema) -> _Planned:
    frame = spark.sql(f"select {text} as value, * from {view}")
    executed = frame._jdf.queryExecution().executedPlan()
    gateway = spark.sparkContext._gateway
    plan = capture(gateway, executed)
    assert isinstance(plan, Project), f"{text} was planned as {plan}"
    while executed.getClass().getSimpleName() != "ProjectExec":
        executed = executed.child()
    output = executed.child().output()
    by_name = {output.apply(i).name(): int(output.apply(i).exprId().id()) for i in range(output.size())}
    assert [output.apply(i).name() for i in range(output.size())] == schema.names
    catalyst = gateway.jvm.org.apache.spark.sql.catalyst.expressions
    bound = catalyst.BindReferences.bindReference(
        executed.projectList().apply(0), getattr(catalyst, "package$AttributeSeq")(output), False
    )
    columns = [column_name(by_name[name]) for name in schema.names]
    return _Planned(plan.expressions[0], bound, columns)


def _plain(value: Any, arrow_type: pa.DataType) -> Any:
    """A value in a form that compares exactly: floats by their bits, with a single NaN."""
    if isinstance(value, float):
        width = "f" if arrow_type == pa.float32() else "d"
        return struct.pack(width, math.nan if math.isnan(value) else value)
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, bytearray):
        return bytes(value)
    if not hasattr(value, "getClass"):
        return value
    if value.getClass().getSimpleName() == "Decimal":
        return str(value.toJavaBigDecimal())
    return value.toString()


def _verdict(text: str, table: pa.Table, expected: list[Any], actual: list[Any]) -> Verdict:
    equal = alarms = 0
    wrong: list[str] = []
    for position, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        if ours == theirs:
            equal += 1
        elif ours == FAILED:
            alarms += 1
        else:
            row = table.slice(position, 1).to_pylist()[0]
            wrong.append(f"{text} of {row}: Spark {theirs!r}, native {ours!r}")
    return Verdict(text, equal, alarms, tuple(wrong))
