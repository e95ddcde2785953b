# SPDX-License-Identifier: Apache-2.0
"""Decodes the operators of session windows.

Each row brings a session of its own, from its time to its time plus the gap. Sessions of a group that overlap or touch
are one. Native plans find them with windows over the rows of a group, in the order of their start:

    reached    max(end) over (rows before)                 how far the sessions before this row go
    begins     1 if reached is NULL or start > reached     the row begins a new session
    number     sum(begins) over (range to the row)         equal for all rows of a session
    session    min(start), max(end) over (number)

Spark merges sessions while it aggregates (`MergingSessionsExec`) or before that (`UpdatingSessionsExec`). Here it is
always before, over rows.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from volley.errors import CaptureError
from volley.plan import synthetic_ids
from volley.plan.decode_nodes import Operator, decodes, unknown
from volley.plan.expressions import (
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    Expression,
    Frame,
    Literal,
    SortKey,
    WindowCall,
    attribute_of,
)
from volley.plan.nodes import Aggregate, Exchange, Node, Project, Sort, Window
from volley.plan.types import BOOLEAN, INTEGER, LONG, STRING, StructType

_ids = itertools.count(synthetic_ids.SESSION)


@decodes("UpdatingSessionsExec")
def _updating_sessions(operator: Operator) -> Node:
    (child,) = operator.children
    session = attribute_of(operator.one("sessionExpression"))
    keys = tuple(attribute_of(key) for key in operator.all("groupingExpression"))
    return _merge_sessions(child, tuple(key for key in keys if key.id != session.id), session)


@decodes("MergingSessionsExec")
def _merging_sessions(operator: Operator) -> Node:
    """Between the two halves of an aggregate: one that reads rows, whose sessions are merged already."""
    (child,) = operator.children
    session = attribute_of(operator.one("sessionExpression"))
    below = child
    exchange: Exchange | None = None
    while isinstance(below, Sort | Exchange):
        exchange = below if isinstance(below, Exchange) else exchange
        below = below.child
    if not isinstance(below, Aggregate) or not all(call.mode.reads_rows for call in below.calls):
        return unknown(operator)
    groups = tuple(attribute_of(key) for key in below.grouping)
    computed = tuple(key for key in below.grouping if isinstance(key, Alias))
    rows: Node = Project((*below.child.output, *computed), below.child) if computed else below.child
    if exchange is not None:
        rows = replace(exchange, child=rows)
    merged = _merge_sessions(rows, tuple(group for group in groups if group.id != session.id), session)
    results = operator.all("resultExpressions")
    return Aggregate(groups, below.calls, results[len(groups) :], results, merged)


def _merge_sessions(rows: Node, keys: tuple[Expression, ...], session: Attribute) -> Node:
    """The rows with the whole session in the place of their own."""
    if not isinstance(session.type, StructType) or len(session.type.fields) != len(_FIELDS):
        raise CaptureError(f"a session of type {session.type} is not readable.")
    start, end = (
        Call("GetStructField", (session,), field.type, options=(("ordinal", place), ("name", field.name)))
        for place, field in enumerate(session.type.fields)
    )
    order = (SortKey(start, ascending=True, nulls_first=True),)
    before = Frame(rows=True, lower=None, upper=Literal(-1, INTEGER))
    reached, rows = _window(rows, WindowCall(_total("Max", end), keys, order, before))
    begins = Call(
        "Or",
        (Call("IsNull", (reached,), BOOLEAN), Call("GreaterThan", (start, reached), BOOLEAN)),
        BOOLEAN,
    )
    one, zero = Literal(1, LONG), Literal(0, LONG)
    counted = _total("Sum", Call("If", (begins, one, zero), LONG))
    # A range: rows with one start are of one session, whichever of them comes first.
    number, rows = _window(
        rows, WindowCall(counted, keys, order, Frame(rows=False, lower=None, upper=Literal(0, INTEGER)))
    )
    everything = Frame(rows=True, lower=None, upper=None)
    first, rows = _window(rows, WindowCall(_total("Min", start), (*keys, number), (), everything))
    last, rows = _window(rows, WindowCall(_total("Max", end), (*keys, number), (), everything))
    names = [Literal(field.name, STRING) for field in session.type.fields]
    whole = Call("CreateNamedStruct", (names[0], first, names[1], last), session.type)
    added = {reached.id, number.id, first.id, last.id}
    columns = [
        Alias(session.id, session.name, whole) if column.id == session.id else column
        for column in rows.output
        if column.id not in added
    ]
    return Project(tuple(columns), rows)


_FIELDS = ("start", "end")


def _total(function: str, value: Expression) -> AggregateCall:
    call = Call(function, (value,), value.type)
    return AggregateCall(call, AggregateMode.COMPLETE, distinct=False, filter=None, result_id=next(_ids))


def _window(rows: Node, call: WindowCall) -> tuple[Attribute, Node]:
    alias = Alias(next(_ids), "session", call)
    return attribute_of(alias), Window((alias,), rows)
