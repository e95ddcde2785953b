# SPDX-License-Identifier: Apache-2.0
"""Prunes the files of a table by a query's filter, by partition values and the statistics of files and row groups."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from volley.formats.prune import COMPARISONS, holds, may_hold, may_hold_between
from volley.spark_versions.arrow import arrow_schema

if TYPE_CHECKING:
    # Spark 4.0 has no filters.
    from pyspark.sql.datasource import Filter

_EPOCH = datetime.date(1970, 1, 1)


class Pruner:
    """Decides whether a folder, file or row group may have rows that satisfy all `filters`."""

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
            if not self.keeps_value(name, value):
                return False
        return True

    def keeps_value(self, name: str, value: Any) -> bool:
        """Whether rows whose column `name` has this value may be wanted."""
        return all(holds(value, function, others) for function, others in self._conditions.get(name, ()))

    def keeps_bounds(self, name: str, low: Any, high: Any) -> bool:
        """Whether rows whose column `name` is NULL or between these bounds may be wanted. A bound may be None."""
        return all(
            may_hold_between(low, high, function, [_to_days(value) for value in values])
            for function, values in self._conditions.get(name, ())
        )

    @property
    def columns(self) -> Iterable[str]:
        """The columns that filters compare."""
        return self._conditions

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
