# SPDX-License-Identifier: Apache-2.0
"""The rows of the support table for structs, arrays and maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from volley.plan.expressions import Call, Expression, Literal, walk
from volley.plan.types import (
    BOOLEAN,
    DATE,
    DAY_TIME_INTERVALS,
    INTEGER,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    MapType,
    StructType,
    is_carried,
)
from volley.support.reasons import Reason, Unsupported
from volley.support.signatures import (
    Check,
    ExpressionRule,
    all_of,
    any_type,
    arguments,
    array,
    fractional,
    integral,
    literal_value,
    map_,
    one_of,
    option_in,
    ordered,
    refuse,
    rules,
    same,
)
from volley.times.units import MICROS_A_DAY

_int = one_of(INTEGER)


def _struct_field(call: Call) -> Unsupported | None:
    struct = call.arguments[0].type
    if not isinstance(struct, StructType) or not isinstance(call.option("ordinal"), int):
        return refuse(call, "a field without a constant position")
    return None


def _array_struct_field(call: Call) -> Unsupported | None:
    source = call.arguments[0].type
    is_array_of_structs = isinstance(source, ArrayType) and isinstance(source.element, StructType)
    if not is_array_of_structs or not isinstance(call.option("ordinal"), int):
        return refuse(call, str(source))
    return None


def _named_struct(call: Call) -> Unsupported | None:
    names = [literal_value(name) for name in call.arguments[::2]]
    if not all(isinstance(name, str) for name in names):
        return refuse(call, "field names that are not constants", Reason.ARGUMENT_VALUE)
    return None


def element_type(call: Call, position: int = 0) -> DataType | None:
    """The type of the elements of an argument that is an array."""
    array = call.arguments[position].type
    return array.element if isinstance(array, ArrayType) else None


def _create_array(call: Call) -> Unsupported | None:
    if not isinstance(call.type, ArrayType) or any(a.type != call.type.element for a in call.arguments):
        return refuse(call, "elements of different types")
    if not call.arguments and not is_carried(call.type):
        return refuse(call, str(call.type))
    return None


def _array_item(call: Call) -> Unsupported | None:
    if element_type(call) != call.type or (call.option("defaultValueOutOfBound") and not is_split_part(call)):
        return refuse(call, str(call.arguments[0].type))
    if not _may_be_null(call):
        return refuse(
            call, "Spark takes the element of an array without NULL for not NULL where the position is"
        )
    return all_of(arguments(array, integral), option_in("failOnError", True, False))(call)


def is_split_part(call: Call) -> bool:
    """Whether this is `split_part`, the only access to an element that has a default: the empty text."""
    whole = call.arguments[0]
    return isinstance(whole, Call) and whole.function == "StringSplitSQL"


def _may_be_null(call: Call) -> bool:
    """Whether Spark tests the array and the position for NULL, or neither can be NULL."""
    whole, position = call.arguments
    if isinstance(whole.type, ArrayType) and whole.type.contains_null:
        return True
    # Spark knows the nullability of an element of `array(...)`, and takes that of any other for unknown.
    return isinstance(literal_value(position), int) or call.option("failOnError") is False


def _array_search(call: Call) -> Unsupported | None:
    element = element_type(call)
    if element is None or not ordered(element) or element != call.arguments[1].type:
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    return None


def _flatten(call: Call) -> Unsupported | None:
    inner = element_type(call)
    if (
        not isinstance(inner, ArrayType)
        or not isinstance(call.type, ArrayType)
        or inner.element != call.type.element
    ):
        return refuse(call, str(call.arguments[0].type))
    return None


def _element_at(call: Call) -> Unsupported | None:
    return _map_value(call) if map_(call.arguments[0].type) else _array_item(call)


def _map_value(call: Call) -> Unsupported | None:
    source, key = call.arguments[0].type, call.arguments[1]
    if not isinstance(source, MapType) or source.value != call.type or source.key != key.type:
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    if literal_value(key) is None or not (integral(key.type) or key.type == STRING):
        return refuse(call, "a key that is not a constant integer or text", Reason.ARGUMENT_VALUE)
    return None


def _listed(part: str) -> Check:
    """The keys or values of a map, as an array of them."""

    def check(call: Call) -> Unsupported | None:
        source = call.arguments[0].type
        if not isinstance(source, MapType) or not isinstance(call.type, ArrayType):
            return refuse(call, str(source))
        return None if call.type.element == getattr(source, part) else refuse(call, str(call.type))

    return check


def _map_entries(call: Call) -> Unsupported | None:
    source, made = call.arguments[0].type, call.type
    if not isinstance(source, MapType) or not isinstance(made, ArrayType):
        return refuse(call, str(source))
    fields = made.element.fields if isinstance(made.element, StructType) else ()
    return None if [f.type for f in fields] == [source.key, source.value] else refuse(call, str(made))


def _is_identified(data_type: DataType) -> bool:
    """Whether equal values of the type have the same form in Arrow."""
    return ordered(data_type) and not fractional(data_type)


def _set_of_values(call: Call) -> Unsupported | None:
    """Arrays of one element type, and maybe such an element, whose equal values are the same for Arrow."""
    element = element_type(call)
    parts = [part.type.element if isinstance(part.type, ArrayType) else part.type for part in call.arguments]
    if element is None or not _is_identified(element) or set(parts) != {element}:
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    return None


def _sort_array(call: Call) -> Unsupported | None:
    if not isinstance(literal_value(call.arguments[1]), bool):
        return refuse(call, "a direction that is not a constant", Reason.ARGUMENT_VALUE)
    return arguments(_array_of_identified, one_of(BOOLEAN))(call)


def _array_of_identified(data_type: DataType) -> bool:
    return isinstance(data_type, ArrayType) and _is_identified(data_type.element)


def _array_of_numbers(data_type: DataType) -> bool:
    """Of values that Arrow keeps as numbers. The JVM is as fast for others."""
    if not isinstance(data_type, ArrayType):
        return False
    return integral(data_type.element) or data_type.element in (BOOLEAN, DATE, TIMESTAMP, TIMESTAMP_NTZ)


def _array_sort(call: Call) -> Unsupported | None:
    function = call.arguments[1]
    if (
        not isinstance(function, Call)
        or _shape(function.arguments[0], function.arguments[1:]) != _SPARKS_ORDER
    ):
        return refuse(call, "a comparison by a lambda")
    return None if _array_of_identified(call.arguments[0].type) else refuse(call, str(call.arguments[0].type))


def _shape(body: Expression, variables: Sequence[Expression]) -> Any:
    """A lambda's body as plain values: its variables are their places."""
    if isinstance(body, Literal):
        return body.value
    if body in variables:
        return f"{variables.index(body)}"
    return (
        (body.function, *(_shape(part, variables) for part in body.arguments))
        if isinstance(body, Call)
        else None
    )


