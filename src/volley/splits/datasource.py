# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources as split sources: a reader's partitions are the splits.

    class Reader(DataSourceReader):
        def discover(self):             # Volley: yields partitions as they are found; may be an async generator
            ...
        def partitions(self):           # Spark: all partitions
            return list(self.discover())
        def read(self, partition):
            ...
        def prune(self, filters):       # Volley, optional, called before the others: see `splits.filter_pushdown`
            ...
        def select(self, columns):
            ...

Without `discover`, the splits are what `partitions` returns. The attributes `size_bytes` and `hosts` of a partition, if
it has them, become the hints of its split.

The `reader` of a `SourceScan` says how a process gets the source:

    here:<digest>[+<digest>...]:<schema>       an object in this process, for a driver with in-process workers
    {"class": "module:name", "options": ...}   a class that every worker imports; no code is sent
    code:<Python>:<pickle>[.<pickle>...]:<schema>
                                               an object with its class, for workers whose owners let them run code

If Spark's planner has pushed filters down (`pushFilters`), the second object is its read function, with the reader that
took them, and the others are the partitions that this reader gave.

Partitions are sent as plain JSON if workers import the class, and pickled otherwise.
"""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volley.errors import DataError, QueryError, SourceError, VolleyError
from volley.plan.expressions import Expression
from volley.plan.local_registry import lookup
from volley.plan.nodes import HERE, FeedInput, Node, SourceScan, transform, walk
from volley.plan.subqueries import with_subqueries
from volley.spark_versions.arrow import arrow_schema
from volley.splits.declared import declares
from volley.splits.filter_pushdown import push_down
from volley.splits.source import Estimate, Split
from volley.splits.tagged_json import from_plain, to_plain

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

_ROWS_PER_BATCH = 10_000
_ESTIMATES = ("estimated_bytes", "estimated_rows", "wanted_tasks")
# What a value takes if only the number of rows is known.
_VALUE_BYTES = 8
# It is part of every task that reads the source.
_MAX_CODE_BYTES = 2**20
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
CODE = "code:"
"""The beginning of a reference to a source that is sent with its class."""


class NotPortable(QueryError):
    """A source or partition that cannot be sent to another process as plain data."""

    code = "DATA_SOURCE_NOT_PORTABLE"


# ---------------------------------------------------------------------------------------- references


def make_portable(reference: str, may_send_code: Callable[[], bool] = lambda: False) -> str:
    """Convert a reference for use in other processes. Raises NotPortable, with the reason, if that is impossible.

    A class that workers cannot import is sent by value if they may run code.
    """
    if not reference.startswith(HERE):
        return reference
    try:
        return _name_class(reference)
    except NotPortable:
        if not may_send_code():
            raise
    digests, _, schema = reference.removeprefix(HERE).partition(":")
    pickles = [lookup(digest) or b"" for digest in digests.split("+")]
    if not 0 < sum(map(len, pickles)) <= _MAX_CODE_BYTES:
        raise NotPortable(
            f"the source has {sum(map(len, pickles))} bytes, which is too much to send to workers"
        )
    return f"{CODE}{_PYTHON}:{'.'.join(base64.b64encode(pickled).decode() for pickled in pickles)}:{schema}"


def sends_code(plan: Node) -> bool:
    """Whether a plan of a peer has a data source that is sent by value, also in what runs on each split."""
    return any(
        (isinstance(node, SourceScan) and node.reader.startswith(CODE))
        or (isinstance(node, FeedInput) and sends_code(node.plan))
        for node in walk(plan)
    )


def _name_class(reference: str) -> str:
    from pyspark.sql.datasource import DataSource

    source, schema = _open(reference)
    if _pushed_reader(_pickles(reference)) is not None:
        raise NotPortable(
            "Spark pushed filters down to its reader, which only workers that may run code can get"
        )
    kind = type(source)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise NotPortable(f"class {kind.__qualname__} is not in a module that workers can import")
    try:
        found = _import_class(f"{kind.__module__}:{kind.__qualname__}", DataSource)
    except NotPortable:
        raise
    except Exception as error:
        raise NotPortable(f"class {kind.__qualname__} cannot be imported: {error}") from error
    if found is not kind:
        raise NotPortable(f"importing {kind.__module__}.{kind.__qualname__} gives another class")
    options = {str(key): str(value) for key, value in dict(source.options).items()}
    description = {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options}
    return json.dumps(description | {"schema": schema.json()}, sort_keys=True)


def make_plan_portable(plan: Node, may_send_code: Callable[[], bool] = lambda: False) -> Node:
    """Make all data sources of a plan usable in other processes. Raises NotPortable if one cannot be."""

    def convert(node: Node) -> Node:
        if not isinstance(node, SourceScan):
            return node
        return replace(node, reader=make_portable(node.reader, may_send_code))

    return with_subqueries(transform(plan, convert), lambda below: make_plan_portable(below, may_send_code))


def _open(reference: str) -> tuple[DataSource, StructType]:
    from pyspark.sql.datasource import CaseInsensitiveDict, DataSource
    from pyspark.sql.types import StructType

    if pickles := _pickles(reference):
        schema = reference.split(":", 3 if reference.startswith(CODE) else 2)[-1]
        # Safe to unpickle: the driver's own program pickled it, and Spark's planner does the same. A worker has checked
        # that its owner lets it run code (`sends_code`).
        return pickle.loads(pickles[0]), StructType.fromJson(json.loads(schema))
    words = json.loads(reference)
    kind = _import_class(words["class"], DataSource)
    # As Spark creates it: the names of options have no case, and are in lower case by now.
    return kind(CaseInsensitiveDict(words["options"])), StructType.fromJson(json.loads(words["schema"]))


def _pickles(reference: str) -> list[bytes]:
    """The objects of a reference that is not the name of a class."""
    if reference.startswith(HERE):
        found = [lookup(digest) for digest in reference.split(":", 2)[1].split("+")]
        if None in found:
            raise QueryError(
                "a data source that exists only in the driver's process was used elsewhere or too late."
            )
        return [pickled for pickled in found if pickled is not None]
    if reference.startswith(CODE):
        _, python, code, _ = reference.split(":", 3)
        if python != _PYTHON:
            raise DataError(f"the source was sent by Python {python}, and this is Python {_PYTHON}.")
        return [base64.b64decode(pickled) for pickled in code.split(".")]
    return []


def _import_class(name: str, base: type) -> Any:
    """Import a class by name, which must derive from `base`. A peer can name nothing else, and no module is imported
    that does not declare such a class."""
    module, _, qualname = name.partition(":")
    if not declares(module, qualname, base):
        raise NotPortable(f"{name} is not a class statement of a {base.__name__}")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise NotPortable(f"{name} is not a {base.__name__}")
    return found


def ask_source(scan: SourceScan) -> SourceScan:
    """The scan with what its source says about itself: `estimated_bytes`, `estimated_rows`, `wanted_tasks`.

    Each may be an attribute or a property of the `DataSource`, a number or None. SourceError if it is something else.
    """
    source = _open(scan.reader)[0]
    try:
        size_bytes, rows, tasks = (_number(source, name) for name in _ESTIMATES)
    except Exception as error:
        raise SourceError(scan.name, error) from error
    if size_bytes is None and rows is not None:
        size_bytes = rows * _VALUE_BYTES * max(1, len(scan.columns))
    return replace(scan, estimated_bytes=size_bytes, wanted_tasks=tasks)


def _number(source: DataSource, name: str) -> int | None:
    value = getattr(source, name, None)
    if value is None or (isinstance(value, int) and value >= 0):
        return value
    raise TypeError(f"its {name} is {value!r} and not a number of at least 0")


# ----------------------------------------------------------------------------------------- discovery


class DataSourceSplits:
    """A `SplitSource` over the reader of a data source."""

    def __init__(self, scan: SourceScan) -> None:
        self._scan = scan
        self._reference = scan.reader
        self._reader: DataSourceReader | None = None
        self._found = self._found_bytes = 0
        self._final = False

    @property
    def schema(self) -> pa.Schema:
        return arrow_schema(_open(self._reference)[1])

    def splits(self) -> Iterator[Split] | AsyncIterator[Split]:
        # Open the source here and not earlier: all user code must run on the discovery thread.
        source, schema = _open(self._reference)
        pickles = _pickles(self._reference)
        if (pushed := _pushed_reader(pickles)) is not None:
            self._reader = pushed
            return self._yield_sync(map(pickle.loads, pickles[2:]))
        self._reader = reader = _make_reader(source, schema)
        push_down(reader, self._scan, schema)
        discover = getattr(reader, "discover", None)
        found = discover() if discover is not None else iter(_partitions(reader))
        return self._yield_async(found) if isinstance(found, AsyncIterator) else self._yield_sync(found)

    def estimate(self) -> Estimate:
        return Estimate(self._found, self._found_bytes, self._final)

    def close(self) -> None:
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()

    def _yield_sync(self, partitions: Iterator[Any]) -> Iterator[Split]:
        for partition in partitions:
            yield self._split(partition)
        yield from self._finish()

    async def _yield_async(self, partitions: AsyncIterator[Any]) -> AsyncIterator[Split]:
        async for partition in partitions:
            yield self._split(partition)
        for split in self._finish():
            yield split

    def _finish(self) -> Iterator[Split]:
        from pyspark.sql.datasource import InputPartition

        if not self._found:
            # Like Spark, read a source without partitions once, with an empty partition.
            yield self._split(InputPartition(None))
        self._final = True

    def _split(self, partition: Any) -> Split:
        from pyspark.sql.datasource import InputPartition

        if not isinstance(partition, InputPartition):
            raise TypeError(f"it discovered {type(partition).__name__} instead of an InputPartition")
        size_bytes = getattr(partition, "size_bytes", None)
        self._found += 1
        self._found_bytes += size_bytes or 0
        return Split(
            encode(partition, self._reference.startswith((HERE, CODE))),
            size_bytes,
            tuple(getattr(partition, "hosts", ())),
        )


def _make_reader(source: DataSource, schema: StructType) -> DataSourceReader:
    from pyspark.sql.datasource import DataSourceReader

    reader = source.reader(schema)
    if not isinstance(reader, DataSourceReader):
        raise DataError(f"source {type(source).name()} has no DataSourceReader.")
    if _takes_filters(reader):
        raise DataError(f"source {type(source).name()} implements pushFilters, which Spark did not call.")
    return reader


def _pushed_reader(pickles: Sequence[bytes]) -> DataSourceReader | None:
    """The reader on which Spark's planner has called `pushFilters`; None if it did not, or there is nothing to call."""
    if len(pickles) < 2:
        return None
    function, _ = pickle.loads(pickles[1])
    # PySpark sends the reader only inside of its read function.
    cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
    reader: DataSourceReader = cells["reader"].cell_contents
    return reader if _takes_filters(reader) else None


