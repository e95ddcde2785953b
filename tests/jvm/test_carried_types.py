# SPDX-License-Identifier: Apache-2.0
"""Maps, intervals, TIME and variants as columns of native plans, mostly for expressions of Spark to compute with."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import volley
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows, native_rows
from volley.testing.session import conf

_TABLE = """
select id, id % 3 k, if(id % 5 = 0, null, concat('s', id % 4)) s,
       if(id % 7 = 0, null, timestamp'2024-03-10 06:30:00' + make_dt_interval(0, cast(id as int))) t,
       if(id % 6 = 0, null, map(concat('s', id % 4), if(id % 8 = 0, null, id), 'x', 2 * id)) m
from range(40)
"""


@pytest.fixture
def table(spark: SparkSession) -> SparkSession:
    """The view `t` with maps, `m`, and with what intervals are made of."""
    spark.sql(_TABLE).createOrReplaceTempView("t")
    return spark


MAPS = (
    "select id, m from t",
    "select id, m from t where size(m) > 1 order by id desc limit 7",
    "select id, map_keys(m), map_values(m), map_entries(m), size(m), m['x'], element_at(m, 's1'), m[s] from t",
    "select m['s1'], count(*) from t group by 1",
    "select a.id, b.m, map_contains_key(a.m, 's2') from t a left join t b on a.id = b.k",
    "select id, e.k, v from t lateral view outer explode(m) e as k, v",
    "select id, posexplode(m) from t",
    "select explode(map(id, struct(s, m))) from t",
    "select m from t union all select map_filter(m, (k, v) -> v > 9) from t",
    "select id, coalesce(m, map('a', 1L)), if(id > 9, m, null), array(m, null), struct(m) from t",
    "select first(m), collect_list(m), count(m) from (select * from t order by id)",
    "select transform_values(m, (k, v) -> v + 1), map_concat(m, map('y', id)), str_to_map(s), map_from_arrays(a, a)"
    " from (select *, array(s, 'z') a from t where s is not null)",
    "select id, (select max(m['x']) from t b where b.id = a.k) from t a",
)


def test_maps(table: SparkSession) -> None:
    for query in MAPS:
        assert_same_rows(table, query)


INTERVALS = (
    "select id, d, cast(d as string), d * 2 from (select id, t - timestamp'2024-01-01 00:00:00' d from t)",
    "select d, count(*) from (select t - timestamp'2024-01-01 00:00:00' d from t) group by d",
    "select max(d), min(d) from (select t - timestamp'2024-03-10 12:00:00' d from t)",
    "select id from (select id, t - timestamp'2024-03-10 12:00:00' d from t) where d > interval '3' hour"
    " order by d, id",
    "select a.id, b.id from (select id, make_dt_interval(0, cast(id % 5 as int)) d from t) a"
    " join (select id, make_dt_interval(0, cast(id % 7 as int)) d from t) b on a.d = b.d",
    "select cast(y as string), count(*) from (select make_ym_interval(0, cast(k as int)) y from t) group by y"
    " order by y",
    "select cast(max(y) as string) from (select make_ym_interval(cast(id as int), 1) y from t where id < 9)",
    "select id from t where make_ym_interval(0, cast(id as int)) in (interval '2' month, interval '1-1' year to month)",
    "select id, t + i, cast(i as string) from (select id, t, make_interval(0, 1, 0, cast(k as int)) i from t)",
    "select array(d, null), struct(d) from (select make_dt_interval(cast(id as int)) d from t)",
    "select id, count(*) over (order by d range between interval '1' hour preceding and current row)"
    " from (select id, timestamp'2024-01-01 00:00:00' + make_dt_interval(0, cast(id % 9 as int)) d from t)",
)


def test_files(table: SparkSession, tmp_path: Path) -> None:
    """Maps and intervals in Parquet."""
    path = str(tmp_path / "t")
    with conf(table, {"spark.volley.enabled": "false"}):
        made = "make_ym_interval(0, cast(k as int)) y, make_dt_interval(cast(id as int)) d"
        table.sql(f"select id, s, m, map(id, struct(m)) n, {made} from t").write.parquet(path)
    durations = pa.table({"d": pa.array([1, None, -5], pa.duration("us"))})
    pq.write_table(durations, str(tmp_path / "d.parquet"))
    schema = "d interval day to second"
    table.read.schema(schema).parquet(str(tmp_path / "d.parquet")).createOrReplaceTempView("written_by_arrow")
    table.read.parquet(path).createOrReplaceTempView("f")
    for query in (
        "select d, d > interval '0' second from written_by_arrow",
        "select id, m, n, d from f where m['x'] > 20 or s = 's1'",
        "select cast(y as string), max(d), count(m), sum(size(n)) from f group by y",
        "select id from f where d < interval '9' day and y >= interval '1' month",
        "select id, e.key, e.value.m['x'] from f lateral view explode(map_entries(n)) as e",
    ):
        assert_same_rows(table, query)


def test_intervals(table: SparkSession) -> None:
    for query in INTERVALS:
        assert_same_rows(table, query, native="range between" not in query)


@pytest.mark.since("4.3")
def test_time(table: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with conf(table, {"spark.sql.timeType.enabled": "true"}):
        for query in (
            "select id, c, hour(c), cast(c as string) from (select id, cast(t as time) c from t)",
            "select c, count(*) from (select cast(t as time) c from t) group by c order by c",
            "select id from (select id, cast(t as time) c from t) where c >= time'12:00:00'",
        ):
            assert_same_rows(table, query)
        query = "select cast(t as time) c from t where id < 9 order by id"
        with conf(table, {"spark.volley.enabled": "false"}):
            expected = table.sql(query).collect()
            table.sql(query).show()
        shown = capsys.readouterr().out
        assert table.sql(query).collect() == expected
        table.sql(query).show()
        assert capsys.readouterr().out == shown


@pytest.mark.since("4.3")
def test_the_settings_are_those_of_the_session_that_asks(table: SparkSession) -> None:
    """Another session may be the active one of the JVM's thread."""
    sessions = table._jvm.org.apache.spark.sql.classic.SparkSession  # type: ignore[union-attr]
    with conf(table, {"spark.sql.timeType.enabled": "true"}):
        frame = table.sql("select hour(cast(t as time)) h from t")
        other = table.newSession()
        other.conf.set("spark.sql.timeType.enabled", "false")
        sessions.setActiveSession(other._jsparkSession)
        try:
            found = frame.toArrow()
        finally:
            sessions.setActiveSession(table._jsparkSession)
        report = volley.last_query(table)
        assert report is not None
        assert report.engine == "native"
        with conf(table, {"spark.volley.enabled": "false"}):
            assert found == table.sql("select hour(cast(t as time)) h from t").toArrow()


