# SPDX-License-Identifier: Apache-2.0
"""Dynamic partition pruning: the keys of a join's small side decide which files of its large side are read.

Spark plans it as a partition filter of a scan, with the small side as a subquery:

    FileScan day=..., prunings: day IN (keys of the filtered dates)    captured
    FileScan day=..., prunings: day IN (StageInput 0)                  in the graph: this stage waits for stage 0
    FileScan of the files of these days                                when it starts

The join drops all rows of the other files, so a pruning may always be left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from volley.plan.expressions import Attribute, Call, Expression, InSubquery
from volley.plan.nodes import FileScan, LocalRows, Node, Range, StageInput, transform, walk
from volley.plan.types import (
    BOOLEAN,
    BYTE,
    DATE,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    DataType,
    DecimalType,
    to_arrow,
)
from volley.stages.limits import PlannerLimits
from volley.stages.scans import cost_bytes
from volley.support.check import check


def keep_useful_prunings(plan: Node, limits: PlannerLimits) -> Node:
    """The plan without prunings that cannot run natively, or cost more than they save."""

    def keep(node: Node) -> Node:
        if not isinstance(node, FileScan) or not node.prunings:
            return node
        large = cost_bytes(node, limits) >= limits.pruned_scan_bytes
        kept = tuple(pruning for pruning in node.prunings if large and _is_useful(pruning, node))
        return node if kept == node.prunings else replace(node, prunings=kept)

    return transform(plan, keep)


@dataclass(frozen=True)
class Pruned:
    """A plan after pruning, its description for the report, and how many `files` it leaves out."""

    plan: Node
    decisions: tuple[str, ...]
    files: int


def prune_partitions(plan: Node, results: Mapping[int, pa.Table]) -> Pruned:
    """Leave out the files that none of the keys in `results` needs. Prunings by other stages stay."""
    decisions = []
    left_out = 0

    def prune(node: Node) -> Node:
        if not isinstance(node, FileScan):
            return node
        scan = node
        for pruning in node.prunings:
            if isinstance(pruning.plan, StageInput) and pruning.plan.stage in results:
                scan = _prune(scan, pruning, results[pruning.plan.stage])
        nonlocal left_out
        if scan is not node:
            left_out += len(node.files) - len(scan.files)
            decisions.append(
                f"dynamic partition pruning leaves {len(scan.files)} of {len(node.files)} files to read"
            )
        return scan

    pruned = transform(plan, prune)
    return Pruned(pruned, tuple(decisions), left_out)


def _prune(scan: FileScan, pruning: InSubquery, keys: pa.Table) -> FileScan:
    column = _column(pruning.value)
    assert column is not None
    place = [attribute.id for attribute in scan.partition_columns].index(column.id)
    values = list(dict.fromkeys(file.partition[place] for file in scan.files))
    # There may be many more keys than partitions.
    found = pc.is_in(
        pa.array(values, to_arrow(pruning.value.type)), value_set=keys.column(0), skip_nulls=True
    )
    wanted = {value for value, is_wanted in zip(values, found.to_pylist(), strict=True) if is_wanted}
    files = tuple(file for file in scan.files if file.partition[place] in wanted)
    others = tuple(other for other in scan.prunings if other is not pruning)
    return replace(scan, files=files, prunings=others)


def _is_useful(pruning: InSubquery, scan: FileScan) -> bool:
    column = _column(pruning.value)
    places = [attribute.id for attribute in scan.partition_columns]
    if column is None or column.id not in places:
        return False
    place = places.index(column.id)
    if len({file.partition[place] for file in scan.files}) < 2:
        return False
    # Other leaves may be read only once, or at a price.
    leaves = [node for node in walk(pruning.plan) if not node.children]
    cheap = all(isinstance(leaf, FileScan | LocalRows | Range) for leaf in leaves)
    return cheap and check(pruning.plan).native


def _column(value: Expression) -> Attribute | None:
    """The column of a pruning, if Arrow finds equal what Spark does: not so for floats, nor for what a cast changes."""
    match value:
        case Attribute(_, _, kind, _) if kind in _COMPARABLE or isinstance(kind, DecimalType):
            return value
        case Call("Cast", (Attribute(_, _, kind, _) as column,), wider, _, _) if (
            kind in _WIDENING and wider in _WIDENING and _WIDENING.index(kind) < _WIDENING.index(wider)
        ):
            return column
        case _:
            return None


_WIDENING: tuple[DataType, ...] = (BYTE, SHORT, INTEGER, LONG)
_COMPARABLE = (*_WIDENING, STRING, DATE, BOOLEAN)
