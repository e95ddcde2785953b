# SPDX-License-Identifier: Apache-2.0
"""Which aggregate calls give Spark's result for any order and partitioning of the rows."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pyarrow as pa

from volley.errors import CaptureError
from volley.plan.decode_expressions import scalar
from volley.plan.expressions import (
    COLLECT_ROWS,
    JVM_AGGREGATE,
    JVM_AGGREGATES,
    JVM_ORDERED_AGGREGATE,
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    Expression,
    Literal,
    Scalar,
    SortKey,
    attribute_of,
    class_of,
)
from volley.plan.nodes import (
    Aggregate,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Generate,
    Limit,
    LocalRows,
    Node,
    OneRow,
    PartitionedRows,
    Partitioning,
    Project,
    Range,
    Sort,
    TopN,
    Union,
    Window,
    walk,
)
from volley.plan.order import has_input_order, hides_order
from volley.plan.partition_aggregates import Halves
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    DAY_TIME_INTERVALS,
    FRACTIONAL,
    INTEGRAL,
    LONG,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    YEAR_MONTH_INTERVALS,
    DataType,
    DecimalType,
    SimpleType,
    StructType,
    is_number,
)
from volley.spark_versions.registry import current
from volley.support.expressions import check_expression
from volley.support.jvm_aggregates import (
    ORDER_FREE_RESULTS,
    USER_DEFINED,
    is_placed,
    kind_in_any_order,
    shows_order,
)
from volley.support.operators import AGGREGATES, UNSPLITTABLE, is_unsplittable
from volley.support.reasons import Reason, Unsupported


def check_aggregate(node: Aggregate) -> Iterator[Unsupported]:
    for position, call in enumerate(node.calls):
        name = class_of(call)
        yield from check_function(call.function, call.distinct)
        if is_unsplittable(call) and call.mode is AggregateMode.PARTIAL_MERGE:
            # Spark merges states in several steps here; ours aggregates rows in one step.
            yield Unsupported(Reason.AGGREGATE, name, "together with a distinct aggregate")
        yield from _check_order(node, position)


def _check_order(node: Aggregate, position: int) -> Iterator[Unsupported]:
    """Whether a result that depends on the order or the partitions of the rows is Spark's nevertheless."""
    call = node.calls[position]
    name = class_of(call)
    if is_placed(call):
        if call.function.function not in JVM_AGGREGATES and name not in _BY_PLACE:
            yield Unsupported(Reason.NONDETERMINISTIC, name, "the workers have no JVM")
        return
    match call.function.function:
        case "First" | "Last" if call.mode.reads_rows and not _is_deterministic(node, call):
            if not has_input_order(node):
                yield Unsupported(
                    Reason.NONDETERMINISTIC, name, "which row comes first depends on Spark's partitions"
                )
        case "CollectList" | "CollectSet" if call.mode.gives_values and not hides_order(node, position):
            rows = _node_over_rows(node)
            known = _has_few_groups(rows) if name == "CollectList" else _reads_little(rows)
            if not known:
                yield Unsupported(Reason.NONDETERMINISTIC, name, "its order depends on Spark's partitions")
        case "ListAgg" if call.mode.reads_rows and len(call.function.arguments) < _WITH_ORDER:
            if call.distinct or not _has_few_groups(node):
                yield Unsupported(Reason.NONDETERMINISTIC, name, "its order depends on Spark's partitions")
        case "ApproximatePercentile" if call.mode.reads_rows and not _reads_little(node):
            yield Unsupported(Reason.NONDETERMINISTIC, name, "estimates depend on Spark's partitions")
        case "Mode" if call.mode.reads_rows and call.function.option("reverseOpt") is None:
            if not _reads_little(node):
                yield Unsupported(Reason.NONDETERMINISTIC, name, "among equally frequent values")
        case function if function == JVM_AGGREGATE and call.mode.gives_values:
            is_known = name not in ORDER_FREE_RESULTS or _reads_little(_node_over_rows(node))
            if not is_known or shows_order(node, position):
                yield Unsupported(Reason.NONDETERMINISTIC, name, "a sketch depends on Spark's partitions")
        case function if function == JVM_ORDERED_AGGREGATE and call.mode.gives_values:
            if name not in USER_DEFINED and not _is_one_state(node):
                yield Unsupported(Reason.NONDETERMINISTIC, name, "it depends on Spark's partitions")


