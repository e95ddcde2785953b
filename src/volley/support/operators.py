# SPDX-License-Identifier: Apache-2.0
"""Which operators, joins, aggregate and window functions run natively: one row each.

The same rows drive `check`, explain and the page of supported operators. Whatever is not listed does not run natively.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.plan.expressions import JVM_AGGREGATES, AggregateCall, Call, Expression, Literal
from volley.plan.nodes import JoinKind
from volley.plan.types import INTEGRAL, StructType
from volley.support.reasons import Reason


@dataclass(frozen=True)
class Rule:
    """`reason` None: runs natively with Spark's result, within the limits of `note`."""

    note: str
    reason: Reason | None = None

    @property
    def native(self) -> bool:
        return self.reason is None


OPERATORS: dict[str, Rule] = {
    "FileSourceScanExec": Rule(
        "Files on a local file system or in S3, partitioned or not: see [File formats](formats.md) and "
        "[Object stores](storage.md)."
    ),
    "BatchScanExec": Rule(
        "Files, Iceberg tables, Python data sources; other DataSource V2 connectors run on Spark."
    ),
    "LocalTableScanExec": Rule("Rows held by the driver: VALUES, createDataFrame of pandas and Arrow."),
    "RDDScanExec": Rule("Rows given to createDataFrame, up to 64 MiB; other RDDs run on Spark."),
    "RangeExec": Rule("spark.range."),
    "OneRowRelationExec": Rule("A query without FROM."),
    "ProjectExec": Rule("All supported expressions."),
    "FilterExec": Rule("All supported expressions."),
    "HashAggregateExec": Rule(
        "Every mode, distinct and FILTER clauses; keys of any type but floats inside arrays and structs."
    ),
    "SortAggregateExec": Rule("Runs as a hash aggregate."),
    "ObjectHashAggregateExec": Rule("Runs as a hash aggregate."),
    "SortExec": Rule("ORDER BY and SORT BY on any orderable type except arrays with floats."),
    "LocalLimitExec": Rule("A limit per task."),
    "GlobalLimitExec": Rule("LIMIT, with or without OFFSET."),
    "CollectLimitExec": Rule("LIMIT, with or without OFFSET."),
    "TakeOrderedAndProjectExec": Rule("ORDER BY with LIMIT, as a top-n."),
    "UnionExec": Rule("UNION ALL; columns correspond by position."),
    "ExpandExec": Rule("Rollup, cube, grouping sets, several distinct aggregates."),
    "WindowExec": Rule("See window functions."),
    "MergingSessionsExec": Rule("session_window, found by window functions over the rows of a group."),
    "UpdatingSessionsExec": Rule("session_window with distinct aggregates."),
    "WindowGroupLimitExec": Rule("Skipped: only an early filter, which the rank filter above repeats."),
    "ShuffleExchangeExec": Rule("Hash, range, round robin and single partitions."),
    "BroadcastExchangeExec": Rule("Computed once, read by every task."),
    "BroadcastHashJoinExec": Rule("See joins."),
    "ShuffledHashJoinExec": Rule("See joins."),
    "SortMergeJoinExec": Rule("Runs as a hash join."),
    "BroadcastNestedLoopJoinExec": Rule("See joins."),
    "CartesianProductExec": Rule("Runs as a cross join."),
    "SortMergeAsOfJoinExec": Rule(
        "ASOF JOIN, by a window over both sides; with conditions besides keys and times, by a join. Not with keys that "
        "are floating-point numbers, nor for the next row by several columns."
    ),
    "GenerateExec": Rule("See generators."),
    "CollectMetricsExec": Rule(
        "observe(), if an action reads all observed rows once: not below a LIMIT, nor in a query native in part."
    ),
    "UnionLoopExec": Rule("WITH RECURSIVE, step by step from the driver."),
    "SampleExec": Rule(
        "TABLESAMPLE and sample() without replacement, where Spark's partitions are known: see "
        "[Partitions](exactness.md#partitions)."
    ),
    "AttachDistributedSequenceExec": Rule(
        "The default index of pandas on Spark, where Spark's partitions are known."
    ),
    "InMemoryTableScanExec": Rule("Cached frames: Volley keeps their rows, see [Cached frames](caching.md)."),
    "ExternalRDDScanExec": Rule("The rows come from an RDD.", Reason.OPERATOR),
    "CollectTailExec": Rule("tail(): the last rows depend on Spark's partitions.", Reason.OPERATOR),
    "BatchEvalPythonExec": Rule(
        "Functions whose rows are pickled (`useArrow=False`); Spark judges unusual results."
    ),
    "ArrowEvalPythonExec": Rule("Python, pandas and Arrow functions of rows, in Python worker processes."),
    "MapInPandasExec": Rule("mapInPandas: a function sees the batches of one stream of a task."),
    "MapInArrowExec": Rule("mapInArrow: a function sees the batches of one stream of a task."),
    "FlatMapGroupsInPandasExec": Rule("applyInPandas, by keys that are not floating-point numbers."),
    "FlatMapGroupsInArrowExec": Rule("applyInArrow, by keys that are not floating-point numbers."),
    "ArrowAggregatePythonExec": Rule("pandas and Arrow functions that aggregate groups."),
    "ArrowWindowPythonExec": Rule("pandas and Arrow functions over window partitions and frames."),
    "FlatMapCoGroupsInPandasExec": Rule(
        "cogroup().applyInPandas, by keys that are not floating-point numbers."
    ),
    "FlatMapCoGroupsInArrowExec": Rule(
        "cogroup().applyInArrow, by keys that are not floating-point numbers."
    ),
    "BatchEvalPythonUDTFExec": Rule("Table functions whose rows are pickled (`useArrow=False`)."),
    "ArrowEvalPythonUDTFExec": Rule("Python and Arrow table functions."),
}

