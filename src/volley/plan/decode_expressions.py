"""From Catalyst's JSON, with the details that it leaves out, to our expressions.

A tree arrives as a flat list in depth-first order; each entry says how many children follow it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

from volley.errors import CaptureError
from volley.plan.details import ExpressionDetail
from volley.plan.expressions import (
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
from volley.plan.nodes import Node
from volley.plan.types import (
    BOOLEAN,
    DATE,
    FRACTIONAL,
    INTEGRAL,
    NULL,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    DataType,
    DecimalType,
    parse_type,
)

Json = dict[str, Any]
TRUE = Literal(True, BOOLEAN)
# Python's own would refuse more than 28 digits.
_DECIMAL_CONTEXT = Context(prec=38)

# Filters that only skip rows which a join above drops anyway; TRUE is a correct stand-in.
_ONLY_PRUNING = ("DynamicPruningExpression", "BloomFilterMightContain")


@dataclass(frozen=True)
class Lookups:
    """What must be asked of the JVM object itself, by the position of the expression in its tree."""

    subquery: Callable[[int], Node]
    set_values: Callable[[int], list[str]]


@dataclass(frozen=True)
class _Part:
    index: int
    json: Json
    detail: ExpressionDetail
    children: tuple[_Part, ...]

    @property
    def name(self) -> str:
        return short_name(self.json["class"])


def short_name(class_name: str) -> str:
    return class_name.rpartition(".")[2].removesuffix("$")


def decode(tree: list[Json], details: list[ExpressionDetail], lookups: Lookups) -> Expression:
    if [entry["class"] for entry in tree] != [detail.class_name for detail in details]:
        raise CaptureError(f"the JSON of {tree[0]['class']} does not match the object it describes.")
    entries = iter(enumerate(zip(tree, details, strict=True)))
    return _decode(_build(entries), lookups)


def _build(entries: Iterator[tuple[int, tuple[Json, ExpressionDetail]]]) -> _Part:
    index, (json, detail) = next(entries)
    return _Part(index, json, detail, tuple(_build(entries) for _ in range(json["num-children"])))


def _decode(part: _Part, lookups: Lookups) -> Expression:
    name = part.name
    if name in _ONLY_PRUNING:
        return TRUE
    if name == "ScalarSubquery":
        return ScalarSubquery(_id(part.json["exprId"]), lookups.subquery(part.index), part.detail.type)
    if name == "InSubqueryExec":
        value = _decode(part.children[0], lookups)
        return InSubquery(_id(part.json["exprId"]), value, lookups.subquery(part.index))
    if name == "WindowExpression":
        return _window(part, lookups)
    if name == "InSet":
        return _in_set(part, lookups)
    children = tuple(_decode(child, lookups) for child in part.children)
    match name:
        case "AttributeReference":
            return attribute(part.json)
        case "Literal":
            return _literal(part)
        case "Alias":
            return Alias(_id(part.json["exprId"]), part.json["name"], children[0])
        case "SortOrder":
            return SortKey(
                children[0],
                ascending=_object(part.json["direction"]) == "Ascending",
                nulls_first=_object(part.json["nullOrdering"]) == "NullsFirst",
            )
        case "AggregateExpression":
            return _aggregate(part, children)
        case _:
            return Call(name, children, part.detail.type, _mode(part), _options(part))


def attribute(json: Json) -> Attribute:
    return Attribute(_id(json["exprId"]), json["name"], parse_type(json["dataType"]), json["nullable"])


def _aggregate(part: _Part, children: tuple[Expression, ...]) -> AggregateCall:
    function = children[0]
    if not isinstance(function, Call):
        raise CaptureError(f"{part.children[0].name} is not an aggregate function.")
    return AggregateCall(
        function,
        AggregateMode(_object(part.json["mode"])),
        distinct=part.json["isDistinct"],
        filter=children[1] if len(children) > 1 else None,
        result_id=_id(part.json["resultId"]),
    )


def _window(part: _Part, lookups: Lookups) -> Expression:
    function = _decode(part.children[0], lookups)
    spec = part.children[1]
    frame = spec.children[-1]
    if not isinstance(function, Call | AggregateCall) or frame.name != "SpecifiedWindowFrame":
        raise CaptureError(f"a window over {part.children[0].name} in {frame.name} is not readable.")
    keys = [_decode(child, lookups) for child in spec.children[:-1]]
    return WindowCall(
        function,
        partition_by=tuple(key for key in keys if not isinstance(key, SortKey)),
        order_by=tuple(key for key in keys if isinstance(key, SortKey)),
        frame=Frame(
            rows=_object(frame.json["frameType"]) == "RowFrame",
            lower=_bound(frame.children[0], lookups),
            upper=_bound(frame.children[1], lookups),
        ),
    )


def _bound(part: _Part, lookups: Lookups) -> Expression | None:
    if part.name in ("UnboundedPreceding", "UnboundedFollowing"):
        return None
    return Literal(0, parse_type("integer")) if part.name == "CurrentRow" else _decode(part, lookups)


def _in_set(part: _Part, lookups: Lookups) -> Expression:
    """A long IN list, which Spark keeps as a set: the same as IN over literals."""
    value = _decode(part.children[0], lookups)
    texts = lookups.set_values(part.index)
    literals = tuple(Literal(_internal(text, value.type), value.type) for text in texts)
    return Call("In", (value, *literals), BOOLEAN)


def _literal(part: _Part) -> Expression:
    data_type = part.detail.type
    if data_type == NULL or (part.json["value"] is None and part.detail.fields["value"] == "null"):
        return Literal(None, data_type)
    if data_type == STRING:
        return Literal(part.json["value"], data_type)
    try:
        return Literal(_internal(part.detail.fields["value"], data_type), data_type)
    except CaptureError:
        # Arrays, structs, binaries, intervals: kept as a call that no support table knows, so explain can name it.
        return Call("Literal", (), data_type)


def _internal(text: str, data_type: DataType) -> Scalar:
    """A value from the text of Catalyst's internal form: dates are days, timestamps microseconds."""
    if data_type == STRING:
        return None if text == "null" else text
    if data_type == BOOLEAN:
        return text == "true"
    if data_type in INTEGRAL or data_type in (DATE, TIMESTAMP, TIMESTAMP_NTZ):
        return int(text)
    if data_type in FRACTIONAL:
        return {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}.get(text) or float(text)
    if isinstance(data_type, DecimalType):
        return Decimal(text).quantize(Decimal(1).scaleb(-data_type.scale), context=_DECIMAL_CONTEXT)
    raise CaptureError(f"a literal of type {data_type} is not readable.")


def _mode(part: _Part) -> EvalMode | None:
    """`evalMode` is the mode itself, `evalContext` prints as `NumericEvalContext(ANSI,true)`."""
    fields = part.detail.fields
    if "evalMode" in fields:
        return EvalMode(fields["evalMode"])
    if "evalContext" in fields:
        return EvalMode(fields["evalContext"].partition("(")[2].partition(",")[0])
    return None


def _options(part: _Part) -> tuple[tuple[str, Scalar], ...]:
    """The fields of the class that are neither children nor the mode; what JSON has as null is read as text."""
    options: list[tuple[str, Scalar]] = []
    children = 0
    for name, text in part.detail.fields.items():
        value = part.json.get(name)
        if type(value) is int and value == children < len(part.children):
            children += 1  # JSON names children by their position
        elif isinstance(value, list):
            children += sum(type(item) is int for item in value)
        elif name not in ("evalMode", "evalContext", "dataType") and not isinstance(value, dict):
            options.append((name, text if value is None else value))
    return tuple(options)


def _object(json: Json) -> str:
    return short_name(json["object"])


def _id(json: Json) -> int:
    return int(json["id"])
