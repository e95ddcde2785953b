# SPDX-License-Identifier: Apache-2.0
"""What Volley has to know about a release of Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class SparkVersion:
    """One release. Every default is what the newest tested release does; older ones say where they differ."""

    release: str
    """Major and minor version."""
    tested: str
    """The patch release that `make test-versions` installs; docs/versions.md says which suites have run with it."""

    # The Python side.
    arrow_schema_arguments: Mapping[str, Any] = field(default_factory=lambda: {"timezone": "UTC"})
    """Arguments of PySpark's `to_arrow_schema` for timestamps in UTC."""
    has_binary_option: bool = True
    """Whether `spark.sql.execution.pyspark.binaryAsBytes` chooses between bytes and bytearray. Before, rows had
    bytearrays."""
    keeps_rows_without_columns: bool = True
    """Whether `createDataFrame` of an Arrow table without columns has as many rows."""
    has_source_filters: bool = True
    """Whether Python data sources can be given filters, as objects of `pyspark.sql.datasource`."""
    speaks_worker_protocol: bool = True
    """Whether Python workers read the messages of `worker.python.protocol`. If not, Spark calls Python functions."""
    has_init_frame: bool = True
    """Whether the first message to a Python worker begins with its kind and length."""

    # Expressions.
    substring_index_takes_any_count: bool = True
    """Whether `substring_index` works for the smallest integer. Before, Spark fails."""

    implied_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that newer releases have added to Catalyst classes, with the values that mean what this one does."""

    # The JVM.
    reads_zstd_text: bool = True
    """Whether text files can be compressed as zstd without libraries of the system. If not, Spark fails."""
    has_writer_commands: bool = True
    """Whether a DataFrameWriter gives its command without running it."""
    logical_rdd_arguments: tuple[Any, ...] = (False,)
    """The last arguments of `LogicalRDD`."""
    data_source_options: int = 1
    """How many optional arguments `DataSource` has after its catalog table."""
    metadata_has_kinds: bool = True
    """Whether `removeInternalMetadata` is told which kinds of metadata to remove."""
    has_query_ids: bool = True
    """Whether the events of an execution carry the id of the query."""
