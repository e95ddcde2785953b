# SPDX-License-Identifier: Apache-2.0
"""Session windows: rows of a group whose times are close are one session."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from helpers.releases import runnable
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

_ROWS = """select id, if(id % 17 = 0, null, timestamp_seconds(1600000000 + (id * 7919 % 400) * 7)) t,
if(id % 7 = 0, null, id % 4) k, case id % 5 when 0 then double('NaN') when 1 then -0.0D when 2 then 0.0D else id end x
from range(200)"""
_QUERIES = (
    "select session_window.start, session_window.end, k, count(*), sum(id), max(x), count(distinct x) from t"
    " group by session_window(t, '70 seconds'), k",
    # A row at the very end of a session still belongs to it.
    "select session_window, count(*), avg(id) from t where k = 1 group by session_window(t, '7 seconds')",
    "select session_window, x, min(id) from t group by x, session_window(t, '35 seconds') order by 1, 2",
    # A gap that depends on the row, and rows that have none.
    "select session_window(t, case k when 1 then '10 seconds' when 2 then '-5 seconds' else '2 minutes' end) s, k,"
    " count(*), percentile(id, 0.5), collect_set(k) from t group by 1, 2",
    "select session_window.start s, count(*) c from t where id < 0 group by session_window(t, '1 minute')",
    "select session_window(cast(t as timestamp_ntz), '70 seconds') s, sum(id) filter (where k = 2) from t group by 1",
    "select k, max(n) from (select k, count(*) n from t group by k, session_window(t, '70 seconds')) group by k",
)


@pytest.mark.parametrize("workers", ["1", "3"])
def test_sessions(distributed: SparkSession, tmp_path_factory: pytest.TempPathFactory, workers: str) -> None:
    path = str(tmp_path_factory.mktemp("sessions") / "t")
    distributed.sql(_ROWS).repartition(3).write.parquet(path)
    distributed.read.parquet(path).createOrReplaceTempView("t")
    with conf(distributed, {"spark.volley.local.workers": workers}):
        for query in runnable(_QUERIES if workers == "3" else _QUERIES[:3]):
            assert_same_rows(distributed, query)

        def pipeline(session: SparkSession) -> DataFrame:
            sessions = session.table("t").groupBy("k", F.session_window("t", "3 minutes")).count()
            return sessions.groupBy("k").agg(F.max("count"), F.count("session_window"))

        assert_same_rows(distributed, pipeline)
    local = {"spark.sql.sessionWindow.merge.sessions.in.local.partition": "true"}
    with conf(distributed, local):
        assert_same_rows(distributed, _QUERIES[0])
