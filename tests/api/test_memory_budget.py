# SPDX-License-Identifier: Apache-2.0
"""`spark.volley.memory`: what does not fit is spilled or divided, natively, and the rows stay the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import volley
from volley.observe.report import QueryReport
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.rows import assert_same_rows, native_rows
from volley.testing.session import conf

pytestmark = pytest.mark.embedded

# A hash table of 400,000 rows needs some 20 MB.
JOIN = """
    select l.id % 10 as k, count(*), sum(r.v), max(r.w)
    from range(600000) l join (select id, id * 3 as v, id * 5 as w from range(400000)) r on l.id = r.id
    group by l.id % 10
"""
STRICT = {"spark.volley.fallback": "error", "spark.sql.autoBroadcastJoinThreshold": "-1"}


def report(spark: SparkSession) -> QueryReport:
    found = volley.last_query(spark)
    assert found is not None
    return found


def decisions(spark: SparkSession) -> str:
    return " ".join(decision for stage in report(spark).stages for decision in stage.decisions)


def test_a_join_that_does_not_fit_is_divided(spark: SparkSession) -> None:
    with conf(spark, STRICT):
        roomy, _ = native_rows(spark, JOIN)
        assert len(report(spark).stages) == 1
        with conf(spark, {"spark.volley.memory": "12m"}):
            assert_same_rows(spark, JOIN)
            assert "did not fit into memory" in decisions(spark)
            assert report(spark).engine == "native"
            assert report(spark).spilled_bytes > 0
            tight, _ = native_rows(spark, JOIN)
    assert tight.sort_by("k").equals(roomy.sort_by("k"))


@pytest.mark.slow
def test_several_local_workers_spill_what_they_exchange(spark: SparkSession, tmp_path: Path) -> None:
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.range(0, 300_000, 1, 3).write.parquet(str(tmp_path / "t"))
    small = {"spark.volley.memory": "48m", "spark.volley.shuffle.memoryFraction": "0.01"}
    with conf(spark, STRICT | DISTRIBUTED_SETTINGS | small | {"spark.volley.local.workers": "3"}):
        assert_same_rows(
            spark, f"select id % 99999, count(*) from parquet.`{tmp_path}/t` group by id % 99999"
        )
        assert sum(stage.shuffle_spilled_bytes for stage in report(spark).stages) > 0


@pytest.mark.slow
def test_a_sort_and_a_window_spill(spark: SparkSession) -> None:
    with conf(spark, STRICT | {"spark.volley.memory": "40m"}):
        assert_same_rows(
            spark,
            "select max(n), sum(n * id) from (select id, row_number() over (partition by id % 7 order by id desc) n"
            " from range(800000))",
        )
        assert report(spark).spilled_bytes > 0
