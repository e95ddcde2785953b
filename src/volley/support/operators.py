# SPDX-License-Identifier: Apache-2.0
"""Which operators, joins, aggregate and window functions run natively: one row each.

The rows are what `check` asks, what explain prints and what the page of supported operators is made from. What is
not listed does not run natively.
"""

from __future__ import annotations

from dataclasses import dataclass

from volley.plan.expressions import Call, Expression, Literal
from volley.plan.nodes import JoinKind
from volley.support.reasons import Reason


@dataclass(frozen=True)
class Rule:
    """`reason` None: exact, within what `note` says."""

    note: str
    reason: Reason | None = None

    @property
    def native(self) -> bool:
        return self.reason is None


_PYTHON = "Python functions run in Spark's Python workers."

OPERATORS: dict[str, Rule] = {
    "FileSourceScanExec": Rule("Parquet files on a local file system; partitioned tables too."),
    "LocalTableScanExec": Rule("Rows that the driver holds."),
    "RangeExec": Rule("The numbers of spark.range."),
    "OneRowRelationExec": Rule("A query without FROM."),
    "ProjectExec": Rule("All supported expressions."),
    "FilterExec": Rule("All supported expressions."),
    "HashAggregateExec": Rule("Every mode, distinct and FILTER clauses."),
    "SortAggregateExec": Rule("Runs as a hash aggregate."),
    "ObjectHashAggregateExec": Rule("Runs as a hash aggregate."),
    "SortExec": Rule("Global or within partitions, by values that have an order in Spark, structs excepted."),
    "LocalLimitExec": Rule("As a limit of each task."),
    "GlobalLimitExec": Rule("With an offset too."),
    "CollectLimitExec": Rule("With an offset too."),
    "TakeOrderedAndProjectExec": Rule("As a top-n."),
    "UnionExec": Rule("Columns by position."),
    "ExpandExec": Rule("Rollup, cube, grouping sets, several distinct aggregates."),
    "WindowExec": Rule("See window functions."),
    "WindowGroupLimitExec": Rule("Only prunes; the filter above it repeats what it does."),
    "ShuffleExchangeExec": Rule("Hash, range, round robin and single partitions."),
    "BroadcastExchangeExec": Rule("One result for every task that reads it."),
    "BroadcastHashJoinExec": Rule("See joins."),
    "ShuffledHashJoinExec": Rule("See joins."),
    "SortMergeJoinExec": Rule("Runs as a hash join."),
    "BroadcastNestedLoopJoinExec": Rule("See joins."),
    "CartesianProductExec": Rule("As a cross join."),
    "GenerateExec": Rule("explode and its kin make rows from arrays and maps.", Reason.OPERATOR),
    "SampleExec": Rule("Draws from Spark's partitions.", Reason.NONDETERMINISTIC),
    "BatchScanExec": Rule("A source of Spark's second data source interface.", Reason.OPERATOR),
    "InMemoryTableScanExec": Rule("Data that Spark cached lies in Spark's memory.", Reason.OPERATOR),
    "RDDScanExec": Rule("The rows come from an RDD.", Reason.OPERATOR),
    "ExternalRDDScanExec": Rule("The rows come from an RDD.", Reason.OPERATOR),
    "CollectTailExec": Rule("The last rows depend on Spark's partitions.", Reason.OPERATOR),
    "BatchEvalPythonExec": Rule(_PYTHON, Reason.OPERATOR),
    "ArrowEvalPythonExec": Rule(_PYTHON, Reason.OPERATOR),
    "MapInPandasExec": Rule(_PYTHON, Reason.OPERATOR),
    "MapInArrowExec": Rule(_PYTHON, Reason.OPERATOR),
    "FlatMapGroupsInPandasExec": Rule(_PYTHON, Reason.OPERATOR),
}

