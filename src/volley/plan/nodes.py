# SPDX-License-Identifier: Apache-2.0
"""Spark's physical plan as plain data: what a query computes, not how an engine does it.

A node produces the columns of its `output`, identified by Catalyst's ids. Nodes that only matter to Spark's runtime
(code generation, row and column conversion, adaptive wrappers) are removed by capture. The leaves are in
`plan.source_nodes`, and operators that call Python functions in `plan.python_nodes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import is_, is_not
from typing import Any

from volley.field_types import NOT_SENT
from volley.plan import synthetic_ids
from volley.plan.expressions import (
    AggregateCall,
    Alias,
    Attribute,
    Expression,
    SortKey,
    attribute_of,
)
from volley.plan.node_shapes import UnaryNode
from volley.plan.partition_nodes import NumberedRows as NumberedRows
from volley.plan.partition_nodes import PartitionedRows as PartitionedRows
from volley.plan.partition_nodes import Sample as Sample
from volley.plan.python_nodes import (
    PythonAggregate,
    PythonCoGroupMap,
    PythonEval,
    PythonGroupMap,
    PythonMap,
    PythonTable,
    PythonWindow,
)
from volley.plan.source_nodes import HERE as HERE
from volley.plan.source_nodes import CachedRows as CachedRows
from volley.plan.source_nodes import DataFile as DataFile
from volley.plan.source_nodes import DeleteFile as DeleteFile
from volley.plan.source_nodes import FeedInput as FeedInput
from volley.plan.source_nodes import FilePart as FilePart
from volley.plan.source_nodes import FileScan as FileScan
from volley.plan.source_nodes import LocalRows as LocalRows
from volley.plan.source_nodes import MaterializedInput as MaterializedInput
from volley.plan.source_nodes import OneRow as OneRow
from volley.plan.source_nodes import Range as Range
from volley.plan.source_nodes import SourceScan as SourceScan
from volley.plan.source_nodes import StageInput as StageInput
from volley.plan.source_nodes import StoredColumn as StoredColumn
from volley.plan.types import LONG, STRING
from volley.python_versions import StrEnum

# ------------------------------------------------------------------------------------ one child


@dataclass(frozen=True)
class Project(UnaryNode):
    expressions: tuple[Expression, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return tuple(attribute_of(expression) for expression in self.expressions)


@dataclass(frozen=True)
class Filter(UnaryNode):
    condition: Expression
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output


@dataclass(frozen=True)
class Aggregate(UnaryNode):
    """Groups `child` by `grouping`, computes `calls`, then projects `results`.

    `results` refer to the calls' outputs as `buffers`: one attribute for a call that gives values, otherwise its state
    columns in order. A call that reads state finds it in the child by position: the child's output is the grouping
    columns followed by the state of every call.
    """

    grouping: tuple[Expression, ...]
    calls: tuple[AggregateCall, ...]
    buffers: tuple[Attribute, ...]
    results: tuple[Expression, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return tuple(attribute_of(result) for result in self.results)


@dataclass(frozen=True)
class Sort(UnaryNode):
    """`whole`: a global sort, not only within each partition."""

    keys: tuple[SortKey, ...]
    whole: bool
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output


@dataclass(frozen=True)
class Limit(UnaryNode):
    """`count` None: only an offset. `whole` False: a limit per partition."""

    count: int | None
    offset: int
    whole: bool
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output


@dataclass(frozen=True)
class TopN(UnaryNode):
    """Spark's TakeOrderedAndProject: the first `count` rows in order after `offset`, then a projection."""

    count: int
    offset: int
    keys: tuple[SortKey, ...]
    expressions: tuple[Expression, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return tuple(attribute_of(expression) for expression in self.expressions)


@dataclass(frozen=True)
class Expand(UnaryNode):
    """Each row becomes one row for every projection (rollup, cube, several distinct aggregates)."""

    projections: tuple[tuple[Expression, ...], ...]
    output: tuple[Attribute, ...]
    child: Node


@dataclass(frozen=True)
class Generate(UnaryNode):
    """Each row becomes one row for every row that the generator `function` makes of `arguments` (explode, stack, ...).

    The output is `required`, columns of the child, then `generated`. `outer`: a row for which the generator makes none
    is kept once, with NULLs. `position`, if set, is one more column: the place of a row among those of its child's row.
    """

    function: str
    arguments: tuple[Expression, ...]
    required: tuple[Attribute, ...]
    outer: bool
    generated: tuple[Attribute, ...]
    child: Node
    position: Attribute | None = None

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        added = () if self.position is None else (self.position,)
        return self.required + self.generated + added


@dataclass(frozen=True)
class Window(UnaryNode):
    """Adds one column for each of `calls` (aliases of window calls) to the child's columns."""

    calls: tuple[Alias, ...]
    child: Node

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output + tuple(attribute_of(call) for call in self.calls)


class Partitioning(StrEnum):
    """How an exchange distributes rows."""

    HASH = "hash"
    RANGE = "range"
    SINGLE = "single"
    ROUND_ROBIN = "round robin"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class Exchange(UnaryNode):
    """Redistributes rows by `partitioning`: by `keys` (hash) or in the order of `order` (range)."""

    partitioning: Partitioning
    partitions: int
    keys: tuple[Expression, ...]
    order: tuple[SortKey, ...]
    child: Node

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output


# A row about a written file: its path, its partition folder, its rows and its size.
WRITTEN = (
    Attribute(synthetic_ids.WRITTEN_FILE, "file", STRING, False),
    Attribute(synthetic_ids.WRITTEN_FILE + 1, "partition", STRING, False),
    Attribute(synthetic_ids.WRITTEN_FILE + 2, "rows", LONG, False),
    Attribute(synthetic_ids.WRITTEN_FILE + 3, "size_bytes", LONG, False),
)


@dataclass(frozen=True)
class UploadTarget:
    """Files go to the object store with this id, as uploads that the commit completes.

    The names of the objects contain `job`, which no other write has, and end with `suffix`.
    """

    store: str
    job: str
    suffix: str


@dataclass(frozen=True)
class WriteFiles(UnaryNode):
    """Writes the child's rows as files of `format` into `directory` and returns one row per file.

    The files are staged there: the commit moves those of the winning attempts. With an `upload`, `directory` is the URL
    of the folder in which they appear. The child's columns are `columns`, as
    they are in the files, then one text for each of `partition_names`; rows with equal texts go to one folder.
    `files`: in each folder, as many as the user asked for with `repartition` or `coalesce`; None for one per stream.
    `numbered`: the child has one more column, with the number of the file of each row. The rows of each of several
    `files` are sorted by `order`. `options` and `metadata` are the format's own.
    """

    directory: str
    columns: tuple[Attribute, ...]
    partition_names: tuple[str, ...]
    files: int | None
    rows_a_file: int | None
    options: tuple[tuple[str, str], ...]
    metadata: tuple[tuple[str, str], ...]
    child: Node
    format: str = "parquet"
    upload: UploadTarget | None = None
    numbered: bool = False
    order: tuple[SortKey, ...] = ()

    output = WRITTEN


# ------------------------------------------------------------------------------------ more children


class JoinKind(StrEnum):
    INNER = "Inner"
    LEFT = "LeftOuter"
    RIGHT = "RightOuter"
    FULL = "FullOuter"
    SEMI = "LeftSemi"
    ANTI = "LeftAnti"
    EXISTENCE = "ExistenceJoin"


class BuildSide(StrEnum):
    LEFT = "BuildLeft"
    RIGHT = "BuildRight"


@dataclass(frozen=True)
class Join:
    """An equi-join on the keys, pair by pair, and `condition`; without keys a nested-loop or cross join.

    `build` is the side Spark would hold in memory; None for a sort-merge join, where Spark chose none.
    `exists` is the flag column of an existence join. `null_aware` gives an anti join the NULL rules of NOT IN.
    """

    kind: JoinKind
    left_keys: tuple[Expression, ...]
    right_keys: tuple[Expression, ...]
    condition: Expression | None
    build: BuildSide | None
    left: Node
    right: Node
    null_aware: bool = False
    exists: Attribute | None = None

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.left, self.right)

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        if self.kind in (JoinKind.SEMI, JoinKind.ANTI):
            return self.left.output
        if self.kind is JoinKind.EXISTENCE:
            assert self.exists is not None
            return (*self.left.output, self.exists)
        return self.left.output + self.right.output