def _takes_filters(reader: DataSourceReader) -> bool:
    from pyspark.sql.datasource import DataSourceReader

    return getattr(type(reader), "pushFilters", None) is not getattr(DataSourceReader, "pushFilters", None)


def _partitions(reader: DataSourceReader) -> Sequence[InputPartition]:
    try:
        return reader.partitions()
    except NotImplementedError:
        # What PySpark's base class raises: one task reads everything.
        return ()


# ------------------------------------------------------------------------------------------- reading


class DataSourceRows:
    """A `SplitReader` that calls the data source's reader and checks its rows as Spark does."""

    def __init__(self, scan: SourceScan) -> None:
        self._pickles = scan.reader.startswith((HERE, CODE))
        try:
            self._source, self._schema = _open(scan.reader)
            pushed = _pushed_reader(_pickles(scan.reader))
            self._reader = pushed or _make_reader(self._source, self._schema)
            if pushed is None:
                self._schema = push_down(self._reader, scan, self._schema)
        except VolleyError:
            raise
        except Exception as error:
            raise DataError(f"source {scan.name}: {type(error).__name__}: {error}") from error

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        # Use Spark's own conversion and checks: batches pass through, rows are converted.
        from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

        partition = decode(split, self._pickles)
        try:
            rows = self._reader.read(partition)
            if not isinstance(rows, Iterator):
                raise TypeError(f"read() returned {type(rows).__name__} instead of an iterator")
            for batch in records_to_arrow_batches(rows, _ROWS_PER_BATCH, self._schema, self._source):
                yield batch.select(list(columns))
        except GeneratorExit:
            raise
        except Exception as error:
            # A DataError makes the query run on Spark, which then raises its own error.
            name = type(self._source).name()
            raise DataError(f"source {name}: {type(error).__name__}: {error}") from error


# ---------------------------------------------------------------------------------------- partitions


def encode(partition: InputPartition, pickles: bool) -> bytes:
    if pickles:
        from pyspark import cloudpickle

        pickled: bytes = cloudpickle.dumps(partition)  # type: ignore[no-untyped-call]  # it has no types
        return pickled
    from pyspark.sql.datasource import InputPartition

    kind = type(partition)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise NotPortable(f"workers cannot import the partition class {kind.__qualname__}")
    if not declares(kind.__module__, kind.__qualname__, InputPartition):
        raise NotPortable(f"workers cannot find a class statement of the partition class {kind.__qualname__}")
    try:
        fields = {name: to_plain(value) for name, value in vars(partition).items()}
    except TypeError as error:
        raise NotPortable(f"a partition holds {error}, which has no plain form") from error
    return json.dumps({"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}).encode()


def decode(payload: bytes, pickles: bool) -> InputPartition:
    from pyspark.sql.datasource import InputPartition

    if pickles:
        partition: InputPartition = pickle.loads(payload)
        return partition
    words = json.loads(payload)
    kind = _import_class(words["class"], InputPartition)
    made: InputPartition = object.__new__(kind)
    vars(made).update({name: from_plain(value) for name, value in words["fields"].items()})
    return made
