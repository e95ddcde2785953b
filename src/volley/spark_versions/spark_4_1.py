# SPDX-License-Identifier: Apache-2.0
"""Spark 4.1: what a Python worker is told depends on the kind of function, and executions have no query ids."""

from __future__ import annotations

from dataclasses import replace

from volley.spark_versions.spark_4_2 import SPARK_4_2

SPARK_4_1 = replace(
    SPARK_4_2,
    release="4.1",
    tested="4.1.4",
    arrow_schema_arguments={"timestamp_utc": True},
    keeps_rows_without_columns=False,
    has_worker_message=False,
    worker_times=3,
    implied_options={
        **SPARK_4_2.implied_options,
        "Corr": {"failsOnZeroVariance": True},
        "CollectSet": {"ignoreNulls": True},
        "CollectList": {"ignoreNulls": True},
    },
    java_releases=(17, 21),
    data_source_options=0,
    has_query_ids=False,
    completes_observations="org$apache$spark$sql$classic$ObservationManager$$tryComplete",
)
