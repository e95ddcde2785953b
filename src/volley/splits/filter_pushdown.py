# SPDX-License-Identifier: Apache-2.0
"""Pushes a query's filters and columns down to a data source, as PySpark's own filter objects.

    Filter: id > 3 and name = 'x' and f(y)    ->    reader.prune([GreaterThan(("id",), 3), EqualTo(("name",), "x")])
    Project: id, name                         ->    reader.select(["id", "name", "y"])

A reader with `prune` may skip partitions and rows for which one of the filters is not true, but need not: the plan
filters again. A reader with `select` must return exactly these columns, in this order. Spark calls neither and reads
everything.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from volley.formats.prune import comparisons
from volley.plan.nodes import SourceScan
from volley.plan.types import DATE, DataType
from volley.spark_versions.registry import current

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, Filter
    from pyspark.sql.types import StructType

_EPOCH = datetime.date(1970, 1, 1)


def push_down(reader: DataSourceReader, scan: SourceScan, schema: StructType) -> StructType:
    """Push filters and columns down to a reader that supports it. Returns the schema that it then reads."""
    prune, select = getattr(reader, "prune", None), getattr(reader, "select", None)
    if prune is not None and (found := pushable_filters(scan)):
        prune(found)
    if select is None:
        return schema
    select(list(scan.columns))
    return type(schema)([schema[name] for name in scan.columns])


def pushable_filters(scan: SourceScan) -> list[Filter]:
    """The filters of a scan that PySpark's filter objects can express."""
    if not current().has_source_filters:
        return []
    from pyspark.sql import datasource

    names = dict(zip((column.id for column in scan.output), scan.columns, strict=True))
    found: list[Filter] = []
    for column, function, values in comparisons(scan.filters):
        if column.id not in names:
            continue
        path = (names[column.id],)
        plain = tuple(_to_python(value, column.type) for value in values)
        if len(plain) == 1:
            found.append(getattr(datasource, function)(path, plain[0]))
        else:
            found.append(datasource.In(path, plain))
    return found


def _to_python(value: Any, type: DataType) -> Any:
    return _EPOCH + datetime.timedelta(days=value) if type == DATE else value
