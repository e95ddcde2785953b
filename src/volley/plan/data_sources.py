# SPDX-License-Identifier: Apache-2.0
"""Scans of Python data sources: the user's own object, which the JVM keeps pickled, and the schema it is read with."""

from __future__ import annotations

from volley.errors import CaptureError
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.local_registry import hold
from volley.plan.nodes import HERE, Node, SourceScan

_PYTHON_SCAN = "org.apache.spark.sql.execution.datasources.v2.python.PythonScan"


def batch_scan(operator: Operator, gateway: Java, scan: Java) -> Node:
    """A scan of the second data source API; only those of Python are known."""
    source = scan.scan()
    if source.getClass().getName() != _PYTHON_SCAN:
        return unknown(operator, source.getClass().getSimpleName())
    made = _field(_field(source, "ds"), "dataSourceInPython")
    if made is None:
        raise CaptureError("a Python data source was planned without being made.")
    # Bytes that the user's program pickled for this session; whoever reads the source opens them.
    reader = f"{HERE}{hold(bytes(made.dataSource()))}:{source.readSchema().json()}"
    output: tuple[Attribute, ...] = operator.all("output")
    return SourceScan(
        name=str(_field(source, "shortName")),
        reader=reader,
        columns=tuple(attribute.name for attribute in output),
        output=output,
        unsupported="filters were handed to it" if len(_field(source, "supportedFilters")) else None,
    )


def _field(owner: Java, name: str) -> Java:
    """A field that has no method of its own."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)
