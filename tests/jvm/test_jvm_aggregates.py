# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions without a native form: Spark's own code computes them from groups that native plans gather."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.cluster import LocalCluster
from volley.support.reasons import Reason
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

_ROWS = """select id, if(id % 11 = 0, null, id * 7919 % 211) v, if(id % 13 = 0, null, cast(id % 37 as string)) s,
if(id % 7 = 0, null, id % 5) k, if(id % 3 = 0, null, make_dt_interval(id % 4, id % 24)) dt,
case id % 9 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D when 3 then null else id / 7 end x,
make_ym_interval(id % 30, 1) ym, if(id % 10 = 0, null, array(id % 3, id % 2)) a, cast(id as decimal(20, 3)) / 8 d,
cast(id % 4 as int) f from range(500)"""


@pytest.fixture(scope="module")
def path(spark_session: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("aggregates") / "t")
    spark_session.sql(_ROWS).repartition(3).write.parquet(path)
    return path


@pytest.fixture
def table(spark: SparkSession, path: str) -> SparkSession:
    spark.read.parquet(path).createOrReplaceTempView("t")
    return spark


_IN_ANY_ORDER = (
    "count_min_sketch(v, 0.05D, 0.9D, 7), count_min_sketch(s, 0.05D, 0.9D, 7) filter (where id > 40),"
    " bitmap_construct_agg(bitmap_bit_position(v)), hll_sketch_estimate(hll_sketch_agg(v)),"
    " hll_sketch_estimate(hll_sketch_agg(s, 15)) + 1",
    "sum(dt), avg(dt), cast(sum(ym) as string), cast(avg(ym) as string), max(a), min(a), percentile(v, 0.3, f),"
    " median(dt), approx_count_distinct(x), approx_count_distinct(d)",
    "hll_sketch_estimate(hll_sketch_agg(distinct v)), sum(distinct dt)",
    "count(distinct v), sum(v), product(x)",
)


@pytest.mark.parametrize("calls", _IN_ANY_ORDER)
def test_functions_that_do_not_depend_on_the_order_of_rows(table: SparkSession, calls: str) -> None:
    def query(where: str = "", group: str = "") -> str:
        return f"select {calls} from t {where} {group}"

    if "product" in calls:
        frame = table.table("t").groupBy("k").agg(F.product("v"), F.product("x").alias("p"))
        assert_same_rows(table, frame)
        return
    for ansi in ("true", "false"):
        with conf(table, {"spark.sql.ansi.enabled": ansi}):
            assert_same_rows(table, query())
            assert_same_rows(table, query("where id < 0"))
            assert_same_rows(table, query("where id % 2 = 0", "group by k"))
    with conf(table, {"spark.volley.local.workers": "3"}):
        assert_same_rows(table, query(group="group by k % 2, f"))


@pytest.mark.since("4.3")
def test_sketches_of_hashes(table: SparkSession, tmp_path: Path) -> None:
    assert_same_rows(
        table,
        "select k, theta_sketch_agg(v), theta_sketch_estimate(theta_sketch_agg(s)), count(*) from t group by k",
    )
    with conf(table, {"spark.volley.enabled": "false"}):
        table.sql(
            "select k, theta_sketch_agg(v) h, hll_sketch_agg(v) s, bitmap_construct_agg(v) b from t group by k"
        ).write.parquet(str(tmp_path / "sketches"))
    assert_same_rows(
        table,
        "select theta_union_agg(h), theta_intersection_agg(h), hll_sketch_estimate(hll_union_agg(s)),"
        f" bitmap_or_agg(b), bitmap_and_agg(b) from parquet.`{tmp_path}/sketches`",
    )


def test_an_estimating_sketch_depends_on_the_order_of_rows(spark: SparkSession) -> None:
    query = "select id % 2, hll_sketch_estimate(hll_sketch_agg(id)) from range(40000) group by 1"
    assert_same_rows(spark, query, native=False, tolerance=0.1)
    assert [reason.reason for reason in _report(spark).reasons] == [Reason.REPLAY]


