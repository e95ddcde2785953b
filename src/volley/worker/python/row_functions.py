# SPDX-License-Identifier: Apache-2.0
"""Calls functions of single rows with less work around each call than PySpark's worker.

A function gets the objects that PySpark's conversions make, and what it returns is converted by them. But its arguments
are taken from the columns, not from a tuple for every row, which costs more than the call of a small function. The rows
that a table function returns for many rows are converted together, not in a batch for each. And where the frame of a
row begins and ends in a window is not made a pandas series, which no function sees.

The process need not have Volley: it gets this file as text. It knows the worker of the newest tested release.
"""

from __future__ import annotations

import gc
import inspect
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from decimal import Decimal
from functools import cache
from types import ModuleType, NoneType, SimpleNamespace
from typing import Any

ARROW_ROWS = "spark.volley.pythonFunctions.arrowRows"
"""Set for functions of pickled rows whose rows are sent as Arrow: nothing is converted that they return."""

BATCH_ROWS = "spark.volley.pythonFunctions.batchRows"
"""Set if a batch may have the rows of several of Spark's batches, which have so many rows each."""

_PICKLED = 100
_ARROW = 101
_ARROW_TABLE = 301
_WINDOW_PANDAS = 203

# Results that are older are passed on, though they are few.
_LONGEST_SECONDS = 0.02


def install(worker: ModuleType) -> None:
    """Make this worker (`pyspark.worker`) use the loops of this module where they do the same as its own."""
    own_functions, own_table = worker.read_udfs, worker.read_udtf
    own_transformer = worker.ArrowBatchTransformer

    def read_udfs(pickler: Any, udfs: Sequence[Any], eval_type: int, runner: Any, evaluation: Any) -> Any:
        as_they_are = eval_type == _PICKLED and runner.get(ARROW_ROWS) == "true"
        converted = (
            eval_type == _ARROW
            and not runner.use_legacy_pandas_udf_conversion
            and runner.arrow_concurrency_level <= 0
        )
        in_frames = eval_type == _WINDOW_PANDAS
        transformer = _FrameTransformer(own_transformer, udfs, runner) if in_frames else own_transformer
        worker.ArrowBatchTransformer = transformer  # type: ignore[attr-defined]
        rows = int(runner.get(BATCH_ROWS) or 0)
        if not as_they_are and not converted:
            own_loop, *steps = own_functions(pickler, udfs, eval_type, runner, evaluation)
            if not rows:
                return own_loop, *steps
            return lambda split, batches: own_loop(split, _cut_all(batches, rows)), *steps
        _freeze_modules()
        calls = [
            _Call(worker, worker.read_single_udf(pickler, udf, _ARROW, runner, udf_index=place), runner)
            for place, udf in enumerate(udfs)
        ]
        loop = _Loop(worker, calls, _Columns(runner, evaluation), rows, row_by_row=as_they_are)
        return _steps(worker, loop)

    def read_udtf(pickler: Any, udtf: Any, eval_type: int, runner: Any, evaluation: Any) -> Any:
        worker.ArrowBatchTransformer = own_transformer  # type: ignore[attr-defined]
        simple = (
            eval_type == _ARROW_TABLE
            and not runner.use_legacy_pandas_udtf_conversion
            and udtf.pickled_analyze_result is None
            and not udtf.partition_child_indexes
            # PySpark looks for NULLs in each row where there may be none, and in maps.
            and not any(word in udtf.return_type for word in ("false", '"map"'))
        )
        if not simple:
            return own_table(pickler, udtf, eval_type, runner, evaluation)
        return _steps(worker, _TableLoop(worker, pickler, udtf, runner, _Columns(runner, evaluation)))

    worker.read_udfs = read_udfs  # type: ignore[attr-defined]
    worker.read_udtf = read_udtf  # type: ignore[attr-defined]


@cache
def _freeze_modules() -> None:
    """Keep the garbage collector from looking at modules: PySpark runs it after each task.

    Called once, before the first function is read: what a task has made can be collected.
    """
    import pyarrow as pa

    pa.array([0])  # loads pandas
    gc.freeze()


def _steps(worker: ModuleType, loop: Any) -> tuple[Any, None, Any, Any]:
    """What a worker runs: a function of batches, no profiler, and what reads and writes the batches."""
    serializer = worker.ArrowStreamSerializer(write_start_stream=True)
    return loop, None, serializer, serializer


def _cut(batch: Any, rows: int) -> Iterator[Any]:
    """The batches that Spark would have sent instead of this one. 0 rows: it would have sent this one."""
    if 0 < rows < batch.num_rows:
        yield from (batch.slice(start, rows) for start in range(0, batch.num_rows, rows))
    else:
        yield batch


