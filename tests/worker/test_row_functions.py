# SPDX-License-Identifier: Apache-2.0
"""The loops that call functions row by row: they give what those of PySpark's worker give."""

from __future__ import annotations

import datetime
import enum
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as F
from pyspark.sql.udtf import SkipRestOfInputTableException
from pyspark.worker_util import pickleSer

from volley.worker.python import row_functions

pytestmark = pytest.mark.since("4.3")

BATCHED, ARROW_BATCHED, ARROW_TABLE, WINDOW_PANDAS = 100, 101, 301, 203
BATCH = pa.record_batch(
    {
        "n": pa.array([1, 2, None, -(2**63), 2**63 - 1]),
        "x": pa.array([0.5, float("nan"), None, -0.0, float("inf")]),
        "s": pa.array(["", "Grüße 🚀", None, "1", "2"]),
        "b": pa.array([b"", b"x", None, b"\0", b"1"]),
        "t": pa.array([0, 1, None, -1, 10**15], pa.timestamp("us", "UTC")),
        "a": pa.array([[1, None], [], None, [2], [3]]),
    }
)
TYPES = types.StructType(
    [
        types.StructField("n", types.LongType()),
        types.StructField("x", types.DoubleType()),
        types.StructField("s", types.StringType()),
        types.StructField("b", types.BinaryType()),
        types.StructField("t", types.TimestampType()),
        types.StructField("a", types.ArrayType(types.LongType())),
    ]
)

