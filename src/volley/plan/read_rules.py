# SPDX-License-Identifier: Apache-2.0
"""Under which settings and read options a format is read exactly as Spark reads it: one row each.

Capture asks Spark for these settings, so the rows are here and not in `formats`. They also make docs/formats.md.
What is not listed has no native form: Spark then runs the scan, with the reason `FILE_OPTION_NOT_SUPPORTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from volley.plan.types import (
    BINARY,
    BOOLEAN,
    BYTE,
    DATE,
    DOUBLE,
    FLOAT,
    INTEGRAL,
    NULL,
    SHORT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    ArrayType,
    DataType,
    DecimalType,
    StructType,
    contains_any,
)
from volley.times.patterns import parsed_pattern

_DATES = frozenset({DATE})
_TIMESTAMPS = frozenset({TIMESTAMP})
_LOCAL_TIMES = frozenset({TIMESTAMP_NTZ})
_TIMES = _DATES | _TIMESTAMPS | _LOCAL_TIMES
_FLOATS = frozenset({FLOAT, DOUBLE})


@dataclass(frozen=True)
class Rule:
    """Which values of a session setting or a read option are native; `note` says so in words.

    Any value is allowed where it has no effect: `types` are the requested types that it is about (None: all).
    """

    note: str
    allows: Callable[[str], bool]
    types: frozenset[DataType] | None = None

    def permits(self, value: str, requested: Iterable[DataType]) -> bool:
        if self.allows(value):
            return True
        return self.types is not None and not any(contains_any(kind, self.types) for kind in requested)


def any_value(note: str = "any") -> Rule:
    return Rule(note, lambda value: True)


def one_of(*values: str, types: frozenset[DataType] | None = None) -> Rule:
    """A rule for values that Spark compares without regard to case."""
    allowed = frozenset(value.lower() for value in values)
    note = " or ".join(f"`{value}`" if value else "empty" for value in values)
    return Rule(note, lambda value: value.lower() in allowed, types)


def exactly(*values: str, types: frozenset[DataType] | None = None) -> Rule:
    return Rule(" or ".join(f"`{value}`" for value in values), lambda value: value in values, types)


_FALSE = one_of("false")
_TRUE = one_of("true")
_BOOLEAN = one_of("true", "false")


@dataclass(frozen=True)
class ReadRules:
    """When a format reads what Spark reads.

    `settings` and `options` are the rows; options are in lower case. Those in `carried` change how the files are read,
    so they are part of the scan. `reads` are the types of columns that the format has a native form for (None: all that
    the engine has).
    """

    settings: Mapping[str, Rule]
    options: Mapping[str, Rule]
    carried: frozenset[str] = field(default_factory=frozenset)
    reads: Callable[[DataType], bool] = lambda kind: True


# Settings that change which rows or values a scan gives. Not among them are settings that only matter for files that a
# format refuses when it meets them (binaryAsString, nanosAsLong, ignoreMissingFiles, ignoreCorruptFiles): Spark then
# runs the query.
_OF_ALL_FORMATS = {"spark.sql.caseSensitive": _FALSE}
# Options that choose files, or columns and their types: Spark has done so when the scan is planned.
_OF_PLANNING = {
    "path": any_value(),
    "paths": any_value(),
    "basepath": any_value(),
    "pathglobfilter": any_value(),
    "recursivefilelookup": any_value(),
    "modifiedbefore": any_value(),
    "modifiedafter": any_value(),
    "mergeschema": any_value(),
    "inferschema": any_value(),
    "samplingratio": any_value(),
    "preferdate": any_value(),
    "serialization.format": any_value(),
    "ignorecorruptfiles": any_value("any; Spark runs the query if a file is corrupt"),
    "ignoremissingfiles": any_value("any; Spark runs the query if a file is missing"),
    # Of writers: readers go by the file.
    "compression": any_value("any; the suffix of a file decides"),
    "codec": any_value("any; the suffix of a file decides"),
}

REBASE = "spark.sql.parquet.datetimeRebaseModeInRead"
REBASE_INT96 = "spark.sql.parquet.int96RebaseModeInRead"
READS_BY_ID = "spark.sql.parquet.fieldId.read.enabled"
IGNORES_MISSING_IDS = "spark.sql.parquet.fieldId.read.ignoreMissing"
NEEDS_IDS = "needsids"
"""Not an option of Spark's: whether only files with field ids are read."""
KEEPS_TYPES = "keepstypes"
"""Not an option of Spark's: whether its release reads columns of Parquet files only in the types that they have."""
_REBASE = Rule("any; Spark runs the query if a file may have dates of the old calendar", lambda value: True)

