# SPDX-License-Identifier: Apache-2.0
"""PySpark's Python data sources as split sources: what a reader discovers are the splits, what it reads are the rows.

    class Reader(DataSourceReader):
        def discover(self):             # ours: partitions one by one, as they are found; may be an async generator
            ...
        def partitions(self):           # Spark's: all of them
            return list(self.discover())
        def read(self, partition):
            ...
        def prune(self, filters):       # ours, if it likes, and called before the others: see `splits.conditions`
            ...
        def select(self, columns):
            ...

A source without `discover` gives what its `partitions` returns. A partition may have attributes `size_bytes`, `rows`
and `hosts`, which are then the hints of its split.

How a process comes by the source is the `reader` of a `SourceScan`:

    here:<digest>:<schema>                     an object that this process has: the driver with its own workers
    {"class": "module:name", "options": ...}   a class that every worker imports: nothing that travels is code

Partitions travel accordingly: pickled where they do not leave the process, as plain JSON where they do.
"""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volley.errors import DataError, QueryError, VolleyError
from volley.plan.expressions import Expression
from volley.plan.local_registry import held
from volley.plan.nodes import HERE, Node, SourceScan, transform
from volley.plan.subqueries import with_subqueries
from volley.splits.conditions import tell
from volley.splits.declared import declares
from volley.splits.plain import from_plain, to_plain
from volley.splits.source import Estimate, Split

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
    from pyspark.sql.types import StructType

_ROWS_A_BATCH = 10_000


class NotPortable(QueryError):
    """A source or a partition that cannot be described to another process in plain words."""

    code = "DATA_SOURCE_NOT_PORTABLE"


# ---------------------------------------------------------------------------------------- references


def portable(reference: str) -> str:
    """The reference for other processes; NotPortable, with the reason, where there is none."""
    if not reference.startswith(HERE):
        return reference
    from pyspark.sql.datasource import DataSource

    source, schema = _opened(reference)
    kind = type(source)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise NotPortable(f"class {kind.__qualname__} is not in a module that workers can import")
    try:
        found = _imported(f"{kind.__module__}:{kind.__qualname__}", DataSource)
    except NotPortable:
        raise
    except Exception as error:
        raise NotPortable(f"class {kind.__qualname__} cannot be imported: {error}") from error
    if found is not kind:
        raise NotPortable(f"{kind.__module__}.{kind.__qualname__} is another class when it is imported")
    options = {str(key): str(value) for key, value in dict(source.options).items()}
    description = {"class": f"{kind.__module__}:{kind.__qualname__}", "options": options}
    return json.dumps(description | {"schema": schema.json()}, sort_keys=True)


def portable_plan(plan: Node) -> Node:
    """The plan with every data source named in words that travel; NotPortable where one has none."""

    def travelling(node: Node) -> Node:
        return replace(node, reader=portable(node.reader)) if isinstance(node, SourceScan) else node

    return with_subqueries(transform(plan, travelling), portable_plan)


def _opened(reference: str) -> tuple[DataSource, StructType]:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    if reference.startswith(HERE):
        digest, _, schema = reference.removeprefix(HERE).partition(":")
        pickled = held(digest)
        if pickled is None:
            raise QueryError("a data source of the driver's process was asked for elsewhere, or too late.")
        # What the driver's own program pickled for the driver: Spark's planner does the same with it.
        return pickle.loads(pickled), StructType.fromJson(json.loads(schema))
    words = json.loads(reference)
    kind = _imported(words["class"], DataSource)
    return kind(words["options"]), StructType.fromJson(json.loads(words["schema"]))


