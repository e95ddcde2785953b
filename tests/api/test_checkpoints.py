# SPDX-License-Identifier: Apache-2.0
"""A later run of the same query takes over the stages that an earlier one has left, and only those."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

import volley
from volley.cli.main import cli
from volley.cluster import LocalCluster
from volley.config import Config
from volley.deployment.checkpoints import open_checkpoint
from volley.errors import ConfigError
from volley.shuffle.factory import close_stores
from volley.testing.limits import UNMERGED_SETTINGS
from volley.testing.session import conf

NAME = "nightly"
GROUPS = "select k, sum(v) as s, count(*) as n from parts group by k"
JOIN = (
    "select d.name, count(*) as n, sum(v) as s from parts join d using (k) where v % 7 <> 3 group by d.name"
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def parts(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "parts"
    path.mkdir()
    for number in range(4):
        write_part(path, number)
    spark.read.parquet(str(path)).createOrReplaceTempView("parts")
    names = pa.table({"k": pa.array(range(50), pa.int64()), "name": [f"n{k % 5}" for k in range(50)]})
    (tmp_path / "d").mkdir()
    pq.write_table(names, tmp_path / "d" / "d.parquet")
    spark.read.parquet(str(tmp_path / "d")).createOrReplaceTempView("d")
    yield path
    spark.catalog.dropTempView("parts")
    spark.catalog.dropTempView("d")
    close_stores()


def write_part(path: Path, number: int, add: int = 0) -> None:
    values = pa.array(range(1000 * number + add, 1000 * number + 1000 + add), pa.int64())
    keys = pa.array([value % 50 for value in range(1000)], pa.int64())
    pq.write_table(pa.table({"k": keys, "v": values}), path / f"part-{number}.parquet")


def settings(store: Path, checkpoint: str = NAME) -> dict[str, str]:
    return {
        **UNMERGED_SETTINGS,
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.volley.local.workers": "2",
        "spark.volley.singleTaskSize": "0",
        "spark.volley.shuffle.store": f"file://{store}",
        "spark.volley.shuffle.checkpoint": checkpoint,
    }


def taken_over(spark: SparkSession, sql: str) -> int:
    """Run a query as a new driver would, compare it with Spark, and count the stages that it took over."""
    close_stores()
    rows = sorted(spark.sql(sql).collect())
    report = volley.last_query(spark)
    assert report is not None
    assert report.native
    with conf(spark, {"spark.volley.enabled": "false"}):
        assert rows == sorted(spark.sql(sql).collect())
    assert report.to_dict()["taken_over_stages"] == report.taken_over_stages
    return report.taken_over_stages


def test_a_second_run_takes_finished_stages_over(spark: SparkSession, parts: Path, store: Path) -> None:
    with conf(spark, settings(store)):
        assert taken_over(spark, GROUPS) == 0
        assert taken_over(spark, GROUPS) == 1
        # The ids of columns differ in a plan that is made anew, and so do names.
        assert taken_over(spark, GROUPS.replace(" as s", " as t")) == 1
        assert taken_over(spark, JOIN) == 0
        assert taken_over(spark, JOIN) >= 2
    with conf(spark, settings(store, "another")):
        assert taken_over(spark, GROUPS) == 0


def test_what_changed_is_computed(spark: SparkSession, parts: Path, store: Path) -> None:
    with conf(spark, settings(store)):
        taken_over(spark, GROUPS)
        assert taken_over(spark, GROUPS.replace("sum(v)", "sum(v + 1)")) == 0
        # Another content of the same size, at another time.
        at = (parts / "part-2.parquet").stat()
        write_part(parts, 2, add=1)
        assert (parts / "part-2.parquet").stat().st_size == at.st_size
        spark.read.parquet(str(parts)).createOrReplaceTempView("parts")
        assert taken_over(spark, GROUPS) == 0
        assert taken_over(spark, GROUPS) == 1
        # Spark has listed the files before this one changed.
        os.utime(parts / "part-2.parquet", (at.st_atime + 100, at.st_mtime + 100))
        assert taken_over(spark, GROUPS) == 0


def test_rows_that_may_differ_are_not_kept(spark: SparkSession, parts: Path, store: Path) -> None:
    with conf(spark, settings(store)):
        for sql in (
            "select k, sum(cast(v as double) / 3) as s from parts group by k",
            "select count(*) from (select * from parts limit 100)",
        ):
            for _ in range(2):
                close_stores()
                spark.sql(sql).collect()
                report = volley.last_query(spark)
                assert report is not None
                assert report.native
                assert report.taken_over_stages == 0


def test_a_checkpoint_that_is_lost_is_computed_again(spark: SparkSession, parts: Path, store: Path) -> None:
    with conf(spark, settings(store)):
        taken_over(spark, GROUPS)
        for folder in store.iterdir():
            if folder.name != "checkpoints":
                shutil.rmtree(folder)
        with pytest.warns(UserWarning, match="without its checkpoint"):
            assert taken_over(spark, GROUPS) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert taken_over(spark, GROUPS) == 1


def test_the_command_lists_and_removes_checkpoints(spark: SparkSession, parts: Path, store: Path) -> None:
    with conf(spark, settings(store)):
        taken_over(spark, GROUPS)
    close_stores()
    uri = f"file://{store}"
    listed = CliRunner().invoke(cli, ["checkpoints", uri, "--json"])
    assert '"stages": 1' in listed.output
    assert NAME not in listed.output
    assert CliRunner().invoke(cli, ["checkpoints", uri, "--remove", "other"]).exit_code == 1
    assert CliRunner().invoke(cli, ["checkpoints", uri, "--remove", NAME]).exit_code == 0
    assert [path for path in store.rglob("*") if path.is_file()] == []


def test_a_store_that_keeps_nothing_is_refused(spark: SparkSession, parts: Path, store: Path) -> None:
    memory = settings(store) | {"spark.volley.shuffle.store": "memory"}
    with conf(spark, memory), pytest.raises(ConfigError, match="cannot keep checkpoints"):
        spark.sql(GROUPS).collect()


def test_a_package_without_metadata_has_checkpoints(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    # As in a zip file, or in a source tree on the path.
    monkeypatch.setattr(importlib.metadata, "distribution", not_found)
    assert open_checkpoint(Config.read(settings(store))) is not None
    close_stores()


PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
import volley

spark = SparkSession.builder.master("local[1]").getOrCreate()
volley.enable(spark)
for setting in sys.argv[3:]:
    spark.conf.set(*setting.split("=", 1))
spark.read.parquet(sys.argv[1]).createOrReplaceTempView("parts")
rows = spark.sql(sys.argv[2]).collect()
report = volley.last_query(spark)
print(report.engine, report.taken_over_stages, sorted(map(tuple, rows)), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.slow
def test_a_driver_that_was_killed_leaves_its_stages_to_the_next(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    for number in range(4):
        write_part(tmp_path / "parts", number)
    with LocalCluster(2, cores=1, memory="512m", services=3) as cluster:
        options = settings(tmp_path) | cluster.settings | {"spark.volley.transport": "flight"}
        del options["spark.volley.local.workers"]
        arguments = [str(tmp_path / "parts"), GROUPS, *(f"{key}={value}" for key, value in options.items())]
        outputs = [
            subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True).stdout
            for _ in range(2)
        ]
    first, second = (output.split(maxsplit=2) for output in outputs)
    assert (first[:2], second[:2]) == (["native", "0"], ["native", "1"])
    assert first[2] == second[2]
