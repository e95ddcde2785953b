# SPDX-License-Identifier: Apache-2.0
"""Calls of programs in a plan, and how tasks evaluate them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from volley.identity_cache import once_per_object
from volley.jvm.signature import Signature
from volley.jvm.worker_jvm import SerializedProgram
from volley.plan.expressions import Call, walk
from volley.plan.nodes import FeedInput, Node, expressions
from volley.plan.nodes import walk as walk_nodes
from volley.plan.types import DataType

Evaluate = Callable[[Sequence[pa.Array]], pa.Array]


@dataclass(frozen=True)
class ProgramCall:
    """The program of a call: a number in this process, or its serialized content."""

    program: int | SerializedProgram
    arguments: tuple[DataType, ...]
    result: DataType

    @classmethod
    def of(cls, call: Call) -> ProgramCall | None:
        """None for a call without a program."""
        types = tuple(argument.type for argument in call.arguments)
        match call.option("program"):
            case int(number):
                return cls(number, types, call.type)
            case bytes(content):
                width = call.option("width")
                assert isinstance(width, int)
                versions, environment, query = (
                    str(call.option(name)) for name in ("versions", "environment", "query")
                )
                return cls(SerializedProgram(content, versions, environment, query), types[:width], call.type)
            case _:
                return None

    @property
    def name(self) -> str:
        """A name that is unique among the programs of this process."""
        program = self.program
        return str(program) if isinstance(program, int) else f"{program.digest.hex()[:16]}_{program.query}"

    def evaluator(self, *, of_groups: bool = False) -> Evaluate:
        """The function from columns to results; from one column of lists of rows with `of_groups`."""
        if isinstance(self.program, int):
            # Only a driver has such programs. Workers may not even have PySpark.
            from volley.jvm.programs import evaluate

            return partial(evaluate, self.program)
        from volley.jvm.worker_jvm import shared_jvms

        make = Signature.of_rows_in_groups if of_groups else Signature.of_rows
        program, signature = self.program, make(self.arguments, self.result)
        return lambda columns: shared_jvms().evaluate(program, signature, columns)


@once_per_object
def serialized_programs(plan: Node) -> tuple[SerializedProgram, ...]:
    """The programs that a plan carries."""
    return tuple(_serialized_programs(plan))


def _serialized_programs(plan: Node) -> Iterator[SerializedProgram]:
    for node in walk_nodes(plan):
        if isinstance(node, FeedInput):
            yield from _serialized_programs(node.plan)
        for expression in expressions(node):
            for part in walk(expression):
                if isinstance(part, Call) and isinstance(part.option("program"), bytes):
                    call = ProgramCall.of(part)
                    assert call is not None
                    assert isinstance(call.program, SerializedProgram)
                    yield call.program