Loop = Callable[[int, Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@pytest.fixture(autouse=True)
def without_freezing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests of this process count what the garbage collector finds."""
    monkeypatch.setattr(row_functions, "_freeze_modules", lambda: None)


def loop_of(
    calls: list[tuple[Callable[..., Any], types.DataType, list[int], dict[str, int]]],
    eval_type: int = ARROW_BATCHED,
    *,
    own: bool,
    settings: dict[str, str] | None = None,
) -> Loop:
    """What a worker runs for these functions: its own loop, or the one of Volley."""
    worker: Any = importlib.import_module("pyspark.worker")
    mine = SimpleNamespace(**vars(worker))
    if not own:
        row_functions.install(mine)  # type: ignore[arg-type]
    pickler: Any = CloudPickleSerializer
    infos = [
        SimpleNamespace(
            udfs=[pickler().dumps((function, returns))],
            args=places,
            kwargs=named,
            result_id=0,
        )
        for function, returns, places, named in calls
    ]
    runner = worker.RunnerConf(settings or {})
    evaluation = worker.EvalConf({"input_type": TYPES.json()})
    loop: Loop = mine.read_udfs(pickleSer, infos, eval_type, runner, evaluation)[0]
    return loop


def results(loop: Loop) -> list[pa.RecordBatch]:
    return list(loop(0, iter([BATCH, BATCH.slice(1, 3), BATCH.slice(0, 0)])))


def first(value: Any, *others: Any) -> Any:
    return value


CONVERTED: list[tuple[Callable[..., Any], types.DataType, list[int], dict[str, int]]] = [
    (lambda *values: repr(values), types.StringType(), [0, 1, 2, 3, 4, 5], {}),
    (lambda n, *, x: repr((n, x)), types.StringType(), [0], {"x": 1}),
    (lambda *, s: s, types.StringType(), [], {"s": 2}),
    (lambda: "none", types.StringType(), [], {}),
    (lambda n: None if n is None else n % 7, types.IntegerType(), [0], {}),
    (lambda n: n is None, types.StringType(), [0], {}),
    (first, types.LongType(), [0, 1], {}),
    (first, types.DoubleType(), [1], {}),
    (first, types.TimestampType(), [4], {}),
    (first, types.ArrayType(types.LongType()), [5], {}),
    (first, types.BinaryType(), [3], {}),
    (lambda n: "7", types.IntegerType(), [0], {}),
    (lambda n: 2**40, types.IntegerType(), [0], {}),
]


def test_results_are_those_of_pysparks_loop() -> None:
    found, expected = (results(loop_of(CONVERTED, own=own)) for own in (False, True))
    assert [batch.schema for batch in found] == [batch.schema for batch in expected]
    # NaN is not equal to itself, but its text is.
    assert [repr(batch.to_pydict()) for batch in found] == [repr(batch.to_pydict()) for batch in expected]


class Indexed:
    """Arrow and PySpark take it for an integer."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __index__(self) -> Any:
        if isinstance(self._value, Exception):
            raise self._value
        return self._value

    def __repr__(self) -> str:
        return f"Indexed({self._value!r})"


class Whole(int):
    def __index__(self) -> int:
        return 99


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 300


ODD_RESULTS = [
    *(sign * 2**bits + more for bits in (7, 8, 15, 31, 63) for sign in (-1, 1) for more in (-1, 0)),
    *(
        0,
        1,
        -1,
        True,
        False,
        None,
        0.0,
        1.0,
        1.5,
        float("nan"),
        float("inf"),
        "",
        "1",
        b"1",
        1j,
        [1],
        (1,),
        {},
    ),
    *(Decimal(1), Decimal("1.5"), Decimal("NaN"), datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1)),
    *(Whole(5), Whole(2**70), Level.LOW, Level.HIGH, datetime.timedelta(1), object),
    *(
        Indexed(1),
        Indexed(7),
        Indexed(2**40),
        Indexed("x"),
        Indexed(ValueError("index")),
        Indexed(KeyError(1)),
    ),
    *(
        np.int8(1),
        np.int64(2**40),
        np.uint8(200),
        np.uint64(2**63),
        np.bool_(True),
        np.float64(1),
        np.float32(0.1),
    ),
    *(np.datetime64("2020-01-01"), np.array(5), np.array([5]), np.str_("1"), pd.NA, pd.NaT),
    *(pd.Timestamp(0), pa.scalar(5), pa.scalar(5, pa.int8()), pa.scalar(None, pa.int64()), pa.scalar(True)),
]
RESULT_TYPES = [
    types.ByteType(),
    types.ShortType(),
    types.IntegerType(),
    types.LongType(),
    types.FloatType(),
    types.DoubleType(),
    types.BooleanType(),
    types.StringType(),
    types.BinaryType(),
    types.DateType(),
    types.TimestampType(),
    types.DecimalType(10, 2),
    types.ArrayType(types.LongType()),
]


def outcome(
    function: Callable[..., Any], returns: types.DataType, settings: dict[str, str], *, own: bool
) -> str:
    """What the results are, or how they fail."""
    loop = loop_of([(function, returns, [0], {})], own=own, settings=settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = results(loop)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    for batch in found:
        batch.validate(full=True)
    return "\n".join(f"{batch.column(0).type} {batch.column(0)}" for batch in found)


@pytest.mark.parametrize("safely", ["true", "false"])
@pytest.mark.parametrize("returns", RESULT_TYPES, ids=lambda returns: returns.simpleString())
def test_odd_results_are_those_of_pysparks_loop_or_fail_as_there(
    returns: types.DataType, safely: str
) -> None:
    """Alone, and after results without fault: 0 and 1 look like booleans."""
    settings = {"spark.sql.execution.pandas.convertToArrowArraySafely": safely}
    for value in ODD_RESULTS:
        for function in (
            lambda n, value=value: value,
            lambda n, value=value: value if n is None else 1,
            lambda n, value=value: value if n == 2**63 - 1 else 5,
            lambda n, value=value: value if n == 2**63 - 1 else None,
        ):
            found, expected = (outcome(function, returns, settings, own=own) for own in (False, True))
            assert found == expected, f"{value!r} as {returns.simpleString()}"


@pytest.mark.parametrize("own", [False, True])
def test_results_that_cannot_be_converted_fail_as_in_pysparks_loop(*, own: bool) -> None:
    safely = {"spark.sql.execution.pandas.convertToArrowArraySafely": "true"}
    for value, settings in ((object(), {}), (2**40, safely)):
        loop = loop_of(
            [(lambda n, value=value: value, types.IntegerType(), [0], {})], own=own, settings=settings
        )
        with pytest.raises((pa.ArrowException, TypeError)):
            results(loop)


def test_a_stop_of_an_iteration_is_an_error() -> None:
    """Where the last row is only missing, nothing else tells."""
    ends = iter(range(BATCH.num_rows - 1))
    for eval_type in (ARROW_BATCHED, BATCHED):
        loop = loop_of(
            [(lambda n: next(ends), types.LongType(), [0], {})],
            eval_type,
            own=False,
            settings={row_functions.ARROW_ROWS: "true"},
        )
        with pytest.raises(Exception, match=r"RESULT_ROWS_MISMATCH|raised StopIteration"):
            list(loop(0, iter([BATCH])))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (types.IntegerType(), 1.0),
        (types.IntegerType(), True),
        (types.DoubleType(), 1),
        (types.StringType(), 1),
        (types.BooleanType(), 1),
        (types.ByteType(), 200),
        (types.IntegerType(), "1"),
    ],
)
def test_what_pickled_functions_return_is_not_converted(kind: types.DataType, value: Any) -> None:
    loop = loop_of(
        [(lambda n: value, kind, [0], {})], BATCHED, own=False, settings={row_functions.ARROW_ROWS: "true"}
    )
    with pytest.raises((TypeError, pa.ArrowException, OverflowError)):
        results(loop)


