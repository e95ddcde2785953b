# SPDX-License-Identifier: Apache-2.0
"""What lowering a fragment needs besides its plan: a session, the inputs, and an owner of temporary resources."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pyarrow.dataset as ds
from datafusion import DataFrame, Expr, SessionContext, col

from volley.lower.expressions import column_name
from volley.lower.streams import StreamTable
from volley.lower.symlink_tables import Link, link_files
from volley.plan.expressions import Attribute
from volley.plan.nodes import DataFile, FeedInput, PartitionedRows, StageInput
from volley.plan.python_nodes import PythonNode
from volley.plan.types import STRING, DataType, to_arrow

Streamed = StageInput | FeedInput | PartitionedRows | PythonNode
"""Nodes whose rows do not come from DataFusion. The worker gives them as streams."""

Inputs = Callable[[Streamed], StreamTable]


# Sessions are shared, so names must be unique in the process.
_numbers = count()


@dataclass(frozen=True)
class Scope:
    """`resources` owns what must live until the run has ended. `streams` is how many streams a scan should have."""

    context: SessionContext
    inputs: Inputs
    resources: ExitStack
    streams: int = 1
    links: list[Link] = field(default_factory=list)
    tables: list[tuple[StageInput, StreamTable]] = field(default_factory=list)
    """What is read of other stages."""

    def link(self, files: Sequence[DataFile], suffix: str) -> str:
        """A directory with links to the files."""
        self.links.append(link_files(files, suffix, self.resources))
        return self.links[-1].directory

    def arrow(self, table: pa.Table) -> DataFrame:
        """A table in memory."""
        name = _new_name()
        frame = self.context.from_arrow(table, name)
        # The frame holds the table; the session no longer needs the name.
        self.context.deregister_table(name)
        return frame

    def batches(self, partitions: list[list[pa.RecordBatch]]) -> DataFrame:
        """A table in memory, with a stream for each partition."""
        name = _new_name()
        self.context.register_record_batches(name, partitions)
        frame = self.context.table(name)
        self.context.deregister_table(name)
        return frame

    def dataset(self, dataset: ds.Dataset) -> DataFrame:
        return dataset_frame(self.context, dataset)

    def view(self, frame: DataFrame) -> str:
        """Name the frame, for the few operators that DataFusion has only in SQL."""
        name = _new_name()
        self.context.register_view(name, frame)
        self.resources.callback(self.context.deregister_table, name)
        return name


def dataset_frame(context: SessionContext, dataset: ds.Dataset) -> DataFrame:
    """The dataset as a frame. It does not stay registered in the session."""
    name = _new_name()
    context.register_dataset(name, dataset)
    frame = context.table(name)
    context.deregister_table(name)
    return frame


def _new_name() -> str:
    return f"volley_{next(_numbers)}"


def column(attribute: Attribute) -> Expr:
    return col(column_name(attribute.id))


def distinct(attributes: Iterable[Attribute]) -> list[Attribute]:
    """Each id once, at its first position: a relation inside the engine never repeats a column."""
    return list({attribute.id: attribute for attribute in attributes}.values())


def arrow_schema(attributes: Iterable[Attribute]) -> pa.Schema:
    """The schema of these columns between operators and between stages."""
    return pa.schema([pa.field(column_name(a.id), to_arrow(a.type)) for a in distinct(attributes)])


def read_schema(attributes: Iterable[Attribute]) -> pa.Schema:
    """The schema of these columns when read from files: strings are views, which need no copy of the pages."""
    return pa.schema([pa.field(column_name(a.id), read_type(a.type)) for a in distinct(attributes)])


def read_type(data_type: DataType) -> pa.DataType:
    return pa.string_view() if data_type == STRING else to_arrow(data_type)
