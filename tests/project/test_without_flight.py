# SPDX-License-Identifier: Apache-2.0
"""Embedded sessions use neither Arrow Flight nor the code of daemons."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Servers, clients of servers, and transports that need them.
DAEMONS = (
    "volley.cluster",
    "volley.process.foreground",
    "volley.rpc.client",
    "volley.rpc.server",
    "volley.shuffle.fetch",
    "volley.shuffle.service",
    "volley.shuffle.worker_store",
    "volley.token_middleware",
    "volley.transport.flight",
    "volley.transport.fleet",
    "volley.transport.ingest",
    "volley.transport.spark",
    "volley.worker.daemon",
    "volley.worker.drivers",
    "volley.worker.server",
)
BLOCK = f"""
import sys

for name in ("pyarrow.flight", "pyarrow._flight", *{DAEMONS!r}):
    sys.modules[name] = None  # importing it is now an ImportError
"""

TPCH = (
    BLOCK
    + """
from pathlib import Path

from pyspark.sql import functions as F

import volley
from volley.bench.compare import difference
from volley.bench.data import tpch_data
from volley.bench.engines import register_tables
from volley.bench.queries import QUERIES, query_text
from volley.bench.spark import start_spark
from volley.testing.limits import DISTRIBUTED_SETTINGS

spark = start_spark("without flight", "local[2]", {"spark.driver.memory": "1g"})
register_tables(spark, tpch_data(0.01))
expected = {query: spark.sql(query_text(query)).toArrow() for query in QUERIES}
volley.enable(spark)
for settings in (
    {"spark.volley.local.workers": "1"},
    {"spark.volley.local.workers": "3", **DISTRIBUTED_SETTINGS},
    {"spark.volley.shuffle.store": Path(sys.argv[1]).as_uri()},
):
    for key, value in settings.items():
        spark.conf.set(key, value)
    for query in QUERIES:
        table = spark.sql(query_text(query)).toArrow()
        assert volley.last_query(spark).engine == "native", (query, settings)
        problem = difference(expected[query], table, None)
        assert problem is None, (query, settings, problem)
# Native rows reach Spark's tasks through the folder. Without one, Spark runs all of a query with a part of its own.
spark.conf.set("spark.volley.pythonFunctions", "false")
same = F.udf(lambda number: number, "long")
days = spark.table("orders").groupBy("o_custkey", "o_orderstatus").agg(F.max("o_orderdate").alias("day"))
for store, engine in ((Path(sys.argv[1]).as_uri(), "mixed"), ("memory", "spark")):
    spark.conf.set("spark.volley.shuffle.store", store)
    assert len(days.withColumn("same", same("o_custkey")).collect()) > 1000
    assert volley.last_query(spark).engine == engine, (store, volley.last_query(spark))
print("done")
"""
)


def test_nothing_of_the_embedded_mode_imports_them() -> None:
    code = BLOCK + "import volley.session.enable, volley.deployment.local, volley.shuffle.object_store"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_tpch_runs_without_them(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TPCH, str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip().endswith("done")
