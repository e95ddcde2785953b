# SPDX-License-Identifier: Apache-2.0
"""Spark's answers to the TPC-H queries, asked once a run: settings change Spark's plans and not its answers."""

from __future__ import annotations

from pyspark.sql import SparkSession

from volley.bench.queries import query_text
from volley.bench.run import Expected
from volley.testing.rows import native_rows
from volley.testing.session import conf


class Answers:
    def __init__(self) -> None:
        self._known: dict[str, Expected] = {}

    def check(self, spark: SparkSession, query: str) -> None:
        """Fail unless the query runs natively and gives Spark's rows."""
        sql = query_text(query)
        if query not in self._known:
            with conf(spark, {"spark.volley.enabled": "false"}):
                self._known[query] = Expected.ask(spark, sql)
        expected = self._known[query]
        assert expected.table.num_rows > 0, "a query without rows compares nothing"
        table, _ = native_rows(spark, sql)
        problem = expected.problem(table)
        assert problem is None, f"{query}: {problem}"