@dataclass(frozen=True)
class Union:
    """All rows of the children. Columns correspond by position and are named by `output`."""

    output: tuple[Attribute, ...]
    inputs: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs


@dataclass(frozen=True)
class Recursion:
    """A recursive query: the rows of `anchor`, then those of `step` over the rows of the step before, until there are
    none.

    The driver runs it before the plan around it. Of at least `limit` rows it need not find more. Beyond `level_limit`
    steps or `row_limit` rows Spark raises an error. `programs` keeps what the JVM evaluates in its plans.
    """

    id: int
    output: tuple[Attribute, ...]
    anchor: Node
    step: Node
    limit: int | None
    level_limit: int | None
    row_limit: int | None
    programs: tuple[object, ...] = field(default=(), compare=False, repr=False, metadata={NOT_SENT: True})

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.anchor, self.step)


@dataclass(frozen=True)
class RecursionInput:
    """The rows of the step before, in the step of the `Recursion` with this id. Its step may hold other recursions."""

    recursion: int
    output: tuple[Attribute, ...]

    children = ()


@dataclass(frozen=True)
class Observe:
    """`rows`, of which `df.observe` wants metrics under `name`: the one row of `metrics`, over a copy of the same rows.

    No plan that runs has it: the driver computes the metrics apart (`plan.observed_metrics`), or Spark does.
    """

    name: str
    metrics: Node
    rows: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.metrics, self.rows)

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.rows.output


