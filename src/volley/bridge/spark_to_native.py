# SPDX-License-Identifier: Apache-2.0
"""Spark sub-trees below native operators: Spark runs them, and the native plan reads their rows.

A node of Spark's physical plan knows the part of the optimized query that it stands for. That part, with the columns of
the node, is a query of its own: Spark runs it, in parallel, and the rows come over as Arrow: into the driver's process,
where that is the worker, or from Spark's tasks into the stores of the workers, so that they never pass the driver.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import SparkSession

from volley.bridge.attributes import column_names, logical_of, stands_for_a_query
from volley.bridge.boundary import EngineBoundary
from volley.bridge.ingestion import Ingestion, IngestTarget, task_done
from volley.bridge.native_to_spark import SparkPart, spark_part
from volley.bridge.spark_task_writer import SCHEMA, make_push_function, read_pushed
from volley.events import TaskMetrics
from volley.ids import AttemptId, StageId, TaskId
from volley.lower.scope import arrow_schema, distinct
from volley.plan.capture import Origins
from volley.plan.expressions import Attribute
from volley.plan.nodes import LocalRows, MaterializedInput, Node, Project, transform, with_children
from volley.plan.types import to_arrow
from volley.rpc.messages import TaskDone
from volley.spark_versions.classic import ClassicDataFrame
from volley.support.reasons import Unsupported
from volley.support.split import cut_off


class SparkInput:
    """A sub-tree, `node` as it was captured, that Spark runs.

    `output` is what the native side gets of it, by Catalyst's ids.
    """

    def __init__(self, node: Node, part: SparkPart) -> None:
        self.node = node
        self.part = part
        self.output = part.carried

    def change_plans(self, change: Callable[[Node], Node]) -> SparkInput:
        """The same over native subplans whose plans are changed."""
        return SparkInput(self.node, self.part.change_plans(change))

    def rows(self, boundary: EngineBoundary) -> LocalRows:
        """Run it. All rows, in this process."""
        names = column_names(self.output)
        schema = pa.schema([pa.field(n, to_arrow(a.type)) for n, a in zip(names, self.output, strict=True)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in self.part.batches(boundary):
                writer.write_batch(batch)
        return LocalRows(self.output, sink.getvalue().to_pybytes())

    def pushed(self, boundary: EngineBoundary, ingest_target: IngestTarget) -> list[TaskDone]:
        """Run it. Spark's tasks push their rows into the stores of the workers; returns their outputs."""
        # In the engine no column occurs twice.
        ids = [attribute.id for attribute in self.output]
        places = [ids.index(attribute.id) for attribute in distinct(self.output)]
        schema = arrow_schema(self.output)
        push = make_push_function(
            ingest_target.ingest_endpoint,
            ingest_target.query,
            ingest_target.partitions,
            places,
            schema,
        )
        with boundary.read_by_spark():
            pushing = self.part.frame(boundary).mapInArrow(push, SCHEMA)
            rows: list[pa.RecordBatch] = inspect.unwrap(ClassicDataFrame._collect_as_arrow)(pushing)
        return [task_done(said) for said in read_pushed(rows)]


class SparkInputs:
    """The rows of all hand-overs of a query. Spark runs them when they are first asked for.

    `ingest` opens the workers in other processes to which Spark's tasks push them; where it gives None, the worker is
    this process.
    """

    def __init__(
        self,
        items: tuple[SparkInput, ...],
        boundary: EngineBoundary,
        ingest: Callable[[], IngestTarget | None],
    ) -> None:
        self.items = items
        self.outputs: dict[int, list[TaskDone]] = {}
        """The outputs in the stores, by the number of their `MaterializedInput` in the plan."""
        self._boundary = boundary
        self._ingestion = Ingestion(ingest)
        self._rows: list[Node] = []

    def fill(self, plan: Node) -> Node:
        """The plan that `number_inputs` made, with the rows of Spark where it reads them."""
        if not self._rows:
            self._rows = [
                _exactly(item.node.output, self._read(number, item)) for number, item in enumerate(self.items)
            ]
        return transform(
            plan, lambda node: self._rows[node.number] if isinstance(node, MaterializedInput) else node
        )

    def _read(self, number: int, item: SparkInput) -> Node:
        ingest_target = self._ingestion.open()
        if ingest_target is None:
            return item.rows(self._boundary)
        outputs = item.pushed(self._boundary, ingest_target)
        if not outputs:
            # A stage has at least one output, possibly without rows.
            nobody = AttemptId(TaskId(StageId(ingest_target.query, 0), 0), 0)
            outputs = [TaskDone(nobody, (), TaskMetrics(0, 0, 0.0))]
        self.outputs[number] = outputs
        return MaterializedInput(number, len(outputs), ingest_target.partitions, item.output)

    def close(self) -> None:
        """Free the rows in the stores."""
        self._ingestion.close()


def _exactly(output: tuple[Attribute, ...], rows: Node) -> Node:
    """The rows without the column that only keeps their number, for a plan that expects none."""
    return rows if output else Project((), rows)


def number_inputs(plan: Node, items: tuple[SparkInput, ...]) -> Node:
    """The plan with a numbered input in place of each sub-tree that Spark runs; `SparkInputs` fills them."""
    inputs = {id(item.node): MaterializedInput(n, 0, 0, item.node.output) for n, item in enumerate(items)}

    def replace(node: Node) -> Node:
        if id(node) in inputs:
            return inputs[id(node)]
        return with_children(node, tuple(map(replace, node.children)))

    return replace(plan)


def find_spark_inputs(
    spark: SparkSession, plan: Node, origins: Origins, with_subplans: bool = True
) -> tuple[SparkInput, ...] | Unsupported | None:
    """The sub-trees of a partly native plan that Spark runs; a reason, or None, if Spark has to run all of it.

    With `with_subplans`, native parts below them run natively again. Nothing runs yet.
    """

    def can_cut(node: Node) -> bool:
        physical = origins.of(node)
        return physical is not None and stands_for_a_query(spark, physical)

    def handed(node: Node) -> SparkInput | None:
        physical = origins.of(node)
        plans = spark._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
        # Ids stay, so the native plan above reads the columns that it expects.
        logical = plans.Project(physical.output(), logical_of(physical))  # type: ignore[union-attr]  # it can be cut
        part = spark_part(spark, logical, node, origins) if with_subplans else None
        if isinstance(part, SparkPart):
            return SparkInput(node, part)
        whole = SparkPart(spark, logical, ())
        return SparkInput(node, whole) if whole.can_be_analyzed() else None

    cuts = cut_off(plan, can_cut)
    if cuts is None or isinstance(cuts, Unsupported):
        return cuts
    # A node with two readers is handed over once.
    found = list(map(handed, {id(cut): cut for cut in cuts}.values()))
    inputs = tuple(item for item in found if item is not None)
    return inputs if len(inputs) == len(found) else None
