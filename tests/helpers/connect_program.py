# SPDX-License-Identifier: Apache-2.0
"""A program that uses PySpark's own client of Spark Connect, in a process without Volley."""

from __future__ import annotations

import os
import subprocess
import sys

_CLIENT = """
import sys
from pyspark.sql import SparkSession, functions as F
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
frame = spark.range(100).groupBy((F.col("id") % 7).alias("k")).agg(F.sum("id").alias("s"))
rows = sorted(map(tuple, frame.collect()))
ran = frame.executionInfo.metrics.toText().splitlines()[0]
spark.createDataFrame([(1, "a"), (2, None)], "n int, s string").createOrReplaceTempView("mine")
spark.sql("select max(s) as s, count(*) as n from mine").show()
try:
    spark.sql("select 1 / (id - id) from range(2)").collect()
except Exception as error:
    print(type(error).__name__, error.getCondition())
print(rows, ran, frame.count(), len(frame.toPandas()), spark.range(3).toArrow().num_rows)
spark.stop()
"""


def run_client(url: str, python: str = sys.executable, **environment: str) -> list[str]:
    """What a program with PySpark's own client prints."""
    run = subprocess.run(
        [python, "-c", _CLIENT, url],
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def check_client(printed: list[str]) -> None:
    rows = [(k, sum(range(k, 100, 7))) for k in range(7)]
    assert printed[-1] == f"{rows} +- Volley native(numOutputRows: 7 (sum)) 7 7 3"
    assert "ArithmeticException DIVIDE_BY_ZERO" in printed
    assert "|  a|  2|" in printed
