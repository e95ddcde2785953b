# SPDX-License-Identifier: Apache-2.0
"""Calls functions of single rows with less work around each call than PySpark's worker.

A function gets the objects that PySpark's conversions make, and what it returns is converted by them. But its arguments
are taken from the columns, not from a tuple for every row, which costs more than the call of a small function.

The process need not have Volley: it gets this file as text. It knows the worker of the newest tested release.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType, NoneType
from typing import Any

ARROW_ROWS = "spark.volley.pythonFunctions.arrowRows"
"""Set for functions of pickled rows whose rows are sent as Arrow: nothing is converted that they return."""

_PICKLED = 100
_ARROW = 101


def install(worker: ModuleType) -> None:
    """Make this worker (`pyspark.worker`) use the loops of this module where they do the same as its own."""
    own = worker.read_udfs

    def read_udfs(pickler: Any, udfs: Sequence[Any], eval_type: int, runner: Any, evaluation: Any) -> Any:
        as_they_are = eval_type == _PICKLED and runner.get(ARROW_ROWS) == "true"
        converted = (
            eval_type == _ARROW
            and not runner.use_legacy_pandas_udf_conversion
            and runner.arrow_concurrency_level <= 0
        )
        if not as_they_are and not converted:
            return own(pickler, udfs, eval_type, runner, evaluation)
        calls = [
            _Call(worker, worker.read_single_udf(pickler, udf, _ARROW, runner, udf_index=place), runner)
            for place, udf in enumerate(udfs)
        ]
        results = [call.exact if as_they_are else call.converted for call in calls]
        serializer = worker.ArrowStreamSerializer(write_start_stream=True)
        return _Loop(worker, calls, results, runner, evaluation), None, serializer, serializer

    worker.read_udfs = read_udfs  # type: ignore[attr-defined]


class _Loop:
    """Calls functions with the rows of each batch."""

    def __init__(
        self,
        worker: ModuleType,
        calls: Sequence[_Call],
        results: Sequence[Callable[[list[Any]], Any]],
        runner: Any,
        evaluation: Any,
    ) -> None:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        self._worker = worker
        self._calls = calls
        self._results = results
        self._names = [f"_{place}" for place in range(len(calls))]
        self._values = ArrowTableToRowsConversion._to_pylist
        self._converters = [
            ArrowTableToRowsConversion._create_converter(
                field.dataType, none_on_identity=True, binary_as_bytes=runner.binary_as_bytes
            )
            for field in evaluation.input_type
        ]

    def __call__(self, split: int, batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            columns = [self._column(array, place) for place, array in enumerate(batch.columns)]
            found = []
            for call, result in zip(self._calls, self._results, strict=True):
                values = call.values(columns, batch.num_rows)
                # Fewer, too, if a function raised StopIteration: then Spark calls it, and raises its own error.
                self._worker.verify_result_row_count(len(values), batch.num_rows)
                found.append(result(values))
            yield pa.RecordBatch.from_arrays(found, self._names)

    def _column(self, array: Any, place: int) -> list[Any]:
        values: list[Any] = self._values(array)
        convert = self._converters[place]
        return values if convert is None else [convert(value) for value in values]


class _Call:
    """One function, or a chain of them, and where its arguments are among the columns."""

    def __init__(self, worker: ModuleType, read: tuple[Any, ...], runner: Any) -> None:
        from pyspark.sql.conversion import LocalDataToArrowConversion
        from pyspark.sql.pandas.types import to_arrow_type

        function, places, named, self._returns = read
        self._function, self._places = worker.wrap_kwargs_support(function, places, named)
        self._is_safe = runner.safecheck
        self._type = to_arrow_type(
            self._returns, timezone="UTC", prefers_large_types=runner.use_large_var_types
        )
        self._convert = LocalDataToArrowConversion._create_converter(
            self._returns,
            none_on_identity=True,
            int_to_decimal_coercion_enabled=runner.int_to_decimal_coercion_enabled,
        )
        self._plain = _plain_class(self._returns)

    def values(self, columns: Sequence[list[Any]], count: int) -> list[Any]:
        if not self._places:
            return list(itertools.starmap(self._function, itertools.repeat((), count)))
        return list(map(self._function, *(columns[place] for place in self._places)))

    def converted(self, values: list[Any]) -> Any:
        """The results as PySpark converts them."""
        import pyarrow as pa

        # Texts become themselves.
        if self._convert is not None and not (self._plain is str and self._are_plain(values)):
            values = [self._convert(value) for value in values]
        try:
            return pa.array(values, type=self._type)
        except pa.ArrowInvalid:
            return pa.array(values).cast(target_type=self._type, safe=self._is_safe)

    def exact(self, values: list[Any]) -> Any:
        """The results if they are of the declared type as they are. If not, Spark has to judge them."""
        import pyarrow as pa

        if not self._are_plain(values):
            raise TypeError(f"a result is not simply of type {self._returns.simpleString()}")
        if self._plain is float:
            return pa.array(values, pa.float64()).cast(self._type)
        return pa.array(values, type=self._type)

    def _are_plain(self, values: list[Any]) -> bool:
        return self._plain is not None and {*map(type, values)} <= {NoneType, self._plain}


def _plain_class(returns: Any) -> type | None:
    """The class of values that are of this type as they are; None if there is no such class. A bool is no integer."""
    from pyspark.sql import types

    classes: dict[type, type] = {
        types.BooleanType: bool,
        types.ByteType: int,
        types.ShortType: int,
        types.IntegerType: int,
        types.LongType: int,
        types.FloatType: float,
        types.DoubleType: float,
        types.StringType: str,
    }
    return classes.get(type(returns))
