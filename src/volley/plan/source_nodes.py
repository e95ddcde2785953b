# SPDX-License-Identifier: Apache-2.0
"""The leaves of plans: where rows come from. Spark plans the first ones, and Volley adds the inputs of stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from volley.plan.expressions import Attribute, Expression, InSubquery, Scalar, SortKey

if TYPE_CHECKING:
    from volley.plan.nodes import Node


@dataclass(frozen=True)
class DeleteFile:
    """Names rows of data files that a table no longer has. `path`, `size_bytes` and `store` are as of a `DataFile`.

    It is a Parquet file of paths and positions, in which the data file is called `target`; or, if `length_bytes` is not
    0, the bitmap of positions that begins at `offset`.
    """

    path: str
    size_bytes: int
    target: str
    store: str = ""
    offset: int = 0
    length_bytes: int = 0


@dataclass(frozen=True)
class DataFile:
    """One file of a scan. `partition` holds its partition values in the order of `FileScan.partition_columns`.

    `path` is a local path; or, if `store` is the id of an object store (`volley.storage`), a URL that is not encoded.
    Rows that `deletes` name are left out.
    """

    path: str
    size_bytes: int
    modified_ms: int
    partition: tuple[Scalar, ...] = ()
    store: str = ""
    deletes: tuple[DeleteFile, ...] = ()


@dataclass(frozen=True)
class FilePart:
    """The row groups of a file whose middles are in [`start`, `end`); the whole file if that is all of it."""

    file: DataFile
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end >= self.file.size_bytes


@dataclass(frozen=True)
class StoredColumn:
    """Where Parquet files have a column, or a field inside one: under a field id, or under its `name` if `id` is None.

    `default` is its value in files that do not have it. `parts` are the fields of a struct, the element of an array, or
    the key and the value of a map; if there are none, all inside is found by name. The column of the positions of rows
    in their files `is_position`. If it `is_filtered`, Spark leaves out row groups by the statistics of what has its
    name in the file.
    """

    name: str
    id: int | None = None
    default: Scalar = None
    parts: tuple[StoredColumn, ...] = ()
    is_position: bool = False
    is_filtered: bool = False

    def part(self, name: str) -> StoredColumn | None:
        """The field of this name; None if it is found by name."""
        return next((part for part in self.parts if part.name == name), None)


@dataclass(frozen=True)
class FileScan:
    """Files of one format. `filters` are only hints for pruning: a Filter above repeats them.

    `partition_columns` are those of `output` that are the same in all rows of a file: they come from its path, or
    describe it. `share` is the fraction of the files' bytes that the other columns take. Tasks divide the files, unless
    `whole`: then each task reads all of them. `options` are the settings and read options that change how the files are
    read (`plan.read_rules`). `file_columns` are the columns of the table in the order of its files, for formats that
    find columns by position. `prunings` are conditions on partition columns that a join above implies. `unreachable`
    says why only Spark reads from the file system of its files. If `bucketed`, Spark reads them in groups of its own:
    those of one bucket, after which it plans no exchange, or those that Iceberg puts together. In a `PartitionedRows`,
    `partitions` are the parts of files that each of Spark's partitions reads, in order. `stored` are the columns that
    files may not have under their names.
    """

    format: str
    files: tuple[DataFile, ...]
    output: tuple[Attribute, ...]
    partition_columns: tuple[Attribute, ...]
    filters: tuple[Expression, ...]
    unsupported: str | None = None
    share: float = 1.0
    whole: bool = False
    options: tuple[tuple[str, str], ...] = ()
    file_columns: tuple[str, ...] = ()
    prunings: tuple[InSubquery, ...] = ()
    unreachable: str | None = None
    bucketed: bool = False
    partitions: tuple[tuple[FilePart, ...], ...] = ()
    stored: tuple[StoredColumn, ...] = ()

    children = ()

    def stored_column(self, name: str) -> StoredColumn | None:
        """Where files have a column; None if it is found by name."""
        return next((column for column in self.stored if column.name == name), None)

    @cached_property
    def is_evolved(self) -> bool:
        """Whether its files may have other columns, or more rows, than the table."""
        return bool(self.stored) or any(file.deletes for file in self.files)

    @cached_property
    def stores(self) -> frozenset[str]:
        """The ids of the object stores of its files."""
        deletes = (delete.store for file in self.files for delete in file.deletes)
        return frozenset({store for store in (*(file.store for file in self.files), *deletes) if store})


HERE = "here:"
"""Prefix of the `reader` of a `SourceScan` that only the driver's process can read."""