@dataclass(frozen=True)
class Unknown:
    """An operator without a native form, kept so that explain can name it."""

    name: str
    detail: str
    output: tuple[Attribute, ...]
    inputs: tuple[Node, ...]

    @property
    def children(self) -> tuple[Node, ...]:
        return self.inputs


Node = (
    FileScan
    | SourceScan
    | FeedInput
    | LocalRows
    | CachedRows
    | MaterializedInput
    | PartitionedRows
    | Range
    | OneRow
    | StageInput
    | Project
    | Filter
    | Aggregate
    | Sort
    | Limit
    | TopN
    | Expand
    | Generate
    | Sample
    | NumberedRows
    | Window
    | PythonEval
    | PythonMap
    | PythonGroupMap
    | PythonCoGroupMap
    | PythonAggregate
    | PythonWindow
    | PythonTable
    | Exchange
    | WriteFiles
    | Join
    | Union
    | Recursion
    | RecursionInput
    | Observe
    | Unknown
)


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it, parents first. Does not enter subqueries."""
    yield node
    for child in node.children:
        yield from walk(child)


def with_children(node: Node, children: tuple[Node, ...]) -> Node:
    """The node with new children; the node itself if they are the ones that it has."""
    if len(children) == len(node.children) and all(map(is_, children, node.children)):
        return node
    match node:
        case Join():
            return replace(node, left=children[0], right=children[1])
        case Recursion():
            return replace(node, anchor=children[0], step=children[1])
        case Observe():
            return replace(node, metrics=children[0], rows=children[1])
        case Union() | Unknown():
            return replace(node, inputs=children)
        case _:
            # The type `Node` does not express that every other class has a `child`.
            unary: Any = node
            over: Node = replace(unary, child=children[0])
            return over


def transform(node: Node, change: Callable[[Node], Node]) -> Node:
    """A copy with `change` applied to every node, children before their parents."""
    return change(with_children(node, tuple([transform(child, change) for child in node.children])))


def map_expressions(node: Node, change: Callable[[Expression], Expression]) -> Node:
    """The node with `change` applied to each of its own expressions; children are not changed."""
    changes: dict[str, Any] = {}
    for name in _field_names(type(node)):
        value = getattr(node, name)
        changed = _map_field(value, change)
        if changed is not value:
            changes[name] = changed
    return replace(node, **changes) if changes else node


def expressions(node: Node) -> Iterator[Expression]:
    """Every expression of the node itself, including its columns."""
    for name in _field_names(type(node)):
        yield from _field_expressions(getattr(node, name))


def _field_names(kind: type[Any]) -> tuple[str, ...]:
    # Plans are walked many times, and `fields` makes a tuple each time.
    if (names := _names.get(kind)) is None:
        names = _names[kind] = tuple(part.name for part in fields(kind))
    return names


_names: dict[type[Any], tuple[str, ...]] = {}


def _map_field(value: object, change: Callable[[Expression], Expression]) -> object:
    if isinstance(value, Expression):
        return change(value)
    if isinstance(value, tuple):
        items = [_map_field(item, change) for item in value]
        return tuple(items) if any(map(is_not, items, value)) else value
    return value


def _field_expressions(value: object) -> Iterator[Expression]:
    if isinstance(value, Expression):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _field_expressions(item)