_PARQUET = ReadRules(
    settings={
        **_OF_ALL_FORMATS,
        READS_BY_ID: any_value(),
        IGNORES_MISSING_IDS: any_value(),
        "spark.sql.parquet.int96TimestampConversion": one_of("false", types=_TIMES),
        REBASE: _REBASE,
        REBASE_INT96: _REBASE,
    },
    options={**_OF_PLANNING, "datetimerebasemode": _REBASE, "int96rebasemode": _REBASE},
    carried=frozenset({REBASE, REBASE_INT96, "datetimerebasemode", "int96rebasemode"}),
)


# ------------------------------------------------------------------------------------------------- text formats

SESSION_ZONE = "spark.sql.session.timeZone"
CORRUPT_RECORD = "spark.sql.columnNameOfCorruptRecord"
CORRUPT_RECORD_OPTION = "columnnameofcorruptrecord"
_PARSER_POLICY = "spark.sql.legacy.timeParserPolicy"
ZONE_OPTION = "timezone"
ZONE_OFFSETS = "zoneoffsets"
"""Not an option of Spark's: the offsets of the zone of timestamps, which workers may not know. Not given in UTC."""


def _is_parsed(value: str) -> bool:
    return parsed_pattern(value) is not None


def _is_day(value: str) -> bool:
    parts = parsed_pattern(value)
    return parts is not None and {text for text, is_field in parts if is_field} >= {"yyyy", "dd"}


_DATE_PATTERN = Rule("fields of fixed width that say a day, such as `dd.MM.yyyy`", _is_day, _DATES)
_TIME_PATTERN = "fields of fixed width from the year on, such as `dd/MM/yyyy HH:mm`"

_OF_TEXT_VALUES = {
    **_OF_ALL_FORMATS,
    SESSION_ZONE: any_value(),
    CORRUPT_RECORD: any_value(),
    _PARSER_POLICY: one_of("CORRECTED", "EXCEPTION", types=_TIMES),
}
# Of those with a byte for each character, what Spark 4 knows.
_ENCODING = one_of("UTF-8", "ISO-8859-1", "US-ASCII")
_TEXT_OPTIONS = {
    **_OF_PLANNING,
    "encoding": _ENCODING,
    "charset": _ENCODING,
    "linesep": exactly("\n"),
    "mode": one_of("PERMISSIVE", "DROPMALFORMED", "FAILFAST"),
    CORRUPT_RECORD_OPTION: any_value("any; Spark runs the query if a record is malformed"),
    "multiline": _FALSE,
    "locale": one_of("en-US"),
    ZONE_OPTION: any_value(),
    "dateformat": _DATE_PATTERN,
    "timestampformat": Rule(_TIME_PATTERN, _is_parsed, _TIMESTAMPS),
    "timestampntzformat": Rule(_TIME_PATTERN, _is_parsed, _LOCAL_TIMES),
    "enabledatetimeparsingfallback": any_value(),
}
_TEXT_CARRIED = frozenset(
    {
        CORRUPT_RECORD,
        CORRUPT_RECORD_OPTION,
        "encoding",
        "charset",
        "linesep",
        "mode",
        "dateformat",
        "timestampformat",
        "timestampntzformat",
    }
)


def _is_simple(kind: DataType) -> bool:
    simple = {BOOLEAN, STRING, *INTEGRAL, *_FLOATS, *_TIMES}
    return kind in simple or isinstance(kind, DecimalType)


def _is_character(value: str) -> bool:
    return len(value) == 1 and " " <= value <= "~"


def _is_separator(value: str) -> bool:
    return value in ("\t", "\\t") or _is_character(value)


_SEPARATOR = Rule("one ASCII character, or a tab", _is_separator)
_CHARACTER = Rule("one ASCII character, or empty", lambda value: value == "" or _is_character(value))

_CSV = ReadRules(
    settings=_OF_TEXT_VALUES,
    options={
        **_TEXT_OPTIONS,
        "sep": _SEPARATOR,
        "delimiter": _SEPARATOR,
        "quote": _CHARACTER,
        "escape": _CHARACTER,
        "comment": _CHARACTER,
        "header": _BOOLEAN,
        "enforceschema": _TRUE,
        "nullvalue": any_value(),
        "emptyvalue": any_value(),
        "nanvalue": exactly("NaN", types=_FLOATS),
        "positiveinf": exactly("Inf", types=_FLOATS),
        "negativeinf": exactly("-Inf", types=_FLOATS),
        "ignoreleadingwhitespace": _BOOLEAN,
        "ignoretrailingwhitespace": _BOOLEAN,
        "unescapedquotehandling": any_value("any; Spark runs the query if a quote is not escaped"),
        "maxcharspercolumn": exactly("-1"),
        "inputbuffersize": any_value(),
        "multiline": _BOOLEAN,
        "columnpruning": any_value(),
        "escapequotes": any_value(),
        "quoteall": any_value(),
    },
    carried=_TEXT_CARRIED
    | {"sep", "delimiter", "quote", "escape", "comment", "header", "nullvalue", "emptyvalue"}
    | {"ignoreleadingwhitespace", "ignoretrailingwhitespace", "multiline"},
    reads=_is_simple,
)
_TEXT = ReadRules(
    settings=_OF_ALL_FORMATS,
    options={**_OF_PLANNING, "linesep": exactly("\n"), "wholetext": _FALSE},
    carried=frozenset({"linesep"}),
    reads=lambda kind: kind == STRING,
)


