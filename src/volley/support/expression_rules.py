# SPDX-License-Identifier: Apache-2.0
"""The rows of the expression support table. The notes appear in the documentation."""

from __future__ import annotations

from volley.plan.expressions import JVM_EXPRESSION, JVM_FIELD, Call
from volley.plan.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGER,
    LONG,
    SHORT,
    STRING,
    TIMESTAMP,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    StructType,
    is_carried,
)
from volley.spark_versions.registry import current
from volley.support import casts
from volley.support.patterns import day_of_week, is_portable_like, is_portable_regex, overlaps_itself
from volley.support.reasons import Reason, Unsupported
from volley.support.signatures import (
    Check,
    ExpressionRule,
    all_of,
    any_type,
    arguments,
    array,
    constant_text,
    decimal,
    fractional,
    integral,
    literal_value,
    map_,
    number,
    one_of,
    option_in,
    ordered,
    refuse,
    same,
    with_mode,
)

_COMPARISON = "Comparison and logic"
_CONDITIONAL = "Conditional"
_ARITHMETIC = "Arithmetic"
_DECIMAL = "Decimal internals"
_BITS = "Bits"
_CAST = "Cast"
_STRING = "Strings"
_DATE = "Dates and times"
_STRUCT = "Structs"
_ARRAY = "Arrays"
_MAP = "Maps"
_DIGEST = "Digests and encodings"
_JVM = "Spark's own expressions"

_compared = same(ordered)
_boolean = one_of(BOOLEAN)
_string = one_of(STRING)
_date = one_of(DATE)
_int = one_of(INTEGER)


def _in(call: Call) -> Unsupported | None:
    candidates = [literal_value(candidate) for candidate in call.arguments[1:]]
    if fractional(call.arguments[0].type) and any(isinstance(c, float) and c == 0 for c in candidates):
        # Spark keeps a long list as a Java set, where -0.0 differs from 0.0; in a short list they are equal.
        return refuse(call, "zero in a list of floats", Reason.ARGUMENT_VALUE)
    return _compared(call)


def _case_when(call: Call) -> Unsupported | None:
    values = [*call.arguments[1::2], *(call.arguments[-1:] if len(call.arguments) % 2 else ())]
    if any(value.type != call.type for value in values):
        return refuse(call, "branches of different types")
    return None


def _branches(start: int) -> Check:
    def check(call: Call) -> Unsupported | None:
        if any(argument.type != call.type for argument in call.arguments[start:]):
            return refuse(call, "arguments of different types")
        return None

    return check


def _extreme(call: Call) -> Unsupported | None:
    if fractional(call.type):
        return refuse(call, f"{call.type}: the order of the arguments decides which zero is returned")
    return same(ordered)(call)


def _arithmetic(call: Call) -> Unsupported | None:
    if decimal(call.type):
        return with_mode(arguments(decimal, decimal))(call)
    return with_mode(all_of(same(number), _branches(0)))(call)


def _pmod(call: Call) -> Unsupported | None:
    return refuse(call, "decimals") if decimal(call.type) else _arithmetic(call)


def _signed(call: Call) -> Unsupported | None:
    if isinstance(call.type, DecimalType) and call.type.scale > 34:
        return refuse(call, f"{call.type}: Spark rounds to 34 digits when it negates")
    return all_of(arguments(number), option_in("failOnError", True, False))(call)


def _round(call: Call) -> Unsupported | None:
    scale = literal_value(call.arguments[1])
    if not isinstance(scale, int) or scale < 0:
        return refuse(call, "a scale that is negative or not a constant", Reason.ARGUMENT_VALUE)
    if call.arguments[0].type == FLOAT:
        return refuse(call, "float")
    if call.arguments[0].type == DOUBLE and scale > 15:
        return refuse(call, "a double to more than 15 digits", Reason.ARGUMENT_VALUE)
    return arguments(number, _int)(call)


def _like(call: Call) -> Unsupported | None:
    pattern, escape = literal_value(call.arguments[1]), call.option("escapeChar")
    if not isinstance(pattern, str) or not isinstance(escape, str) or not is_portable_like(pattern, escape):
        return refuse(call, "a pattern that is not a constant, or uses another escape", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string)(call)


def _rlike(call: Call) -> Unsupported | None:
    pattern = literal_value(call.arguments[1])
    if not isinstance(pattern, str) or not is_portable_regex(pattern):
        return refuse(
            call, "a regular expression that Java and Rust may read differently", Reason.ARGUMENT_VALUE
        )
    return arguments(_string, _string)(call)


