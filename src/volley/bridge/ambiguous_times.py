# SPDX-License-Identifier: Apache-2.0
"""Sets `fold` on local times that occur twice.

Rows hold timestamps as local times without a zone. When clocks are set back, an hour occurs twice. `collect` marks its
second occurrence with `fold=1`, so that `datetime.timestamp()` and `createDataFrame` find the instant again. PySpark's
conversion of Arrow tables does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.types import _create_row

_DAY_SECONDS = 86_400
_LONGEST_FOLD_SECONDS = 3 * 3600


def mark_folds(rows: list[Row], table: pa.Table) -> list[Row]:
    """The rows of `table`, with `fold` as `datetime.fromtimestamp` sets it. No struct has two fields of one name."""
    columns = [
        index
        for index, column in enumerate(table.columns)
        if any(_has_fold(values) for chunk in column.chunks for values in _instants(chunk))
    ]
    if not columns:
        return rows
    instants = {index: table.column(index).to_pylist() for index in columns}

    def mark_row(number: int, row: Row) -> Row:
        values = [
            _mark(value, instants[index][number]) if index in instants else value
            for index, value in enumerate(row)
        ]
        return _with_values(row, values)

    return [mark_row(number, row) for number, row in enumerate(rows)]


def _instants(values: pa.Array) -> Iterator[pa.Array]:
    """All timestamps with a zone inside of an array."""
    match values.type:
        case pa.TimestampType() as kind if kind.tz is not None:
            yield values
        case pa.StructType():
            for field in values.flatten():
                yield from _instants(field)
        case pa.MapType():
            yield from _instants(values.keys)
            yield from _instants(values.items)
        case pa.ListType() | pa.LargeListType():
            yield from _instants(values.flatten())


def _has_fold(instants: pa.Array) -> bool:
    seconds = instants.drop_null().cast(pa.int64()).to_numpy() // 1_000_000
    days = seconds // _DAY_SECONDS
    changed = [day for day in np.unique(days).tolist() if _is_set_back(day * _DAY_SECONDS)]
    near = np.unique(seconds[np.isin(days, changed)]).tolist()
    return any(datetime.fromtimestamp(second).fold for second in near)


def _is_set_back(second: int) -> bool:
    """Whether clocks are set back on the day that begins there, or shortly before it."""
    try:
        before = time.localtime(second - _LONGEST_FOLD_SECONDS).tm_gmtoff
        return before > time.localtime(second + _DAY_SECONDS).tm_gmtoff
    except (OverflowError, ValueError, OSError):
        return False  # beyond Python's calendar


def _mark(value: Any, instant: Any) -> Any:
    """`value` as PySpark has converted it, `instant` as Arrow has."""
    match value:
        case datetime() if isinstance(instant, datetime) and instant.tzinfo is not None:
            return value.replace(fold=_fold(instant))
        case Row():
            return _with_values(value, [_mark(*pair) for pair in zip(value, instant.values(), strict=True)])
        case list():
            return [_mark(*pair) for pair in zip(value, instant, strict=True)]
        case dict() if len(value) == len(instant):
            pairs = zip(value.items(), instant, strict=True)
            return {_mark(key, k): _mark(item, i) for (key, item), (k, i) in pairs}
        case _:
            return value


def _fold(instant: datetime) -> int:
    try:
        return datetime.fromtimestamp(int(instant.timestamp())).fold
    except (OverflowError, ValueError, OSError):
        return 0  # at an end of Python's calendar


def _with_values(row: Row, values: list[Any]) -> Row:
    return _create_row(row.__fields__, values)