PYTHON_OPERATORS = frozenset(
    name for name in OPERATORS if "Python" in name or "InPandas" in name or "InArrow" in name
)
"""The operators that call Python functions."""

JOINS: dict[JoinKind, Rule] = {
    JoinKind.INNER: Rule("Keys, conditions or both; a cross join has neither."),
    JoinKind.LEFT: Rule("Keys, conditions or both."),
    JoinKind.RIGHT: Rule("Keys, conditions or both."),
    JoinKind.FULL: Rule("Keys, conditions or both."),
    JoinKind.SEMI: Rule("Keys, conditions or both."),
    JoinKind.ANTI: Rule("Keys, conditions or both; NOT IN with its NULL rules."),
    JoinKind.EXISTENCE: Rule("EXISTS inside a larger condition."),
}

GENERATORS: dict[str, Rule] = {
    "Explode": Rule("Arrays and maps, also LATERAL VIEW and OUTER."),
    "PosExplode": Rule("Arrays and maps, also LATERAL VIEW and OUTER."),
    "Inline": Rule("Arrays of structs, also LATERAL VIEW and OUTER."),
    "Stack": Rule("Any carried type."),
    "ReplicateRows": Rule("INTERSECT ALL and EXCEPT ALL."),
}

AGGREGATES: dict[str, Rule] = {
    "Count": Rule("count(*) or count of one or more expressions."),
    "Sum": Rule("Integers, floats and decimals."),
    "Average": Rule("Integers, floats and decimals."),
    "Min": Rule("Numbers, strings, binary, booleans, dates, timestamps, and structs of these."),
    "Max": Rule("Numbers, strings, binary, booleans, dates, timestamps, and structs of these."),
    "First": Rule(
        "Where the order of rows is known: below ORDER BY, of rows of the driver, of files in Spark's partitions."
    ),
    "Last": Rule("Where the order of rows is known, as for first."),
    "BitAndAgg": Rule("Integers."),
    "BitOrAgg": Rule("Integers."),
    "BitXorAgg": Rule("Integers."),
    "StddevSamp": Rule("Computed in one step; the rows of a group are exchanged."),
    "StddevPop": Rule("Computed in one step; the rows of a group are exchanged."),
    "VarianceSamp": Rule("Computed in one step; the rows of a group are exchanged."),
    "VariancePop": Rule("Computed in one step; the rows of a group are exchanged."),
    **dict.fromkeys(
        ("Corr", "CovPopulation", "CovSample", "Skewness", "Kurtosis"), Rule("Computed in one step.")
    ),
    **dict.fromkeys(
        ("RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrReplacement"), Rule("Computed in one step.")
    ),
    "MinBy": Rule("If rows with the same extreme differ, Spark runs the query."),
    "MaxBy": Rule("If rows with the same extreme differ, Spark runs the query."),
    "MaxMinByK": Rule("A constant number of values. If rows of the same rank differ, Spark runs the query."),
    "Percentile": Rule("percentile, percentile_cont and median of numbers, with constant percentages."),
    "PercentileDisc": Rule("Numbers, with constant percentages."),
    "Mode": Rule(
        "Natively not of floats. Without an order, in the JVM where Spark's partitions are known; elsewhere Spark runs "
        "the query if several values are equally frequent and collide in its hash table."
    ),
    "CollectSet": Rule(
        "Small inputs, or where its order is not shown. Integers, texts, dates, timestamps and booleans."
    ),
    "HyperLogLogPlusPlus": Rule("Spark's registers and estimate. Not of floats and decimals."),
    "CollectList": Rule(
        "Where its order is not shown (size, sort_array, array_contains); or where that of rows is known, as for first,"
        " and there are fewer than 128 groups."
    ),
    "PivotFirst": Rule("PIVOT by integers, texts, dates, timestamps and booleans."),
    "ListAgg": Rule("With ORDER BY; without, as collect_list."),
    "HistogramNumeric": Rule("In the JVM where Spark's partitions are known.", Reason.NONDETERMINISTIC),
    "ApproximatePercentile": Rule(
        "In the JVM where Spark's partitions are known. Elsewhere of small inputs, not of decimals, and Spark runs it "
        "if a group has half as many values as the accuracy (10000)."
    ),
}

