# SPDX-License-Identifier: Apache-2.0
"""Arrow batches of responses: their size, their time zone, and that nothing is lost."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
import pytest

pytest.importorskip("grpc")

from volley.connect_server.responses import ResponseWriter, arrow_stream, group, with_time_zone

INSTANT = pa.timestamp("us", "UTC")


def test_batches_are_cut_and_joined_to_a_size() -> None:
    batches = [pa.record_batch({"n": pa.array(range(start, start + 1000))}) for start in range(0, 5000, 1000)]
    for size in (100, 4000, 20_000, 10**9):
        groups = list(group(batches, size))
        assert [row for one in groups for batch in one for row in batch["n"].to_pylist()] == list(range(5000))
        assert all(sum(batch.nbytes for batch in one) <= size for one in groups)
    assert len(list(group(batches, 10**9))) == 1


def test_a_row_that_is_too_large_is_a_batch_of_its_own() -> None:
    batch = pa.record_batch({"s": ["a" * 1000, "b", "c" * 1000]})
    assert [sum(part.num_rows for part in one) for one in group([batch], 500)] == [1, 1, 1]


def test_a_time_zone_changes_the_schema_and_no_value() -> None:
    instant = datetime(2024, 2, 29, 12, tzinfo=timezone.utc)
    types = pa.struct(
        [pa.field("at", INSTANT), ("list", pa.list_(INSTANT)), ("map", pa.map_(pa.string(), INSTANT))]
    )
    batch = pa.record_batch(
        {"nested": pa.array([{"at": instant, "list": [instant, None], "map": [("k", instant)]}], types)}
    )
    schema = with_time_zone(batch.schema, "Asia/Tokyo")
    (read,) = pa.ipc.open_stream(arrow_stream(batch, schema))
    assert read.schema == schema
    assert "UTC" not in str(schema)
    assert read["nested"].to_pylist()[0]["at"] == instant
    read.validate(full=True)


def test_a_slice_is_sent_without_the_rest_of_its_buffers() -> None:
    batch = pa.record_batch({"n": pa.array(range(100_000))})
    assert len(arrow_stream(batch.slice(50_000, 10), batch.schema)) < 1000


@pytest.mark.parametrize("completes", [True, False])
def test_an_answer_has_a_schema_and_a_batch_even_without_rows(completes: bool) -> None:
    from pyspark.sql.connect.proto import base_pb2, types_pb2

    schema = types_pb2.DataType()
    schema.struct.fields.add(name="n").data_type.long.SetInParent()
    table = pa.schema([("n", pa.int64())]).empty_table()
    writer = ResponseWriter(
        session="s", server_session="server", operation="o", time_zone="UTC", batch_bytes=1000
    )
    encoded = writer.write(schema.SerializeToString(), table, None, completes=completes)
    responses = [base_pb2.ExecutePlanResponse.FromString(encode(str(n))) for n, encode in enumerate(encoded)]
    assert responses[0].schema.struct.fields[0].name == "n"
    assert responses[1].arrow_batch.row_count == 0
    assert [response.HasField("result_complete") for response in responses[2:]] == [True] * completes
    assert {(response.session_id, response.operation_id) for response in responses} == {("s", "o")}
    assert [response.response_id for response in responses] == [str(n) for n in range(len(responses))]


@pytest.mark.since("4.1")
def test_a_large_row_is_sent_in_chunks() -> None:
    from pyspark.sql.connect.proto import base_pb2, types_pb2

    table = pa.table({"s": ["a" * 5000, "b", "c" * 3000]})
    writer = ResponseWriter(
        session="s",
        server_session="server",
        operation="o",
        time_zone="UTC",
        batch_bytes=100,
        chunk_bytes=2000,
    )
    encoded = writer.write(types_pb2.DataType().SerializeToString(), table, None, completes=False)
    _, *chunks = (
        base_pb2.ExecutePlanResponse.FromString(encode(str(n))).arrow_batch
        for n, encode in enumerate(encoded)
    )
    batches: list[bytes] = []
    for chunk in chunks:
        assert len(chunk.data) <= 2000
        if chunk.chunk_index == 0:
            assert chunk.start_offset == len(batches)
            batches.append(b"")
        batches[-1] += chunk.data
    assert [chunk.num_chunks_in_batch for chunk in chunks] == [3, 3, 3, 0, 2, 2]
    assert [chunk.chunk_index for chunk in chunks] == [0, 1, 2, 0, 0, 1]
    assert pa.concat_tables([pa.ipc.open_stream(batch).read_all() for batch in batches]) == table
