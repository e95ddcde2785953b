# SPDX-License-Identifier: Apache-2.0
"""How a release of Spark differs from others, where Volley depends on it."""

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

    oldest_python: tuple[int, int] = (3, 11)
    """The oldest Python for which there is a PySpark of this release, from 3.10: Volley needs that."""
    later_defaults: Mapping[str, str] = field(default_factory=dict)
    """Settings whose defaults newer releases have changed, with their values there. Tests are written for these."""

    # The Python side.
    frame_module: str = "pyspark.sql.classic.dataframe"
    """The module of the DataFrames of classic sessions."""
    arrow_schema_arguments: Mapping[str, Any] = field(default_factory=lambda: {"timezone": "UTC"})
    """Arguments of PySpark's `to_arrow_schema` for timestamps in UTC."""
    has_row_conversion: bool = True
    """Whether PySpark converts Arrow tables to rows without the packages of Spark Connect."""
    creates_frames_of_tables: bool = True
    """Whether `createDataFrame` takes Arrow tables."""
    has_to_arrow: bool = True
    """Whether DataFrames have `toArrow`."""
    arrow_schemas_have_options: bool = True
    """Whether PySpark's `to_arrow_schema` takes options."""
    writer_formats: tuple[str, ...] = ("parquet", "csv", "json", "orc", "text", "xml")
    """The formats for which a DataFrameWriter has methods."""
    has_merge_writer: bool = True
    """Whether DataFrames have `mergeInto`."""
    has_binary_option: bool = True
    """Whether `spark.sql.execution.pyspark.binaryAsBytes` chooses between bytes and bytearray. Before, rows had
    bytearrays."""
    keeps_rows_without_columns: bool = True
    """Whether `createDataFrame` of an Arrow table without columns has as many rows."""
    has_data_sources: bool = True
    """Whether there are data sources written in Python."""
    has_source_filters: bool = True
    """Whether Python data sources can be given filters, as objects of `pyspark.sql.datasource`."""
    knows_python_workers: bool = True
    """Whether Volley can tell Python workers what to do. If not, Spark calls all Python functions."""
    has_worker_message: bool = True
    """Whether the first message to a Python worker has the same form for all kinds of functions."""
    worker_times: int = 4
    """How many times a Python worker reports: of boot, start and finish, and the time that it took."""
    converts_without_pandas: bool = True
    """Whether functions of single rows (`useArrow=True`) get Arrow's values, and workers the types of their columns.
    Before, values came by way of pandas, where a NULL makes floats of all integers of its batch: Spark calls them."""
    worker_reads_barrier: bool = False
    """Whether a Python worker reads the address of a barrier where there is none."""
    groups_are_streams: bool = True
    """Whether each group of rows goes to a Python worker as a stream of its own. Before, it was a batch."""
    python_daemon_has_path: bool = True
    """Whether PySpark's daemon can listen on a Unix socket. Before, it has a port, and a secret for it."""
    calls_row_functions: bool = True
    """Whether Volley knows the worker well enough to call functions of single rows in loops of its own."""
    has_init_frame: bool = True
    """Whether the first message to a Python worker begins with its kind and length."""

    condition_method: str = "getCondition"
    """The method of PySpark's and Spark's errors that gives their condition."""

    # Rows.
    set_order_is_known: bool = True
    """Whether `collect_set` gives its values in the order of Scala 2.13's sets, which Volley knows."""
    pivots_repeat_values: bool = True
    """Whether all columns of a PIVOT by the same value have its result. Before, Spark has a place for one of them."""
    widens_columns: bool = True
    """Whether columns of Parquet and Avro files are read in wider types, such as INT as BIGINT. Before, Spark fails."""

    # Expressions.
    substring_index_takes_any_count: bool = True
    """Whether `substring_index` works for the smallest integer. Before, Spark fails."""

    implied_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options that newer releases have added to Catalyst classes, with the values that mean what this one does."""

    # The JVM.
    jvm_sql_package: str = "org.apache.spark.sql.classic"
    """The package of `SparkSession` and `Dataset`."""
    java_releases: tuple[int, ...] = (17, 21, 25)
    """The releases of Java that it supports, from 17: Volley needs that. docs/versions.md says which were tested."""
    has_connect_server: bool = True
    """Whether a Connect server is among the jars of PySpark."""
    java_replacements: tuple[tuple[str, str], ...] = ()
    """Texts of Volley's Java sources, and what stands for them in sources for this release."""
    has_session_tags: bool = True
    """Whether a classic session has tags, and methods that interrupt its queries."""
    reads_zstd_text: bool = True
    """Whether text files can be compressed as zstd without libraries of the system. If not, Spark fails."""
    has_writer_commands: bool = True
    """Whether a DataFrameWriter gives its command without running it."""
    arrow_writer_arguments: tuple[bool, ...] = (False, False)
    """The last arguments of what writes rows as Arrow: are repeated names errors, and are types large?"""
    has_current_mode: bool = True
    """Whether a DataFrameWriter calls its mode `curmode`."""
    has_clustering: bool = True
    """Whether tables can be clustered."""
    logical_rdd_has_stream: bool = True
    """Whether `LogicalRDD` may have a stream."""
    logical_rdd_arguments: tuple[Any, ...] = (False,)
    """The last arguments of `LogicalRDD`."""
    data_source_options: int = 1
    """How many optional arguments `DataSource` has after its catalog table."""
    tracks_partitions_place: int = 18
    """The position of `tracksPartitionsInCatalog` among the arguments of `CatalogTable`, from 1."""
    metadata_has_kinds: bool = True
    """Whether `removeInternalMetadata` is told which kinds of metadata to remove."""
    has_query_ids: bool = True
    """Whether the events of an execution carry the id of the query."""
    completes_observations: str = "tryComplete"
    """The method of Spark's manager of observations that gives them the metrics of an execution, if there is one."""
    observes_rows_once: bool = True
    """Whether `df.observe` counts a row once that two jobs of one query compute, unless a setting says otherwise."""
