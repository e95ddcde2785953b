# SPDX-License-Identifier: Apache-2.0
"""What each kind of Python operator sends to a worker, and how it makes rows of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from volley.lower.scope import arrow_schema, distinct
from volley.plan import own_ids
from volley.plan.expressions import Alias, Attribute, Expression
from volley.plan.nodes import Node, Project, PythonEval
from volley.plan.python_nodes import PythonProgram
from volley.worker.python.batching import Alignment, arguments_of, check_size, cut, worker_schema
from volley.worker.python.program_run import Outgoing


class Conversion(Protocol):
    """One stream of rows. One thread calls `send`, another one `receive` and `finish`."""

    def send(self, rows: Iterable[pa.RecordBatch], out: Outgoing) -> None:
        """Send all rows of the plan below."""

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The rows of the operator that these results complete."""

    def finish(self) -> None:
        """All results have come. Raises DataError if some are missing."""


@dataclass(frozen=True)
class Converted:
    """An operator, ready to run: the plan below it, its program, and a conversion for each stream of rows."""

    plan: Node
    program: PythonProgram
    schema: pa.Schema
    conversion: Callable[[], Conversion]


def convert(node: PythonEval) -> Converted:
    plan, columns = _with_arguments(node.child, node.arguments)
    kept = len(distinct(node.child.output))
    schema = arrow_schema(node.output)
    return Converted(plan, node.program, schema, lambda: _Eval(node.program, columns, kept, schema))


def _with_arguments(child: Node, arguments: tuple[Expression, ...]) -> tuple[Node, list[int]]:
    """The child's columns followed by computed arguments, and the position of each argument among them."""
    columns: list[Expression] = list(distinct(child.output))
    places = {attribute.id: place for place, attribute in enumerate(distinct(child.output))}
    found = []
    for number, argument in enumerate(arguments):
        if isinstance(argument, Attribute):
            found.append(places[argument.id])
        else:
            found.append(len(columns))
            columns.append(Alias(own_ids.PYTHON_ARGUMENT + number, "argument", argument))
    return Project(tuple(columns), child), found


class _Eval:
    """Functions of rows: the results stand beside the rows that they were computed from."""

    def __init__(self, program: PythonProgram, columns: list[int], kept: int, schema: pa.Schema) -> None:
        self._program = program
        self._columns = columns
        self._schema = worker_schema(program)
        self._alignment = Alignment(kept, schema)

    def send(self, rows: Iterable[pa.RecordBatch], out: Outgoing) -> None:
        out.stream(self._schema, self._batches(rows))

    def receive(self, results: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        return self._alignment.match(results)

    def finish(self) -> None:
        self._alignment.finish()

    def _batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for group in cut(rows, self._program.batch_rows):
            # Before they are sent: their results may be back at once.
            self._alignment.add(group)
            yield check_size(arguments_of(group, self._columns, self._schema), self._program)