def _is_plain_json(kind: DataType) -> bool:
    match kind:
        case StructType(fields):
            return all(_is_plain_json(field.type) for field in fields)
        case ArrayType(element, _):
            return _is_plain_json(element)
        case _:
            return kind in _PLAIN_JSON


_PLAIN_JSON = frozenset({BOOLEAN, STRING, DOUBLE, *INTEGRAL})

_JSON = ReadRules(
    settings=_OF_TEXT_VALUES,
    options={
        **_TEXT_OPTIONS,
        "primitivesasstring": any_value(),
        "prefersdecimal": any_value(),
        "dropfieldifallnull": any_value(),
        "ignorenullfields": any_value(),
        "allowcomments": any_value("any; Spark runs the query if a line has comments"),
        "allowunquotedfieldnames": any_value("any; Spark runs the query if a name has no quotes"),
        "allowsinglequotes": any_value("any; Spark runs the query if a line has single quotes"),
        "allownumericleadingzeros": any_value("any; Spark runs the query if a number has leading zeros"),
        "allownonnumericnumbers": any_value("any; Spark runs the query if a number is not finite"),
        "allowbackslashescapinganycharacter": any_value("any; Spark runs the query if an escape is unusual"),
        "allowunquotedcontrolchars": any_value("any; Spark runs the query if a text has control characters"),
    },
    carried=_TEXT_CARRIED,
    # Spark rounds the digits of a float twice.
    reads=lambda kind: _is_plain_json(kind) or (_is_simple(kind) and kind != FLOAT),
)

ORC_BY_POSITION = "orc.force.positional.evolution"
_ORC = ReadRules(
    settings={
        **_OF_ALL_FORMATS,
        "spark.sql.orc.impl": one_of("native"),
        ORC_BY_POSITION: one_of("", "false"),
    },
    options=_OF_PLANNING,
    reads=lambda kind: kind == BINARY or (_is_simple(kind) and kind not in (TIMESTAMP, TIMESTAMP_NTZ)),
)

AVRO_REBASE = "spark.sql.avro.datetimeRebaseModeInRead"


def _is_of_avro(kind: DataType) -> bool:
    """Not so maps: Spark gives their entries in an order of Java's hash tables."""
    match kind:
        case StructType(fields):
            return all(_is_of_avro(field.type) for field in fields)
        case ArrayType(element, _):
            return _is_of_avro(element)
        case _:
            return kind in (BINARY, NULL) or (_is_simple(kind) and kind not in (BYTE, SHORT))


_AVRO = ReadRules(
    settings={
        **_OF_ALL_FORMATS,
        AVRO_REBASE: _REBASE,
        "avro.mapred.ignore.inputs.without.extension": one_of("", "false"),
    },
    options={
        **_OF_PLANNING,
        "datetimerebasemode": _REBASE,
        "ignoreextension": _TRUE,
        "positionalfieldmatching": _FALSE,
        "enablestableidentifiersforuniontype": any_value(),
        "stableidentifierprefixforuniontype": any_value(),
        "recursivefieldmaxdepth": any_value("any; Spark runs the query if a schema is recursive"),
        "mode": any_value(),
        "recordname": any_value(),
        "recordnamespace": any_value(),
    },
    carried=frozenset({AVRO_REBASE, "datetimerebasemode"}),
    reads=_is_of_avro,
)

MAX_LENGTH = "spark.sql.sources.binaryFile.maxLength"
_BINARY_FILE = ReadRules(
    settings={**_OF_ALL_FORMATS, MAX_LENGTH: any_value("any; Spark runs the query if a file is longer")},
    options=_OF_PLANNING,
    carried=frozenset({MAX_LENGTH}),
)

READ_RULES = {
    "parquet": _PARQUET,
    "csv": _CSV,
    "json": _JSON,
    "orc": _ORC,
    "text": _TEXT,
    "avro": _AVRO,
    "binary": _BINARY_FILE,
}
"""By the name of Spark's class, without `FileFormat` or `Scan`."""
SETTINGS = tuple(dict.fromkeys(key for rules in READ_RULES.values() for key in rules.settings))