@pytest.mark.parametrize(("eval_type", "order"), [(ARROW_BATCHED, "aaabbb"), (BATCHED, "ababab")])
def test_functions_are_called_in_pysparks_order(
    monkeypatch: pytest.MonkeyPatch, eval_type: int, order: str
) -> None:
    """Functions of a module can share what they have seen."""
    monkeypatch.setattr(sys, "seen", [], raising=False)

    def noting(name: str) -> Callable[[Any], Any]:
        return lambda n: vars(sys)["seen"].append(name)

    calls: list[Any] = [(noting(name), types.LongType(), [0], {}) for name in "ab"]
    settings = {row_functions.ARROW_ROWS: "true"}
    (found,) = loop_of(calls, eval_type, own=False, settings=settings)(0, iter([BATCH.slice(0, 3)]))
    assert found.to_pydict() == {"_0": [None] * 3, "_1": [None] * 3}
    assert "".join(vars(sys)["seen"]) == order


def test_a_large_batch_is_cut_as_spark_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "seen", [], raising=False)

    def noting(name: str) -> Callable[[Any], Any]:
        return lambda n: vars(sys)["seen"].append(name) or n

    calls: list[Any] = [(noting(name), types.LongType(), [0], {}) for name in "ab"]
    (found,) = loop_of(calls, own=False, settings={row_functions.BATCH_ROWS: "2"})(0, iter([BATCH]))
    assert found.column(1).equals(BATCH.column(0))
    assert "".join(vars(sys)["seen"]) == "aabbaabbab"


@pytest.mark.parametrize(
    "setting",
    [
        "spark.sql.execution.pythonUDF.arrow.concurrency.level=2",
        "spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled=true",
    ],
)
def test_pysparks_loops_get_the_batches_of_spark(setting: str) -> None:
    settings = {row_functions.BATCH_ROWS: "2", **dict([setting.split("=")])}
    found = list(
        loop_of([(first, types.LongType(), [0], {})], own=False, settings=settings)(0, iter([BATCH]))
    )
    assert [batch.num_rows for batch in found] == [2, 2, 1]


def test_results_of_slow_functions_do_not_wait_for_the_rest_of_a_large_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(row_functions, "_LONGEST_SECONDS", 0.0)
    loop = loop_of([(first, types.LongType(), [0], {})], own=False, settings={row_functions.BATCH_ROWS: "2"})
    assert next(loop(0, iter([BATCH]))).num_rows == 2


def test_threads_and_pandas_are_left_to_pyspark() -> None:
    for setting in (
        {"spark.sql.execution.pythonUDF.arrow.concurrency.level": "2"},
        {"spark.sql.legacy.execution.pythonUDF.pandas.conversion.enabled": "true"},
    ):
        loop: Any = loop_of([(first, types.LongType(), [0], {})], own=False, settings=setting)
        assert loop.__module__ == "pyspark.worker"


def tables_of(handler: type, returns: types.StructType, *, own: bool) -> list[list[tuple[Any, ...]]]:
    """The rows that each call of a table function has returned."""
    worker: Any = importlib.import_module("pyspark.worker")
    mine = SimpleNamespace(**vars(worker))
    if not own:
        row_functions.install(mine)  # type: ignore[arg-type]
    pickler: Any = CloudPickleSerializer
    info = SimpleNamespace(
        handler=pickler().dumps(handler), args=[0, 2], kwargs={}, name="f", return_type=returns.json(),
        pickled_analyze_result=None, partition_child_indexes=[],
    )  # fmt: skip
    evaluation = worker.EvalConf({"input_type": TYPES.json()})
    loop: Loop = mine.read_udtf(pickleSer, info, ARROW_TABLE, worker.RunnerConf({}), evaluation)[0]
    found = [batch.column(0) for batch in results(loop)]
    calls = [call for column in found for call in (column.to_pylist() if not own else [column.to_pylist()])]
    return [[tuple(row.values()) for row in rows] for rows in calls]


