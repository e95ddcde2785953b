# SPDX-License-Identifier: Apache-2.0
"""Spark's answers to the TPC-H queries, asked once a run: settings change Spark's plans and not its answers."""

from __future__ import annotations

from pyspark.sql import SparkSession

import volley
from volley.bench.cost import Cost
from volley.bench.engines import Volley
from volley.bench.queries import query_text
from volley.bench.run import Expected
from volley.testing.session import conf


class Answers:
    def __init__(self) -> None:
        self._known: dict[str, Expected] = {}
        self._is_warm = False

    def check(self, spark: SparkSession, query: str) -> Cost:
        """Fail unless the query runs natively, without one task of Spark's own, and gives Spark's rows."""
        sql = query_text(query)
        if query not in self._known:
            with conf(spark, {"spark.volley.enabled": "false"}):
                self._known[query] = Expected.ask(spark, sql)
        expected = self._known[query]
        assert expected.table.num_rows > 0, "a query without rows compares nothing"
        with conf(spark, {"spark.volley.enabled": "true"}):
            self._warm_up(spark)
            run = Volley(spark).run(sql)
        assert run.native, f"{query} did not run natively: {'; '.join(run.reasons)}"
        assert run.cost is not None
        # Transport spark starts each native task as a task of Spark.
        on_spark = spark.conf.get("spark.volley.transport", "local") == "spark"
        # Of this query: stages that adaptive execution cancelled in the one before may still end.
        report = volley.last_query(spark)
        assert report is not None
        assert report.spark_tasks == (run.cost.tasks if on_spark else 0), query
        problem = expected.problem(run.table)
        assert problem is None, f"{query}: {problem}"
        return run.cost

    def _warm_up(self, spark: SparkSession) -> None:
        """The first query of a process loads classes, which is no cost of its own."""
        if not self._is_warm:
            Volley(spark).run("select count(*) from nation")
            self._is_warm = True
