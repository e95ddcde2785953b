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

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
# How a session observes the processes in which Spark reads. Volley reads in its own.
_LOGGING = "spark.sql.pyspark.worker.logging.enabled"
_PROFILER = "spark.sql.pyspark.dataSource.profiler"
_PYTHON_SCAN = "org.apache.spark.sql.execution.datasources.v2.python.PythonScan"


def batch_scan(operator: Operator, gateway: Java, scan: Java) -> Node:
    """A DataSource V2 scan. Only Python data sources are supported."""
    source = scan.scan()
    if source.getClass().getName() != _PYTHON_SCAN:
        return unknown(operator, source.getClass().getSimpleName())
    if observed := _find_observer(scan):
        return unknown(operator, f"{observed} is set")
    made = _field(_field(source, "ds"), "dataSourceInPython")
    if made is None:
        raise CaptureError("a Python data source was planned but never instantiated.")
    # Pickled by the user's own program for this session; only a reader of the source unpickles it.
    names = [register(bytes(made.dataSource())), *_pushed_reader(scan, source)]
    reader = f"{HERE}{'+'.join(names)}:{source.readSchema().json()}"
    output: tuple[Attribute, ...] = operator.all("output")
    return SourceScan(
        name=str(_field(source, "shortName")),
        reader=reader,
        columns=tuple(attribute.name for attribute in output),
        output=output,
    )


def _find_observer(scan: Java) -> str | None:
    """The setting by which the session observes how a source is read."""
    conf = scan.conf()
    if str(conf.getConfString(_LOGGING, "false")).lower() == "true":
        return _LOGGING
    return _PROFILER if conf.contains(_PROFILER) else None


def _pushed_reader(scan: Java, source: Java) -> list[str]:
    """The reader on which Spark's planner has called `pushFilters`, and its partitions; nothing if it did not.

    The plan no longer has the filters that the reader took, so no other reader gives the right rows.
    """
    if not current().has_source_filters or scan.conf().getConfString(_PUSHDOWN, "false") != "true":
        return []
    made = _field(_field(source, "ds"), "readInfo")
    if made is None:
        return []
    partitions = made.partitions()
    pickles = [bytes(partitions.apply(number)) for number in range(partitions.length())]
    return [register(bytes(made.func())), *map(register, pickles)]


def _field(owner: Java, name: str) -> Java:
    """The value of a private field that has no accessor."""
    field = owner.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(owner)