class Shared:
    """Returns a list that it changes in the next call, and everything else that is not a tuple of constants."""

    def __init__(self) -> None:
        self.seen: list[int | None] = []

    def eval(self, n: int | None, s: str | None) -> Any:
        self.seen.append(n)
        yield str(len(self.seen)), self.seen
        if n == 2:
            yield {"s": "dict", "a": []}
            yield None
        if s == "1":
            yield types.Row(s="row", a=[len(self.seen)])

    def terminate(self) -> Any:
        yield "end", self.seen


class Plain:
    """Tuples, lone values, nothing; and it does not read all rows."""

    def __init__(self) -> None:
        self.count = 0

    def eval(self, n: int | None, s: str | None) -> Any:
        self.count += 1
        if self.count == 7:
            raise SkipRestOfInputTableException
        return None if n is None else [(s,), s, self.count]

    def terminate(self) -> Any:
        return [("end",)]


ROW = types.StructType(
    [types.StructField("s", types.StringType()), types.StructField("a", types.ArrayType(types.LongType()))]
)


TEXT = types.StructType([types.StructField("s", types.StringType())])


@pytest.mark.parametrize(("handler", "returns"), [(Shared, ROW), (Plain, TEXT)])
def test_each_call_of_a_table_function_returns_what_it_does_in_pysparks_loop(
    handler: type, returns: types.StructType
) -> None:
    found, expected = (tables_of(handler, returns, own=own) for own in (False, True))
    assert found == expected
    assert sum(map(len, found)) > 10


@pytest.mark.embedded
def test_rows_of_a_table_function_are_gathered(spark: SparkSession) -> None:
    class Caller:
        def eval(self, number: int) -> Iterator[tuple[str]]:
            yield (sys._getframe(1).f_code.co_filename,)

    function: Any = F.udtf(Caller, returnType="f string", useArrow=True)
    spark.udtf.register("caller", function)
    found = spark.sql("select distinct f from range(3), lateral caller(id)").collect()
    assert found == [("row_functions.py",)]


@pytest.mark.parametrize("own", [False, True])
def test_bounds_of_frames_are_not_converted(monkeypatch: pytest.MonkeyPatch, *, own: bool) -> None:
    worker: Any = importlib.import_module("pyspark.worker")
    converted: list[list[str]] = []

    class Transformer(worker.ArrowBatchTransformer):  # type: ignore[misc]
        @classmethod
        def to_pandas(cls, batch: Any, **options: Any) -> Any:
            converted.append(batch.schema.names)
            return super().to_pandas(batch, **options)

    for name in ("read_udfs", "read_udtf"):
        monkeypatch.setattr(worker, name, getattr(worker, name))
    monkeypatch.setattr(worker, "ArrowBatchTransformer", Transformer)
    if not own:
        row_functions.install(worker)
    pickler: Any = CloudPickleSerializer
    infos = [
        SimpleNamespace(
            udfs=[pickler().dumps((lambda *values: repr([list(value) for value in values]), types.StringType()))],
            args=args, kwargs=kwargs, result_id=0,
        )
        for args, kwargs in (([0, 1, 3], {}), ([2, 3], {}), ([0, 1], {"n": 2}))
    ]  # fmt: skip
    infos[2].udfs = [pickler().dumps((lambda *, n: repr(list(n)), types.StringType()))]
    batch = pa.record_batch(
        {
            "first": pa.array([0, 0, 1], pa.int32()),
            "after": pa.array([1, 2, 1], pa.int32()),
            "n": [1, None, 3],
            "s": ["a", "b", None],
        }
    )
    settings = {"window_bound_types": "bounded,unbounded,bounded"}
    loop = worker.read_udfs(
        pickleSer, infos, WINDOW_PANDAS, worker.RunnerConf(settings), worker.EvalConf({})
    )[0]
    (found,) = loop(0, iter([iter([batch])]))
    assert found.to_pydict() == {
        "_0": ["[['a']]", "[['a', 'b']]", "[[]]"],
        "_1": ["[[1.0, nan, 3.0], ['a', 'b', None]]"] * 3,
        "_2": ["[1.0]", "[1.0, nan]", "[]"],
    }
    assert converted == [["first", "after", "n", "s"] if own else ["n", "s"]]


@pytest.mark.embedded
@pytest.mark.parametrize("arrow", [True, False])
def test_functions_are_called_by_these_loops(spark: SparkSession, *, arrow: bool) -> None:
    def caller(number: int) -> str:
        return sys._getframe(1).f_code.co_filename

    function = F.udf(caller, "string", useArrow=arrow)
    assert spark.range(3).select(function("id").alias("f")).distinct().collect() == [("row_functions.py",)]