def _imported(name: str, base: type) -> Any:
    """A class by its name, of the kind `base`. Nothing else can be named, so no word of a peer calls anything else, and
    no module is imported that does not declare such a class."""
    module, _, qualname = name.partition(":")
    if not declares(module, qualname, base):
        raise NotPortable(f"{name} is not a class statement of a {base.__name__}")
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise NotPortable(f"{name} is not a {base.__name__}")
    return found


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
        return _arrow(_opened(self._reference)[1])

    def splits(self) -> Iterator[Split] | AsyncIterator[Split]:
        # Here and not earlier: all of the user's code runs on the thread of discovery.
        source, schema = _opened(self._reference)
        self._reader = reader = _reader(source, schema)
        tell(reader, self._scan, schema)
        discover = getattr(reader, "discover", None)
        found = discover() if discover is not None else iter(_partitions(reader))
        return self._later(found) if isinstance(found, AsyncIterator) else self._now(found)

    def estimate(self) -> Estimate:
        return Estimate(self._found, self._found_bytes, self._final)

    def close(self) -> None:
        close = getattr(self._reader, "close", None)
        if close is not None:
            close()

    def _now(self, partitions: Iterator[Any]) -> Iterator[Split]:
        for partition in partitions:
            yield self._split(partition)
        yield from self._last()

    async def _later(self, partitions: AsyncIterator[Any]) -> AsyncIterator[Split]:
        async for partition in partitions:
            yield self._split(partition)
        for split in self._last():
            yield split

    def _last(self) -> Iterator[Split]:
        from pyspark.sql.datasource import InputPartition

        if not self._found:
            # Spark reads a source without partitions once, without one.
            yield self._split(InputPartition(None))
        self._final = True

    def _split(self, partition: Any) -> Split:
        from pyspark.sql.datasource import InputPartition

        if not isinstance(partition, InputPartition):
            raise TypeError(f"it discovered {type(partition).__name__} where an InputPartition was expected")
        size_bytes = getattr(partition, "size_bytes", None)
        self._found += 1
        self._found_bytes += size_bytes or 0
        return Split(
            encode(partition, self._reference.startswith(HERE)),
            size_bytes,
            tuple(getattr(partition, "hosts", ())),
        )


def _reader(source: DataSource, schema: StructType) -> DataSourceReader:
    from pyspark.sql.datasource import DataSourceReader

    reader = source.reader(schema)
    if not isinstance(reader, DataSourceReader):
        raise DataError(f"source {type(source).name()} has no DataSourceReader.")
    if type(reader).pushFilters is not DataSourceReader.pushFilters:
        raise DataError(f"source {type(source).name()} takes filters from Spark.")
    return reader


def _partitions(reader: DataSourceReader) -> Sequence[InputPartition]:
    try:
        return reader.partitions()
    except NotImplementedError:
        return ()


# ------------------------------------------------------------------------------------------- reading


class DataSourceRows:
    """A `SplitReader` that asks the data source's own reader, and checks what it gives as Spark does."""

    def __init__(self, scan: SourceScan) -> None:
        self._here = scan.reader.startswith(HERE)
        try:
            self._source, self._schema = _opened(scan.reader)
            self._reader = _reader(self._source, self._schema)
            self._schema = tell(self._reader, scan, self._schema)
        except VolleyError:
            raise
        except Exception as error:
            raise DataError(f"source {scan.name}: {type(error).__name__}: {error}") from error

    def read(
        self, split: bytes, columns: Sequence[str], filters: Sequence[Expression]
    ) -> Iterator[pa.RecordBatch]:
        # Spark's own conversion and checks: batches pass through, rows are converted as Spark converts them.
        from pyspark.sql.worker.plan_data_source_read import records_to_arrow_batches

        partition = decode(split, self._here)
        try:
            rows = self._reader.read(partition)
            if not isinstance(rows, Iterator):
                raise TypeError(f"read gave {type(rows).__name__} where an iterator was expected")
            for batch in records_to_arrow_batches(rows, _ROWS_A_BATCH, self._schema, self._source):
                yield batch.select(list(columns))
        except GeneratorExit:
            raise
        except Exception as error:
            # Spark is asked what it makes of it, and says so in its own words.
            name = type(self._source).name()
            raise DataError(f"source {name}: {type(error).__name__}: {error}") from error


def _arrow(schema: StructType) -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


# ---------------------------------------------------------------------------------------- partitions


def encode(partition: InputPartition, here: bool) -> bytes:
    if here:
        from pyspark import cloudpickle

        pickled: bytes = cloudpickle.dumps(partition)  # type: ignore[no-untyped-call]  # it has no types
        return pickled
    from pyspark.sql.datasource import InputPartition

    kind = type(partition)
    if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
        raise NotPortable(f"partitions of {kind.__qualname__} are not of a class that workers can import")
    if not declares(kind.__module__, kind.__qualname__, InputPartition):
        raise NotPortable(f"partitions of {kind.__qualname__} have no class statement that workers can find")
    try:
        fields = {name: to_plain(value) for name, value in vars(partition).items()}
    except TypeError as error:
        raise NotPortable(f"a partition holds {error}, which has no plain form") from error
    return json.dumps({"class": f"{kind.__module__}:{kind.__qualname__}", "fields": fields}).encode()


def decode(payload: bytes, here: bool) -> InputPartition:
    from pyspark.sql.datasource import InputPartition

    if here:
        partition: InputPartition = pickle.loads(payload)
        return partition
    words = json.loads(payload)
    kind = _imported(words["class"], InputPartition)
    made: InputPartition = object.__new__(kind)
    vars(made).update({name: from_plain(value) for name, value in words["fields"].items()})
    return made
