# SPDX-License-Identifier: Apache-2.0
"""Prunes a directory of files by a query's filter: by the values of folders and the statistics of row groups."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from volley.formats.prune import COMPARISONS, holds, may_hold
from volley.spark_versions.arrow import arrow_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

_EPOCH = datetime.date(1970, 1, 1)


class Pruner:
    """Decides whether a folder or row group may have rows that satisfy all `filters`."""

    def __init__(self, filters: Sequence[Filter], schema: StructType | None) -> None:
        """`schema` is the schema of the rows. Without one, the values of folders are strings."""
        self._types = {field.name: field.type for field in arrow_schema(schema)} if schema else {}
        self._conditions: dict[str, list[tuple[str, tuple[Any, ...]]]] = {}
        for item in filters:
            is_list = type(item).__name__ == "In"
            function = "EqualTo" if is_list else type(item).__name__
            if function in COMPARISONS and len(item.attribute) == 1:  # type: ignore[attr-defined]  # these all have it
                values = item.value if is_list else (item.value,)  # type: ignore[attr-defined]
                self._conditions.setdefault(item.attribute[0], []).append((function, tuple(values)))  # type: ignore[attr-defined]

    def keeps_folder(self, values: Mapping[str, str | None]) -> bool:
        for name, text in values.items():
            try:
                value = pa.scalar(text, pa.string()).cast(self._types.get(name, pa.string())).as_py()
            except pa.ArrowException:
                continue  # reading it will raise the error
            for function, others in self._conditions.get(name, ()):
                if not holds(value, function, others):
                    return False
        return True

    def keeps_group(self, group: pq.RowGroupMetaData, stored: pa.Schema) -> bool:
        return all(
            may_hold(group, name, function, [_to_days(value) for value in values])
            for name, conditions in self._conditions.items()
            # If a column is read as another type than it is stored as, its order may differ.
            if name in stored.names and stored.field(name).type == self._types.get(name)
            for function, values in conditions
        )


def _to_days(value: Any) -> Any:
    """Convert a date to days since the epoch, as bounds have it."""
    return (value - _EPOCH).days if isinstance(value, datetime.date) else value