def _cut_all(batches: Iterable[Any], rows: int) -> Iterator[Any]:
    return itertools.chain.from_iterable(_cut(batch, rows) for batch in batches)


class _FrameTransformer:
    """Stands for PySpark's class in the loop over windows. A process runs one program at a time."""

    def __init__(self, own: Any, udfs: Sequence[Any], runner: Any) -> None:
        kinds = runner.get("window_bound_types").split(",")
        self._own = own
        # The first two arguments of a function are where the frame begins and ends.
        self._bounds = {
            place
            for udf, kind in zip(udfs, kinds, strict=True)
            if kind.strip() == "bounded"
            for place in udf.args[:2]
        }

    def to_pandas(self, table: Any, **options: Any) -> list[Any]:
        seen = [place for place in range(table.num_columns) if place not in self._bounds]
        if not seen:
            found: list[Any] = self._own.to_pandas(table, **options)
            return found
        series = iter(self._own.to_pandas(table.select(seen), **options))
        # With integers of Python's, cutting a series is faster, too.
        return [
            SimpleNamespace(values=table.column(place).to_pylist()) if place in self._bounds else next(series)
            for place in range(table.num_columns)
        ]


class _Columns:
    """Makes lists of the objects that functions see."""

    def __init__(self, runner: Any, evaluation: Any) -> None:
        from pyspark.sql.conversion import ArrowTableToRowsConversion

        self._values = ArrowTableToRowsConversion._to_pylist
        self._converters = [
            ArrowTableToRowsConversion._create_converter(
                field.dataType, none_on_identity=True, binary_as_bytes=runner.binary_as_bytes
            )
            for field in evaluation.input_type
        ]

    def of(self, batch: Any) -> list[list[Any]]:
        return [
            self._objects(array) if convert is None else [convert(value) for value in self._values(array)]
            for array, convert in zip(batch.columns, self._converters, strict=True)
        ]

    def _objects(self, array: Any) -> list[Any]:
        import pyarrow as pa

        if array.null_count or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            found: list[Any] = self._values(array)
            return found
        # The same objects, at most in the same time; before pyarrow 25.0.1 in a small part of it.
        numbers: list[Any] = array.to_numpy().tolist()
        return numbers


