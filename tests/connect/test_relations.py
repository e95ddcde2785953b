# SPDX-License-Identifier: Apache-2.0
"""SQL texts that Spark would run while it plans them are told from queries."""

from __future__ import annotations

import pytest

from volley.connect.relations import find_relation, is_query

QUERIES = [
    "select 1",
    "  SELECT 'insert into t' as text",
    "-- a comment\nselect 1",
    "/* one */ /* two\n lines */ values (1), (2)",
    "(select 1) union all (select 2)",
    "(select 1)",
    "table t",
    "with a as (select 1) select * from a",
    "from t select a",
]

OTHERS = [
    "insert into t select 1",
    "with a as (select 1) insert into t select * from a",
    "WITH a AS (SELECT 1) MERGE INTO t USING a ON true WHEN MATCHED THEN DELETE",
    "from t insert into a select 1 insert into b select 2",
    "create table t as select 1",
    "-- select 1\ndrop table t",
    "/* select */ set x = 1",
    "/* /* */ select */ insert into t select 1",
    "-- c\rINSERT INTO t\nSELECT 1",
    "-- c \\\nselect\ninsert into t select 1",
    "show tables",
    "explain select 1",
    "execute immediate 'select 1'",
    "begin select 1; end",
    "call system.drop()",
    "selects",
    "",
]


@pytest.mark.parametrize("text", QUERIES)
def test_queries(text: str) -> None:
    assert is_query(text)


@pytest.mark.parametrize("text", OTHERS)
def test_what_may_be_a_command(text: str) -> None:
    assert not is_query(text)


@pytest.mark.since("4.1")
def test_a_plan_that_claims_to_be_huge_is_left_to_spark() -> None:
    pytest.importorskip("grpc")
    from pyspark.sql.connect.proto import base_pb2

    # The header of a frame of Zstandard: its size is in eight bytes.
    frame = b"\x28\xb5\x2f\xfd\xe0" + (1 << 40).to_bytes(8, "little")
    plan = base_pb2.Plan()
    plan.compressed_operation.data = frame
    plan.compressed_operation.op_type = base_pb2.Plan.CompressedOperation.OpType.OP_TYPE_RELATION
    plan.compressed_operation.compression_codec = base_pb2.COMPRESSION_CODEC_ZSTD
    assert find_relation(plan) is None
