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
NATIVE = (
    "head",
    "len",
    "apply",
    "value_counts",
    "cumsum",
    "describe",
    "sort_values",
    "filter",
    "drop_duplicates",
    "shift",
    "nlargest",
    "iloc",
    "concat",
    "transform",
    "groupby apply",
    "fillna",
    "rolling",
    "reset_index",
)
BY_SPARK = {
    "groupby": "monotonically_increasing_id",
    "merge": "AttachDistributedSequenceExec",
    "unique": "AttachDistributedSequenceExec",
}
INDEXES = ("sequence", "distributed-sequence", "distributed")


@pytest.mark.slow
@pytest.mark.embedded
@pytest.mark.filterwarnings("ignore")
def test_programs_of_the_pandas_api(spark: SparkSession) -> None:
    # Its types are not meant for checkers.
    ps: Any = importlib.import_module("pyspark.pandas")

    engines: dict[str, str] = {}
    reasons: dict[str, str] = {}

    def run() -> dict[str, Any]:
        frame = ps.DataFrame(ROWS)
        steps: dict[str, Callable[[], Any]] = {
            "head": lambda: frame.head(5).to_pandas().to_dict(),
            "len": lambda: len(frame),
            "apply": lambda: frame["v"].apply(lambda value: value * 2).sum(),
            "value_counts": lambda: frame["s"].value_counts().to_pandas().sort_index().to_dict(),
            "cumsum": lambda: frame["v"].cumsum().tail(2).to_pandas().tolist(),
            "describe": lambda: frame.describe().to_pandas().round(9).to_dict(),
            "sort_values": lambda: frame.sort_values(["s", "v"]).head(4).to_pandas().to_dict(),
            "filter": lambda: frame[frame["v"] > 100].to_pandas().sort_index().to_dict(),
            "drop_duplicates": lambda: sorted(frame[["k"]].drop_duplicates().to_pandas()["k"].tolist()),
            "shift": lambda: frame["v"].shift(1).to_pandas().sum(),
            "nlargest": lambda: frame.nlargest(3, "v").to_pandas().to_dict(),
            "iloc": lambda: frame.iloc[:3].to_pandas().to_dict(),
            "concat": lambda: len(ps.concat([frame, frame])),
            "transform": lambda: frame["v"].transform(lambda value: value + 1).sum(),
            "groupby apply": lambda: sorted(
                frame.groupby("k").apply(lambda group: group.nlargest(1, "v")).to_pandas()["v"].tolist()
            ),
            "fillna": lambda: frame.fillna(0).sum(numeric_only=True).to_dict(),
            "reset_index": lambda: frame.reset_index().to_pandas().to_dict(),
            "unique": lambda: sorted(frame["s"].unique().to_pandas().tolist()),
            "rolling": lambda: frame["v"].rolling(3).mean().to_pandas().sort_index().tolist()[2:],
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
            reasons[name] = "; ".join(map(str, report.reasons))
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
        assert {name: why for name, why in BY_SPARK.items() if why not in reasons[name]} == {}, reasons
        with conf(spark, {"spark.volley.enabled": "false"}):
            assert run() == ours
    spark.catalog.clearCache()
