# SPDX-License-Identifier: Apache-2.0
"""Leaves whose content is read from JVM objects: rows held by the driver, and Python data sources."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from volley.batches import make_batch
from volley.plan.data_sources import batch_scan
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java, singleton
from volley.plan.nodes import LocalRows, Node
from volley.plan.types import is_carried, to_arrow

_ROWS_A_BATCH = 65_536


def _local_rows(operator: Operator, gateway: Java, scan: Java) -> Node:
    output: tuple[Attribute, ...] = operator.all("output")
    if not all(is_carried(attribute.type) for attribute in output):
        return unknown(operator, "rows of an unsupported type")
    names = [f"c{index}" for index in range(len(output))]
    target = pa.schema(
        [pa.field(name, to_arrow(item.type)) for name, item in zip(names, output, strict=True)]
    )
    converters = singleton(gateway, "org.apache.spark.sql.execution.arrow.ArrowConverters")
    batches = converters.toBatchWithSchemaIterator(
        scan.rows().iterator(), scan.schema(), _ROWS_A_BATCH, 0, "UTC", False, False
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, target) as writer:
        while batches.hasNext():
            for batch in pa.ipc.open_stream(bytes(batches.next())):
                columns = [
                    column.cast(field.type) for column, field in zip(batch.columns, target, strict=True)
                ]
                writer.write_batch(make_batch(columns, target, batch.num_rows))
    return LocalRows(output, sink.getvalue().to_pybytes())


SOURCES: dict[str, Callable[[Operator, Java, Java], Node]] = {
    "LocalTableScanExec": _local_rows,
    # The result of SHOW, DESCRIBE and the like; the command itself has already run.
    "CommandResultExec": _local_rows,
    "BatchScanExec": batch_scan,
}
