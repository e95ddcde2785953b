# SPDX-License-Identifier: Apache-2.0
"""Spark 3.5: Scala 2.12, one kind of session and DataFrame, no Python data sources, and ANSI mode off by default."""

from __future__ import annotations

from dataclasses import replace

from volley.spark_versions.spark_4_0 import SPARK_4_0

SPARK_3_5 = replace(
    SPARK_4_0,
    release="3.5",
    tested="3.5.9",
    later_defaults={
        "spark.sql.ansi.enabled": "true",
        "spark.sql.legacy.createHiveTableByDefault": "false",
        "spark.sql.legacy.timeParserPolicy": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
        "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    },
    frame_module="pyspark.sql.dataframe",
    has_row_conversion=False,
    creates_frames_of_tables=False,
    has_to_arrow=False,
    arrow_schemas_have_options=False,
    writer_formats=("parquet", "csv", "json", "orc", "text"),
    has_data_sources=False,
    knows_python_workers=False,
    condition_method="getErrorClass",
    has_merge_writer=False,
    java_releases=(17,),
    has_connect_server=False,
    jvm_sql_package="org.apache.spark.sql",
    arrow_writer_arguments=(False,),
    has_current_mode=False,
    logical_rdd_has_stream=False,
    has_clustering=False,
    tracks_partitions_place=17,
    java_replacements=(
        # ArrowWriter.create is not told whether types are large.
        ('"UTC", false, false)', '"UTC", false)'),
        ("session.getTags()", "scala.collection.immutable.Nil$.MODULE$"),
    ),
    has_session_tags=False,
    completes_observations="",
    set_order_is_known=False,
    widens_columns=False,
)
