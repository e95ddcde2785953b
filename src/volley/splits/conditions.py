# SPDX-License-Identifier: Apache-2.0
"""What a data source is told of the query above it, in PySpark's own words.

    Filter: id > 3 and name = 'x' and f(y)    ->    reader.prune([GreaterThan(("id",), 3), EqualTo(("name",), "x")])
    Project: id, name                         ->    reader.select(["id", "name", "y"])

A reader that offers `prune` may leave out partitions and rows for which one of the conditions is not true, and need
not: the plan filters again. One that offers `select` gives these columns, in this order, and no others. Spark knows
nothing of either and reads everything.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from volley.plan.nodes import SourceScan
from volley.plan.types import DATE, DataType
from volley.splits.prune import comparisons

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, Filter
    from pyspark.sql.types import StructType

_EPOCH = datetime.date(1970, 1, 1)


def tell(reader: DataSourceReader, scan: SourceScan, schema: StructType) -> StructType:
    """Let the reader leave out what it can; the schema of what it reads then."""
    prune, select = getattr(reader, "prune", None), getattr(reader, "select", None)
    if prune is not None and (found := conditions(scan)):
        prune(found)
    if select is None:
        return schema
    select(list(scan.columns))
    return type(schema)([schema[name] for name in scan.columns])


def conditions(scan: SourceScan) -> list[Filter]:
    from pyspark.sql import datasource

    names = dict(zip((column.id for column in scan.output), scan.columns, strict=True))
    found: list[Filter] = []
    for column, function, values in comparisons(scan.filters):
        if column.id not in names:
            continue
        path = (names[column.id],)
        plain = tuple(_value(value, column.type) for value in values)
        if len(plain) == 1:
            found.append(getattr(datasource, function)(path, plain[0]))
        else:
            found.append(datasource.In(path, plain))
    return found


def _value(value: Any, type: DataType) -> Any:
    return _EPOCH + datetime.timedelta(days=value) if type == DATE else value