@dataclass(frozen=True)
class SourceScan:
    """A scan of a Python data source. `columns` are the source's names for `output`.

    `reader` says how a process gets the source (see `splits.datasource`): a portable text, or the name of an object
    that only the driver's process has. `filters` are only hints for pruning, as in a `FileScan`. `estimated_bytes` and
    `wanted_tasks` are what the source says about itself, once it was asked (`splits.measure`).
    """

    name: str
    # Not shown: options of sources may hold credentials.
    reader: str = field(repr=False)
    columns: tuple[str, ...]
    output: tuple[Attribute, ...]
    unsupported: str | None = None
    filters: tuple[Expression, ...] = ()
    estimated_bytes: int | None = None
    wanted_tasks: int | None = None

    children = ()


@dataclass(frozen=True)
class LocalRows:
    """Rows held by the driver, as an Arrow IPC stream: bytes can be compared and sent.

    `partition_rows` is how many of them are in each of Spark's partitions, where that is known.
    """

    output: tuple[Attribute, ...]
    ipc: bytes
    partition_rows: tuple[int, ...] = ()

    children = ()


@dataclass(frozen=True)
class CachedRows:
    """Rows of a cached frame, which the driver's process keeps (`frame_cache`) under the name `frame`.

    `columns` are the positions of the output in the frame. Spark's plan may rely on the rows to be in the order of
    `order`, or in another one if `ordered`; `bridge.frame_scans` adds a sort for that. `size_bytes` is how much these
    columns take, once the rows are there.
    """

    output: tuple[Attribute, ...]
    frame: str
    columns: tuple[int, ...]
    order: tuple[SortKey, ...] = ()
    ordered: bool = False
    size_bytes: int = 0

    children = ()


@dataclass(frozen=True)
class Range:
    """In a `PartitionedRows`, `partition_rows` is how many rows each of Spark's partitions has."""

    start: int
    end: int
    step: int
    output: tuple[Attribute, ...]
    partition_rows: tuple[int, ...] = ()

    children = ()


@dataclass(frozen=True)
class OneRow:
    """A single row without columns (`SELECT 1`)."""

    output: tuple[Attribute, ...] = ()

    children = ()


@dataclass(frozen=True)
class StageInput:
    """The output of another stage, read through the shuffle. Added by `stages`; Spark has no such node.

    `sorted_by` is set if each partition of the producer is already in that order.
    """

    stage: int
    output: tuple[Attribute, ...]
    sorted_by: tuple[SortKey, ...] = ()

    children = ()


@dataclass(frozen=True)
class MaterializedInput:
    """Rows that are already in the shuffle stores: `tasks` outputs, each distributed evenly over `partitions`.

    They were not produced by a native stage; the driver identifies them by `number`.
    """

    number: int
    tasks: int
    partitions: int
    output: tuple[Attribute, ...]

    children = ()


@dataclass(frozen=True)
class FeedInput:
    """A scan whose splits arrive at run time, over feed number `feed`. Added by the coordinator.

    `plan` is run on each split: the scan, with filters and projections if it reads files. It holds no splits itself.
    """

    feed: int
    plan: Node

    children = ()

    @property
    def output(self) -> tuple[Attribute, ...]:
        return self.plan.output
