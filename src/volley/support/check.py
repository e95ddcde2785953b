# SPDX-License-Identifier: Apache-2.0
"""Decides whether a plan runs natively: checks every node against the support tables, with a reason per refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from volley.formats import STREAMED, can_read
from volley.plan.expressions import Attribute, Expression, InSubquery, ScalarSubquery
from volley.plan.expressions import walk as walk_expression
from volley.plan.nodes import (
    Aggregate,
    CachedRows,
    Exchange,
    FileScan,
    Generate,
    Join,
    Limit,
    LocalRows,
    Node,
    NumberedRows,
    PartitionedRows,
    Range,
    Recursion,
    RecursionInput,
    Sample,
    Sort,
    SourceScan,
    StageInput,
    TopN,
    Union,
    Unknown,
    Window,
)
from volley.plan.observed_metrics import OBSERVING
from volley.plan.order import missing_order
from volley.plan.python_nodes import (
    EvalType,
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonProgram,
    PythonTable,
    PythonWindow,
)
from volley.plan.traits import traits_of
from volley.plan.types import (
    FRACTIONAL,
    NULL,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    StructField,
    StructType,
    contains_any,
    is_carried,
    is_comparable,
    is_given_to_functions,
    is_shared,
    is_stored,
    merge_nullability,
)
from volley.support.aggregates import check_aggregate
from volley.support.expressions import check_expression
from volley.support.generators import check_generate
from volley.support.operators import JOINS, OPERATORS, PYTHON_OPERATORS
from volley.support.reasons import NOT_CERTAIN, Reason, Unsupported
from volley.support.sort_keys import is_sorted_alike
from volley.support.windows import check_window


@dataclass(frozen=True)
class NodeVerdict:
    """A node and the reasons why the node itself, regardless of its children, does not run natively."""

    node: Node
    depth: int
    reasons: tuple[Unsupported, ...]
    in_subquery: bool = False

    @property
    def native(self) -> bool:
        return not self.reasons


@dataclass(frozen=True)
class Verdict:
    """All nodes of a plan, parents first. The plans of a node's subqueries come between it and its children."""

    nodes: tuple[NodeVerdict, ...]

    @property
    def native(self) -> bool:
        return all(node.native for node in self.nodes)

    @property
    def reasons(self) -> tuple[Unsupported, ...]:
        """Each reason once, in plan order."""
        return tuple(dict.fromkeys(reason for node in self.nodes for reason in node.reasons))

    @property
    def fraction(self) -> float:
        """The fraction of nodes that could run natively."""
        return sum(node.native for node in self.nodes) / len(self.nodes)


def check(plan: Node) -> Verdict:
    return Verdict(tuple(_judge(plan, 0, in_subquery=False)))


def reasons_of(node: Node) -> tuple[Unsupported, ...]:
    """Why the node itself, or a subquery in its expressions, does not run natively."""
    found = list(_own_reasons(node))
    for expression in traits_of(node).evaluates:
        for part in walk_expression(expression):
            if isinstance(part, ScalarSubquery | InSubquery):
                found += check(part.plan).reasons
    return tuple(dict.fromkeys(found))


def _judge(node: Node, depth: int, in_subquery: bool) -> Iterator[NodeVerdict]:
    reasons = tuple(dict.fromkeys(_own_reasons(node)))
    yield NodeVerdict(node, depth, reasons, in_subquery)
    for expression in traits_of(node).evaluates:
        for part in walk_expression(expression):
            if isinstance(part, ScalarSubquery | InSubquery):
                yield from _judge(part.plan, depth + 1, in_subquery=True)
    below = (node.plan,) if isinstance(node, PartitionedRows) else node.children
    for child in below:
        yield from _judge(child, depth + 1, in_subquery)