def _concat_ws(call: Call) -> Unsupported | None:
    if not isinstance(literal_value(call.arguments[0]), str):
        return refuse(call, "a separator that is not a constant", Reason.ARGUMENT_VALUE)
    return same(_string)(call)


def _locate(call: Call) -> Unsupported | None:
    if literal_value(call.arguments[2]) != 1:
        return refuse(call, "a start other than the constant 1", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


def _is_base64(call: Call) -> bool:
    if call.option("staticObject") != "org.apache.spark.sql.catalyst.expressions.Base64":
        return False
    return call.option("functionName") == "encode" and isinstance(literal_value(call.arguments[1]), bool)


def _translate(call: Call) -> Unsupported | None:
    matching, replacing = map(literal_value, call.arguments[1:])
    if not isinstance(matching, str) or not isinstance(replacing, str):
        return refuse(call, "characters that are not constants", Reason.ARGUMENT_VALUE)
    if set(matching) & set(replacing) or len(matching) > 64 or "\0" in matching + replacing:
        return refuse(call, "characters that are replaced and put in", Reason.ARGUMENT_VALUE)
    return same(_string)(call)


def _substring_index(call: Call) -> Unsupported | None:
    delimiter = literal_value(call.arguments[1])
    if not isinstance(delimiter, str) or not delimiter or overlaps_itself(delimiter):
        return refuse(call, "a delimiter that is not a plain constant", Reason.ARGUMENT_VALUE)
    count = literal_value(call.arguments[2])
    if not current().substring_index_takes_any_count and (count is None or count == _SMALLEST_INTEGER):
        return refuse(call, "a count that is not a constant, which may be too small", Reason.ARGUMENT_VALUE)
    return arguments(_string, _string, _int)(call)


_SMALLEST_INTEGER = -(2**31)


def _next_day(call: Call) -> Unsupported | None:
    name = literal_value(call.arguments[1])
    if not isinstance(name, str) or day_of_week(name) is None:
        return refuse(call, "a day that is not a constant name", Reason.ARGUMENT_VALUE)
    return arguments(_date, _string)(call)


def _hashed(call: Call) -> Unsupported | None:
    if call.option("seed") != 42:
        return refuse(call, f"seed {call.option('seed')!r}", Reason.ARGUMENT_VALUE)
    return same(one_of(BOOLEAN, BYTE, SHORT, INTEGER, LONG, STRING, BINARY, DATE, TIMESTAMP), alike=False)(
        call
    )


def _static_invoke(call: Call) -> Unsupported | None:
    if _is_base64(call):
        return arguments(one_of(BINARY), _boolean)(call)
    if call.option("functionName") != "readSidePadding":
        return Unsupported(Reason.EXPRESSION, f"StaticInvoke {call.option('functionName')!s}")
    return arguments(_string, _int)(call)


def _trunc_date(call: Call) -> Unsupported | None:
    unit = literal_value(call.arguments[1])
    if not isinstance(unit, str) or unit.lower() not in _TRUNCATIONS:
        return refuse(call, f"a unit other than {', '.join(sorted(_TRUNCATIONS))}", Reason.ARGUMENT_VALUE)
    return arguments(_date, _string)(call)


_TRUNCATIONS = frozenset({"year", "yyyy", "yy", "quarter", "month", "mon", "mm", "week"})


def _trunc_timestamp(call: Call) -> Unsupported | None:
    unit = literal_value(call.arguments[0])
    if not isinstance(unit, str) or unit.lower() not in _TIME_TRUNCATIONS:
        return refuse(
            call, f"a unit other than {', '.join(sorted(_TIME_TRUNCATIONS))}", Reason.ARGUMENT_VALUE
        )
    return arguments(_string, one_of(TIMESTAMP))(call) or casts.check_utc(call)


_TIME_TRUNCATIONS = frozenset({"year", "month", "week", "day", "dd", "hour", "minute", "second"})


def _struct_field(call: Call) -> Unsupported | None:
    struct = call.arguments[0].type
    if not isinstance(struct, StructType) or not isinstance(call.option("ordinal"), int):
        return refuse(call, "a field without a constant position")
    if len({field.name for field in struct.fields}) != len(struct.fields):
        return refuse(call, "a struct with duplicate field names")
    return None


def _array_struct_field(call: Call) -> Unsupported | None:
    source = call.arguments[0].type
    is_array_of_structs = isinstance(source, ArrayType) and isinstance(source.element, StructType)
    if not is_array_of_structs or not isinstance(call.option("ordinal"), int):
        return refuse(call, str(source))
    return None


def _named_struct(call: Call) -> Unsupported | None:
    names = [literal_value(name) for name in call.arguments[::2]]
    if not all(isinstance(name, str) for name in names) or len(set(names)) != len(names):
        return refuse(call, "field names that are not distinct constants", Reason.ARGUMENT_VALUE)
    return None


def _element_type(call: Call, position: int = 0) -> DataType | None:
    array = call.arguments[position].type
    return array.element if isinstance(array, ArrayType) else None


def _create_array(call: Call) -> Unsupported | None:
    if not isinstance(call.type, ArrayType) or any(a.type != call.type.element for a in call.arguments):
        return refuse(call, "elements of different types")
    if not call.arguments and not is_carried(call.type):
        return refuse(call, str(call.type))
    return None


def _array_item(call: Call) -> Unsupported | None:
    if _element_type(call) != call.type or call.option("defaultValueOutOfBound") is not None:
        return refuse(call, str(call.arguments[0].type))
    if not _may_be_null(call):
        return refuse(
            call, "Spark takes the element of an array without NULL for not NULL where the position is"
        )
    return all_of(arguments(array, integral), option_in("failOnError", True, False))(call)


def _may_be_null(call: Call) -> bool:
    """Whether Spark tests the array and the position for NULL, or neither can be NULL."""
    whole, position = call.arguments
    known = isinstance(literal_value(position), int)
    if isinstance(whole.type, ArrayType) and whole.type.contains_null:
        return True
    if known:
        return isinstance(whole, Call) and whole.function == "CreateArray"
    return call.option("failOnError") is False


def _array_search(call: Call) -> Unsupported | None:
    element = _element_type(call)
    if element is None or not ordered(element) or element != call.arguments[1].type:
        return refuse(call, ", ".join(str(argument.type) for argument in call.arguments))
    return None


def _concat(call: Call) -> Unsupported | None:
    if not isinstance(call.type, ArrayType):
        return same(_string)(call)
    if any(_element_type(call, position) != call.type.element for position in range(len(call.arguments))):
        return refuse(call, "arrays of different types")
    return None


def _flatten(call: Call) -> Unsupported | None:
    inner = _element_type(call)
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


def _rules(family: str, rows: dict[str, tuple[Check, str]]) -> dict[str, ExpressionRule]:
    return {name: ExpressionRule(family, note, check) for name, (check, note) in rows.items()}


_ANY_ORDERED = "Any type except structs and arrays. NaN equals itself and is the largest; -0.0 equals 0.0."
_PART = arguments(_date)
_INSTANT = arguments(one_of(TIMESTAMP))
_CLOCK = all_of(arguments(one_of(TIMESTAMP)), casts.check_utc)

EXPRESSIONS: dict[str, ExpressionRule] = {
    **_rules(
        _JVM,
        {
            JVM_EXPRESSION: (
                same(any_type, alike=False),
                "Any other deterministic expression, evaluated by Spark's own code in the driver's JVM.",
            ),
            JVM_FIELD: (
                arguments(lambda t: isinstance(t, StructType)),
                "One of several such expressions of an operator, which are evaluated together.",
            ),
        },
    ),
    **_rules(
        _COMPARISON,
        {
            "EqualTo": (_compared, _ANY_ORDERED),
            "EqualNullSafe": (_compared, _ANY_ORDERED),
            "LessThan": (_compared, _ANY_ORDERED),
            "LessThanOrEqual": (_compared, _ANY_ORDERED),
            "GreaterThan": (_compared, _ANY_ORDERED),
            "GreaterThanOrEqual": (_compared, _ANY_ORDERED),
            "In": (_in, _ANY_ORDERED + " No constant zero in a list of floats."),
            "And": (arguments(_boolean, _boolean), "Short-circuits: the left side may decide alone."),
            "Or": (arguments(_boolean, _boolean), "Short-circuits: the left side may decide alone."),
            "Not": (arguments(_boolean), ""),
            "IsNull": (arguments(any_type), "Any type."),
            "IsNotNull": (arguments(any_type), "Any type."),
            "IsNaN": (arguments(fractional), ""),
        },
    ),
    **_rules(
        _CONDITIONAL,
        {
            "CaseWhen": (_case_when, "Any type."),
            "If": (_branches(1), "Any type."),
            "Coalesce": (_branches(0), "Any type."),
            "Greatest": (_extreme, "Not on float and double."),
            "Least": (_extreme, "Not on float and double."),
            "NaNvl": (same(fractional), ""),
            "NormalizeNaNAndZero": (arguments(fractional), "Added by Spark around keys."),
            "KnownFloatingPointNormalized": (arguments(fractional), "Added by Spark around keys."),
            "KnownNotNull": (arguments(any_type), "Added by Spark's optimizer."),
            "KnownNullable": (arguments(any_type), "Added by Spark's optimizer."),
            "PromotePrecision": (arguments(decimal), "Added by Spark's analyzer."),
        },
    ),
    **_rules(
        _ARITHMETIC,
        {
            "Add": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Subtract": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Multiply": (_arithmetic, "Numbers. On overflow an error, NULL or wrap-around, as in Spark."),
            "Divide": (
                with_mode(same(lambda t: fractional(t) or decimal(t), alike=False)),
                "Doubles and decimals; decimals round half up.",
            ),
            "IntegralDivide": (
                with_mode(same(lambda t: t == LONG or decimal(t), alike=False)),
                "Longs and decimals.",
            ),
            "Remainder": (_arithmetic, "Numbers."),
            "Pmod": (_pmod, "Integers and floats."),
            "UnaryMinus": (_signed, "Numbers."),
            "UnaryPositive": (arguments(number), "Numbers."),
            "Abs": (_signed, "Numbers."),
            "Signum": (arguments(one_of(DOUBLE)), ""),
            "Sqrt": (arguments(one_of(DOUBLE)), "NaN for negative numbers."),
            "Floor": (arguments(number), "Numbers."),
            "Ceil": (arguments(number), "Numbers."),
            "Rint": (arguments(one_of(DOUBLE)), ""),
            "Factorial": (arguments(_int), ""),
            "ToDegrees": (arguments(one_of(DOUBLE)), ""),
            "ToRadians": (arguments(one_of(DOUBLE)), ""),
            "Round": (_round, "Numbers except float, to a constant scale of 0 or more."),
        },
    ),
    **_rules(
        _DECIMAL,
        {
            "CheckOverflow": (
                all_of(arguments(decimal), option_in("nullOnOverflow", True, False)),
                "Added by Spark.",
            ),
            "MakeDecimal": (
                all_of(arguments(one_of(LONG)), option_in("nullOnOverflow", True, False)),
                "Added by Spark around sums of small decimals.",
            ),
            "UnscaledValue": (
                arguments(lambda t: isinstance(t, DecimalType) and t.precision <= 18),
                "Added by Spark around sums of small decimals.",
            ),
        },
    ),
    **_rules(
        _BITS,
        {
            "BitwiseAnd": (same(integral), "Integers."),
            "BitwiseOr": (same(integral), "Integers."),
            "BitwiseXor": (same(integral), "Integers."),
            "BitwiseNot": (same(integral), "Integers."),
            "ShiftLeft": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
            "ShiftRight": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
            "ShiftRightUnsigned": (
                arguments(one_of(INTEGER, LONG), _int),
                "The distance wraps at the width of the type.",
            ),
        },
    ),
    **_rules(
        _CAST,
        {
            "Cast": (
                casts.check_cast,
                "Between numbers, booleans, dates and timestamps (session time zone UTC); to strings from "
                "integers, decimals, booleans and dates; from strings to numbers, dates and booleans.",
            ),
            "CheckOverflowInTableInsert": (_branches(0), "The casts of an INSERT."),
        },
    ),
    **_rules(
        _STRING,
        {
            "Substring": (arguments(_string, _int, _int), ""),
            "Length": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "OctetLength": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "Upper": (arguments(_string), ""),
            "Lower": (arguments(_string), "If a value contains a capital sigma, Spark runs the query."),
            "Concat": (_concat, "Strings and arrays."),
            "ConcatWs": (_concat_ws, "Strings with a constant separator."),
            "StringTrim": (same(_string), "Spaces, or the given characters."),
            "StringTrimLeft": (same(_string), "Spaces, or the given characters."),
            "StringTrimRight": (same(_string), "Spaces, or the given characters."),
            "StartsWith": (arguments(_string, _string), ""),
            "EndsWith": (arguments(_string, _string), ""),
            "Contains": (arguments(_string, _string), ""),
            "Like": (_like, "A constant pattern with backslash as the escape."),
            "RLike": (_rlike, "A constant pattern in the subset that Java and Rust share."),
            "StringReplace": (arguments(_string, _string, _string), ""),
            "StringLPad": (all_of(arguments(_string, _int, _string), constant_text(2)), "A constant pad."),
            "StringRPad": (all_of(arguments(_string, _int, _string), constant_text(2)), "A constant pad."),
            "StringInstr": (arguments(_string, _string), ""),
            "StringLocate": (_locate, "From the start of the string."),
            "Reverse": (arguments(lambda t: t == STRING or array(t)), "Strings and arrays."),
            "StringRepeat": (arguments(_string, _int), ""),
            "Ascii": (arguments(_string), ""),
            "Chr": (arguments(one_of(LONG)), ""),
            "SoundEx": (arguments(_string), ""),
            "StringSpace": (arguments(_int), ""),
            "BitLength": (arguments(one_of(STRING, BINARY)), "Strings and binary."),
            "FindInSet": (arguments(_string, _string), ""),
            "SubstringIndex": (_substring_index, "A constant delimiter that does not overlap itself."),
            "StringTranslate": (_translate, "Constants; no character is both replaced and put in."),
            "StaticInvoke": (_static_invoke, "Padding of CHAR columns, and base64."),
        },
    ),
    **_rules(
        _DIGEST,
        {
            "Md5": (arguments(one_of(BINARY)), ""),
            "Sha1": (arguments(one_of(BINARY)), ""),
            "Sha2": (arguments(one_of(BINARY), _int), ""),
            "Crc32": (arguments(one_of(BINARY)), ""),
            "XxHash64": (_hashed, "Not on floats, decimals and nested types."),
            "Hex": (arguments(one_of(LONG, STRING, BINARY)), ""),
            "Unhex": (all_of(arguments(_string), option_in("failOnError", False)), ""),
            "Bin": (arguments(one_of(LONG)), ""),
            "BitwiseCount": (arguments(lambda t: integral(t) or t == BOOLEAN), ""),
        },
    ),
    **_rules(
        _DATE,
        {
            "Year": (_PART, "Dates."),
            "Month": (_PART, "Dates."),
            "DayOfMonth": (_PART, "Dates."),
            "Quarter": (_PART, "Dates."),
            "DayOfYear": (_PART, "Dates."),
            "WeekOfYear": (_PART, "Dates."),
            "DayOfWeek": (_PART, "Dates."),
            "WeekDay": (_PART, "Dates."),
            "Hour": (_CLOCK, "Session time zone UTC."),
            "Minute": (_CLOCK, "Session time zone UTC."),
            "Second": (_CLOCK, "Session time zone UTC."),
            "DateAdd": (arguments(_date, integral), ""),
            "DateSub": (arguments(_date, integral), ""),
            "DateDiff": (arguments(_date, _date), ""),
            "UnixDate": (arguments(_date), ""),
            "DateFromUnixDate": (arguments(_int), ""),
            "AddMonths": (arguments(_date, _int), ""),
            "LastDay": (arguments(_date), ""),
            "DayName": (_PART, "Dates."),
            "MonthName": (_PART, "Dates."),
            "NextDay": (_next_day, "A constant day."),
            "MakeDate": (
                all_of(arguments(_int, _int, _int), option_in("failOnError", True, False)),
                "Years up to a million.",
            ),
            "UnixMicros": (_INSTANT, ""),
            "UnixMillis": (_INSTANT, ""),
            "UnixSeconds": (_INSTANT, ""),
            "MicrosToTimestamp": (arguments(integral), "Integers."),
            "MillisToTimestamp": (arguments(integral), "Integers."),
            "SecondsToTimestamp": (arguments(integral), "Integers."),
            "TruncTimestamp": (
                _trunc_timestamp,
                "A constant unit from year to second; session time zone UTC.",
            ),
            "TruncDate": (_trunc_date, "A constant unit: year, quarter, month or week."),
        },
    ),
    **_rules(
        _STRUCT,
        {
            "CreateNamedStruct": (_named_struct, "Distinct field names."),
            "GetStructField": (_struct_field, ""),
            "GetArrayStructFields": (_array_struct_field, "A field of every struct in an array."),
        },
    ),
    **_rules(
        _ARRAY,
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
    **_rules(
        _MAP,
        {
            "MapKeys": (_listed("key"), ""),
            "MapValues": (_listed("value"), ""),
            "MapEntries": (_map_entries, ""),
            "GetMapValue": (_map_value, "A constant key that is an integer or text."),
        },
    ),
}
