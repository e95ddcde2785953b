# SPDX-License-Identifier: Apache-2.0
"""Writes that are killed, by whoever and at any moment: the old rows or the new ones, and no others."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from helpers.writes import PLAIN, assert_native
from volley.bridge.commit import Staging, exchange
from volley.cluster import LocalCluster
from volley.testing.limits import DISTRIBUTED_SETTINGS
from volley.testing.session import conf
from volley.transport.flight import close_fleets
from volley.worker.file_writer import Written


def test_a_killed_write_leaves_the_old_rows(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    """The process is killed when all files are written and nothing is committed; the next write tidies up."""
    path = tmp_path / "t"
    rows.write.parquet(str(path))
    program = """
        import os, signal, sys
        from pathlib import Path
        from volley.bridge.commit import Staging
        with Staging(Path(sys.argv[1]), True) as staging:
            (staging.tasks / "x.parquet").write_bytes(b"half a file")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(path)], timeout=60, check=False)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".volley-t-")]
    with conf(spark, PLAIN):
        assert spark.read.parquet(str(path)).count() == 100
    rows.limit(3).write.mode("overwrite").parquet(str(path))
    assert_native(spark)
    with conf(spark, PLAIN):
        assert spark.read.parquet(str(path)).count() == 3
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


@pytest.mark.slow
def test_a_killed_worker_writes_nothing_twice(spark: SparkSession, tmp_path: Path, rows: DataFrame) -> None:
    many = rows.crossJoin(rows.select(F.col("id").alias("other"))).crossJoin(
        rows.select(F.col("id").alias("third"))
    )
    with LocalCluster(3) as cluster, conf(spark, cluster.settings | DISTRIBUTED_SETTINGS):
        try:
            killer = threading.Timer(0.5, cluster.members[0].process.kill)
            killer.start()
            many.write.partitionBy("day").parquet(str(tmp_path / "t"))
            killer.join()
            assert_native(spark)
        finally:
            close_fleets()
    with conf(spark, PLAIN):
        written = spark.read.parquet(str(tmp_path / "t"))
        assert written.count() == written.select("id", "other", "third").distinct().count() == 1_000_000
    assert [entry.name for entry in tmp_path.iterdir()] == ["t"]


@pytest.mark.slow
def test_killing_the_program_at_any_moment(spark: SparkSession, tmp_path: Path, source: str) -> None:
    """A program that overwrites a table again and again is killed; the table always is one of its versions."""
    path = tmp_path / "t"
    program = """
        import sys
        from pyspark.sql import SparkSession, functions as F
        import volley
        spark = (SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
                 .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
                 .config("spark.log.level", "ERROR").getOrCreate())
        volley.enable(spark)
        rows = spark.read.parquet(sys.argv[1])
        for version in range(1000):
            written = rows.withColumn("version", F.lit(version))
            written.write.mode("overwrite").partitionBy("day").parquet(sys.argv[2])
            assert volley.last_query(spark).native
            print(version, flush=True)
    """
    chance = random.Random(1)
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), source, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        try:
            for _ in range(3):
                assert process.stdout.readline()
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0, 0.4))
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        with conf(spark, PLAIN):
            table = spark.read.parquet(str(path))
            assert table.count() == 100
            assert table.select("version").distinct().count() == 1


class TestStaging:
    """The commit itself, on plain files."""

    def written(self, staging: Staging, *names: str) -> list[Written]:
        files = []
        for number, name in enumerate(names):
            path = staging.tasks / f"0-{number}-000.parquet"
            path.write_text(name)
            files.append(Written(str(path), name, 1, 1))
        return files

    def test_a_living_write_is_not_tidied_up(self, tmp_path: Path) -> None:
        with Staging(tmp_path / "t", True) as first, Staging(tmp_path / "t", True):
            assert first.tasks.exists()

    def test_nothing_shows_before_the_commit(self, tmp_path: Path) -> None:
        with Staging(tmp_path / "t", False) as staging:
            self.written(staging, "a=1")
            assert not (tmp_path / "t").exists()
        assert not list(tmp_path.iterdir())

    def test_replacing_a_folder_takes_its_old_files(self, tmp_path: Path) -> None:
        for name in ("a=1", "a=2"):
            (tmp_path / "t" / name).mkdir(parents=True)
            (tmp_path / "t" / name / "old").touch()
        with Staging(tmp_path / "t", False) as staging:
            staging.commit(self.written(staging, "a=1", "a=3"), ".parquet", ["a=1", "a=3"], False)
        found = sorted(path.parent.name for path in (tmp_path / "t").rglob("part-*"))
        assert found == ["a=1", "a=3"]
        assert [path.parent.name for path in (tmp_path / "t").rglob("old")] == ["a=2"]

    def test_a_table_is_exchanged_in_one_step(self, tmp_path: Path) -> None:
        for name in ("new", "old"):
            (tmp_path / name).mkdir()
            (tmp_path / name / name).touch()
        inode = (tmp_path / "new").stat().st_ino
        exchange(tmp_path / "new", tmp_path / "old")
        assert (tmp_path / "old").stat().st_ino == inode
        assert [path.name for path in (tmp_path / "new").iterdir()] == ["old"]
