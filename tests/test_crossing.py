"""Native rows that Spark's tasks read as Arrow, from whoever holds them."""

from __future__ import annotations

import os
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley import history
from volley.bridge import reading
from volley.bridge.reading import Access
from volley.bridge.served import Served
from volley.bridge.source import divided
from volley.cluster import LocalCluster
from volley.config import Config
from volley.errors import CrossingError, QueryCancelled
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.observe.report import QueryReport
from volley.security import Security
from volley.shuffle.base import Block
from volley.shuffle.choice import StoreChoice, serving_store
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets

ROWS = pa.record_batch({"c_1": pa.array(range(10_000), pa.int64()), "c_2": pa.array(["x"] * 10_000)})
SCHEMA = pa.schema([("c0", pa.string()), ("c1", pa.int64())])


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def grouped(spark: SparkSession) -> DataFrame:
    """An island of some thousand rows below a UDF."""
    same = F.udf(lambda number: number, "long")
    orders = spark.table("orders").groupBy("o_custkey", "o_orderstatus").agg(F.max("o_orderdate").alias("d"))
    return orders.withColumn("same", same("o_custkey"))
