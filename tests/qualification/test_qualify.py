# SPDX-License-Identifier: Apache-2.0
"""Forecasts from event logs that a real Spark wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import volley
from volley.cli.main import cli
from volley.errors import ConfigError
from volley.qualification.event_log import Operator, read_event_log
from volley.qualification.forecast import PLACED_IN_PARTITIONS, forecast, judge, reason_for
from volley.support.reasons import Reason
from volley.testing.session import conf

PROGRAM = """
import sys
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

folder = sys.argv[1]
builder = SparkSession.builder.master("local[1]").appName("=cmd|' /C calc'!A0")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": f"file://{folder}/logs",
    "spark.eventLog.compress": sys.argv[2],
    "spark.eventLog.compression.codec": "zstd",
    "spark.eventLog.rolling.enabled": sys.argv[3],
    "spark.sql.shuffle.partitions": "2",
}.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
spark.range(1000).withColumn("k", F.col("id") % 7).write.parquet(f"{folder}/t")
table = spark.read.parquet(f"{folder}/t")
table.groupBy("k").agg(F.sum("id"), F.avg("id")).orderBy("k").collect()
table.join(table.withColumnRenamed("id", "other"), "k").filter("id > 990").count()
with open(f"{folder}/rows.xml", "w") as file:
    file.write("<rows><r><a>1</a></r></rows>")
spark.read.format("xml").option("rowTag", "r").schema("a int").load(f"{folder}/rows.xml").collect()
table.select(F.schema_of_json(F.lit("{}")), F.sentences(F.col("id").cast("string"))).collect()
spark.stop()
"""


def run_spark(folder: Path, compress: bool, rolling: bool) -> Path:
    (folder / "logs").mkdir()
    arguments = [str(folder), str(compress).lower(), str(rolling).lower()]
    subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        env=os.environ | {"SPARK_SUBMIT_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        check=True,
        capture_output=True,
        timeout=280,
    )
    (log,) = (folder / "logs").iterdir()
    return log


@pytest.fixture(scope="module")
def rolling_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a compressed log, as Spark 4 writes by itself."""
    return run_spark(tmp_path_factory.mktemp("rolling"), compress=True, rolling=True)


def report(log: Path, *arguments: str) -> Any:
    result = CliRunner().invoke(cli, ["qualify", str(log), *arguments], env={"COLUMNS": "250"})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_rolling_log(rolling_log: Path, tmp_path: Path) -> None:
    assert rolling_log.is_dir()
    log = read_event_log(rolling_log)
    assert log.spark_version.startswith("4.")
    found = forecast([log])
    engines = {query.query: query.engine for query in found.queries}
    grouped = [query for query in found.queries if any(v.operator == "HashAggregate" for v in query.verdicts)]
    assert grouped
    assert {query.engine for query in grouped} == {"native"}
    assert all(query.task_seconds > 0 for query in grouped)
    assert "native" in engines.values()
    reasons = {(verdict.reason, verdict.what) for verdict, _, _ in found.obstacles}
    assert ("FILE_FORMAT_NOT_SUPPORTED", "xml") in reasons
    assert 0 < found.saved_seconds < found.seconds
    assert forecast([log], speedup=1.0).saved_seconds == 0
    # The same events, plain and in one file.
    plain = tmp_path / "plain"
    parts = sorted(file for file in rolling_log.iterdir() if file.name.startswith("events_"))
    plain.write_bytes(b"".join(pa.input_stream(str(part), compression="zstd").read() for part in parts))
    assert forecast([read_event_log(plain)]) == found
    # An application that was killed has half a line at its end.
    cut = tmp_path / "cut.inprogress"
    cut.write_bytes(plain.read_bytes()[:-20])
    assert len(read_event_log(cut).queries) == len(log.queries)


@pytest.mark.slow
def test_every_format(rolling_log: Path) -> None:
    found = json.loads(report(rolling_log, "--format", "json"))
    assert found["engines"]["native"] >= 2
    assert len(found["assumptions"]) == 4
    lines = list(csv.DictReader(io.StringIO(report(rolling_log, "--format", "csv"))))
    assert len(lines) == len(found["queries"])
    page = report(rolling_log, "--format", "html", "--speedup", "2")
    assert "2 times as fast" in page
    assert "http" not in page.replace("http-equiv", "")
    text = report(rolling_log)
    assert "native" in text
    assert "FILE_FORMAT_NOT_SUPPORTED" in text


