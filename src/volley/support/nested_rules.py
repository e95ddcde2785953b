# SPDX-License-Identifier: Apache-2.0
"""The rows of the support table for structs, arrays and maps."""

from __future__ import annotations

from volley.plan.expressions import Call
from volley.plan.types import (
    INTEGER,
    STRING,
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
    arguments,
    array,
    integral,
    literal_value,
    map_,
    one_of,
    option_in,
    ordered,
    refuse,
    rules,
)

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
    if element_type(call) != call.type or call.option("defaultValueOutOfBound") is not None:
        return refuse(call, str(call.arguments[0].type))
    if not _may_be_null(call):
        return refuse(
            call, "Spark takes the element of an array without NULL for not NULL where the position is"
        )
    return all_of(arguments(array, integral), option_in("failOnError", True, False))(call)


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
