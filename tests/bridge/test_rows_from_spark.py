# SPDX-License-Identifier: Apache-2.0
"""Rows that Spark's tasks push to workers, for native plans above a part that only Spark runs."""

from __future__ import annotations

import gc
import os
import signal
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from helpers.crossings import ROWS, below, decided, explain_modes, held_bytes, report_of
from volley.bridge.boundary import EngineBoundary
from volley.bridge.ingestion import IngestTarget
from volley.bridge.native_to_spark import SparkPart
from volley.bridge.spark_task_writer import SCHEMA as SCHEMA_OF_PUSHED
from volley.bridge.spark_task_writer import make_push_function
from volley.bridge.spark_to_native import SparkInput, SparkInputs
from volley.cluster import LocalCluster
from volley.errors import CrossingError
from volley.ids import AttemptId, QueryId, StageId, TaskId
from volley.plan.nodes import MaterializedInput, walk
from volley.rpc.codec import decode, encode
from volley.rpc.control import Push, Pushed
from volley.rpc.messages import TaskDone
from volley.security import Credentials, Security
from volley.testing.limits import UNMERGED_SETTINGS
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.transport.ingest import FlightIngest

# Its tables are small, and rows are to cross between several tasks.
pytestmark = pytest.mark.usefixtures("distributed", "functions_on_spark")


def put(client: flight.FlightClient, push: object, batch: pa.RecordBatch) -> Any:
    writer, reader = client.do_put(flight.FlightDescriptor.for_command(encode(push)), batch.schema)
    with writer:
        writer.write_batch(batch)
        writer.done_writing()
        return decode(reader.read().to_pybytes())


def test_a_worker_takes_rows_of_a_driver_that_it_knows(tpch: SparkSession, cluster: LocalCluster) -> None:
    address, query = cluster.members[0].address, QueryId.new()
    attempt = AttemptId(TaskId(StageId(query, 0), 4), 0)
    with pytest.raises(flight.FlightUnauthenticatedError):
        put(Security("wrong").connect(address), Push("", attempt, 2), ROWS)
    client = cluster.security.connect(address)
    with pytest.raises(flight.FlightServerError, match="UNKNOWN_DRIVER"):
        put(client, Push("nobody", attempt, 2), ROWS)
    with pytest.raises(flight.FlightServerError, match="QueryId where Push was expected"):
        put(client, query, ROWS)
    before = held_bytes(cluster)
    pushed = put(client, Push("", attempt, 2), ROWS)
    assert isinstance(pushed, Pushed)
    assert [block.rows for block in pushed.blocks] == [10_000, 0]
    assert pushed.holder == address
    assert held_bytes(cluster) > before
    list(client.do_action(flight.Action("release", encode(query))))
    assert held_bytes(cluster) == before
    with pytest.raises(flight.FlightServerError, match="is over"):
        put(client, Push("", replace(attempt, attempt=1), 2), ROWS)


@pytest.mark.slow
def test_workers_hold_the_rows_of_spark_until_the_query_is_over(
    tpch: SparkSession, cluster: LocalCluster
) -> None:
    with conf(tpch, cluster.settings):
        decision, run, deployment = decided(tpch, below(tpch))
        assert decision.plan is not None
        assert not isinstance(decision.plan, SparkPart)
        inputs = SparkInputs(decision.inputs, run.boundary, deployment.ingest)
        with closing(run), closing(inputs):
            filled = inputs.fill(decision.plan)
            (rows,) = [node for node in walk(filled) if isinstance(node, MaterializedInput)]
            outputs = inputs.outputs[rows.number]
            # Two tasks of Spark's, and nothing of their rows here.
            assert sum(output.rows for output in outputs) == tpch.table("orders").count()
            assert {output.made_by for output in outputs} <= {member.address for member in cluster.members}
            assert held_bytes(cluster) > 0
        assert held_bytes(cluster) == 0
        assert_same_rows(tpch, below, native=False)
        assert report_of(tpch).engine == "mixed"
        assert any("computed by Spark" in stage.decisions for stage in report_of(tpch).stages)
        assert held_bytes(cluster) == 0


def test_rows_of_spark_meet_those_of_files(tpch: SparkSession, cluster: LocalCluster) -> None:
    """Several tasks, each with its share of both sides."""
    shuffled = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.enabled": "false"}
    limits = {**UNMERGED_SETTINGS, "spark.volley.planner.broadcastSize": "0"}
    with conf(tpch, {**cluster.settings, **shuffled, **limits}):
        assert_same_rows(tpch, below, native=False)
        assert report_of(tpch).engine == "mixed"
        assert max(stage.tasks for stage in report_of(tpch).stages) == len(cluster.members)


def test_no_rows_of_spark_at_all(tpch: SparkSession, cluster: LocalCluster) -> None:
    with conf(tpch, cluster.settings):
        never = F.udf(lambda number: False, "boolean")
        orders = tpch.table("orders").where(never("o_orderkey"))
        joined = orders.join(tpch.table("customer"), F.col("o_custkey") == F.col("c_custkey"))
        counted = joined.groupBy().agg(F.count("*").alias("n"))
        assert [row.n for row in counted.collect()] == [0]
        assert report_of(tpch).engine == "mixed"


