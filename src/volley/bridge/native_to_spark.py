# SPDX-License-Identifier: Apache-2.0
"""Native sub-trees below Spark operators: computed natively, and read by Spark's tasks as Arrow.

Project with a Python UDF     Spark            Spark plans what is left of the optimized query anew, with a relation
  Aggregate                   native           of the same attributes in the place of each subplan. The stores of
    Join                      native           the native side keep its rows, Spark's tasks read them there: no row
      FileScan, FileScan      native           passes the driver.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import lit
from pyspark.sql.types import StructType as SparkStruct

from volley.batches import make_batch
from volley.bridge.arrow_source import arrow_source, divide_blocks
from volley.bridge.attributes import ROW, attribute_of, column_names, items, logical_of, stands_for_a_query
from volley.bridge.boundary import EngineBoundary
from volley.bridge.spark_task_reader import reader
from volley.lower.scope import distinct
from volley.plan.capture import Origins
from volley.plan.jvm import Java, singleton
from volley.plan.nodes import Node
from volley.plan.types import is_shared, to_arrow
from volley.spark_versions.classic import ClassicDataFrame, plan_frame
from volley.support.reasons import Unsupported
from volley.support.split import subplans


class Subplan:
    """A sub-tree that runs natively.

    `logical` is the part of the optimized query that it computes, `node` the captured sub-tree, and `plan` what the
    workers run.
    """

    def __init__(
        self, spark: SparkSession, node: Node, logical: Java, attributes: list[Java], plan: Node | None = None
    ) -> None:
        self.node = node
        self.plan = node if plan is None else plan
        self.logical = logical
        self._spark = spark
        self._attributes = attributes
        self._output = tuple(map(attribute_of, attributes))

    def with_plan(self, plan: Node) -> Subplan:
        """The same rows, computed by another plan."""
        return Subplan(self._spark, self.node, self.logical, self._attributes, plan)

    def empty_relation(self) -> Java:
        """A relation with the same attributes and no rows."""
        jvm: Any = self._spark._jvm
        relations = singleton(
            self._spark.sparkContext._gateway, "org.apache.spark.sql.catalyst.plans.logical.LocalRelation"
        )
        return relations.apply(jvm.PythonUtils.toSeq(self._attributes))

    def relation(self, boundary: EngineBoundary) -> Java:
        """Run the subplan. Returns a relation with the same attributes that reads its rows."""
        rows = boundary.rows(self.plan)
        # In the engine no column occurs twice, and there is at least one (`stages.row_counts`).
        ids = [attribute.id for attribute in distinct(self.plan.output)]
        places = [ids.index(attribute.id) for attribute in self._output] or [0]
        columns = self._output or (ROW,)
        names = column_names(columns)
        schema = pa.schema([pa.field(n, to_arrow(a.type)) for n, a in zip(names, columns, strict=True)])
        types = [json.loads(a.dataType().json()) for a in self._attributes] or [str(ROW.type)]
        fields = [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for kind, name in zip(types, names, strict=True)
        ]
        shares = divide_blocks(rows.blocks, self._spark.sparkContext.defaultParallelism)
        read = arrow_source(
            self._spark,
            reader(rows.access, shares, places, schema),
            SparkStruct.fromJson({"fields": fields}),
            len(shares),
            sum(block.rows for block in rows.blocks),
            sum(block.size_bytes for block in rows.blocks),
        )
        return self._renamed(read)

    def _renamed(self, relation: Java) -> Java:
        """Columns of the relation under the ids, names and nullability that Spark's operators above know them by."""
        jvm: Any = self._spark._jvm
        expressions = jvm.org.apache.spark.sql.catalyst.expressions
        aliases = []
        # Without attributes, the column that was read is left out again.
        read = items(relation.output()) if self._attributes else []
        for column, wanted in zip(read, self._attributes, strict=True):
            # Arrow has no such flag, and Spark relies on it.
            value = column if wanted.nullable() else expressions.KnownNotNull(column)
            metadata = jvm.scala.Option.apply(wanted.metadata())
            aliases.append(
                expressions.Alias(
                    value,
                    wanted.name(),
                    wanted.exprId(),
                    wanted.qualifier(),
                    metadata,
                    jvm.PythonUtils.toSeq([]),
                )
            )
        logical = jvm.org.apache.spark.sql.catalyst.plans.logical
        return logical.Project(jvm.PythonUtils.toSeq(aliases), relation)


