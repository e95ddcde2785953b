# SPDX-License-Identifier: Apache-2.0
"""Up to which groups Spark aggregates rows in their order."""

from __future__ import annotations

import pyarrow as pa
import pytest

from volley.errors import DataError
from volley.lower.expressions import column_name
from volley.plan.expressions import Attribute, Call
from volley.plan.partition_nodes import PLACE
from volley.plan.types import LONG, STRING
from volley.worker.few_groups import FewGroups

KEYS = (Attribute(1, "k", LONG), Attribute(2, "s", STRING))


def groups(most: int | None, *, nulls: bool = True) -> FewGroups:
    return FewGroups(Call(PLACE, KEYS, LONG, options=(("groups", most), ("nulls", nulls))))


def rows(*keys: tuple[int | None, str | None]) -> pa.RecordBatch:
    columns = [pa.array([k for k, _ in keys], pa.int64()), pa.array([s for _, s in keys], pa.string())]
    return pa.RecordBatch.from_arrays(columns, [column_name(key.id) for key in KEYS])


def test_groups_of_all_batches_count_once() -> None:
    few = groups(3)
    for _ in range(4):
        few.check(rows((1, "a"), (1, "b"), (None, "a"), (1, "a")))
    with pytest.raises(DataError, match="more than 3 groups"):
        few.check(rows((1, "a"), (None, None)))


def test_one_batch_may_have_too_many() -> None:
    with pytest.raises(DataError):
        groups(5).check(rows(*((n, "a") for n in range(100))))


def test_nulls() -> None:
    groups(None).check(rows((None, "a")))
    strict = groups(None, nulls=False)
    strict.check(rows((1, "a"), (2, "b")))
    with pytest.raises(DataError, match="NULL"):
        strict.check(rows((1, None)))


def test_without_keys_nothing_is_checked() -> None:
    FewGroups(Call(PLACE, (), LONG)).check(rows((None, None)))