def test_what_is_no_log(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('{"a": 1}\nnot json\n')
    with pytest.raises(ConfigError, match="no event log"):
        read_event_log(other)
    packed = tmp_path / "app-1.lz4"
    packed.write_bytes(b"LZ4Block")
    with pytest.raises(ConfigError, match="lz4"):
        read_event_log(packed)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("Filter", "Filter (isnotnull(a#1) AND (a#1 > 3))", ""),
        ("HashAggregate", "HashAggregate(keys=[k#1L], functions=[partial_sum(id#2L), avg(x#3)])", ""),
        ("SortMergeJoin", "SortMergeJoin [k#1L], [k#5L], Inner", ""),
        ("Exchange", "Exchange hashpartitioning(k#1L, 200), ENSURE_REQUIREMENTS", ""),
        ("Scan parquet spark_catalog.default.t", "FileScan parquet [a#1]", ""),
        ("Scan xml ", "FileScan xml [a#1]", "FILE_FORMAT_NOT_SUPPORTED"),
        ("Scan avro ", "FileScan avro [a#1]", ""),
        ("Project", "Project [sentences(a#1, , ) AS s#2, date_format(t#3, yyyy, None) AS y#4]", ""),
        ("Project", "Project [rand(5) AS r#2]", "DEPENDS_ON_SPARK_PARTITIONS"),
        (
            "HashAggregate",
            "HashAggregate(keys=[], functions=[kll_sketch_agg_bigint(a#1)])",
            "DEPENDS_ON_SPARK_PARTITIONS",
        ),
        (
            "Execute InsertIntoHadoopFsRelationCommand",
            "Execute InsertIntoHadoopFsRelationCommand /t, false, CSV",
            "",
        ),
        (
            "Execute InsertIntoHadoopFsRelationCommand",
            "Execute ... /t, false, Text",
            "FILE_FORMAT_NOT_SUPPORTED",
        ),
        ("FlatMapGroupsInPandasWithState", "FlatMapGroupsInPandasWithState", "OPERATOR_NOT_SUPPORTED"),
        ("InMemoryTableScan", "InMemoryTableScan [a#1]", ""),
    ],
)
def test_operators_are_judged_by_name(name: str, text: str, reason: str) -> None:
    assert judge(Operator(name, text, 0)).reason == reason


def test_functions_are_judged_as_they_run() -> None:
    """The page of functions is made by running the examples of each."""
    page = (Path(__file__).parents[2] / "docs" / "functions.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (native|JVM|Spark) \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 400
    for function, _, runs, notes in rows:
        if function in PLACED_IN_PARTITIONS:
            assert runs == "native"
            continue
        if reason_for(function) is Reason.NONDETERMINISTIC:
            # Where Spark's partitions are known, as in the examples. A log does not show it.
            continue
        # A type that is in the way of some examples, or one use of several, is not in the name.
        if "other uses natively" not in notes and "DATA_TYPE" not in notes:
            assert (reason_for(function) is None) is (runs != "Spark"), function


def test_one_frame(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    native = volley.qualify(spark.range(100).groupBy("id").count())
    assert (native.engine, native.fraction) == ("native", 1.0)
    assert native.times_faster == pytest.approx(3)
    assert "Volley would run this query: 100%" in capsys.readouterr().out
    with conf(spark, {"spark.volley.enabled": "false"}):
        off = volley.qualify(spark.range(100).groupBy("id").count(), speedup=2)
    assert (off.engine, off.reasons) == ("native", ())
    assert off.times_faster == pytest.approx(2)
    random = volley.qualify(spark.range(100).selectExpr("shuffle(array(1, 2)) as r"))
    assert (random.engine, random.times_faster) == ("spark", 1.0)
    assert random.advice[0].startswith("EXPRESSION_NOT_SUPPORTED: ")
    assert "To gain more: EXPRESSION_NOT_SUPPORTED" in capsys.readouterr().out
    assert json.loads(json.dumps(random.to_dict()))["engine"] == "spark"
    assert "shuffle" in random._repr_html_()
    with pytest.raises(ConfigError, match="at least 1"):
        volley.qualify(spark.range(1), speedup=0.5)
