# SPDX-License-Identifier: Apache-2.0
"""Operators that call Python functions, and what a Python worker process is told before it gets rows.

The functions stay pickled. Only PySpark's own worker, in a process of its own, unpickles them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING

from volley.plan.expressions import Attribute, Expression
from volley.plan.types import StructField

if TYPE_CHECKING:
    from volley.plan.nodes import Node


class EvalType(IntEnum):
    """How the worker calls the functions. The numbers are those of PySpark's `PythonEvalType`."""

    ARROW_BATCHED = 101
    SCALAR_PANDAS = 200
    SCALAR_PANDAS_ITER = 204
    SCALAR_ARROW = 250
    SCALAR_ARROW_ITER = 251


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
class PythonProcess:
    """The process in which functions run: calls with equal processes can share one.

    `variables` are added to the environment. `broadcasts` are the ids and files of broadcast variables. `memory_mb`
    limits all processes of a worker together; None: no limit. A process that is not `reused` serves one stream of rows.
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

    def setting(self, name: str) -> str | None:
        return dict(self.settings).get(name)


@dataclass(frozen=True)
class PythonEval:
    """Adds one column for each call of `program` to the child's columns. The calls read `arguments`."""

    program: PythonProgram
    arguments: tuple[Expression, ...]
    results: tuple[Attribute, ...]
    child: Node

    @property
    def children(self) -> tuple[Node, ...]:
        return (self.child,)

    @cached_property
    def output(self) -> tuple[Attribute, ...]:
        return self.child.output + self.results
