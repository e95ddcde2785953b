# SPDX-License-Identifier: Apache-2.0
"""Queries of which rows cross between the engines."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import volley
from volley.bridge.native_to_spark import SparkPart
from volley.cluster import LocalCluster
from volley.config import Config
from volley.decide import Decider, Decision
from volley.deployment.base import Deployment
from volley.deployment.factory import choose_deployment
from volley.ids import QueryId
from volley.observe.report import QueryReport
from volley.query import session_state
from volley.query.native_run import NativeRun
from volley.rpc.control import Health
from volley.session_settings import read_settings

ROWS = pa.record_batch({"c_1": pa.array(range(10_000), pa.int64()), "c_2": pa.array(["x"] * 10_000)})


def report_of(spark: SparkSession) -> QueryReport:
    report = volley.last_query(spark)
    assert report is not None
    return report


def grouped(spark: SparkSession) -> DataFrame:
    """A subplan of some thousand rows below a UDF."""
    same = F.udf(lambda number: number, "long")
    orders = spark.table("orders").groupBy("o_custkey", "o_orderstatus").agg(F.max("o_orderdate").alias("d"))
    return orders.withColumn("same", same("o_custkey"))


def decided(spark: SparkSession, frame: DataFrame) -> tuple[Decision, NativeRun, Deployment]:
    """A query on its way: what was decided, and what it will run with."""
    config = Config.read(read_settings(spark))
    deployment = choose_deployment(spark, config)
    decider = Decider(spark, deployment, config, what="collect", started=time.perf_counter())
    decision = decider.decide(frame._jdf.queryExecution())
    run = NativeRun(
        spark,
        config,
        deployment,
        session=session_state.session_id(spark),
        query=QueryId.new(),
        labels=frozenset(),
    )
    return decision, run, deployment


def crossed(spark: SparkSession, frame: DataFrame) -> tuple[NativeRun, SparkPart]:
    """A query on its way whose top is Spark's."""
    decision, run, _ = decided(spark, frame)
    assert isinstance(decision.plan, SparkPart)
    return run, decision.plan


def below(spark: SparkSession) -> DataFrame:
    """A UDF below a join and an aggregate."""
    same = F.udf(lambda number: number, "long")
    orders = spark.table("orders").select(same("o_custkey").alias("k"), "o_totalprice", "o_orderkey")
    joined = orders.join(spark.table("customer"), F.col("k") == F.col("c_custkey"))
    return joined.groupBy("c_mktsegment").agg(F.sum("o_totalprice").alias("total"), F.count("*"))


def held_bytes(cluster: LocalCluster) -> int:
    return sum(health.held_bytes for health in cluster.health() if isinstance(health, Health))


def explain_modes(spark: SparkSession) -> list[Any]:
    """The forms in which Spark shows a plan."""
    assert spark._jvm is not None
    modes = spark._jvm.org.apache.spark.sql.execution.ExplainMode
    return [modes.fromString(name) for name in ("extended", "formatted", "cost", "codegen")]