def test_variants(table: SparkSession) -> None:
    for query in (
        "select id, to_json(v), variant_get(v, '$.a', 'int')"
        " from (select id, parse_json(concat('{\"a\": ', id, '}')) v from t)",
        "select id, v::string from (select id, parse_json(concat('[', id, ', null]')) v from t order by id limit 5)",
        "select a.id, schema_of_variant(b.v) from t a left join (select k, parse_json(s) v from t where s is null) b"
        " on a.id = b.k",
    ):
        assert_same_rows(table, query)


def test_variants_are_collected_and_shown(table: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select id, parse_json(concat('[', id, ', \"a\"]')) v from t order by id limit 3"
    found = []
    for enabled in ("false", "true"):
        with conf(table, {"spark.volley.enabled": enabled}):
            rows = [(row.id, row.v.toJson()) for row in table.sql(query).collect()]
            arrow = table.sql(query).toArrow()
            table.sql(query).show()
            found.append((rows, arrow.to_pylist(), arrow.schema, capsys.readouterr().out))
    assert found[0] == found[1]


def test_json_tuple(table: SparkSession) -> None:
    for query in (
        "select id, json_tuple(to_json(struct(id, s)), 's', 'id', 'z') from t",
        "select id, a from t lateral view outer json_tuple(s, 'a') j as a",
    ):
        assert_same_rows(table, query)


def test_order_by_structs(table: SparkSession) -> None:
    structs = "select id, if(id % 4 = 0, null, struct(s, id % 2 z, double(-k) f)) o from t"
    for order in ("o", "o desc", "o desc nulls first", "o asc nulls last"):
        assert_same_rows(table, f"select id, o from ({structs}) order by {order}, id", ordered=True)


def test_shown_and_collected(table: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Python has no values of some types, but Spark shows them."""
    made = "make_ym_interval(1, cast(k as int)) y, make_interval(0, 0, 0, 3) i, make_dt_interval(1) d"
    query = f"select id, {made}, m from t order by id limit 3"
    with conf(table, {"spark.volley.enabled": "false"}):
        table.sql(query).show()
    expected = capsys.readouterr().out
    table.sql(query).show()
    assert capsys.readouterr().out == expected
    report = volley.last_query(table)
    assert report is not None
    assert report.engine == "native"
    rows, _ = native_rows(table, "select m, make_dt_interval(1) d from t where id = 1")
    assert rows.to_pylist()[0]["m"] == [("s1", 1), ("x", 2)]
    assert (
        table.sql("select m, make_dt_interval(1) d from t where id = 1").collect()
        == table.sql("select map('s1', 1L, 'x', 2L) m, interval '1' day d").collect()
    )


def test_null_structs_are_shown(table: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """Inside of arrays and maps, with fields that are never NULL."""
    query = (
        "select array(struct(1 a, 'x' b), null) s, map(1, if(id > 1, null, struct(id))) m, map_entries(map()) e,"
        " map_keys(map()) k, map() n from t order by id limit 3"
    )
    shown = []
    for enabled in ("false", "true"):
        with conf(table, {"spark.volley.enabled": enabled}):
            table.sql(query).show()
            shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


@pytest.mark.since("4.3")
def test_types_that_python_does_not_know_are_shown(
    table: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    with conf(table, {"spark.sql.timestampNanosTypes.enabled": "true"}):
        table.sql("select timestamp_nanos(id) from t where id = 7").show(truncate=False)
    assert "1970-01-01 00:00:00.000000007" in capsys.readouterr().out


def test_what_spark_runs(table: SparkSession) -> None:
    for query in (
        "select id from t order by array(double(id))",
        "select count(distinct array(double(id))) from t",
    ):
        reasons = {reason.reason for reason in volley.explain(table.sql(query)).reasons}
        assert Reason.ARGUMENT_TYPES in reasons, query


def test_cached_frames(table: SparkSession) -> None:
    """A frame with a map: columns of other types are read natively, the map is Spark's."""
    frame = table.sql("select id, s, m from t").cache()
    try:
        frame.createOrReplaceTempView("kept")
        assert_same_rows(table, "select s, sum(id) from kept group by s", native=False)
        assert_same_rows(table, "select id, m['x'] from kept", native=False)
    finally:
        frame.unpersist()
