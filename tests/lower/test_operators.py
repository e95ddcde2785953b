# SPDX-License-Identifier: Apache-2.0
"""Sorts, limits, unions and sources, with Spark as the oracle; and files that are not as planned."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datafusion import col
from datafusion import functions as f
from pyspark.sql import SparkSession

import volley
from volley.errors import DataError
from volley.lower.null_checks import drop_implied_null_checks
from volley.lower.operators import lower, select_result
from volley.lower.scope import Streamed
from volley.lower.sessions import planning_context
from volley.lower.streams import StreamTable
from volley.plan.expressions import Attribute, Call, Expression, Literal
from volley.plan.nodes import (
    DataFile,
    FileScan,
    Filter,
    Join,
    JoinKind,
    Node,
    Project,
    StageInput,
    Unknown,
)
from volley.plan.types import BOOLEAN, DATE, DOUBLE, INTEGER, LONG, STRING, OtherType
from volley.spark_versions.registry import current
from volley.support.check import check
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows

QUERIES = (
    "select * from t order by f, id",
    "select * from t order by f desc, id desc",
    "select * from t order by s desc nulls first, m nulls last, id",
    "select id, s from t order by upper(s), id limit 7",
    "select id, upper(s) from t order by id limit 5 offset 3",
    "select id from t order by id offset 55",
    "select id from t order by id limit 0",
    "select upper(s), id + 1 from (select * from t order by k, id)",
    "select count(*) from (select * from t limit 10)",
    "select count(*) from (select * from t limit 10 offset 55)",
    "select id from t union all select id from u",
    "select id, s from t union select id, s from u",
    "select k, k + 1 from t union all select k, l from u",
    "select k from t intersect select k from u",
    "select k from t except select k from u",
    "select id, id, s, s as id from t",
    "select 1, 'a', null, 2.50",
    "select 1 where false",
    "select * from range(10)",
    "select id * 2 from range(5, 50, 7) where id % 2 = 1",
    "select id from range(10, 0, -3)",
    "select count(*) from range(1000000)",
    "select * from values (1, 'a'), (2, null) v(x, y)",
    "select x, count(*) from values (1, 'a'), (2, null), (1, 'b') v(x, y) group by x order by x",
    "select count(*) from t",
    "select count(*) from e",
    "select * from e order by id",
    "select id from t where k not in (1, 2)",
    "select id from t where k not in (1, null)",
    "select id from t where f > 1.5 or not (g <= 0.5)",
    "select id from t where k is not null and k > 1 and l is not null",
    "select id from t where ts >= '2020-01-01 05:00:00' and dt between '2020-01-03' and '2020-01-10'",
    "select id, case when k > 1 then s else 'x' end, coalesce(s, 'n') from t",
    "select x.a, x.b from (select named_struct('a', k, 'b', s) x from t)",
    "select k from (select k from t order by k limit 10) group by k",
    "select /*+ repartition(3, k) */ id from t",
    "select id from t distribute by k sort by id",
)


@pytest.mark.parametrize("query", QUERIES)
def test_queries(tables: SparkSession, query: str) -> None:
    assert_same_rows(tables, query)


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("query", QUERIES[:14])
def test_across_tasks(tables: SparkSession, query: str) -> None:
    tables.conf.set("spark.volley.local.workers", "3")
    assert_same_rows(tables, query)


# ------------------------------------------------------------------------------------------------ files


def test_partitioned_table(tables: SparkSession, tmp_path: Path) -> None:
    """Partition values of several types, one of them NULL, and names that need escaping."""
    for day, k in (("2024-01-01", "1"), ("2024-01-02", "2"), ("__HIVE_DEFAULT_PARTITION__", "2")):
        folder = tmp_path / f"day={day}" / f"k={k}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"a b.C": [1, 2, None], "x": ["p", None, k]}), folder / "f 1%.parquet")
    tables.read.schema("`a b.C` bigint, x string, day date, k int").parquet(
        str(tmp_path)
    ).createOrReplaceTempView("p")
    assert_same_rows(tables, "select * from p")
    assert_same_rows(tables, "select k, day, count(x), sum(`a b.C`) from p group by k, day")
    assert_same_rows(tables, "select x from p where day = date'2024-01-02'")
    assert_same_rows(tables, "select count(*) from p where k = 2")


def test_files_of_different_columns(tables: SparkSession, tmp_path: Path) -> None:
    """A column that a file lacks is NULL there; the case of names does not count; integers may be narrower."""
    narrow = pa.int32() if current().widens_columns else pa.int64()
    pq.write_table(pa.table({"A": pa.array([1, 2], narrow), "b": ["x", "y"]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"A": pa.array([3, None], pa.int64())}), tmp_path / "2.parquet")
    tables.read.schema("a bigint, b string, c date").parquet(str(tmp_path)).createOrReplaceTempView("x")
    assert_same_rows(tables, "select * from x")
    assert_same_rows(tables, "select b, count(*), sum(a) from x where a is not null group by b")


def test_timestamps_of_every_encoding(tables: SparkSession, tmp_path: Path) -> None:
    moments = pa.array([0, 1_600_000_000_123_456, None, -1], pa.timestamp("us", tz="UTC"))
    pq.write_table(pa.table({"ts": moments}), tmp_path / "us.parquet")
    pq.write_table(
        pa.table({"ts": moments}),
        tmp_path / "ms.parquet",
        coerce_timestamps="ms",
        allow_truncated_timestamps=True,
    )
    pq.write_table(
        pa.table({"ts": moments}), tmp_path / "int96.parquet", use_deprecated_int96_timestamps=True
    )
    tables.read.schema("ts timestamp").parquet(str(tmp_path)).createOrReplaceTempView("x")
    assert_same_rows(tables, "select ts from x")


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (pa.array(["1"]), "bigint"),
        (pa.array([1.5]), "int"),
        (pa.array([2**40]), "int"),
        (pa.array([1], pa.uint32()), "bigint"),
        (pa.array([b"x"], pa.binary()), "string"),
        (pa.array([1], pa.int32()), "bigint"),
        (pa.array([1.5], pa.float32()), "double"),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), "decimal(9, 2)"),
        (pa.array([{"x": 1}], pa.struct([("x", pa.int32())])), "struct<x: bigint>"),
    ],
)
def test_column_of_another_type_is_left_to_spark(
    tables: SparkSession, tmp_path: Path, stored: pa.Array, asked: str
) -> None:
    """Spark reads some of these and fails on others; either way the answer is its own."""
    pq.write_table(pa.table({"a": stored}), tmp_path / "1.parquet")
    frame = tables.read.schema(f"a {asked}").parquet(str(tmp_path))
    outcomes = []
    for enabled in ("true", "false"):
        tables.conf.set("spark.volley.enabled", enabled)
        try:
            outcomes.append(str(frame.collect()))
        except Exception as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]


def _scan(path: Path, columns: tuple[Attribute, ...], size: int | None = None) -> FileScan:
    file = DataFile(str(path), path.stat().st_size if size is None else size, 0)
    return FileScan("parquet", (file,), columns, (), ())


def _run(node: Node, inputs: StreamTable | None = None) -> pa.Table:
    def given(_: Streamed) -> StreamTable:
        assert inputs is not None
        return inputs

    with ExitStack() as resources:
        return select_result(lower(node, planning_context(2), given, resources), node).to_arrow_table()


A, B = Attribute(1, "a", LONG), Attribute(2, "b", LONG)


def test_broken_files_never_give_rows(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"a": list(range(1000))}), path)
    whole = path.read_bytes()
    with pytest.raises(DataError, match="changed"):
        _run(_scan(path, (A,), size=len(whole) + 1))
    path.write_bytes(whole[:-20])
    with pytest.raises(DataError, match="Parquet"):
        _run(_scan(path, (A,)))
    damaged = bytearray(whole)
    damaged[4:60] = b"\xff" * 56
    path.write_bytes(bytes(damaged))
    with pytest.raises(Exception, match=r"(?i)error"):
        _run(_scan(path, (A,)))
    path.unlink()
    with pytest.raises(DataError, match="No such file"):
        _run(FileScan("parquet", (DataFile(str(path), 1, 0),), (A,), (), ()))


def test_legacy_calendar_is_left_to_spark(tmp_path: Path) -> None:
    path = tmp_path / "1.parquet"
    table = pa.table({"a": pa.array([-200_000], pa.date32())})
    pq.write_table(table.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), path)
    with pytest.raises(DataError, match="calendar"):
        _run(_scan(path, (Attribute(1, "a", DATE),)))


def test_a_scan_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "1.parquet"
    pq.write_table(pa.table({"a": [1]}), path)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    assert _run(_scan(path, (A,))).num_rows == 1
    assert list(scratch.iterdir()) == []
    assert path.exists()


def test_a_task_without_files_has_no_rows() -> None:
    result = _run(FileScan("parquet", (), (A, Attribute(2, "s", STRING)), (), ()))
    assert (result.num_rows, result.schema.types) == (0, [pa.int64(), pa.string()])


# ---------------------------------------------------------------------------------------------- streams


def _call(function: str, *arguments: Expression) -> Call:
    return Call(function, arguments, BOOLEAN)


def test_filters_over_streams_are_not_pyarrows() -> None:
    """pyarrow takes NULL NOT IN (1) for true and NaN > 1 for false; rows must not depend on where a filter runs."""
    number, real = Attribute(1, "a", LONG), Attribute(2, "f", DOUBLE)
    batch = pa.record_batch({"c1": pa.array([1, 2, None]), "c2": pa.array([1.0, float("nan"), None])})

    def passes() -> Iterator[pa.RecordBatch]:
        return iter([batch, batch])

    stream = StreamTable(batch.schema, [passes, passes])
    source = StageInput(0, (number, real))
    outside = _call("Not", _call("In", number, *(Literal(value, LONG) for value in (1, 7, 8, 9))))
    assert _run(Project((number,), Filter(outside, source)), stream).column(0).to_pylist() == [2] * 4
    large = _call("GreaterThan", real, Literal(1.5, DOUBLE))
    assert _run(Project((number,), Filter(large, source)), stream).column(0).to_pylist() == [2] * 4


def test_stream_is_read_again_for_a_second_reader() -> None:
    batch = pa.record_batch({"c1": pa.array([1, 2, 3])})
    stream = StreamTable(batch.schema, [lambda: iter([batch])])
    context = planning_context(2)
    context.register_dataset("s", stream)
    doubled = context.table("s").union(context.table("s")).aggregate(None, [f.sum(col("c1")).alias("n")])
    assert doubled.to_pydict() == {"n": [12]}


# ------------------------------------------------------------------------------------------- null checks


def _not_null(attribute: Attribute) -> Call:
    return _call("IsNotNull", attribute)


LEFT = StageInput(0, (A,))
RIGHT = StageInput(1, (B,))


@pytest.mark.parametrize(
    ("kind", "left_checked", "right_checked"),
    [
        (JoinKind.INNER, False, False),
        (JoinKind.LEFT, True, False),
        (JoinKind.RIGHT, False, True),
        (JoinKind.FULL, True, True),
        (JoinKind.SEMI, False, False),
        (JoinKind.ANTI, True, False),
    ],
)
def test_null_checks_go_where_the_join_repeats_them(
    kind: JoinKind, left_checked: bool, right_checked: bool
) -> None:
    join = Join(kind, (A,), (B,), None, None, Filter(_not_null(A), LEFT), Filter(_not_null(B), RIGHT))
    changed = drop_implied_null_checks(join)
    assert [isinstance(child, Filter) for child in changed.children] == [left_checked, right_checked]


def test_null_check_beside_a_comparison_goes() -> None:
    compared = _call("GreaterThan", A, Literal(1, LONG))
    assert drop_implied_null_checks(Filter(_call("And", _not_null(A), compared), LEFT)) == Filter(
        compared, LEFT
    )
    alone = Filter(_not_null(A), LEFT)
    assert drop_implied_null_checks(alone) == alone
    null_safe = Filter(_call("And", _not_null(A), _call("EqualNullSafe", A, Literal(1, LONG))), LEFT)
    assert drop_implied_null_checks(null_safe) == null_safe


# --------------------------------------------------------------------------------------------- verdicts


def test_verdict_names_root_reasons_once() -> None:
    scan = FileScan("xml", (), (A, Attribute(5, "v", OtherType("variant"))), (), ())
    plan = Filter(_call("NoSuchFunction", A), Unknown("GenerateExec", "", (A,), (scan,)))
    verdict = check(plan)
    assert not verdict.native
    assert [reason.reason for reason in verdict.reasons] == [
        Reason.EXPRESSION,
        Reason.OPERATOR,
        Reason.FILE_FORMAT,
        Reason.DATA_TYPE,
    ]
    assert verdict.fraction == 0
    assert [node.depth for node in verdict.nodes] == [0, 1, 2]


def test_verdict_enters_subqueries(tables: SparkSession) -> None:
    verdict = volley.explain(
        tables.sql(
            "select id from t where k = (select first(k) from (select /*+ repartition(3) */ k from u))"
        )
    )
    assert [reason.reason for reason in verdict.reasons] == [Reason.NONDETERMINISTIC]
    assert 0 < verdict.fraction < 1


def test_remote_files_are_left_to_spark() -> None:
    scan = FileScan(
        "parquet", (DataFile("s3://bucket/a.parquet", 1, 0),), (Attribute(1, "a", INTEGER),), (), ()
    )
    assert [reason.reason for reason in check(scan).reasons] == [Reason.FILE_SYSTEM]
