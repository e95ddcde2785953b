# SPDX-License-Identifier: Apache-2.0
"""Operators that call Python functions, and what a Python worker process is told before it gets rows.

The functions stay pickled. Only PySpark's own worker, in a process of its own, unpickles them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from volley.field_types import Count, Matches
from volley.plan.expressions import Attribute, Expression, SortKey, attribute_of
from volley.plan.node_shapes import UnaryNode
from volley.plan.types import StructField, StructType

if TYPE_CHECKING:
    from volley.plan.nodes import Node


class EvalType(IntEnum):
    """How the worker calls the functions. The numbers are those of PySpark's `PythonEvalType`."""

    BATCHED = 100
    ARROW_BATCHED = 101
    SCALAR_PANDAS = 200
    GROUPED_MAP_PANDAS = 201
    GROUPED_AGG_PANDAS = 202
    WINDOW_AGG_PANDAS = 203
    SCALAR_PANDAS_ITER = 204
    MAP_PANDAS_ITER = 205
    COGROUPED_MAP_PANDAS = 206
    MAP_ARROW_ITER = 207
    GROUPED_MAP_ARROW = 209
    COGROUPED_MAP_ARROW = 210
    GROUPED_MAP_ARROW_ITER = 215
    GROUPED_MAP_PANDAS_ITER = 216
    GROUPED_AGG_PANDAS_ITER = 217
    SCALAR_ARROW = 250
    SCALAR_ARROW_ITER = 251
    GROUPED_AGG_ARROW = 252
    WINDOW_AGG_ARROW = 253
    GROUPED_AGG_ARROW_ITER = 254
    TABLE = 300
    ARROW_TABLE = 301
    ARROW_UDTF = 302


@dataclass(frozen=True)
class PythonCall:
    """A chain of pickled functions, the innermost first: each gets the result of the one before.

    `arguments` are positions among the columns that the worker reads, each with the name of the parameter, or None for
    a positional one.
    """

    name: str
    commands: tuple[bytes, ...]
    arguments: tuple[tuple[int, str | None], ...]


@dataclass(frozen=True)
class SentFile:
    """A file of the driver that a worker in another process gets through a feed of the query, if it lacks it.

    `name` is the SHA-256 of its content. `unpacked`: it is an archive, and functions see the directory.
    """

    name: Annotated[str, Matches(r"[0-9a-f]{64}")]
    size_bytes: Count
    feed: Count
    unpacked: bool


@dataclass(frozen=True)
class PythonProcess:
    """The process in which functions run: calls with equal processes can share one.

    `variables` are added to the environment. `broadcasts` are the ids and files of broadcast variables. `memory_mb`
    limits all processes of a worker together; None: no limit. A process that is not `reused` serves one stream of rows.
    Where workers are other processes, files are called by their names in `sent`.
    """

    application: str
    executable: str
    version: str
    variables: tuple[tuple[str, str], ...]
    files_directory: str
    includes: tuple[str, ...]
    broadcasts: tuple[tuple[int, str], ...]
    memory_mb: int | None
    reused: bool
    sent: tuple[SentFile, ...] = ()


@dataclass(frozen=True)
class PythonTableFunction:
    """What a worker is told of a table function beyond the call of its class.

    `analyzed` is the pickled result of its `analyze` method. `partition_columns` are the fields of the table argument
    that PARTITION BY has added, `table_arguments` the places of such arguments among the columns.
    """

    returns: StructType
    analyzed: bytes | None
    partition_columns: tuple[int, ...]
    table_arguments: tuple[int, ...]


@dataclass(frozen=True)
class PythonProgram:
    """Everything that a worker process is told before it gets rows.

    `columns` are the columns it reads, as the functions see them. `settings` are those of the session that PySpark's
    worker asks for. A batch has `batch_rows` rows; 0: no limit. Spark cuts one at about `batch_bytes`, too.
    """

    eval_type: EvalType
    calls: tuple[PythonCall, ...]
    columns: tuple[StructField, ...]
    settings: tuple[tuple[str, str], ...]
    batch_rows: int
    batch_bytes: int
    process: PythonProcess
    table_function: PythonTableFunction | None = None

    def setting(self, name: str) -> str | None:
        return dict(self.settings).get(name)


