# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions that Spark's own code computes in the JVM, from the rows of each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datafusion import ScalarUDF, udf

from volley.lower.segments import Segments, segments_of, sort_by
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import AggregateCall, SortKey, class_of
from volley.plan.types import to_arrow
from volley.support.jvm_aggregates import ORDER_FREE_RESULTS


def run_aggregate(call: AggregateCall, order: Sequence[SortKey], groups: pa.ListType) -> ScalarUDF:
    """The function from lists of rows to results. Columns after the arguments are the sort keys of the rows."""
    # Only a driver has a JVM. Workers may not even have PySpark.
    from volley.jvm.connections import EvaluationError
    from volley.jvm.programs import evaluate

    number, name = call.function.option("program"), class_of(call)
    assert isinstance(number, int)
    width = len(call.function.arguments)
    is_row = width + len(order) > 1
    is_free_of_order = ORDER_FREE_RESULTS.get(name)

    def run(lists: pa.Array) -> pa.Array:
        segments = sort_by(segments_of(lists, is_row), order)
        try:
            found = evaluate(number, (_rows(segments, width),))
        except EvaluationError as error:
            raise ExactnessError(str(error)) from error
        if is_free_of_order is not None and not all(map(is_free_of_order, found.to_pylist())):
            raise ExactnessError(f"a state of {name} that depends on the order of rows")
        return found

    return udf(run, [groups], to_arrow(call.type), "immutable", f"volley_jvm_{number}_{id(run)}")


def _rows(segments: Segments, width: int) -> pa.ListArray:
    """The arguments of each group as a list of structs."""
    rows = pa.StructArray.from_arrays(segments.columns[:width], [f"c{place}" for place in range(width)])
    offsets = np.concatenate(([0], np.cumsum(segments.counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), rows, type=pa.list_(pa.field("element", rows.type, nullable=False))
    )
