# SPDX-License-Identifier: Apache-2.0
"""Leaves whose content is read from JVM objects: rows held by the driver, cached frames, and Python data sources."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from volley.plan.cached_frames import read_cached
from volley.plan.data_sources import batch_scan
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java, singleton
from volley.plan.local_data import read_rows
from volley.plan.local_rows import to_ipc
from volley.plan.nodes import LocalRows, Node
from volley.plan.types import YEAR_MONTH_INTERVALS, SimpleType, is_carried, is_readable
from volley.spark_versions.registry import current

_ROWS_A_BATCH = 65_536


def _local_rows(operator: Operator, gateway: Java, scan: Java) -> Node:
    output: tuple[Attribute, ...] = operator.all("output")
    if not all(is_carried(attribute.type) for attribute in output):
        return unknown(operator, "rows of an unsupported type")
    schema = scan.schema()
    if not all(is_readable(attribute.type) for attribute in output):
        schema = gateway.jvm.org.apache.spark.sql.types.DataType.fromJson(_months_as_numbers(schema.json()))
    converters = singleton(gateway, "org.apache.spark.sql.execution.arrow.ArrowConverters")
    found = converters.toBatchWithSchemaIterator(
        scan.rows().iterator(), schema, _ROWS_A_BATCH, 0, "UTC", *current().arrow_writer_arguments
    )
    return LocalRows(output, to_ipc(_batches(found), output))


def _months_as_numbers(schema: str) -> str:
    """A schema as JSON with numbers for intervals of months, as which Spark's rows hold them."""

    def change(part: Any) -> Any:
        match part:
            case str() if SimpleType(part) in YEAR_MONTH_INTERVALS:
                return "integer"
            case {"type": _}:
                inside = ("type", "elementType", "keyType", "valueType", "fields")
                return {key: change(value) if key in inside else value for key, value in part.items()}
            case list():
                return [change(item) for item in part]
            case _:
                return part

    return json.dumps(change(json.loads(schema)))


def _batches(found: Java) -> Iterator[pa.RecordBatch]:
    while found.hasNext():
        yield from pa.ipc.open_stream(bytes(found.next()))


SOURCES: dict[str, Callable[[Operator, Java, Java], Node]] = {
    "LocalTableScanExec": _local_rows,
    # The result of SHOW, DESCRIBE and the like; the command itself has already run.
    "CommandResultExec": _local_rows,
    "RDDScanExec": read_rows,
    "BatchScanExec": batch_scan,
    "InMemoryTableScanExec": read_cached,
}