# Native functions that need the order of rows alone, and not the states that Spark makes of them.
_BY_PLACE = frozenset({"First", "Last", "CollectList", "ListAgg"})


def find_placed_calls(halves: Halves, *, by_jvm: bool) -> set[int]:
    """The calls that are to know the places of rows in Spark's partitions; none, if no result needs them.

    `by_jvm`: the JVM evaluates what has no native form.
    """
    rows = halves.over_rows
    if any(call.distinct for call in rows.calls) or _read_bytes(rows) > _MOST_PLACED_BYTES:
        return set()
    if rows.grouping and not (_reads_little(rows) or _most_rows(rows.child) < _HASHED_GROUPS):
        # Spark may aggregate more groups in another order, which is only noticed while the query runs.
        return set()
    positions = range(len(rows.calls))
    if not any(_needs_places(halves, position, by_jvm) for position in positions):
        return set()
    # What knows the order of rows without places does not know it of rows that have them.
    return {
        position
        for position in positions
        if rows.calls[position].function.function in _BY_PLACE or _needs_places(halves, position, by_jvm)
    }


def _needs_places(halves: Halves, position: int, by_jvm: bool) -> bool:
    """Whether the places of rows make a result exact that is not without them."""
    rows, result = halves.over_rows, halves.upper
    call = rows.calls[position]
    function = call.function
    match function.function:
        case "First" | "Last":
            return not _is_deterministic(rows, call) and not has_input_order(rows)
        case "CollectList":
            return not hides_order(result, position) and not _has_few_groups(rows)
        case "ListAgg":
            return len(function.arguments) < _WITH_ORDER and not _has_few_groups(rows)
        case "Mode":
            return by_jvm and function.option("reverseOpt") is None
        case "ApproximatePercentile":
            return by_jvm
        case name if name in USER_DEFINED or not by_jvm:
            return False
        case name if name in ORDER_FREE_RESULTS:
            return not rows.grouping or shows_order(result, position) or not _reads_little(rows)
        case _:
            is_native = not any(True for _ in check_function(function))
            return not is_native and kind_in_any_order(function) != JVM_AGGREGATE


# Rows with places are gathered before they are aggregated.
_MOST_PLACED_BYTES = 64 * 2**20


def _is_one_state(node: Aggregate) -> bool:
    """Whether Spark aggregates all rows of a group in one task, in a known order."""
    rows = node if all(call.mode.reads_rows for call in node.calls) else node.child
    if not isinstance(rows, Aggregate) or not all(call.mode.reads_rows for call in rows.calls):
        return False
    return _has_few_groups(rows) and _is_one_partition(rows.child)


def _is_one_partition(node: Node) -> bool:
    match node:
        case OneRow() | TopN() | Exchange(Partitioning.SINGLE):
            return True
        case Limit():
            return node.whole or _is_one_partition(node.child)
        case FileScan():
            return len(node.files) == 1 and not node.bucketed and _reads_little(node)
        case Sort():
            return not node.whole and _is_one_partition(node.child)
        case Project() | Filter() | Window() | Generate():
            return _is_one_partition(node.child)
        case _:
            return False


# The arguments of listagg: text, delimiter, then sort keys.
_WITH_ORDER = 3
# A query over so little is soon run again by Spark, if its result proves to depend on partitions after all.
_LITTLE_BYTES = 4 * 2**20


def _node_over_rows(node: Aggregate) -> Aggregate:
    """The half of the aggregate that reads rows."""
    below: Node = node
    while True:
        if isinstance(below, Aggregate) and all(call.mode.reads_rows for call in below.calls):
            return below
        if len(below.children) != 1:
            return node
        (below,) = below.children


# Spark aggregates objects in a hash table of at most so many groups, and then sorts the rest of its rows by group. That
# changes the order of the rows of a group.
_HASHED_GROUPS = 128


def _has_few_groups(node: Aggregate) -> bool:
    """Whether Spark aggregates the rows of each group in a known order."""
    if not has_input_order(node):
        return False
    return not node.grouping or _most_rows(node.child) <= _HASHED_GROUPS