# Functions without a partial state that tasks could exchange: the rows of a group are exchanged instead.
UNSPLITTABLE = frozenset(
    {"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"}
    | {"Corr", "CovPopulation", "CovSample", "Skewness", "Kurtosis"}
    | {"RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrReplacement"}
    | {"MinBy", "MaxBy", "MaxMinByK", "Percentile", "PercentileDisc", "ApproximatePercentile", "Mode"}
    | {"CollectSet", "CollectList", "ListAgg", "HyperLogLogPlusPlus", "PivotFirst"}
)


def is_unsplittable(call: AggregateCall) -> bool:
    """Whether the rows of a group must be in one task: the call has no state that tasks could exchange."""
    name = call.function.function
    is_nested = name in ("Min", "Max") and isinstance(call.type, StructType)
    return name in UNSPLITTABLE or name in JVM_AGGREGATES or is_nested or bool(call.order_by)


WINDOWS: dict[str, Rule] = {
    "RowNumber": Rule(
        "Equal rows are in the order of an ORDER BY below, or of small files; otherwise in any order, as in Spark."
    ),
    "Rank": Rule("Exact."),
    "DenseRank": Rule("Exact."),
    "PercentRank": Rule("Exact."),
    "CumeDist": Rule("Exact."),
    "NTile": Rule("Constant number of groups."),
    "Lag": Rule("Constant offset, any default; IGNORE NULLS with an offset of 1."),
    "Lead": Rule("Constant offset, any default; IGNORE NULLS with an offset of 1."),
    "CounterDiff": Rule("As a difference to lag."),
    "CounterDiffWithStartTime": Rule("As a difference to lag."),
    "NthValue": Rule("Constant position, also with IGNORE NULLS."),
    "First": Rule("With ORDER BY."),
    "Last": Rule("With ORDER BY."),
    "Count": Rule("Any frame."),
    **dict.fromkeys(("Sum", "Average", "Min", "Max"), Rule("Any frame.")),
    **dict.fromkeys(("StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"), Rule("Any frame.")),
    **dict.fromkeys(("Corr", "CovPopulation", "CovSample", "Skewness", "Kurtosis"), Rule("Any frame.")),
    **dict.fromkeys(
        ("RegrSlope", "RegrIntercept", "RegrR2", "RegrSXY", "RegrReplacement"), Rule("Any frame.")
    ),
    **dict.fromkeys(("BitAndAgg", "BitOrAgg", "BitXorAgg"), Rule("Any frame.")),
    **dict.fromkeys(("Percentile", "PercentileDisc", "MinBy", "MaxBy", "CollectSet"), Rule("Any frame.")),
    "Mode": Rule("Any frame, with ORDER BY or of whole partitions."),
    "CollectList": Rule("Any frame, with ORDER BY."),
}


def constant_of(expression: Expression) -> int:
    """The constant integer of an offset or a count in a window."""
    match expression:
        # An interval is a number, too, but not one of rows or days.
        case Literal(value, kind) if isinstance(value, int) and kind in INTEGRAL:
            return value
        case Call("UnaryMinus", (Literal(value, kind),), _, _, _) if (
            isinstance(value, int) and kind in INTEGRAL
        ):
            return -value
        case _:
            raise ValueError(f"{expression} is not a constant integer")


def is_constant(expression: Expression) -> bool:
    try:
        constant_of(expression)
    except ValueError:
        return False
    return True