def _own_reasons(node: Node) -> Iterator[Unsupported]:
    for expression in traits_of(node).evaluates:
        yield from check_expression(expression)
    match node:
        case FileScan():
            yield from _check_scan(node)
            yield from _check_shared(node.output, is_stored if node.format == "parquet" else is_shared)
        case SourceScan():
            if node.unsupported is not None:
                yield Unsupported(Reason.DATA_SOURCE, node.name, node.unsupported)
            yield from _check_shared(node.output)
        case (
            LocalRows()
            | CachedRows()
            | Range()
            | StageInput()
            | Recursion()
            | RecursionInput()
            | PartitionedRows()
        ):
            yield from _check_types(node.output)
        case PythonEval():
            yield from _check_functions(node.program, node.results)
        case PythonMap():
            yield from _check_functions(node.program, node.output)
        case PythonCoGroupMap():
            yield from _check_functions(node.program, (*node.right_columns, *node.output))
            yield from _check_groups(node)
        case PythonGroupMap() | PythonAggregate():
            yield from _check_functions(node.program, node.output)
            yield from _check_groups(node)
        case PythonWindow():
            yield from _check_functions(node.program, node.results)
            yield from _check_groups(node)
            yield from _check_order_keys("Window", node.order)
        case PythonTable():
            yield from _check_functions(node.program, node.results)
            yield from _check_groups(node)
            yield from _check_order_keys("PARTITION BY ... ORDER BY", node.order)
            for key in node.grouping:
                if key.type in (TIMESTAMP, TIMESTAMP_NTZ):
                    # The worker compares them in Python, where the two hours at the end of summer time are equal.
                    yield Unsupported(Reason.ARGUMENT_TYPES, "PARTITION BY", f"key of type {key.type}")
        case Aggregate():
            yield from check_aggregate(node)
            yield from _check_keys("Aggregate", node.grouping)
        case Window():
            yield from check_window(node)
            yield from _check_order(node)
        case Limit():
            yield from _check_order(node)
        case Generate():
            yield from check_generate(node)
            yield from _check_types(node.generated)
        case Sort(keys, False, _):
            # Below a join or an aggregate: they need only equal keys side by side, and sort as they like themselves.
            yield from _check_keys("Sort", keys)
        case Sort(keys, _, _) | TopN(_, _, keys, _, _):
            yield from _check_order_keys(type(node).__name__, keys)
        case Exchange(_, _, keys, order, _):
            yield from _check_keys("Exchange", keys)
            yield from _check_order_keys("Exchange", order)
        case Join():
            yield from _check_join(node)
        case Union():
            yield from _check_union(node)
        case Sample():
            detail = "with replacement" if node.replacement else NOT_CERTAIN
            yield Unsupported(Reason.NONDETERMINISTIC, "SampleExec", detail)
        case NumberedRows():
            yield Unsupported(Reason.NONDETERMINISTIC, "AttachDistributedSequenceExec", NOT_CERTAIN)
        case Unknown(name, detail, _, _):
            rule = OPERATORS.get(name)
            reason = rule.reason if rule and rule.reason else Reason.OPERATOR
            if name in PYTHON_OPERATORS and detail:
                reason = Reason.PYTHON
            elif name == OBSERVING:
                reason = Reason.OBSERVED
            yield Unsupported(reason, name, detail or (rule.note if rule and rule.reason else ""))


def _check_types(output: tuple[Attribute, ...]) -> Iterator[Unsupported]:
    for attribute in output:
        if not is_carried(attribute.type):
            yield Unsupported(Reason.DATA_TYPE, attribute.name, str(attribute.type))


def _check_shared(
    columns: Iterable[Attribute | StructField], accepts: Callable[[DataType], bool] = is_shared
) -> Iterator[Unsupported]:
    """Columns that others write or read."""
    for column in columns:
        if not accepts(column.type):
            yield Unsupported(Reason.DATA_TYPE, column.name, str(column.type))


_PICKLED = frozenset({EvalType.BATCHED, EvalType.TABLE})


def _check_functions(
    program: PythonProgram, columns: Iterable[Attribute | StructField]
) -> Iterator[Unsupported]:
    """What functions get and return. In a pickle of Spark's, the entries of a map are in the order of Java's hashes."""
    accepts = is_shared if program.eval_type in _PICKLED else is_given_to_functions
    yield from _check_shared((*program.columns, *columns), accepts)


