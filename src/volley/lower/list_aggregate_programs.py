# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions that Spark's own code computes in the JVM, from the rows of each group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from datafusion import ScalarUDF, udf

from volley.jvm.calls import ProgramCall
from volley.jvm.connection import EvaluationError
from volley.lower.grouped_values import GroupedValues, group_values, sort_by
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import AggregateCall, SortKey, class_of
from volley.plan.types import to_arrow
from volley.support.jvm_aggregates import ORDER_FREE_RESULTS


def run_aggregate(call: AggregateCall, order: Sequence[SortKey], groups: pa.ListType) -> ScalarUDF:
    """The function from lists of rows to results. Columns after the arguments are the sort keys of the rows."""
    program, name = ProgramCall.of(call.function), class_of(call)
    assert program is not None
    evaluate = program.evaluator(of_groups=True)
    width = len(call.function.arguments)
    is_row = width + len(order) > 1
    is_free_of_order = ORDER_FREE_RESULTS.get(name)

    def run(lists: pa.Array) -> pa.Array:
        grouped = sort_by(group_values(lists, is_row), order)
        try:
            found = evaluate((_rows(grouped, width),))
        except EvaluationError as error:
            raise ExactnessError(str(error)) from error
        if is_free_of_order is not None and not all(map(is_free_of_order, found.to_pylist())):
            raise ExactnessError(f"a state of {name} that depends on the order of rows")
        return found

    return udf(run, [groups], to_arrow(call.type), "immutable", f"volley_jvm_{program.name}_{id(run)}")


def _rows(grouped: GroupedValues, width: int) -> pa.ListArray:
    """The arguments of each group as a list of structs."""
    rows = pa.StructArray.from_arrays(grouped.columns[:width], [f"c{place}" for place in range(width)])
    offsets = np.concatenate(([0], np.cumsum(grouped.counts))).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), rows, type=pa.list_(pa.field("element", rows.type, nullable=False))
    )
