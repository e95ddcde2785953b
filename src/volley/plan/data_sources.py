# SPDX-License-Identifier: Apache-2.0
"""Scans of Python data sources: the user's object, which the JVM holds pickled, and its read schema."""

from __future__ import annotations

from volley.errors import CaptureError
from volley.plan.decode_nodes import Operator, unknown
from volley.plan.expressions import Attribute
from volley.plan.jvm import Java
from volley.plan.local_registry import register
from volley.plan.nodes import HERE, Node, SourceScan
from volley.spark_versions.registry import current

_PYTHON_SCAN = "org.apache.spark.sql.execution.datasources.v2.python.PythonScan"


def batch_scan(operator: Operator, gateway: Java, scan: Java) -> Node:
    """A DataSource V2 scan. Only Python data sources are supported."""
    source = scan.scan()
    if source.getClass().getName() != _PYTHON_SCAN:
        return unknown(operator, source.getClass().getSimpleName())
    made = _field(_field(source, "ds"), "dataSourceInPython")
    if made is None:
        raise CaptureError("a Python data source was planned but never instantiated.")
    # Pickled by the user's own program for this session; only a reader of the source unpickles it.
    reader = f"{HERE}{register(bytes(made.dataSource()))}:{source.readSchema().json()}"
    output: tuple[Attribute, ...] = operator.all("output")
    return SourceScan(
        name=str(_field(source, "shortName")),
        reader=reader,
        columns=tuple(attribute.name for attribute in output),
        output=output,
        unsupported="Spark pushed filters down to it" if _has_filters(source) else None,
    )


def _has_filters(source: Java) -> bool:
    return current().has_source_filters and len(_field(source, "supportedFilters")) > 0


def _field(owner: Java, name: str) -> Java:
    """The value of a private field that has no accessor."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)