JOINS: dict[JoinKind, Rule] = {
    JoinKind.INNER: Rule("Keys, conditions or both; neither is a cross join."),
    JoinKind.LEFT: Rule("Keys, conditions or both."),
    JoinKind.RIGHT: Rule("Keys, conditions or both."),
    JoinKind.FULL: Rule("Keys, conditions or both."),
    JoinKind.SEMI: Rule("Keys, conditions or both."),
    JoinKind.ANTI: Rule("Keys, conditions or both; NOT IN with its rules for NULL."),
    JoinKind.EXISTENCE: Rule("EXISTS inside a larger condition."),
}

AGGREGATES: dict[str, Rule] = {
    "Count": Rule("Of rows or of one or more expressions."),
    "Sum": Rule("Integers, floats and decimals."),
    "Average": Rule("Integers, floats and decimals."),
    "Min": Rule("Numbers, strings, binary, booleans, dates and timestamps."),
    "Max": Rule("Numbers, strings, binary, booleans, dates and timestamps."),
    "First": Rule("Only inside Spark's rewrite of several distinct aggregates; and in ordered windows."),
    "Last": Rule("Only in ordered windows."),
    "BitAndAgg": Rule("Integers; not in windows."),
    "BitOrAgg": Rule("Integers; not in windows."),
    "BitXorAgg": Rule("Integers; not in windows."),
    "StddevSamp": Rule("Over rows, in one step."),
    "StddevPop": Rule("Over rows, in one step."),
    "VarianceSamp": Rule("Over rows, in one step."),
    "VariancePop": Rule("Over rows, in one step."),
    "CollectList": Rule("Its order depends on Spark's partitions.", Reason.NONDETERMINISTIC),
    "CollectSet": Rule("Its order depends on Spark's partitions.", Reason.NONDETERMINISTIC),
    "HyperLogLogPlusPlus": Rule("Spark's sketch is its own.", Reason.AGGREGATE),
    "ApproximatePercentile": Rule("Spark's sketch is its own.", Reason.AGGREGATE),
}

# Functions whose state cannot be split between tasks: the rows are brought together instead.
UNSPLITTABLE = frozenset({"StddevSamp", "StddevPop", "VarianceSamp", "VariancePop"})

WINDOWS: dict[str, Rule] = {
    "RowNumber": Rule(
        "Equal rows in the order of an ORDER BY below, or of small files; otherwise in any, as in Spark."
    ),
    "Rank": Rule("Exact."),
    "DenseRank": Rule("Exact."),
    "PercentRank": Rule("Exact."),
    "CumeDist": Rule("Exact."),
    "NTile": Rule("With a constant number of groups."),
    "Lag": Rule("Constant offset, any default; IGNORE NULLS with an offset of 1."),
    "Lead": Rule("Constant offset, any default; IGNORE NULLS with an offset of 1."),
    "NthValue": Rule("Constant position, IGNORE NULLS."),
    "First": Rule("With an order."),
    "Last": Rule("With an order."),
    "Count": Rule("Any frame."),
    "Sum": Rule("Any frame; floats only in frames that start at the partition's first row."),
    "Average": Rule("Any frame; floats only in frames that start at the partition's first row."),
    "Min": Rule("Any frame."),
    "Max": Rule("Any frame."),
    "StddevSamp": Rule("Frames that start at the partition's first row."),
    "StddevPop": Rule("Frames that start at the partition's first row."),
    "VarianceSamp": Rule("Frames that start at the partition's first row."),
    "VariancePop": Rule("Frames that start at the partition's first row."),
}


def constant_of(expression: Expression) -> int:
    """The whole number that an offset or a count of a window stands for."""
    match expression:
        case Literal(value, _) if isinstance(value, int):
            return value
        case Call("UnaryMinus", (Literal(value, _),), _, _, _) if isinstance(value, int):
            return -value
        case _:
            raise ValueError(f"{expression} is not a whole number")


def is_constant(expression: Expression) -> bool:
    try:
        constant_of(expression)
    except ValueError:
        return False
    return True