@pytest.mark.parametrize(
    "call",
    [
        "hll_sketch_agg(v)",
        "hll_sketch_estimate(hll_union(hll_sketch_agg(v), hll_sketch_agg(s)))",
        "histogram_numeric(v, 5)",
        "approx_percentile(d, 0.5)",
    ],
)
def test_what_depends_on_the_partitions_of_spark_is_left_to_it(table: SparkSession, call: str) -> None:
    rows = "(select /*+ repartition(3) */ * from t)"
    explained = volley.explain(table.sql(f"select k, {call} from {rows} group by k"))
    assert not explained.native
    assert Reason.NONDETERMINISTIC in {reason.reason for reason in explained.reasons}


def test_a_known_order_in_one_partition(spark: SparkSession) -> None:
    def query(session: SparkSession) -> DataFrame:
        rows = session.range(0, 60, 1, 1).selectExpr("id * 37 % 41 v", "id % 3 k").orderBy("v", "k").limit(50)
        return rows.agg(F.expr("histogram_numeric(v, 4) h"), F.expr("sum(k) s"))

    assert_same_rows(spark, query)


# ---------------------------------------------------------------------------------------- functions of users

_UDAF = """
package %s;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.expressions.MutableAggregationBuffer;
import org.apache.spark.sql.expressions.UserDefinedAggregateFunction;
import org.apache.spark.sql.types.*;

public class Longest extends UserDefinedAggregateFunction {
    public StructType inputSchema() {
        return new StructType().add("s", DataTypes.StringType).add("v", DataTypes.LongType);
    }
    public StructType bufferSchema() { return new StructType().add("n", DataTypes.LongType); }
    public DataType dataType() { return DataTypes.LongType; }
    public boolean deterministic() { return true; }
    public void initialize(MutableAggregationBuffer buffer) { buffer.update(0, Long.valueOf(-1)); }
    public void update(MutableAggregationBuffer buffer, Row row) {
        if (!row.isNullAt(0)) {
            long size = row.getString(0).length() * 1000 + (row.isNullAt(1) ? 0 : row.getLong(1));
            buffer.update(0, Long.valueOf(Math.max(buffer.getLong(0), size)));
        }
    }
    public void merge(MutableAggregationBuffer buffer, Row other) {
        buffer.update(0, Long.valueOf(Math.max(buffer.getLong(0), other.getLong(0))));
    }
    public Object evaluate(Row buffer) { return Long.valueOf(buffer.getLong(0)); }
}
"""


@pytest.mark.embedded
def test_a_udaf_of_a_jvm_user(table: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    """In the driver's JVM alone: its class is not sent to workers, nor are those of functions that hold it."""
    jvm = table._jvm
    assert jvm is not None
    package = "volley.example.udaf"
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
    compiler.cook(_UDAF % package)
    jar = tmp_path / "udaf.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for entry in compiler.getBytecodes().entrySet():
            archive.writestr(entry.getKey().replace(".", "/") + ".class", bytes(entry.getValue()))
    table.sql(f"add jar '{jar}'")
    table.udf.registerJavaUDAF("longest", f"{package}.Longest")
    assert_same_rows(table, "select k, longest(s, v), count(*) from t group by k")
    assert_same_rows(table, "select longest(distinct upper(s), v + 1) filter (where v > 3) from t")
    with conf(table, cluster.settings):
        reasons = volley.explain(table.sql("select k, longest(s, v) from t group by k")).reasons
    problems = [str(reason) for reason in reasons if reason.reason is Reason.NO_JVM]
    assert problems
    assert f"class {package}.Longest is not available on the workers" in problems[0]


# -------------------------------------------------------------------------------------------- what the user is told


def test_the_user_is_told(table: SparkSession) -> None:
    frame = table.sql("select k, count_min_sketch(v, 0.1D, 0.9D, 1) c from t group by k")
    explained = volley.explain(frame)
    assert explained.native
    assert "by Spark's own code in the JVM: count_min_sketch (CountMinSketchAgg)" in str(explained)
    frame.collect()
    assert _report(table).jvm_rows == 500


def _report(spark: SparkSession) -> volley.QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report