def _most_rows(node: Node) -> int:
    """An upper bound for the number of rows, where it is known."""
    unknown = _HASHED_GROUPS + 1
    match node:
        case OneRow():
            return 1
        case LocalRows():
            return sum(batch.num_rows for batch in pa.ipc.open_stream(node.ipc))
        case Range():
            return max(0, -(-(node.end - node.start) // node.step))
        case Limit() | TopN() if node.count is not None:
            return min(node.count, _most_rows(node.child))
        case Union():
            return sum(map(_most_rows, node.inputs))
        case Project() | Filter() | Sort() | Exchange() | Window() | Aggregate() | Limit():
            return _most_rows(node.child)
        case _:
            return unknown


def _reads_little(node: Node) -> bool:
    return _read_bytes(node) <= _LITTLE_BYTES


def _read_bytes(node: Node) -> float:
    """How many bytes the leaves of a plan have, infinite if that is not known."""
    size_bytes = 0
    for leaf in walk(node):
        match leaf:
            case FileScan():
                size_bytes += sum(file.size_bytes for file in leaf.files)
            case LocalRows():
                size_bytes += len(leaf.ipc)
            case Range():
                size_bytes += 8 * abs((leaf.end - leaf.start) // leaf.step)
            case PartitionedRows():
                size_bytes += int(min(_read_bytes(leaf.plan), _MOST_PLACED_BYTES + 1))
            case _ if not leaf.children and not isinstance(leaf, OneRow):
                return math.inf
    return size_bytes


def check_function(call: Call, distinct: bool = False) -> Iterator[Unsupported]:
    """Check the function and the types of its arguments, in a group or in a window."""
    if call.function in JVM_AGGREGATES or call.function == COLLECT_ROWS:
        return
    rule = AGGREGATES.get(call.function)
    if rule is None or rule.reason is not None:
        reason = rule.reason if rule is not None and rule.reason is not None else Reason.AGGREGATE
        yield Unsupported(reason, call.function, rule.note if rule is not None else "")
        return
    match call.function:
        case "Sum" | "Average":
            allowed = is_number(call.arguments[0].type)
        case "BitAndAgg" | "BitOrAgg" | "BitXorAgg":
            allowed = call.arguments[0].type in INTEGRAL
        case "Min" | "Max":
            allowed = _is_comparable(call.arguments[0].type)
        case "MinBy" | "MaxBy":
            allowed = _is_comparable(call.arguments[0].type) and is_ordered(call.arguments[1].type)
        case "MaxMinByK":
            is_counted = isinstance(call.arguments[2], Literal) and call.option("reverse") in (True, False)
            allowed = (
                is_counted and _is_comparable(call.arguments[0].type) and is_ordered(call.arguments[1].type)
            )
        case "Percentile" | "PercentileDisc":
            allowed = is_number(call.arguments[0].type) and _has_constant_percentages(call)
        case "ApproximatePercentile":
            allowed = call.arguments[0].type in _SUMMARIZED and _has_constant_accuracy(call)
        case "Mode":
            allowed = is_ordered(call.arguments[0].type) and call.arguments[0].type not in FRACTIONAL
        case "CollectSet":
            allowed = call.arguments[0].type in _HASHED and call.option("ignoreNulls") is True
        case "HyperLogLogPlusPlus":
            hashed = Call("XxHash64", call.arguments, LONG, options=(("seed", 42),))
            allowed = not check_expression(hashed) and call.option("biases") is not None
        case "ListAgg":
            allowed = _joins_texts(call)
        case "PivotFirst":
            values = pivot_values(call)
            allowed = call.arguments[0].type in _HASHED and values is not None
            if values and len(set(values)) < len(values) and not current().pivots_repeat_values:
                yield Unsupported(
                    Reason.ARGUMENT_VALUE, call.function, "Spark has no place for a value that is given twice"
                )
        case _:
            allowed = True
    if call.function == "CollectSet" and not current().set_order_is_known:
        yield Unsupported(Reason.NONDETERMINISTIC, call.function, "its order is that of an older Scala")
    if not allowed:
        # Spark's result of these depends on the order of rows, which a hand-over does not keep.
        is_ordered_one = call.function in _BY_ORDER
        reason = Reason.NONDETERMINISTIC if is_ordered_one else Reason.ARGUMENT_TYPES
        yield Unsupported(reason, call.function, str(call.arguments[0].type))
    if call.function in UNSPLITTABLE:
        if distinct and call.function in _MOMENTS:
            yield Unsupported(Reason.AGGREGATE, call.function, "distinct")
        if call.option("nullOnDivideByZero") is False:
            yield Unsupported(Reason.AGGREGATE, call.function, "spark.sql.legacy.statisticalAggregate")


_BY_ORDER = frozenset({"MinBy", "MaxBy", "MaxMinByK", "Mode", "CollectSet", "ListAgg"})
_MOMENTS = frozenset({"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"})
# Types whose hash in Java is known, and with it the order of a set.
_HASHED = frozenset({BOOLEAN, STRING, DATE, TIMESTAMP, TIMESTAMP_NTZ, *INTEGRAL})


_SUMMARIZED = (
    INTEGRAL | FRACTIONAL | {DATE, TIMESTAMP, TIMESTAMP_NTZ} | YEAR_MONTH_INTERVALS | DAY_TIME_INTERVALS
)


def _has_constant_accuracy(call: Call) -> bool:
    match call.arguments[2]:
        case Literal(value, kind) if isinstance(value, int) and kind in INTEGRAL:
            return value > 0 and _has_constant_percentages(call)
        case _:
            return False


def pivot_values(call: Call) -> list[Scalar] | None:
    """The values of PIVOT that become columns; None if one of them is unknown."""
    try:
        return [scalar(text, call.arguments[0].type) for text in json.loads(str(call.option("values")))]
    except (CaptureError, ValueError):
        return None


def _is_comparable(data_type: DataType) -> bool:
    """Whether values can be compared bit by bit."""
    if isinstance(data_type, StructType):
        return all(_is_comparable(field.type) for field in data_type.fields)
    return is_ordered(data_type)


def _has_constant_percentages(call: Call) -> bool:
    match call.arguments[1]:
        case Literal(value, _):
            shares = [value]
        case Call("CreateArray", parts, _, _, _):
            shares = [part.value if isinstance(part, Literal) else None for part in parts]
        case _:
            return False
    is_weighted = call.function == "Percentile" and getattr(call.arguments[2], "value", None) != 1
    fits = all(isinstance(share, float) and 0 <= share <= 1 for share in shares)
    return bool(shares) and fits and not is_weighted and call.option("legacyCalculation") is not True


def _joins_texts(call: Call) -> bool:
    text, delimiter, *order = call.arguments
    sorted_by = all(isinstance(key, SortKey) and is_ordered(key.type) for key in order)
    return text.type in (STRING, BINARY) and isinstance(delimiter, Literal) and sorted_by


def is_ordered(data_type: DataType) -> bool:
    return isinstance(data_type, DecimalType) or (isinstance(data_type, SimpleType) and data_type != NULL)


def _is_deterministic(node: Aggregate, call: AggregateCall) -> bool:
    """Whether the call sees one row only. Spark's rewrite of several distinct aggregates takes `first` of the
    single row of a branch of an Expand:

        Aggregate  first(x, ignoreNulls) FILTER (gid = 1), count(d) FILTER (gid = 2)
        Aggregate  by gid, d
        Expand     (gid 1, d NULL), (gid 2, d)

    A call that merges states is fine: it was checked where it read rows.
    """
    if not call.mode.reads_rows:
        return True
    branch = _branch(call.filter)
    if branch is None or call.function.function != "First" or not _ignores_nulls(call.function):
        return False
    child: Node = node.child
    while isinstance(child, Exchange):
        child = child.child
    if not isinstance(child, Aggregate) or branch not in {attribute_of(key).id for key in child.grouping}:
        return False
    return any(isinstance(below, Expand) and _numbers_branches(below, branch) for below in walk(child))


def _branch(condition: Expression | None) -> int | None:
    """The id of the column that a filter `column = constant` fixes."""
    match condition:
        case Call("EqualTo", (Attribute(id, _, _, _), Literal(_, _)), _, _, _):
            return id
        case _:
            return None


def _ignores_nulls(call: Call) -> bool:
    return call.option("ignoreNulls") is True


def _numbers_branches(node: Expand, column: int) -> bool:
    """Whether this Expand gives each of its projections a distinct number in that column."""
    for position, attribute in enumerate(node.output):
        if attribute.id == column:
            numbers = [projection[position] for projection in node.projections]
            return all(isinstance(number, Literal) for number in numbers) and len(set(numbers)) == len(
                numbers
            )
    return False
