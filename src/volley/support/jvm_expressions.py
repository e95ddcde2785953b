# SPDX-License-Identifier: Apache-2.0
"""Chooses what Spark's own code evaluates inside a native plan.

Of an expression without a native form the smallest part is taken whose value the native engine can carry. Everything
below it goes along, so that Spark's code decides which branches it evaluates, and what the part reads are columns:

    concat(date_format(t, 'E'), '!')          ->   concat(JvmExpression[date_format](t), '!')
    size(map_keys(map(a, b)))                 ->   size(JvmExpression[map_keys](a, b))
    date_format(t, 'E') || date_format(u, 'E')     both in one crossing

Several of them in one projection are one program, so that its rows cross once:

    date_format(t, 'E'), soundex(s)           ->   f0 and f1 of JvmExpression[date_format, soundex](t, s)

Some calls are native for most values only, such as casts of text in a plain form; Spark's code computes them for the
other rows.

An aggregate function without a native form is computed by Spark's code from the rows of each group:

    hll_sketch_agg(a + b)                     ->   JvmAggregate[hll_sketch_agg](a, b)

Where a branch must not be evaluated, native CASE, AND and OR guard such a part like any other that may fail.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from volley.plan.expressions import (
    JVM_AGGREGATES,
    JVM_EXPRESSION,
    JVM_FIELD,
    AggregateCall,
    AggregateMode,
    Attribute,
    Call,
    Expression,
    InSubquery,
    Literal,
    Options,
    ScalarSubquery,
    WindowCall,
    children,
    conjuncts,
    struct_of,
    transform,
    walk,
    with_children,
)
from volley.plan.nodes import FileScan, Node, Project, SourceScan, Unknown, map_expressions
from volley.plan.nodes import with_children as with_inputs
from volley.plan.types import BOOLEAN
from volley.support.aggregates import check_function
from volley.support.expressions import check_expression, check_itself
from volley.support.jvm_aggregates import is_exact_in_jvm, program_kind
from volley.support.partly_native import is_partly_native


class Preparation(Protocol):
    """Makes programs, for expressions of the captured plan and what they read."""

    def prepare(self, call: Call, read: Sequence[Expression]) -> Options | str:
        """The options of a call that name a program, or why there is none. Equal expressions have equal ones."""

    def prepare_together(self, calls: Sequence[Call], read: Sequence[Expression]) -> Options | str:
        """The same for several expressions, whose values are the fields of a struct."""

    def prepare_aggregate(
        self, function: Call, read: Sequence[Expression], *, complete: bool
    ) -> Options | str:
        """The same for an aggregate function, which computes its values from groups of rows.

        If it is `complete`, the state of the rows is not merged into another one.
        """

    def defer(self, key: Hashable, call: Call, read: Sequence[Expression]) -> Options | None:
        """The options for a program that will rarely run; None if there can be none. Equal keys have equal ones."""


# A program without arguments needs a column for the number of rows.
_ANY_COLUMN = Literal(True, BOOLEAN)


def delegate_to_jvm(plan: Node, programs: Preparation, replaced: Callable[[Node, Node], None]) -> Node:
    """The plan with a `JvmExpression` for each part that has no native form and can be prepared.

    `replaced` is told of every node that has become another. Expressions that the JVM cannot evaluate stay.
    """
    return _Delegation(programs, replaced).node(plan)


def delegated(expression: Expression) -> Iterator[Call]:
    """The parts of an expression that the JVM evaluates."""
    for part in walk(expression):
        if isinstance(part, Call) and (part.function == JVM_EXPRESSION or part.function in JVM_AGGREGATES):
            yield part


class _Delegation:
    def __init__(self, programs: Preparation, replaced: Callable[[Node, Node], None]) -> None:
        self._programs = programs
        self._replaced = replaced
        # Parts of a plan often stand in several places. Keyed by identity, so references to them are held.
        self._rewritten: dict[tuple[int, bool], tuple[Expression, Expression, bool]] = {}
        self._subqueries: dict[int, tuple[Node, Node]] = {}
        # What each delegated call was made of. Calls over different columns may have one program.
        self._sources: dict[Call, _Source] = {}

    def node(self, old: Node) -> Node:
        below = tuple(self.node(child) for child in old.children)
        new = old
        if any(mine is not theirs for mine, theirs in zip(below, old.children, strict=True)):
            new = with_inputs(old, below)
        if isinstance(old, FileScan | SourceScan | Unknown):
            # The filters of a scan only prune, but a subquery in them is one with that in a filter above.
            new = map_expressions(new, lambda expression: transform(expression, self._rewrite_subquery))
        else:
            new = map_expressions(new, lambda expression: self._rewrite(expression)[0])
        if isinstance(new, Project):
            new = self._join_crossings(new)
        if new is not old:
            self._replaced(old, new)
        return new

    def _join_crossings(self, node: Project) -> Node:
        """One call for all that the JVM evaluates for every row."""
        calls = list(dict.fromkeys(call for part in node.expressions for call in _always_evaluated(part)))
        if not 1 < len(calls) <= _MOST_TOGETHER:
            return node
        sources = [self._sources[call] for call in calls]
        found: dict[tuple[type, int], tuple[Expression, Expression]] = {}
        for source in sources:
            for leaf, argument in zip(source.read, source.arguments, strict=True):
                if found.setdefault((type(leaf), leaf.id), (leaf, argument))[0].type != leaf.type:
                    return node
        program = self._programs.prepare_together(
            [source.call for source in sources], [leaf for leaf, _ in found.values()]
        )
        if isinstance(program, str):
            return node
        whole = Call(
            JVM_EXPRESSION,
            tuple(argument for _, argument in found.values()) or (_ANY_COLUMN,),
            struct_of(calls),
            None,
            (*program, ("name", ", ".join(source.call.function for source in sources))),
        )
        parts: dict[Expression, Expression] = {
            call: Call(JVM_FIELD, (whole,), call.type, options=(("ordinal", place),))
            for place, call in enumerate(calls)
        }
        return map_expressions(
            node, lambda expression: transform(expression, lambda part: parts.get(part, part))
        )

    def _rewrite(self, old: Expression, *, evaluated: bool = True) -> tuple[Expression, bool]:
        """The expression, and whether all of it has a native form now.

        Without `evaluated` it is an aggregate or window function, whose operator evaluates it.
        """
        key = (id(old), evaluated)
        if key not in self._rewritten:
            self._rewritten[key] = (old, *self._rewrite_anew(old, evaluated))
        return self._rewritten[key][1:]

    def _rewrite_anew(self, old: Expression, evaluated: bool) -> tuple[Expression, bool]:
        if isinstance(old, Call) and old.function == "LambdaFunction":
            # A part of it would read the lambda's variables, which are no columns.
            return old, not check_expression(old)
        below = children(old)
        over = isinstance(old, AggregateCall | WindowCall)
        parts = [
            self._rewrite(child, evaluated=not (over and number == 0)) for number, child in enumerate(below)
        ]
        new = old
        if any(part is not child for (part, _), child in zip(parts, below, strict=True)):
            new = with_children(old, [part for part, _ in parts])
        new = self._rewrite_subquery(new)
        native = all(is_native for _, is_native in parts)
        if not evaluated:
            return new, native
        if isinstance(old, AggregateCall) and isinstance(new, AggregateCall):
            return self._rewrite_aggregate(old, new, native)
        if not isinstance(old, Call):
            return new, native and check_itself(new) is None
        native = native and check_itself(new) is None
        if native and not _crosses_often(new):
            return self._with_fallback(old, new), True
        if (call := self._delegate(old)) is not None:
            return call, True
        return new, native

    def _rewrite_aggregate(
        self, old: AggregateCall, new: AggregateCall, native: bool
    ) -> tuple[Expression, bool]:
        is_native = native and not any(True for _ in check_function(new.function, new.distinct))
        if is_native and not is_exact_in_jvm(old):
            return new, native
        function = self._delegate_aggregate(old)
        if function is None:
            return new, native
        return replace(new, function=function), not (new.filter and check_expression(new.filter))

    def _with_fallback(self, old: Call, new: Expression) -> Expression:
        """A call that is native for most values, with a program for the others."""
        if not is_partly_native(old):
            return new
        read = [argument for argument in old.arguments if not isinstance(argument, Literal)]
        constants = tuple(argument for argument in old.arguments if isinstance(argument, Literal))
        kinds = tuple((argument.type, getattr(argument, "nullable", True)) for argument in read)
        program = self._programs.defer(
            (old.function, old.type, old.mode, old.options, kinds, constants), old, read
        )
        if program is None or not isinstance(new, Call):
            return new
        return replace(new, options=(*new.options, *program))

    def _rewrite_subquery(self, part: Expression) -> Expression:
        if not isinstance(part, ScalarSubquery | InSubquery):
            return part
        if id(part.plan) not in self._subqueries:
            self._subqueries[id(part.plan)] = (part.plan, self.node(part.plan))
        plan = self._subqueries[id(part.plan)][1]
        return part if plan is part.plan else replace(part, plan=plan)

    def _delegate_aggregate(self, aggregate: AggregateCall) -> Call | None:
        call, kind = aggregate.function, program_kind(aggregate)
        source = self._source(call) if kind is not None else None
        if kind is None or source is None or not source.read:
            return None
        complete = aggregate.mode is AggregateMode.COMPLETE
        program = self._programs.prepare_aggregate(call, source.read, complete=complete)
        if isinstance(program, str):
            return None
        return Call(kind, source.arguments, call.type, None, (*program, ("name", call.function)))

    def _source(self, call: Call) -> _Source | None:
        """What a program for the call would read; None if there is something that is not carried natively."""
        if check_itself(Call(JVM_EXPRESSION, (_ANY_COLUMN,), call.type)) is not None:
            return None
        found: dict[tuple[type, int], Attribute | ScalarSubquery | InSubquery] = {}
        for leaf in _leaves(call):
            key = (type(leaf), leaf.id)
            if found.setdefault(key, leaf).type != leaf.type:
                return None
        read = tuple(found.values())
        arguments = [self._rewrite(leaf) for leaf in read]
        if not all(native for _, native in arguments):
            return None
        return _Source(call, read, tuple(part for part, _ in arguments))

    def _delegate(self, call: Call) -> Call | None:
        source = self._source(call)
        program = self._programs.prepare(call, source.read) if source is not None else ""
        if source is None or isinstance(program, str):
            return None
        options: Options = (*program, ("name", call.function))
        if inside := [part.function for part in walk(call) if isinstance(part, Call) and part is not call]:
            options = (*options, ("inside", ", ".join(inside)))
        made = Call(JVM_EXPRESSION, source.arguments or (_ANY_COLUMN,), call.type, None, options)
        self._sources[made] = source
        return made


@dataclass(frozen=True)
class _Source:
    """A call of the captured plan, the columns and subqueries that it reads, and what those are natively."""

    call: Call
    read: tuple[Attribute | ScalarSubquery | InSubquery, ...]
    arguments: tuple[Expression, ...]


# Generated code has limits, too.
_MOST_TOGETHER = 50
_LAZY = frozenset({"CaseWhen", "If", "Coalesce", "And", "Or"})


def _always_evaluated(expression: Expression) -> Iterator[Call]:
    """What the JVM evaluates of an expression for every row: no branch guards it."""
    if isinstance(expression, Call) and expression.function == JVM_EXPRESSION:
        yield expression
    elif not isinstance(expression, Call) or expression.function not in _LAZY:
        for child in children(expression):
            yield from _always_evaluated(child)


def _crosses_often(call: Expression) -> bool:
    """Whether rows would cross for several parts of a call, but only once if the JVM evaluated all of it.

    A condition that is partly native stays so: its native parts prune, and spare the JVM rows.
    """
    parts = tuple(conjuncts(call))
    if len(parts) == 1:
        parts = children(call)
        return sum(map(_crosses, parts)) > 1
    return all(map(_crosses, parts))


def _crosses(expression: Expression) -> bool:
    return any(True for _ in delegated(expression))


def _leaves(expression: Expression) -> Iterator[Attribute | ScalarSubquery | InSubquery]:
    """What an expression reads: columns, and the results of subqueries."""
    if isinstance(expression, Attribute | ScalarSubquery | InSubquery):
        yield expression
        return
    for child in children(expression):
        yield from _leaves(child)
