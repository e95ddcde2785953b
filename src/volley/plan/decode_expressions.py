# SPDX-License-Identifier: Apache-2.0
"""Decodes Catalyst expressions: one small function for each class that needs its own.

An entry is `[class, type, ...]`. It refers to its children by their index among the entries decoded before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from itertools import chain
from typing import Any, cast

from volley.errors import CaptureError
from volley.plan.expressions import (
    CURRENT_ROW,
    AggregateCall,
    AggregateMode,
    Alias,
    Attribute,
    Call,
    EvalMode,
    Expression,
    Frame,
    InSubquery,
    Literal,
    Scalar,
    ScalarSubquery,
    SortKey,
    WindowCall,
)
from volley.plan.nodes import Aggregate, Project
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGRAL,
    NULL,
    NUMBERED,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructType,
    is_collated,
    parse_type,
)
from volley.spark_versions.registry import current

TRUE = Literal(True, BOOLEAN)
# Python's default context refuses more than 28 digits.
_DECIMAL_CONTEXT = Context(prec=38)


@dataclass(frozen=True)
class _Bound:
    """A bound of a frame; None means unbounded."""

    offset: Expression | None


@dataclass(frozen=True)
class _Window:
    """The specification after OVER."""

    keys: tuple[Expression, ...]
    frame: Frame


Part = Expression | _Bound | _Window | Frame
Entry = list[Any]
_Decoder = Callable[[Entry, list[Any], list[DataType]], Part]


def decode(entry: Entry, built: list[Any], types: list[DataType]) -> Part:
    """Decode `entry`. `built` holds everything decoded before it, `types` the types by index."""
    if decoder := _DECODERS.get(entry[0]):
        return decoder(entry, built, types)
    name, type_, children, fields = entry
    if implied := current().implied_options.get(name):
        fields = {**implied, **fields}
    mode = fields.pop("evalMode", None) or fields.pop("evalContext", None)
    arguments = tuple([built[child] for child in children])
    return Call(name, arguments, types[type_], mode and EvalMode(mode), tuple(fields.items()))


def type_of(value: Any) -> DataType:
    return _simple_type(value) if isinstance(value, str) else parse_type(value)


_simple_type = lru_cache(maxsize=256)(parse_type)


def scalar(text: str | bool | None, data_type: DataType) -> Scalar:
    """Parse a value of Catalyst's internal form: dates are days, timestamps microseconds, binary is hexadecimal. None
    is NULL.

    Raises CaptureError for a value without an exact text and for types without literals in Volley.
    """
    if text is None:
        return None
    if not isinstance(text, str):
        raise CaptureError(f"a value of type {data_type} is not readable.")
    if data_type == STRING or is_collated(data_type):
        return text
    if data_type == BINARY:
        return bytes.fromhex(text)
    if data_type == BOOLEAN:
        return text == "true"
    if data_type in INTEGRAL or data_type in (DATE, TIMESTAMP, TIMESTAMP_NTZ) or data_type in NUMBERED:
        return int(text)
    if data_type in FRACTIONAL:
        return _SPECIAL_FLOATS[text] if text in _SPECIAL_FLOATS else float(text)
    if isinstance(data_type, DecimalType):
        return Decimal(text).quantize(Decimal(1).scaleb(-data_type.scale), context=_DECIMAL_CONTEXT)
    raise CaptureError(f"a value of type {data_type} is not readable.")


_SPECIAL_FLOATS = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


# ------------------------------------------------------------------------- classes with their own decoder


def _attribute(entry: Entry, built: list[Any], types: list[DataType]) -> Attribute:
    _, type_, id_, name, nullable = entry
    return Attribute(id_, name, types[type_], nullable)


def _literal(entry: Entry, built: list[Any], types: list[DataType]) -> Expression:
    _, type_, text = entry
    data_type = types[type_]
    if data_type == NULL:
        return Literal(None, data_type)
    try:
        return _constant(text, data_type)
    except CaptureError:
        # Maps, variants: kept as a call that is in no support table, so Spark's code makes it.
        return Call("Literal", (), data_type)


def _constant(value: Any, data_type: DataType) -> Expression:
    """A literal. One of an array or a struct becomes the call that makes it, so that constants stay simple values."""
    if not isinstance(value, list):
        return Literal(scalar(value, data_type), data_type)
    match data_type:
        case ArrayType(element, _):
            return Call("CreateArray", tuple([_constant(part, element) for part in value]), data_type)
        case StructType(fields) if len(fields) == len(value):
            parts = zip(fields, value, strict=True)
            named = [(Literal(f.name, STRING), _constant(part, f.type)) for f, part in parts]
            return Call("CreateNamedStruct", tuple(chain.from_iterable(named)), data_type)
        case _:
            raise CaptureError(f"a value of type {data_type} is not readable.")


def _alias(entry: Entry, built: list[Any], types: list[DataType]) -> Alias:
    _, _, child, id_, name = entry
    return Alias(id_, name, built[child])


def _collate(entry: Entry, built: list[Any], types: list[DataType]) -> Expression:
    """`text COLLATE UTF8_BINARY` is the text: other collations are types of their own."""
    name, type_, children, fields = entry
    text, collation = (built[child] for child in children)
    if types[type_] == text.type == STRING:
        return cast("Expression", text)
    return Call(name, (text, collation), types[type_], None, tuple(fields.items()))


def _in_set(entry: Entry, built: list[Any], types: list[DataType]) -> Expression:
    """A long IN list, which Spark keeps as a set. Equivalent to IN over literals."""
    _, _, child, texts = entry
    value: Expression = built[child]
    try:
        literals = tuple(Literal(scalar(text, value.type), value.type) for text in texts)
    except CaptureError:
        # Structs, intervals: kept as a call that is in no support table, so explain can name it.
        return Call("InSet", (value,), BOOLEAN)
    return Call("In", (value, *literals), BOOLEAN)


def _scalar_subquery(entry: Entry, built: list[Any], types: list[DataType]) -> ScalarSubquery:
    _, type_, id_, plan = entry
    return ScalarSubquery(id_, built[plan], types[type_])


def _in_subquery(entry: Entry, built: list[Any], types: list[DataType]) -> InSubquery:
    _, _, child, id_, plan = entry
    return InSubquery(id_, built[child], built[plan])


def _pruning(entry: Entry, built: list[Any], types: list[DataType]) -> InSubquery:
    """A partition filter by the keys of another plan, each of them once."""
    _, _, value, id_, plan, key = entry
    column = Attribute(id_, "key", built[key].type, True)
    keys = Project((Alias(id_, "key", built[key]),), built[plan])
    return InSubquery(id_, built[value], Aggregate((column,), (), (), (column,), keys))


def _always_true(entry: Entry, built: list[Any], types: list[DataType]) -> Literal:
    """A filter that only skips rows a join above drops anyway, so TRUE is equivalent."""
    return TRUE


def _sort_key(entry: Entry, built: list[Any], types: list[DataType]) -> SortKey:
    _, _, children, fields = entry
    return SortKey(
        built[children[0]],
        ascending=fields["direction"] == "Ascending",
        nulls_first=fields["nullOrdering"] == "NullsFirst",
    )


def _aggregate(entry: Entry, built: list[Any], types: list[DataType]) -> AggregateCall:
    _, _, children, fields = entry
    function = built[children[0]]
    if not isinstance(function, Call):
        raise CaptureError(f"{type(function).__name__} is not an aggregate function.")
    return AggregateCall(
        function,
        AggregateMode(fields["mode"]),
        distinct=fields["isDistinct"],
        filter=built[children[1]] if len(children) > 1 else None,
        result_id=fields["resultId"],
    )


def _window(entry: Entry, built: list[Any], types: list[DataType]) -> WindowCall:
    function, window = (built[child] for child in entry[2])
    if not isinstance(function, Call | AggregateCall) or not isinstance(window, _Window):
        raise CaptureError(f"a window over {type(function).__name__} is not readable.")
    return WindowCall(
        function,
        partition_by=tuple(key for key in window.keys if not isinstance(key, SortKey)),
        order_by=tuple(key for key in window.keys if isinstance(key, SortKey)),
        frame=window.frame,
    )


def _window_spec(entry: Entry, built: list[Any], types: list[DataType]) -> _Window:
    *keys, frame = (built[child] for child in entry[2])
    if not isinstance(frame, Frame):
        raise CaptureError("a window without a frame is not readable.")
    return _Window(tuple(keys), frame)


def _frame(entry: Entry, built: list[Any], types: list[DataType]) -> Frame:
    lower, upper = (built[child] for child in entry[2])
    return Frame(
        rows=entry[3]["frameType"] == "RowFrame",
        lower=lower.offset if isinstance(lower, _Bound) else lower,
        upper=upper.offset if isinstance(upper, _Bound) else upper,
        time_zone=entry[3]["timeZone"],
    )


def _unbounded(entry: Entry, built: list[Any], types: list[DataType]) -> _Bound:
    return _Bound(None)


def _current_row(entry: Entry, built: list[Any], types: list[DataType]) -> _Bound:
    return _Bound(CURRENT_ROW)


_DECODERS: dict[str, _Decoder] = {
    "AttributeReference": _attribute,
    "Literal": _literal,
    "Alias": _alias,
    "Collate": _collate,
    "InSet": _in_set,
    "ScalarSubquery": _scalar_subquery,
    "InSubqueryExec": _in_subquery,
    "Pruning": _pruning,
    "DynamicPruningExpression": _always_true,
    "BloomFilterMightContain": _always_true,
    "SortOrder": _sort_key,
    "AggregateExpression": _aggregate,
    "WindowExpression": _window,
    "WindowSpecDefinition": _window_spec,
    "SpecifiedWindowFrame": _frame,
    "UnboundedPreceding": _unbounded,
    "UnboundedFollowing": _unbounded,
    "CurrentRow": _current_row,
}