def _check_order_keys(operator: str, keys: tuple[Expression, ...]) -> Iterator[Unsupported]:
    for key in keys:
        if not is_sorted_alike(key.type):
            yield Unsupported(Reason.ARGUMENT_TYPES, operator, f"key of type {key.type}")


def _check_sort_keys(operator: str, keys: tuple[Expression, ...]) -> Iterator[Unsupported]:
    """DataFusion does not order nested values as Spark does."""
    for key in keys:
        if isinstance(key.type, StructType | ArrayType) or not is_comparable(key.type):
            yield Unsupported(Reason.ARGUMENT_TYPES, operator, f"key of type {key.type}")


def _check_keys(operator: str, keys: tuple[Expression, ...]) -> Iterator[Unsupported]:
    """Keys are only compared for equality, which is Spark's unless floats are inside a nested value."""
    for key in keys:
        is_nested = isinstance(key.type, StructType | ArrayType)
        if not is_comparable(key.type) or (is_nested and contains_any(key.type, _NOT_IN_KEYS)):
            yield Unsupported(Reason.ARGUMENT_TYPES, operator, f"key of type {key.type}")


_NOT_IN_KEYS = frozenset({*FRACTIONAL, NULL})


def _check_groups(
    node: PythonGroupMap | PythonCoGroupMap | PythonAggregate | PythonWindow | PythonTable,
) -> Iterator[Unsupported]:
    yield from _check_sort_keys("group", node.grouping)
    for key in node.grouping:
        if key.type in FRACTIONAL:
            # 0.0 and -0.0 are one group, and the function may see either.
            yield Unsupported(Reason.ARGUMENT_TYPES, "group", f"key of type {key.type}")


def _check_order(node: Window | Limit) -> Iterator[Unsupported]:
    if missing := missing_order(node):
        name = type(node).__name__
        yield Unsupported(Reason.ORDER, name, f"the order of an ORDER BY below is unknown after {missing}")


def _check_scan(node: FileScan) -> Iterator[Unsupported]:
    if not can_read(node.format):
        yield Unsupported(Reason.FILE_FORMAT, "FileScan", node.format)
    elif node.unsupported is not None:
        yield Unsupported(Reason.FILE_OPTION, "FileScan", node.unsupported)
    if node.unreachable is not None:
        yield Unsupported(Reason.FILE_SYSTEM, "FileScan", node.unreachable)
    for file in node.files:
        if "://" in file.path and not file.store:
            yield Unsupported(Reason.FILE_SYSTEM, "FileScan", file.path.partition("://")[0])
            return
    streamed = STREAMED.get(node.format)
    for file in node.files if streamed is not None else ():
        if streamed is not None and (problem := streamed.unreadable(file)):
            yield Unsupported(Reason.FILE_OPTION, "FileScan", problem)
            return


def _check_join(node: Join) -> Iterator[Unsupported]:
    rule = JOINS[node.kind]
    if rule.reason is not None:
        yield Unsupported(rule.reason, f"{node.kind} join", rule.note)
    yield from _check_keys(f"{node.kind} join", node.left_keys + node.right_keys)
    if node.null_aware and (node.condition is not None or len(node.left_keys) != 1):
        yield Unsupported(Reason.OPERATOR, "NOT IN", "more than one key")
    if {a.id for a in node.left.output} & {a.id for a in node.right.output}:
        yield Unsupported(Reason.OPERATOR, f"{node.kind} join", "both sides have a column with the same id")


def _check_union(node: Union) -> Iterator[Unsupported]:
    if len({attribute.id for attribute in node.output}) < len(node.output):
        yield Unsupported(Reason.OPERATOR, "Union", "the first branch has the same column twice")
    # The union allows NULLs wherever a branch does.
    if any(
        merge_nullability(theirs.type, ours.type) != ours.type
        for branch in node.inputs
        for theirs, ours in zip(branch.output, node.output, strict=True)
    ):
        yield Unsupported(Reason.ARGUMENT_TYPES, "Union", "the types of the branches differ")
