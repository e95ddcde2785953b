# SPDX-License-Identifier: Apache-2.0
"""Spark 4.2: Python workers read their first message without a header, relations of RDDs have a field less, and
percentiles are rounded in another place."""

from __future__ import annotations

from dataclasses import replace

from volley.spark_versions.spark_4_3 import SPARK_4_3

SPARK_4_2 = replace(
    SPARK_4_3,
    release="4.2",
    tested="4.2.1",
    oldest_python=(3, 10),
    has_init_frame=False,
    pivots_repeat_values=False,
    calls_row_functions=False,
    substring_index_takes_any_count=False,
    implied_options={"Percentile": {"weighsNeighbours": True}},
    logical_rdd_arguments=(),
    metadata_has_kinds=False,
    observes_rows_once=False,
)
