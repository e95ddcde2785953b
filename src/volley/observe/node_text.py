# SPDX-License-Identifier: Apache-2.0
"""One line of text for an operator of Spark's plan."""

from __future__ import annotations

import re
from collections.abc import Callable

from volley.plan.expressions import Alias, Attribute, Expression, Literal, class_of
from volley.plan.nodes import (
    Aggregate,
    CachedRows,
    Exchange,
    Expand,
    FileScan,
    Filter,
    Generate,
    Join,
    Limit,
    LocalRows,
    Node,
    PartitionedRows,
    Project,
    Range,
    Sort,
    SourceScan,
    TopN,
    Unknown,
    Window,
)
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.spark_partitions import partition_count
from volley.plan.traits import traits_of
from volley.splits.files import FileSource
from volley.stages.limits import DEFAULT_LIMITS, PlannerLimits
from volley.stages.scans import scan_tasks
from volley.support.check import NodeVerdict
from volley.support.jvm_expressions import delegated
from volley.support.sql_names import display_name


def describe_node(verdict: NodeVerdict, workers: int, limits: PlannerLimits) -> str:
    """One line for an operator of Spark's plan."""
    return ("subquery: " if verdict.in_subquery else "") + _summary(verdict.node, max(1, workers), limits)


def describe_jvm_expressions(verdict: NodeVerdict) -> list[str]:
    """A line about what the JVM evaluates for an operator, if anything."""
    names = ", ".join(map(display_name, delegated_names(verdict)))
    return [f"by Spark's own code in the JVM: {names}"] if names else []


def delegated_names(verdict: NodeVerdict) -> list[str]:
    """The Catalyst classes of what the JVM evaluates for an operator."""
    calls = [call for expression in traits_of(verdict.node).evaluates for call in delegated(expression)]
    return list(dict.fromkeys(name for call in calls for name in str(call.option("name")).split(", ")))


def outline_node(node: Node) -> str:
    """The same without anything of the query's constants, for what is kept."""
    match node:
        case Unknown(name, _, _, _):
            return name
        case Project(columns, _):
            # The name of a constant is the constant itself.
            shown = [
                "(constant)" if _is_constant(c) else outline_name(str(getattr(c, "name", "?")))
                for c in columns
            ]
            return f"Project [{', '.join(shown[:8])}{', ...' if len(shown) > 8 else ''}]"
        case _:
            return _summary(node, 1, DEFAULT_LIMITS, outline_name)


def outline_name(name: str) -> str:
    """A name of a column. Spark makes names out of expressions, with their constants: only the function is kept."""
    if _PLAIN_NAME.fullmatch(name):
        return name
    function = _FUNCTION.match(name)
    return f"{function[1]}(…)" if function else "(…)"


def _is_constant(column: Expression) -> bool:
    return isinstance(column, Alias) and isinstance(column.child, Literal)


_PLAIN_NAME = re.compile(r"[\w .#-]{1,100}")
_FUNCTION = re.compile(r"(\w{1,60})\(")


def _summary(node: Node, workers: int, limits: PlannerLimits, name_of: Callable[[str], str] = str) -> str:
    """One line for an operator, in Spark's own words."""

    def names(columns: tuple[Attribute, ...] | tuple[Expression, ...]) -> str:
        found = [str(getattr(c, "name", None) or getattr(c, "function", "?")) for c in columns]
        return ", ".join(map(name_of, found[:8])) + (", ..." if len(found) > 8 else "")

    match node:
        case FileScan(format, files, output):
            size = sum(file.size_bytes for file in files)
            splits = _splits(node, workers, limits)
            return f"FileScan {format}, {len(files)} files, {size:,} bytes{splits} [{names(output)}]"
        case SourceScan(name, _, _, output):
            return f"SourceScan {name}, splits found while it runs, up to {workers} tasks [{names(output)}]"
        case CachedRows(output):
            return f"CachedRows [{names(output)}]"
        case PartitionedRows(plan, values):
            found = ", ".join(str(getattr(value.child, "function", "")) for value in values)
            return f"PartitionedRows, {partition_count(plan)} of Spark's: {found} [{names(node.output)}]"
        case LocalRows(output) | Range(_, _, _, output):
            return f"{type(node).__name__} [{names(output)}]"
        case Project() | Window() | Expand():
            return f"{type(node).__name__} [{names(node.output)}]"
        case Generate():
            return f"Generate {node.function}{' outer' if node.outer else ''} [{names(node.output)}]"
        case Filter():
            return "Filter"
        case Aggregate(grouping, calls, _, _, _):
            modes = "/".join(dict.fromkeys(str(call.mode) for call in calls)) or "Distinct"
            functions = ", ".join(map(class_of, calls))
            return f"Aggregate {modes} by [{names(grouping)}]" + (f": {functions}" if functions else "")
        case Sort(keys, whole, _):
            return f"Sort{'' if whole else ' within partitions'} by {len(keys)} keys"
        case TopN(count, offset, keys, _, _):
            return f"TopN {count}{f' after {offset}' if offset else ''} by {len(keys)} keys"
        case Limit(count, offset, _, _):
            return f"Limit {'all' if count is None else count}{f' after {offset}' if offset else ''}"
        case Exchange(partitioning, _, keys, _, _):
            return f"Exchange {partitioning}" + (f" by [{names(keys)}]" if keys else "")
        case Join(kind, left_keys, _, condition, _, _, _, null_aware, _):
            return f"Join {kind}{' null-aware' if null_aware else ''} on {len(left_keys)} keys" + (
                " and a condition" if condition is not None else ""
            )
        case (
            PythonEval()
            | PythonMap()
            | PythonGroupMap()
            | PythonCoGroupMap()
            | PythonAggregate()
            | PythonWindow()
            | PythonTable()
        ):
            functions = ", ".join(name_of(call.name) for call in node.program.calls)
            return f"{type(node).__name__} {functions} [{names(node.output)}]"
        case Unknown(name, detail, _, _):
            return f"{name} {detail}".rstrip()
        case _:
            return type(node).__name__


def _splits(scan: FileScan, workers: int, limits: PlannerLimits) -> str:
    """What would be fed to how many tasks; nothing where one task reads the files by itself."""
    tasks = scan_tasks(scan, workers, limits)
    if tasks == 1:
        return ""
    return f", {FileSource(scan, tasks, limits).estimate().splits} splits for {tasks} tasks"