@dataclass(frozen=True)
class PythonEval(UnaryNode):
    """Adds one column for each call of `program` to the child's columns. The calls read `arguments`."""

    program: PythonProgram
    arguments: tuple[Expression, ...]
    results: tuple[Attribute, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output + self.results


@dataclass(frozen=True)
class PythonMap(UnaryNode):
    """A function from all batches of a stream to other batches (`mapInPandas`, `mapInArrow`).

    `single`: the rows were partitioned or sorted for the function, so one stream has to have all of them.
    """

    program: PythonProgram
    arguments: tuple[Expression, ...]
    output: tuple[Attribute, ...]
    single: bool
    child: Node


@dataclass(frozen=True)
class PythonGroupMap(UnaryNode):
    """A function from all rows of a group to other rows (`applyInPandas`, `applyInArrow`)."""

    program: PythonProgram
    grouping: tuple[Expression, ...]
    arguments: tuple[Expression, ...]
    output: tuple[Attribute, ...]
    child: Node


@dataclass(frozen=True)
class PythonCoGroupMap(UnaryNode):
    """A function from all rows of a group on two sides to other rows (`cogroup().applyInPandas`, `applyInArrow`).

    The child has the rows of both sides: those of the left one have 0 in `side`, the others 1. The function reads
    `left` of the former and `right`, described by `right_columns`, of the latter.
    """

    program: PythonProgram
    right_columns: tuple[StructField, ...]
    grouping: tuple[Expression, ...]
    side: Attribute
    left: tuple[Attribute, ...]
    right: tuple[Attribute, ...]
    output: tuple[Attribute, ...]
    child: Node

    @property
    def arguments(self) -> tuple[Expression, ...]:
        return (self.side, *self.left, *self.right)


@dataclass(frozen=True)
class PythonAggregate(UnaryNode):
    """One row per group: its keys, then one value for each call of `program`. The calls read `arguments`."""

    program: PythonProgram
    grouping: tuple[Expression, ...]
    arguments: tuple[Expression, ...]
    results: tuple[Attribute, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return (*(attribute_of(key) for key in self.grouping), *self.results)


@dataclass(frozen=True)
class RowFrame:
    """A frame that begins and ends so many rows after the current one, or before it; None: it is not bounded."""

    lower: int | None
    upper: int | None


@dataclass(frozen=True)
class PythonWindow(UnaryNode):
    """Adds one column for each call of `program` to the columns `kept` of the child.

    A call is computed over all rows with the same `grouping`, or over a frame of them for each row.
    The calls read two columns for each of `row_frames`, where it begins and ends, then `arguments`. They see the rows
    in the order of `order`.
    """

    program: PythonProgram
    grouping: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    row_frames: tuple[RowFrame, ...]
    arguments: tuple[Expression, ...]
    results: tuple[Attribute, ...]
    kept: tuple[Attribute, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.kept + self.results


@dataclass(frozen=True)
class PythonTable(UnaryNode):
    """A table function: any number of rows for each row of the child, beside the columns `required` of that row.

    With `grouping` it sees the rows of each group one after the other, in the order of `order`, and starts anew with
    each group. `single`: one stream has to have all rows.
    """

    program: PythonProgram
    grouping: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    arguments: tuple[Expression, ...]
    required: tuple[Attribute, ...]
    results: tuple[Attribute, ...]
    single: bool
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.required + self.results


PythonNode = (
    PythonEval | PythonMap | PythonGroupMap | PythonCoGroupMap | PythonAggregate | PythonWindow | PythonTable
)
"""The operators whose rows come from Python workers."""
