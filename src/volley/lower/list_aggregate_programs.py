# SPDX-License-Identifier: Apache-2.0
"""Aggregate functions that Spark's own code computes in the JVM, from the rows of each group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from datafusion import ScalarUDF, udf

from volley.jvm.calls import ProgramCall
from volley.jvm.connection import EvaluationError
from volley.jvm.signature import states_of
from volley.lower.grouped_values import GroupedValues, group_values, sort_by
from volley.lower.semantics import ExactnessError
from volley.plan.expressions import JVM_AGGREGATE, AggregateCall, SortKey, class_of
from volley.plan.partition_nodes import PARTITION_BITS
from volley.plan.types import to_arrow
from volley.support.jvm_aggregates import ORDER_FREE_RESULTS


def run_aggregate(call: AggregateCall, order: Sequence[SortKey], groups: pa.ListType) -> ScalarUDF:
    """The function from lists of rows to results. Columns after the arguments are the sort keys of the rows.

    Where Spark merges the states of its partitions, each row has its place there as the only sort key, and before that
    whether it passes the filter of the call, if there is one: a state may be one of no rows.
    """
    program, name = ProgramCall.of(call.function), class_of(call)
    assert program is not None
    evaluate = program.evaluator(of_groups=True)
    width = len(call.function.arguments)
    is_row = groups.value_type.num_fields > 1
    is_exact = ORDER_FREE_RESULTS.get(name) if call.function.function == JVM_AGGREGATE else None

    def run(lists: pa.Array) -> pa.Array:
        grouped = sort_by(group_values(lists, is_row), order)
        states = _one_state(grouped, width) if call.partitions is None else _states(grouped, call, width)
        try:
            found = evaluate((states,))
        except EvaluationError as error:
            raise ExactnessError(str(error)) from error
        if is_exact is not None and not all(map(is_exact, found.to_pylist())):
            raise ExactnessError(f"a state of {name} that depends on the order of rows")
        return found

    return udf(run, [groups], to_arrow(call.type), "immutable", f"volley_jvm_{program.name}_{id(run)}")


def _one_state(grouped: GroupedValues, width: int) -> pa.ListArray:
    """For each group one state, with its rows in order."""
    return _nest(np.arange(grouped.size), grouped.size, grouped.columns[:width], grouped.counts)


def _states(grouped: GroupedValues, call: AggregateCall, width: int) -> pa.ListArray:
    """For each group the states of Spark's partitions, with their rows in order."""
    partitions = grouped.columns[-1].to_numpy(zero_copy_only=False) >> PARTITION_BITS
    if call.partitions:
        numbers = grouped.groups * call.partitions + partitions
        owners = np.repeat(np.arange(grouped.size), call.partitions)
    else:
        begins = np.ones(len(partitions), dtype=bool)
        begins[1:] = (np.diff(grouped.groups) != 0) | (np.diff(partitions) != 0)
        numbers = np.cumsum(begins) - 1
        owners = grouped.groups[begins]
    columns = grouped.columns[:width]
    if call.filter is not None:
        passes = grouped.columns[width].fill_null(False)
        columns, numbers = tuple(column.filter(passes) for column in columns), numbers[np.asarray(passes)]
    return _nest(owners, grouped.size, columns, np.bincount(numbers, minlength=len(owners)))


def _nest(owners: Any, size: int, columns: Sequence[pa.Array], counts: Any) -> pa.ListArray:
    """Lists of states. `owners` are the groups of the states, ascending, and `counts` the numbers of their rows."""
    rows = pa.StructArray.from_arrays(columns, [f"c{place}" for place in range(len(columns))])
    kind = states_of(rows.type)
    states = pa.ListArray.from_arrays(_offsets(counts), rows, type=kind.value_type)
    return pa.ListArray.from_arrays(_offsets(np.bincount(owners, minlength=size)), states, type=kind)


def _offsets(counts: Any) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(counts))).astype(np.int32))
