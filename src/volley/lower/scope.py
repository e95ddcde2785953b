# SPDX-License-Identifier: Apache-2.0
"""What the lowering of one fragment needs besides the plan: a session, its inputs, and who cleans up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count

import pyarrow as pa
import pyarrow.dataset as ds
from datafusion import DataFrame, Expr, SessionContext, col

from volley.lower.expressions import column_name
from volley.plan.expressions import Attribute
from volley.plan.nodes import FeedInput, StageInput
from volley.plan.types import STRING, DataType, to_arrow

Inputs = Callable[[StageInput | FeedInput], ds.Dataset]


# Sessions are shared, so names must differ throughout the process.
_numbers = count()


@dataclass(frozen=True)
class Scope:
    """`resources` owns what must outlive the run and be removed after it."""

    context: SessionContext
    inputs: Inputs
    resources: ExitStack

    def arrow(self, table: pa.Table) -> DataFrame:
        """A table in memory."""
        name = _new_name()
        frame = self.context.from_arrow(table, name)
        # The frame has the table itself; the session need not know its name any more.
        self.context.deregister_table(name)
        return frame

    def dataset(self, dataset: ds.Dataset) -> DataFrame:
        return dataset_frame(self.context, dataset)

    def view(self, frame: DataFrame) -> str:
        """The frame under a name, for the few operators that DataFusion offers in SQL alone."""
        name = _new_name()
        self.context.register_view(name, frame)
        self.resources.callback(self.context.deregister_table, name)
        return name


def dataset_frame(context: SessionContext, dataset: ds.Dataset) -> DataFrame:
    """The dataset as a table, which the session forgets at once."""
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
    """Each id once, at its first place: a relation inside the engine never repeats a column."""
    return list({attribute.id: attribute for attribute in attributes}.values())


def arrow_schema(attributes: Iterable[Attribute]) -> pa.Schema:
    """The schema under which these columns travel between operators and between stages."""
    return pa.schema([pa.field(column_name(a.id), to_arrow(a.type)) for a in distinct(attributes)])


def read_schema(attributes: Iterable[Attribute]) -> pa.Schema:
    """The schema under which these columns come out of files: strings as views, which pages give without copying."""
    return pa.schema([pa.field(column_name(a.id), read_type(a.type)) for a in distinct(attributes)])


def read_type(data_type: DataType) -> pa.DataType:
    return pa.string_view() if data_type == STRING else to_arrow(data_type)