class SparkPart:
    """A part of a query that Spark runs over native subplans.

    `output` are its columns, `carried` those of its rows while they cross: at least one.
    """

    def __init__(self, spark: SparkSession, logical: Java, subplans: tuple[Subplan, ...]) -> None:
        self.subplans = subplans
        self.output = tuple(map(attribute_of, items(logical.output())))
        self.carried = self.output or (ROW,)
        self._spark = spark
        self._logical = logical

    def change_plans(self, change: Callable[[Node], Node]) -> SparkPart:
        """The same part over subplans whose plans are changed."""
        changed = tuple(subplan.with_plan(change(subplan.plan)) for subplan in self.subplans)
        return SparkPart(self._spark, self._logical, changed)

    def can_be_analyzed(self) -> bool:
        """Whether Spark accepts the part as a query. It refuses some plans that its own optimizer makes, such as a
        `row_number()` without an order in the place of a correlated LIMIT.
        """
        stand_ins = [(subplan.logical, subplan.empty_relation()) for subplan in self.subplans]
        try:
            plan_frame(self._spark, _exchanged(self._spark, self._logical, stand_ins))
        except AnalysisException:
            return False
        return True

    def logical(self, boundary: EngineBoundary) -> Java:
        """The logical plan for Spark. Runs the subplans."""
        relations = [(subplan.logical, subplan.relation(boundary)) for subplan in self.subplans]
        return _exchanged(self._spark, self._logical, relations)

    def frame(self, boundary: EngineBoundary) -> DataFrame:
        """The same as a query that Spark runs, under names that do not repeat; with `ROW` if it has no columns."""
        frame: DataFrame = plan_frame(self._spark, self.logical(boundary))
        carried = frame if self.output else frame.select(lit(True))
        return carried.toDF(*column_names(self.carried))

    def batches(self, boundary: EngineBoundary) -> list[pa.RecordBatch]:
        """All its rows, in this process, in the types that the native side knows."""
        with boundary.read_by_spark():
            frame = self.frame(boundary)
            found: list[pa.RecordBatch] = inspect.unwrap(ClassicDataFrame._collect_as_arrow)(frame)
        names = column_names(self.carried)
        target = pa.schema([pa.field(n, to_arrow(a.type)) for n, a in zip(names, self.carried, strict=True)])
        return [
            make_batch(
                [column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)],
                target,
                batch.num_rows,
            )
            for batch in found
        ]


class SparkRows(Iterator[pa.RecordBatch]):
    """Spark's result, read like a native one."""

    def __init__(self, batches: list[pa.RecordBatch]) -> None:
        self._batches = iter(batches)

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def __enter__(self) -> SparkRows:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._batches = iter(())


def spark_part(
    spark: SparkSession, logical: Java, plan: Node, origins: Origins
) -> SparkPart | Unsupported | None:
    """The part of a query that Spark runs over native subplans; a reason, or None, if there are no such subplans.

    `logical` is the optimized query that `plan` computes. Nothing runs yet.
    """
    found = subplans(plan, lambda node: _can_stand(spark, origins.of(node)))
    if found is None or isinstance(found, Unsupported):
        return found
    if not all(is_shared(attribute_of(attribute).type) for attribute in items(logical.output())):
        return None
    # Operators that depend on Spark's partitioning or order of rows would see another one.
    if not logical.deterministic():
        return None
    part = SparkPart(spark, logical, tuple(_subplan(spark, node, origins.of(node)) for node in found))
    return part if part.can_be_analyzed() else None


def _subplan(spark: SparkSession, node: Node, physical: Java) -> Subplan:
    return Subplan(spark, node, logical_of(physical), items(physical.output()))


def _can_stand(spark: SparkSession, physical: Java | None) -> bool:
    """Whether one relation can replace the operator: operators above refer to it by all its attributes."""
    if physical is None or not stands_for_a_query(spark, physical):
        return False
    attributes = items(physical.output())
    theirs = [int(attribute.exprId().id()) for attribute in items(logical_of(physical).output())]
    ours = [int(attribute.exprId().id()) for attribute in attributes]
    return sorted(theirs) == sorted(ours)


def _exchanged(spark: SparkSession, logical: Java, relations: Iterable[tuple[Java, Java]]) -> Java:
    """The plan with relations in place of subplans. Equal subplans, including their ids, have the same rows."""
    for part, relation in relations:
        if logical.equals(part):
            return relation
    if logical.nodeName() == "Filter":
        whole = logical.condition()
        condition = _without_pruning(spark, whole)
        if condition is None:
            return _exchanged(spark, logical.child(), relations)
        if condition is not whole:
            logical = logical.copy(condition, logical.child())
    children = items(logical.children())
    exchanged = [_exchanged(spark, child, relations) for child in children]
    if all(new is old for new, old in zip(exchanged, children, strict=True)):
        return logical
    return logical.withNewChildren(spark._jvm.PythonUtils.toSeq(exchanged))  # type: ignore[union-attr]


def _without_pruning(spark: SparkSession, condition: Java) -> Java | None:
    """The condition without dynamic partition pruning; None if nothing is left.

    It only skips folders that a join drops, and its reference to the other side of that join does not survive a second
    analysis.
    """
    match condition.nodeName():
        case "DynamicPruningSubquery":
            return None
        case "And":
            sides = [condition.left(), condition.right()]
            kept = [_without_pruning(spark, side) for side in sides]
            if all(new is old for new, old in zip(kept, sides, strict=True)):
                return condition
            left = [side for side in kept if side is not None]
            if len(left) < 2:
                return left[0] if left else None
            return spark._jvm.org.apache.spark.sql.catalyst.expressions.And(*left)  # type: ignore[union-attr]
        case _:
            return condition
