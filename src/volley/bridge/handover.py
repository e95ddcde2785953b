"""Rows of Spark on their way to the native side: Spark runs a sub-tree of the plan, the native plan reads its rows.

A node of Spark's physical plan knows the part of the optimised query that it stands for. That part, with the columns of
the node, is a query of its own: Spark runs it, in parallel, and the rows come over as Arrow in the driver's process,
which is the worker, or as files that its tasks write and the workers read, so that they never pass the driver.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.readwriter import DataFrameWriter

from volley.plan.capture import Origins
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.nodes import DataFile, FileScan, LocalRows, Node, with_children
from volley.plan.types import NULL, is_carried, parse_type, to_arrow
from volley.support.reasons import Unsupported
from volley.support.split import cut_off
from volley.worker.scratch import Scratch


class HandOver:
    """A sub-tree that Spark runs. `output` is what the native plan reads of it, by Catalyst's ids."""

    def __init__(self, spark: SparkSession, node: Node, physical: Java) -> None:
        self.node = node
        self._spark = spark
        attributes = physical.output()
        self.output = tuple(_attribute(attributes.apply(number)) for number in range(attributes.size()))
        logical = spark._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
        self._query = logical.Project(attributes, _logical(physical))

    def rows(self) -> LocalRows:
        """All rows, in this process."""
        frame = self._frame()
        batches: list[pa.RecordBatch] = inspect.unwrap(ClassicDataFrame._collect_as_arrow)(frame)
        names = _names(self.output)
        target = pa.schema([pa.field(n, to_arrow(a.type)) for n, a in zip(names, self.output, strict=True)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, target) as writer:
            for batch in batches:
                columns = [c.cast(f.type) for c, f in zip(batch.columns, target, strict=True)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=target))
        return LocalRows(self.output, sink.getvalue().to_pybytes())

    def files(self, directory: Path) -> FileScan:
        """The rows in files that Spark's tasks write to `directory`, which every worker must see."""
        frame = self._frame()
        inspect.unwrap(DataFrameWriter.parquet)(DataFrameWriter(frame), str(directory))
        found = [(path, path.stat()) for path in sorted(directory.glob("part-*"))]
        files = tuple(
            DataFile(str(path), stat.st_size, stat.st_mtime_ns // 1_000_000) for path, stat in found
        )
        names = _names(self.output)
        columns = tuple(
            Attribute(a.id, name, a.type, a.nullable) for a, name in zip(self.output, names, strict=True)
        )
        return FileScan("parquet", files, columns, (), ())

    def _frame(self) -> DataFrame:
        datasets = self._spark._jvm.org.apache.spark.sql.classic.Dataset  # type: ignore[union-attr]
        rows = ClassicDataFrame(datasets.ofRows(self._spark._jsparkSession, self._query), self._spark)
        return rows.toDF(*_names(self.output))


class HandedOver:
    """The rows of all hand-overs of a query. Spark runs them when they are first asked for.

    `directory` is where they wait for workers in other processes; None when the worker is this process.
    """

    def __init__(self, items: tuple[HandOver, ...], directory: Path | None) -> None:
        self.items = items
        self._home = directory
        self._scratch: Scratch | None = None
        self._rows: dict[int, Node] = {}

    def filled(self, plan: Node) -> Node:
        """The plan with the rows of Spark in place of the sub-trees that Spark runs."""
        if not self._rows:
            self._rows = {id(item.node): self._read(number, item) for number, item in enumerate(self.items)}

        def fill(node: Node) -> Node:
            if id(node) in self._rows:
                return self._rows[id(node)]
            return with_children(node, tuple(fill(child) for child in node.children))

        return fill(plan)

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()

    def _read(self, number: int, item: HandOver) -> Node:
        if self._home is None:
            return item.rows()
        if self._scratch is None:
            # Removed even when this process is killed.
            self._scratch = Scratch((self._home,), prefix="volley-handover-")
        return item.files(self._scratch.directories[0] / str(number))


def hand_overs(
    spark: SparkSession, plan: Node, origins: Origins
) -> tuple[HandOver, ...] | Unsupported | None:
    """What Spark runs of a plan that is not native as a whole; a reason, or None, when that is all of it.

    Nothing runs yet.
    """

    def can_cut(node: Node) -> bool:
        physical = origins.of(node)
        return physical is not None and _stands_for_a_query(spark, physical)

    cuts = cut_off(plan, can_cut)
    if cuts is None or isinstance(cuts, Unsupported):
        return cuts
    return tuple(HandOver(spark, node, origins.of(node)) for node in cuts)


def _stands_for_a_query(spark: SparkSession, physical: Java) -> bool:
    tag = spark._jvm.org.apache.spark.sql.execution.SparkPlan.LOGICAL_PLAN_TAG()  # type: ignore[union-attr]
    # A link that was inherited is that of a node above: it computes more than this one.
    if not physical.getTagValue(tag).isDefined():
        return False
    have = {id for id, _ in _ids(_logical(physical).output())}
    attributes = _ids(physical.output())
    if not attributes or any(id not in have for id, _ in attributes):
        return False
    types = [parse_type(_json(attribute)) for _, attribute in attributes]
    return all(is_carried(kind) and kind != NULL for kind in types)


def _logical(physical: Java) -> Java:
    return physical.logicalLink().get()


def _ids(attributes: Java) -> Iterable[tuple[int, Java]]:
    found = (attributes.apply(number) for number in range(attributes.size()))
    return [(int(attribute.exprId().id()), attribute) for attribute in found]


def _attribute(java: Java) -> Attribute:
    return Attribute(
        int(java.exprId().id()), str(java.name()), parse_type(_json(java)), bool(java.nullable())
    )


def _json(attribute: Java) -> Any:
    return json.loads(attribute.dataType().json())


def _names(output: tuple[Attribute, ...]) -> list[str]:
    """Names of Spark may repeat, and files know columns by their names."""
    return [f"c{number}" for number in range(len(output))]
