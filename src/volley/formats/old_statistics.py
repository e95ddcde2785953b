# SPDX-License-Identifier: Apache-2.0
"""Minima and maxima of Parquet files in the order of old writers, which compared bytes with their signs.

Text beyond ASCII and long decimals have another order in Spark. Spark ignores such statistics and so does Arrow, but
DataFusion would skip rows by them.
"""

from __future__ import annotations

import re

import pyarrow.parquet as pq

# Writers that have known the order of each type from the start, or for years: parquet-mr since Spark 2.4.
_NEW_WRITERS = re.compile(r"parquet-mr version (1\.[1-9]\d|[2-9])|parquet-cpp-arrow|parquet-rs|DuckDB|Polars")


def has_old_statistics(metadata: pq.FileMetaData) -> bool:
    """Whether a column may have such statistics: Arrow shows it as one without any."""
    if _NEW_WRITERS.match(metadata.created_by or ""):
        return False
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return any(_hides_bounds(group.column(number)) for group in groups for number in range(group.num_columns))


def _hides_bounds(chunk: pq.ColumnChunkMetaData) -> bool:
    found = chunk.statistics
    return found is None or not (found.has_min_max or found.null_count == chunk.num_values)