def test_an_error_of_spark_leaves_nothing_on_the_workers(tpch: SparkSession, cluster: LocalCluster) -> None:
    fails = F.udf(lambda number: 1 // (number - 5), "long")
    orders = tpch.table("orders").select(fails("o_orderkey").alias("k"))
    joined = orders.join(tpch.table("customer"), F.col("k") == F.col("c_custkey"))
    with conf(tpch, cluster.settings), pytest.raises(Exception, match="ZeroDivisionError"):
        joined.groupBy("c_mktsegment").agg(F.count("*")).collect()
    assert held_bytes(cluster) == 0


def test_no_plan_of_what_is_handed_over_shows_the_token(tpch: SparkSession, cluster: LocalCluster) -> None:
    token = cluster.security.token
    assert token
    push = make_push_function(
        FlightIngest(("127.0.0.1:1",), "driver", Credentials(token), 20.0),
        QueryId.new(),
        2,
        [0],
        pa.schema([("c_1", pa.int64())]),
    )
    execution = tpch.range(5).mapInArrow(push, SCHEMA_OF_PUSHED)._jdf.queryExecution()
    texts = [execution.toString(), execution.logical().toJSON(), execution.executedPlan().toJSON()]
    texts += [execution.explainString(mode) for mode in explain_modes(tpch)]
    assert not any(token in text for text in texts)


@pytest.mark.slow
def test_a_holder_that_dies_with_the_rows_of_spark(
    tpch: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = SparkInput.pushed
    with LocalCluster(2) as doomed:

        def kill_a_holder(
            item: SparkInput, boundary: EngineBoundary, ingest_target: IngestTarget
        ) -> list[TaskDone]:
            outputs = taken(item, boundary, ingest_target)
            for member in doomed.members:
                if member.address == outputs[0].made_by:
                    os.kill(member.pid, signal.SIGKILL)
                    member.process.wait()
            return outputs

        monkeypatch.setattr(SparkInput, "pushed", kill_a_holder)
        with (
            conf(tpch, doomed.settings),
            pytest.warns(UserWarning, match="rows of Spark or of a cached frame were lost"),
        ):
            assert_same_rows(tpch, below, native=False)
        assert report_of(tpch).engine == "spark"
        close_fleets()


@pytest.mark.slow
def test_a_worker_that_is_gone_is_passed_over(tpch: SparkSession) -> None:
    """It was there when Spark's job began."""
    with LocalCluster(2) as cluster:
        gone = cluster.members[0]
        os.kill(gone.pid, signal.SIGKILL)
        gone.process.wait()
        credentials = Credentials(cluster.security.token)
        endpoint = FlightIngest(tuple(member.address for member in cluster.members), "", credentials, 20.0)
        assert endpoint.choose(cluster.security, 0) == cluster.members[1].address
        with pytest.raises(CrossingError, match="answers"):
            FlightIngest((gone.address,), "", credentials, 20.0).choose(cluster.security, 0)


@pytest.mark.slow
def test_types_that_come_from_spark(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    text = """
        select cast(id as tinyint) as b, cast(id * 300 as smallint) as s, cast(id * 70000 as int) as i, id as l,
               cast(id / 3 as float) as f, if(id % 4 = 0, double('nan'), id / -7) as d, id % 2 = 0 as flag,
               cast(id * 1.5 as decimal(7, 2)) as small, cast(id * -1.25 as decimal(38, 10)) as wide,
               if(id % 5 = 0, null, concat('name ', id, ' ü')) as name, encode(cast(id as string), 'utf-8') as raw,
               date_add(date'1581-12-30', cast(id * 9000 as int)) as day,
               timestamp'1899-12-31 23:59:59.123456' + make_dt_interval(cast(id * 3000 as int)) as moment,
               timestamp_ntz'1899-12-31 23:59:59.123456' as local, if(id > 3, null, id) as gone,
               if(id % 7 = 0, null, struct(id as number, array(concat('n', id), null) as names)) as nested
        from range(40)
    """
    with conf(spark, {"spark.volley.enabled": "false"}):
        spark.sql(text).write.parquet(str(tmp_path / "t"))
        spark.range(40).selectExpr("id as k", "id % 3 as third").write.parquet(str(tmp_path / "k"))
    same = F.udf(lambda number: number, "long")

    def query(spark: SparkSession) -> DataFrame:
        rows = spark.read.parquet(str(tmp_path / "t")).withColumn("same", same("l"))
        return rows.join(spark.read.parquet(str(tmp_path / "k")), F.col("same") == F.col("k"))

    for large in ("false", "true"):
        with conf(spark, {**cluster.settings, "spark.sql.execution.arrow.useLargeVarTypes": large}):
            assert_same_rows(spark, query, native=False)
        assert report_of(spark).engine == "mixed", report_of(spark).reasons


def test_a_query_of_rows_one_by_one_lets_go_too(tpch: SparkSession, cluster: LocalCluster) -> None:
    with conf(tpch, cluster.settings):
        assert len(list(below(tpch).toLocalIterator())) == 5
        assert report_of(tpch).engine == "mixed"
        below(tpch).toLocalIterator()  # and is dropped
        deadline = time.monotonic() + 30
        while held_bytes(cluster):
            gc.collect()
            assert time.monotonic() < deadline