def _first_true(*branches: Any) -> Any:
    *rest, otherwise = branches
    for condition, value in reversed(rest):
        otherwise = ("If", condition, value, otherwise)
    return otherwise


# What `array_sort` compares by without a lambda: NULLs are last.
_SPARKS_ORDER = _first_true(
    (("And", ("IsNull", "0"), ("IsNull", "1")), 0),
    (("IsNull", "0"), 1),
    (("IsNull", "1"), -1),
    (("LessThan", "0", "1"), -1),
    (("GreaterThan", "0", "1"), 1),
    0,
)


def _calls_lambda(call: Call) -> Unsupported | None:
    source, function = call.arguments
    if not isinstance(function, Call) or len(function.arguments) != 2:
        return refuse(call, "a lambda of several variables")
    # DataFusion does not find the variables then, or takes them for NULL.
    if any(part.function == "LambdaFunction" for part in _calls(source, function.arguments[0])):
        return refuse(call, "a lambda that depends on another")
    if any(part.function == "CreateNamedStruct" for part in _calls(function.arguments[0])):
        return refuse(call, "a lambda that makes structs")
    if call.function == "ArrayTransform" and isinstance(call.type, ArrayType):
        return None if function.type == call.type.element else refuse(call, str(call.type))
    return None


def _calls(*expressions: Expression) -> Iterator[Call]:
    for expression in expressions:
        yield from (part for part in walk(expression) if isinstance(part, Call))


def _array_insert(call: Call) -> Unsupported | None:
    if literal_value(call.arguments[1]) not in (1, -1) or call.option("legacyNegativeIndex") is not False:
        return refuse(call, "a place other than an end", Reason.ARGUMENT_VALUE)
    if element_type(call) != call.arguments[2].type:
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    return None


