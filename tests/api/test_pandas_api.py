# SPDX-License-Identifier: Apache-2.0
"""Programs of the pandas API on Spark: the same results with Volley, natively or with a reason."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.session import conf

ROWS = pd.DataFrame(
    {
        "k": [n % 5 for n in range(200)],
        "v": [float(n) for n in range(200)],
        "s": [f"t{n % 7}" for n in range(200)],
    }
)
NATIVE = ("head", "len", "apply", "value_counts", "cumsum")
INDEXES = ("sequence", "distributed-sequence", "distributed")


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.filterwarnings("ignore")
def test_programs_of_the_pandas_api(spark: SparkSession) -> None:
    # Its types are not meant for checkers.
    ps: Any = importlib.import_module("pyspark.pandas")

    engines: dict[str, str] = {}

    def run() -> dict[str, Any]:
        frame = ps.DataFrame(ROWS)
        steps: dict[str, Callable[[], Any]] = {
            "head": lambda: frame.head(5).to_pandas().to_dict(),
            "len": lambda: len(frame),
            "apply": lambda: frame["v"].apply(lambda value: value * 2).sum(),
            "value_counts": lambda: frame["s"].value_counts().to_pandas().sort_index().to_dict(),
            "cumsum": lambda: frame["v"].cumsum().tail(2).to_pandas().tolist(),
            "groupby": lambda: frame.groupby("k")["v"].sum().sort_index().to_pandas().to_dict(),
            "merge": lambda: (
                frame.merge(ps.DataFrame({"k": [1, 2], "w": [10, 20]}), on="k")
                .sort_values(["v"])
                .head(3)
                .to_pandas()
                .to_dict()
            ),
            "cache": lambda: frame.spark.cache().groupby("k").count().sort_index().to_pandas().to_dict(),
        }
        found = {}
        for name, step in steps.items():
            found[name] = step()
            report = volley.last_query(spark)
            assert report is not None
            assert report.engine == "native" or report.reasons
            engines[name] = report.engine
        for index in INDEXES:
            with ps.option_context("compute.default_index_type", index):
                pandas_frame: Any = spark.range(20).pandas_api()
                numbers = pandas_frame.assign(z=1).reset_index(drop=True)
                found[index] = sorted(numbers.to_pandas()["id"].tolist())
        return found

    # The pandas API has no ANSI mode of its own.
    with conf(spark, {"spark.sql.ansi.enabled": "false"}):
        ours = run()
        assert {name: engines[name] for name in NATIVE} == dict.fromkeys(NATIVE, "native")
        with conf(spark, {"spark.volley.enabled": "false"}):
            assert run() == ours
    spark.catalog.clearCache()
