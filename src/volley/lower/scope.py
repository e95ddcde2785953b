"""What the lowering of one fragment needs besides the plan: a session, its inputs, and who cleans up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count

import pyarrow as pa
import pyarrow.dataset as ds
from datafusion import DataFrame, Expr, SessionContext, col

from volley.lower.expressions import column_name
from volley.plan.expressions import Attribute
from volley.plan.nodes import FeedInput, StageInput
from volley.plan.types import to_arrow

Inputs = Callable[[StageInput | FeedInput], ds.Dataset]


@dataclass(frozen=True)
class Scope:
    """`resources` owns what must outlive the run and be removed after it (directories of links)."""

    context: SessionContext
    inputs: Inputs
    resources: ExitStack
    _names: count[int] = field(default_factory=count)

    def new_name(self) -> str:
        """A table name that nothing else in this fragment has."""
        return f"t{next(self._names)}"

    def view(self, frame: DataFrame) -> str:
        """The frame under a name, for the few operators that DataFusion offers in SQL alone."""
        name = self.new_name()
        self.context.register_view(name, frame)
        return name


def column(attribute: Attribute) -> Expr:
    return col(column_name(attribute.id))


def distinct(attributes: Iterable[Attribute]) -> list[Attribute]:
    """Each id once, at its first place: a relation inside the engine never repeats a column."""
    return list({attribute.id: attribute for attribute in attributes}.values())


def arrow_schema(attributes: Iterable[Attribute]) -> pa.Schema:
    """The schema under which these columns travel between operators and between stages."""
    return pa.schema([pa.field(column_name(a.id), to_arrow(a.type)) for a in distinct(attributes)])
