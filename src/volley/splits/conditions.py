"""What a data source is told of the filter above it, in PySpark's own words.

    Filter: id > 3 and name = 'x' and f(y)    ->    reader.prune([GreaterThan(("id",), 3), EqualTo(("name",), "x")])

A reader that offers `prune` may leave out partitions and rows for which one of the conditions is not true, and need
not: the plan filters again. Spark knows nothing of it and reads everything.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from volley.plan.nodes import SourceScan
from volley.plan.types import DATE, DataType
from volley.splits.prune import comparisons

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, Filter

_EPOCH = datetime.date(1970, 1, 1)


def tell(reader: DataSourceReader, scan: SourceScan) -> None:
    """Let the reader prune, where it can and there is something to prune by."""
    prune = getattr(reader, "prune", None)
    if prune is not None and (found := conditions(scan)):
        prune(found)


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