class _Loop:
    """Calls functions with the rows of each batch.

    `row_by_row`: all functions with the first row, then with the next, as PySpark calls those of pickled rows; and what
    they return is not converted. Otherwise, the first function with all rows of the batch, then the next.
    """

    def __init__(
        self,
        worker: ModuleType,
        calls: Sequence[_Call],
        columns: _Columns,
        batch_rows: int,
        *,
        row_by_row: bool,
    ) -> None:
        self._worker = worker
        self._calls = calls
        self._names = [f"_{place}" for place in range(len(calls))]
        self._columns = columns
        self._batch_rows = batch_rows
        self._row_by_row = row_by_row

    def __call__(self, split: int, batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            started = time.monotonic()
            found = []
            for part in _cut(batch, self._batch_rows):
                found.append(self._results(part))
                # The reader of slow functions may need no more rows.
                if time.monotonic() - started >= _LONGEST_SECONDS:
                    yield _joined(found)
                    started = time.monotonic()
                    found = []
            if found:
                yield _joined(found)

    def _results(self, batch: Any) -> Any:
        import pyarrow as pa

        columns, count = self._columns.of(batch), batch.num_rows
        if self._row_by_row:
            found = [
                call.exact(self._checked(values, count))
                for call, values in zip(self._calls, self._rows(columns, count), strict=True)
            ]
        else:
            found = [call.converted(self._checked(call.all(columns, count), count)) for call in self._calls]
        return pa.RecordBatch.from_arrays(found, self._names)

    def _rows(self, columns: Sequence[list[Any]], count: int) -> list[list[Any]]:
        """The results of each function."""
        if len(self._calls) == 1:
            return [self._calls[0].all(columns, count)]
        # zip asks each in turn, and ends with the first that a StopIteration ends.
        rows = list(zip(*(call.results(columns, count) for call in self._calls), strict=False))
        return [[row[place] for row in rows] for place in range(len(self._calls))]

    def _checked(self, values: list[Any], count: int) -> list[Any]:
        # Fewer, too, if a function raised StopIteration: then Spark calls it, and raises its own error.
        self._worker.verify_result_row_count(len(values), count)
        return values


def _joined(batches: list[Any]) -> Any:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


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

    def results(self, columns: Sequence[list[Any]], count: int) -> Iterator[Any]:
        """What the function returns for each row: it is called when that is asked for."""
        if not self._places:
            return itertools.starmap(self._function, itertools.repeat((), count))
        return map(self._function, *(columns[place] for place in self._places))

    def all(self, columns: Sequence[list[Any]], count: int) -> list[Any]:
        """What the function returns for all rows."""
        if len(self._places) == 1:
            # Since Python 3.11, a call costs less here than in `map`.
            function = self._function
            return [function(value) for value in columns[self._places[0]]]
        return list(self.results(columns, count))

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


# When the rows of a table function are passed on.
_ENOUGH_ROWS = 10_000
# Objects that do not change after a function has returned them.
_CONSTANT = frozenset({NoneType, bool, int, float, str, bytes, Decimal, date})


class _TableLoop:
    """Calls a table function with the rows of each batch.

    What it gives are lists, one for each call, of the rows that the call has returned.
    """

    def __init__(self, worker: ModuleType, pickler: Any, udtf: Any, runner: Any, columns: _Columns) -> None:
        from pyspark.sql.pandas.types import to_arrow_type
        from pyspark.sql.types import StructType

        self._worker = worker
        self._runner = runner
        self._columns = columns
        self._skip = worker.SkipRestOfInputTableException
        self._returns: Any = worker._parse_datatype_json_string(udtf.return_type)
        handler = worker.read_command(pickler, udtf.handler)
        # With other handlers PySpark raises an error, and Spark runs the query.
        if not isinstance(handler, type) or len(inspect.getfullargspec(handler).args) > 1:
            raise TypeError(f"{handler} is no class without arguments")
        if type(self._returns) is not StructType:
            raise TypeError(f"{udtf.name} returns no rows")
        self._type: Any = to_arrow_type(
            self._returns, timezone="UTC", prefers_large_types=runner.use_large_var_types
        )
        self._function = handler()
        inspect.signature(self._function.eval).bind(*udtf.args, **udtf.kwargs)
        self._eval, self._places = worker.wrap_kwargs_support(self._function.eval, udtf.args, udtf.kwargs)
        self._rows: list[Any] = []
        self._ends = [0]

    def __call__(self, split: int, batches: Iterable[Any]) -> Iterator[Any]:
        terminate = getattr(self._function, "terminate", None)
        cleanup = getattr(self._function, "cleanup", None)
        try:
            try:
                for batch in batches:
                    yield from self._call_with(batch)
            except self._skip:
                yield from self._flush()
            if terminate is not None:
                yield from self._add(terminate())
            yield from self._flush()
        finally:
            if cleanup is not None:
                cleanup()

    def _call_with(self, batch: Any) -> Iterator[Any]:
        columns = self._columns.of(batch)
        rows: Iterable[tuple[Any, ...]] = itertools.repeat((), batch.num_rows)
        if self._places:
            rows = zip(*(columns[place] for place in self._places), strict=True)
        started = time.monotonic()
        for row in rows:
            yield from self._add(self._eval(*row))
            if len(self._rows) >= _ENOUGH_ROWS or time.monotonic() - started >= _LONGEST_SECONDS:
                yield from self._flush()
                started = time.monotonic()
        yield from self._flush()

    def _add(self, result: Iterable[Any] | None) -> Iterator[Any]:
        """Note what a call has returned."""
        found = [] if result is None else list(result)
        if len(self._returns) == 1:
            found = [row if isinstance(row, tuple) else (row,) for row in found]
        if all(type(row) is tuple and _CONSTANT.issuperset(map(type, row)) for row in found):
            self._rows += found
            self._ends.append(len(self._rows))
            return
        # The next call may change these objects.
        yield from self._flush()
        self._rows, self._ends = found, [0, len(found)]
        yield from self._flush()

    def _flush(self) -> Iterator[Any]:
        import pyarrow as pa

        rows, ends = self._rows, self._ends
        self._rows, self._ends = [], [0]
        if len(ends) > 1:
            lists = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), self._structs(rows))
            yield pa.RecordBatch.from_arrays([lists], ["_0"])

    def _structs(self, rows: list[Any]) -> Any:
        import pyarrow as pa
        from pyspark.sql.conversion import LocalDataToArrowConversion

        if not rows:
            return pa.array([], self._type)
        table = LocalDataToArrowConversion.convert(rows, self._returns, self._runner.use_large_var_types)
        wanted = [(field.name, field.type) for field in self._type]
        self._worker.verify_arrow_result(table, assign_cols_by_name=False, expected_cols_and_types=wanted)
        (array,) = table.to_struct_array().chunks
        return array
