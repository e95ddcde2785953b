# SPDX-License-Identifier: Apache-2.0
"""A program whose functions need their environment: added modules, files and archives, broadcasts and variables.

Prints one line for each function: its name, who ran it, and whether both engines gave the same rows. It runs in a
process of its own, because files that were added to a SparkContext stay with it.
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark import SparkFiles, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import volley
from volley.cluster import LocalCluster


def main(folder: Path, transport: str) -> None:
    with ExitStack() as resources:
        run(folder, transport, resources)


def run(folder: Path, transport: str, resources: ExitStack) -> None:
    module = folder / "added_module.py"
    module.write_text("def answer(number):\n    return number + 42\n")
    packed = folder / "packed.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("added_package/__init__.py", "NAME = 'packed'\n")
    words = folder / "words.txt"
    words.write_text("a file")
    data = folder / "data.zip"
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("inside.txt", "an archive")

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.archives", f"{data}#unpacked")
        .config("spark.executorEnv.VOLLEY_TEST_VARIABLE", "a variable")
        .getOrCreate()
    )
    context = spark.sparkContext
    context.setLogLevel("OFF")
    context.addPyFile(str(module))
    context.addPyFile(str(packed))
    context.addFile(str(words))
    table = context.broadcast({0: "zero", 1: "one"})
    counter = context.accumulator(0)
    spark.conf.set("spark.volley.transport", transport)
    if transport == "flight":
        cluster = resources.enter_context(LocalCluster(2))
        for key, value in cluster.settings.items():
            spark.conf.set(key, value)
    volley.enable(spark)

    def added_module(number: int) -> str:
        import added_module  # type: ignore[import-not-found]
        import added_package  # type: ignore[import-not-found]

        return f"{added_module.answer(number)} {added_package.NAME}"

    def added_file(number: int) -> str:
        return Path(SparkFiles.get("words.txt")).read_text()

    def archive_file(number: int) -> str:
        return (Path(SparkFiles.get("unpacked")) / "inside.txt").read_text()

    def broadcast(number: int) -> str:
        return str(table.value.get(number))

    def variable(number: int) -> str:
        return os.environ.get("VOLLEY_TEST_VARIABLE", "none")

    def partition(number: int) -> str:
        task = TaskContext.get()
        return str(task is not None and task.partitionId())

    def counts(number: int) -> str:
        counter.add(1)
        return str(number)

    def show(function: Callable[[int], str], name: str = "") -> None:
        def rows(enabled: str) -> Any:
            spark.conf.set("spark.volley.enabled", enabled)
            return spark.range(0, 6, 1, 2).select("id", F.udf(function, "string")("id")).collect()

        found = rows("true")
        report = volley.last_query(spark)
        assert report is not None
        expected = rows("false")
        print(name or function.__name__, report.engine, sorted(found) == sorted(expected), flush=True)

    def directory(number: int) -> str:
        return SparkFiles.getRootDirectory()

    for function in (added_module, added_file, archive_file, broadcast, variable, partition):
        show(function)
    spark.conf.set("spark.volley.enabled", "true")
    found = spark.range(0, 6, 1, 2).select(F.udf(directory, "string")("id")).distinct().collect()
    print("directory", "sent" if all("volley-files-" in root for (root,) in found) else "the driver's")
    show(counts)
    # The native attempt counts nothing: each of the two runs of Spark has counted six rows.
    print("counter", counter.value)
    spark.conf.set("spark.sql.pyspark.udf.profiler", "perf")
    show(variable, "profiled")
    spark.profile.dump(str(folder / "profiles"))
    # One of each function, which Spark has called both times.
    print("profiles", len(list((folder / "profiles").iterdir())))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
