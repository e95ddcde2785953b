# SPDX-License-Identifier: Apache-2.0
"""Rows of another process whose buffers lie are refused before anything reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volley.errors import QueryError
from volley.rpc.batch_validation import validate_batch
from volley.rpc.control import Push
from volley.shuffle.memory import MemoryStore
from volley.testing.contracts import attempt_id, batch_of
from volley.worker.ingest import receive


def batch_with(offsets: list[int], data: bytes) -> pa.RecordBatch:
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(data)]
    return pa.record_batch({"s": pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)})


LYING = {
    # Arrow itself looks at the last offset only.
    "offset beyond the data": batch_with([0, 1 << 30, 4], b"abcd"),
    "offsets that fall": batch_with([0, 3, 1], b"abcd"),
    "no text": batch_with([0, 2], b"\xff\xfe"),
    "code of no entry": pa.record_batch(
        {"d": pa.DictionaryArray.from_arrays(pa.array([0, 9]), pa.array(["a"]), safe=False)}
    ),
}


@pytest.mark.parametrize("kind", LYING)
def test_they_are_refused(kind: str) -> None:
    with pytest.raises(QueryError, match="not valid Arrow data"):
        validate_batch(LYING[kind])


def test_others_pass_as_they_are() -> None:
    batch = batch_of(1, 2)
    assert validate_batch(batch) is batch


def test_a_worker_keeps_nothing_of_them() -> None:
    store = MemoryStore("here")
    with pytest.raises(QueryError, match="not valid Arrow data"):
        receive(Push("", attempt_id(), 2), [batch_of(1), LYING["offsets that fall"]], store)
    assert store.held_bytes == 0
