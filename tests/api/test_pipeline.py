# SPDX-License-Identifier: Apache-2.0
"""examples/pipeline.py gives the same rows with and without Volley, on every kind of master."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from pyspark.sql import SparkSession

import volley
from helpers.standalone import StandaloneCluster
from volley.testing.session import conf

PROGRAM = Path(__file__).parents[2] / "examples" / "pipeline.py"


@pytest.fixture(scope="module")
def pipeline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("distributed")
@pytest.mark.parametrize("transport", ["local", pytest.param("spark", marks=pytest.mark.slow)])
def test_same_rows(spark: SparkSession, pipeline: ModuleType, tmp_path: Path, transport: str) -> None:
    with conf(spark, {"spark.volley.enabled": "false"}):
        pipeline.make_source(spark, tmp_path / "source", trips=4_000)
        expected = pipeline.run(spark, tmp_path / "source", tmp_path / "spark")
    with conf(spark, {"spark.volley.transport": transport}):
        actual = pipeline.run(spark, tmp_path / "source", tmp_path / "volley")
        report = volley.last_query(spark)
    assert actual == expected
    assert len(actual) > 20
    assert report is not None
    assert report.engine == "native"
    folders = [
        sorted(str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).glob("best/[!.]*"))
        for name in ("spark", "volley")
    ]
    assert folders[0] == folders[1]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_on_a_standalone_cluster(tmp_path: Path) -> None:
    """The program itself, as its first lines say it is called."""
    with StandaloneCluster(tmp_path) as cluster:
        shared = ("--master", cluster.url, "--directory", str(tmp_path))
        outputs = [
            subprocess.run(
                [sys.executable, str(PROGRAM), *shared, *arguments],
                capture_output=True,
                text=True,
                timeout=600,
                check=True,
                # All of this cluster is on loopback, and so is its driver: beyond that it would ask for TLS.
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
            ).stdout
            for arguments in ((), ("--volley", "--transport", "spark"))
        ]
    assert outputs[0] == outputs[1]
    assert outputs[0].count("\n") > 20
