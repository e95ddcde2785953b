"""Rows of Spark on their way to the native side: Spark runs a sub-tree of the plan, the native plan reads its rows.

A node of Spark's physical plan knows the part of the optimised query that it stands for. That part, with the columns of
the node, is a query of its own: Spark runs it, in parallel, and the rows come over as Arrow in the driver's process,
which is the worker, or as files that its tasks write and the workers read, so that they never pass the driver.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.readwriter import DataFrameWriter

from volley.bridge.attributes import column_names, logical_of, stands_for_a_query
from volley.bridge.crossing import Crossing
from volley.bridge.islands import SparkPart, spark_part
from volley.plan.capture import Origins
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, FileScan, LocalRows, Node, with_children
from volley.plan.types import to_arrow
from volley.support.reasons import Unsupported
from volley.support.split import cut_off
from volley.worker.scratch import Scratch


class HandOver:
    """A sub-tree that Spark runs. `output` is what the native plan reads of it, by Catalyst's ids."""

    def __init__(self, node: Node, part: SparkPart) -> None:
        self.node = node
        self.part = part
        self.output = part.output

    def rows(self, crossing: Crossing) -> LocalRows:
        """All rows, in this process."""
        names = column_names(self.output)
        schema = pa.schema([pa.field(n, to_arrow(a.type)) for n, a in zip(names, self.output, strict=True)])
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in self.part.batches(crossing):
                writer.write_batch(batch)
        return LocalRows(self.output, sink.getvalue().to_pybytes())

    def files(self, crossing: Crossing, directory: Path) -> FileScan:
        """The rows in files that Spark's tasks write."""
        with crossing.read_by_spark():
            writer = DataFrameWriter(self.part.frame(crossing))
            inspect.unwrap(DataFrameWriter.parquet)(writer, str(directory))
        found = [(path, path.stat()) for path in sorted(directory.glob("part-*"))]
        files = tuple(
            DataFile(str(path), stat.st_size, stat.st_mtime_ns // 1_000_000) for path, stat in found
        )
        names = column_names(self.output)
        columns = tuple(
            Attribute(a.id, name, a.type, a.nullable) for a, name in zip(self.output, names, strict=True)
        )
        return FileScan("parquet", files, columns, (), ())


class HandedOver:
    """The rows of all hand-overs of a query. Spark runs them when they are first asked for.

    They wait in files below `home` for workers in other processes. Without it the worker is this process.
    """

    def __init__(self, items: tuple[HandOver, ...], crossing: Crossing, home: Path | None) -> None:
        self.items = items
        self._crossing = crossing
        self._home = home
        self._scratch: Scratch | None = None
        self._rows: dict[int, Node] = {}

    def filled(self, plan: Node) -> Node:
        """The plan with the rows of Spark in place of the sub-trees that Spark runs."""
        if not self._rows:
            self._rows = {id(item.node): self._read(item) for item in self.items}

        def fill(node: Node) -> Node:
            if id(node) in self._rows:
                return self._rows[id(node)]
            return with_children(node, tuple(fill(child) for child in node.children))

        return fill(plan)

    def _read(self, item: HandOver) -> Node:
        if self._home is None:
            return item.rows(self._crossing)
        if self._scratch is None:
            # Removed even when this process is killed.
            self._scratch = Scratch((self._home,), prefix="volley-handover-")
        return item.files(self._crossing, self._scratch.directories[0] / str(self.items.index(item)))

    def close(self) -> None:
        if self._scratch is not None:
            self._scratch.close()


def hand_overs(
    spark: SparkSession, plan: Node, origins: Origins, with_islands: bool = True
) -> tuple[HandOver, ...] | Unsupported | None:
    """What Spark runs of a plan that is not native as a whole; a reason, or None, when that is all of it.

    With `with_islands`, what is native below that runs natively again. Nothing runs yet.
    """

    def can_cut(node: Node) -> bool:
        physical = origins.of(node)
        return physical is not None and stands_for_a_query(spark, physical)

    def handed(node: Node) -> HandOver:
        physical = origins.of(node)
        plans = spark._jvm.org.apache.spark.sql.catalyst.plans.logical  # type: ignore[union-attr]
        # Ids stay, so the native plan above reads the columns that it expects.
        logical = plans.Project(physical.output(), logical_of(physical))  # type: ignore[union-attr]  # it can be cut
        part = spark_part(spark, logical, node, origins) if with_islands else None
        return HandOver(node, part if isinstance(part, SparkPart) else SparkPart(spark, logical, ()))

    cuts = cut_off(plan, can_cut)
    if cuts is None or isinstance(cuts, Unsupported):
        return cuts
    return tuple(map(handed, cuts))