def _array_repeat(call: Call) -> Unsupported | None:
    if not isinstance(call.type, ArrayType) or call.type.element != call.arguments[0].type:
        return refuse(call, str(call.type))
    return arguments(any_type, _int)(call)


def _sequence(call: Call) -> Unsupported | None:
    first, last, *steps = call.arguments
    if first.type != last.type or not (integral(first.type) or first.type == DATE):
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    for step in steps:
        value = literal_value(step)
        days = step.type in DAY_TIME_INTERVALS and isinstance(value, int) and value % MICROS_A_DAY == 0
        if not value or not (days if first.type == DATE else integral(step.type)):
            return refuse(call, "a step that is not a constant number, or whole days", Reason.ARGUMENT_VALUE)
    return None


def _array_join(call: Call) -> Unsupported | None:
    if not all(isinstance(literal_value(part), str) for part in call.arguments[1:]):
        return refuse(call, "a separator or replacement that is not a constant", Reason.ARGUMENT_VALUE)
    return None if element_type(call) == STRING else refuse(call, str(call.arguments[0].type))


_NO_FLOATS = "Not of floats, structs and arrays."
_ONE_VARIABLE = "A lambda of one variable, which makes no structs, with no other lambda inside or below."

NESTED: dict[str, ExpressionRule] = {
    **rules(
        "Structs",
        {
            "CreateNamedStruct": (_named_struct, "Constant field names."),
            "GetStructField": (_struct_field, ""),
            "GetArrayStructFields": (_array_struct_field, "A field of every struct in an array."),
        },
    ),
    **rules(
        "Arrays",
        {
            "CreateArray": (_create_array, "Elements of one type."),
            "GetArrayItem": (_array_item, ""),
            "ElementAt": (_element_at, "Arrays; maps with a constant key that is an integer or text."),
            "Size": (
                all_of(arguments(lambda t: array(t) or map_(t)), option_in("legacySizeOfNull", True, False)),
                "Arrays and maps.",
            ),
            "Slice": (arguments(array, _int, _int), ""),
            "ArrayContains": (_array_search, "Any element type but structs and arrays."),
            "ArrayPosition": (_array_search, "Any element type but structs and arrays."),
            "Flatten": (_flatten, ""),
            "ArrayDistinct": (_set_of_values, _NO_FLOATS),
            "ArrayUnion": (_set_of_values, _NO_FLOATS),
            "ArrayIntersect": (_set_of_values, _NO_FLOATS),
            "ArrayExcept": (_set_of_values, _NO_FLOATS),
            "ArraysOverlap": (_set_of_values, _NO_FLOATS),
            "ArrayRemove": (_set_of_values, _NO_FLOATS),
            "SortArray": (_sort_array, f"A constant direction. {_NO_FLOATS}"),
            "ArraySort": (_array_sort, f"Without a lambda. {_NO_FLOATS}"),
            "ArrayMin": (arguments(_array_of_numbers), "Integers, dates, timestamps and booleans."),
            "ArrayMax": (arguments(_array_of_numbers), "Integers, dates, timestamps and booleans."),
            "ArrayInsert": (_array_insert, "At one of the ends."),
            "ArrayRepeat": (_array_repeat, ""),
            "ArrayJoin": (_array_join, "Constant separators and replacements of NULL."),
            "Sequence": (_sequence, "Integers and dates, by a constant step or without one."),
            "KnownNotContainsNull": (arguments(array), "Added by Spark, for array_compact."),
        },
    ),
    **rules(
        "Lambdas",
        {
            "ArrayTransform": (_calls_lambda, _ONE_VARIABLE),
            "ArrayFilter": (_calls_lambda, _ONE_VARIABLE),
            "ArrayExists": (
                all_of(option_in("followThreeValuedLogic", True), _calls_lambda),
                _ONE_VARIABLE,
            ),
            "ArrayForAll": (_calls_lambda, _ONE_VARIABLE),
            "LambdaFunction": (same(any_type, alike=False), "Of the functions above."),
            "NamedLambdaVariable": (arguments(), "Of a lambda."),
        },
    ),
    **rules(
        "Maps",
        {
            "MapKeys": (_listed("key"), ""),
            "MapValues": (_listed("value"), ""),
            "MapEntries": (_map_entries, ""),
            "GetMapValue": (_map_value, "A constant key that is an integer or text."),
        },
    ),
}
