# SPDX-License-Identifier: Apache-2.0
"""Random SQL expressions, as templates with the kinds of their parts.

Spark's analyzer settles the exact types: whatever it refuses is not a case. `COMMON` has a native form for most types;
`RARE` has one for few, or none, and is drawn seldom in queries, since one such expression takes a whole operator.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from volley.testing.fuzz.choices import Choices
from volley.testing.fuzz.tables import Column, literals

ORDERABLE = ("int", "str", "dec", "float", "bool", "date", "ts", "ntz", "bin")
NUMBERS = ("int", "dec", "float")
TYPE_OF = {
    "bool": "boolean", "int": "int", "dec": "decimal", "float": "double", "str": "string", "bin": "binary",
    "date": "date", "ts": "timestamp", "ntz": "timestamp_ntz", "arr": "array<int>",
    "struct": "struct<a:int,b:string>",
}  # fmt: skip
"""A type of each kind, for columns that a query computes."""

_COMPARED = ("int", "str", "dec", "float", "date", "ts", "ntz", "bool", "bin")
COMMON: dict[str, tuple[str, ...]] = {
    "bool": (
        *(f"({{{kind}}} {sign} {{{kind}}})" for kind in _COMPARED for sign in ("=", "<", "<=>")),
        *(f"({{{kind}}} {sign} {{{kind}}})" for kind in ("int", "str", "date", "dec") for sign in (">=", "<>")),
        *(f"({{{kind}}} is {word})" for kind in ("int", "str", "float", "date") for word in ("null", "not null")),
        "({bool} and {bool})", "({bool} or {bool})", "(not {bool})",
        "({int} = {dec})", "({int} < {float})", "({dec} <= {float})", "({date} < {ts})",
        "({str} in ('a', 'zz', {str}))", "({int} in (1, 2, {int}))", "({int} not in (1, null))",
        "({str} not in ('a', 'b'))", "({int} between {int} and {int})", "({date} in (date'2020-01-01', {date}))",
        "startswith({str}, {str})", "endswith({str}, 'a')", "contains({str}, {str})", "({str} like 'a%')",
        "({str} like '%\\\\_%')", "({str} like '_')", "isnan({float})", "({str} rlike '^[a-z]+$')",
    ),
    "int": (
        "({int} + {int})", "({int} - {int})", "({int} * 2)", "({int} % 3)", "(-{int})", "abs({int})",
        "try_add({int}, {int})", "try_multiply({int}, {int})", "pmod({int}, 5)", "({int} div 2)",
        "length({str})", "year({date})", "month({date})", "day({date})", "dayofweek({date})", "quarter({date})",
        "weekofyear({date})", "dayofyear({date})", "weekday({date})", "datediff({date}, {date})", "hour({ts})",
        "minute({ts})", "second({ts})", "cast({bool} as int)", "try_cast({str} as int)", "cast({int} as bigint)",
        "ascii({str})", "instr({str}, {str})", "({int} & {int})", "({int} | {int})", "({int} ^ {int})", "(~{int})",
        "bit_length({str})", "octet_length({str})", "unix_date({date})", "try_cast({float} as int)",
        "try_cast({dec} as bigint)", "shiftleft({int}, 3)", "bit_count({int})", "locate('a', {str})",
        "crc32({bin})",
        "greatest({int}, {int})", "least({int}, {int}, 0)", "size({arr})", "length({bin})", "floor({float})",
        "ceil({dec})", "find_in_set({str}, 'a,b,')", "{struct}.a", "element_at({arr}, 1)", "{arr}[0]",
        "unix_micros({ts})", "array_position({arr}, {int})",
    ),
    "dec": (
        "({dec} + {dec})", "({dec} - {dec})", "({dec} * {dec})", "({dec} / {dec})", "({dec} % {dec})",
        "cast({int} as decimal(20,2))", "cast({dec} as decimal(12,1))", "abs({dec})", "(-{dec})", "round({dec}, 1)",
        "({dec} + {int})", "({int} * {dec})", "try_add({dec}, {dec})", "try_cast({str} as decimal(9,3))",
        "greatest({dec}, {dec})", "try_divide({dec}, {dec})", "cast({dec} as decimal(38,10))", "floor({dec})",
        "({dec} div 3)", "try_cast({dec} as decimal(4,2))",
    ),
    "float": (
        "({float} + {float})", "({float} - 1)", "({float} * {float})", "({float} / {float})", "(-{float})",
        "abs({float})", "cast({int} as double)", "cast({dec} as double)", "cast({float} as float)",
        "round({float}, 1)",
        "try_divide({float}, {float})", "sqrt({float})", "nanvl({float}, {float})", "({int} / 2)",
        "({float} + {int})",
        "({dec} + {float})", "try_cast({str} as double)", "signum({float})", "rint({float})", "({float} % 2)",
        "degrees({float})", "try_cast({str} as float)",
    ),
    "str": (
        "concat({str}, {str})", "upper({str})", "lower({str})", "trim({str})", "ltrim({str})",
        "substring({str}, 1, 2)",
        "substring({str}, {int}, 2)", "cast({int} as string)", "cast({date} as string)", "cast({dec} as string)",
        "cast({bool} as string)", "replace({str}, 'a', {str})", "lpad({str}, 4, '*')", "rpad({str}, 3, 'xy')",
        "reverse({str})", "concat_ws('-', {str}, {str})", "coalesce({str}, '-')", "left({str}, 2)",
        "right({str}, 1)",
        "md5({bin})", "sha2({bin}, 256)", "hex({int})", "hex({str})", "bin({int})", "repeat({str}, 2)",
        "soundex({str})",
        "substring_index({str}, 'a', 1)", "translate({str}, 'ab', 'xy')", "dayname({date})", "monthname({date})",
        "base64({bin})", "trim(both 'a' from {str})", "({str} || {str})", "char({int})", "space(2)", "{struct}.b",
    ),
    "bin": ("cast({str} as binary)", "unhex({str})"),
    "date": (
        "date_add({date}, 1)", "date_sub({date}, 400)", "last_day({date})", "trunc({date}, 'month')",
        "trunc({date}, 'week')", "trunc({date}, 'year')", "add_months({date}, 7)", "cast({ts} as date)",
        "try_cast({str} as date)", "next_day({date}, 'MO')", "coalesce({date}, date'2020-01-01')",
        "cast({ntz} as date)", "date_add({date}, cast({int} % 1000 as int))",
        "date_from_unix_date(cast({int} % 9999 as int))",
    ),
    "ts": (
        "cast({date} as timestamp)", "date_trunc('hour', {ts})", "date_trunc('month', {ts})",
        "date_trunc('week', {ts})",
        "timestamp_micros({int} % 1000000007)", "cast({ntz} as timestamp)", "date_trunc('quarter', {ts})",
        "timestamp_seconds({int} % 100000)",
    ),
    "ntz": ("cast({ts} as timestamp_ntz)", "cast({date} as timestamp_ntz)"),
    "arr": ("array({int}, {int})", "array({int})", "slice({arr}, 1, 2)", "reverse({arr})", "concat({arr}, {arr})"),
    "struct": ("named_struct('a', {int}, 'b', {str})", "struct({int} as a, {str} as b)"),
}  # fmt: skip

RARE: dict[str, tuple[str, ...]] = {
    "bool": (
        "({str} like {str})", "({str} ilike 'A%')", "exists({arr}, x -> x is null)", "array_contains({arr}, {int})",
        "({arr} = {arr})", "({struct} <=> {struct})", "luhn_check({str})", "equal_null({int}, {int})",
        "({str} rlike {str})",
    ),
    "int": (
        "hash({int}, {str})", "xxhash64({str})", "levenshtein({str}, {str})", "cast({str} as int)",
        "cast({float} as int)",
        "({int} * {int})", "datediff(day, {ts}, {ts})", "extract(week from {date})", "positive({int})",
        "factorial({int})",
        "unix_timestamp({ts})", "array_size({arr})", "cardinality({arr})", "try_subtract({int}, {int})",
        "getbit({int}, 1)",
        "shiftrightunsigned({int}, 1)", "try_mod({int}, {int})", "to_number({str}, '999')",
        "regexp_count({str}, 'a')",
    ),
    "dec": ("bround({dec}, 1)", "round({dec}, -1)", "cast({float} as decimal(20,4))", "ceil({dec}, 1)"),
    "float": (
        "exp({float})", "ln({float})", "pow({float}, 2)", "sin({float})", "atan2({float}, {float})",
        "cbrt({float})",
        "log10({float})", "tanh({float})", "pmod({float}, 3)", "months_between({date}, {date})",
        "greatest({float}, {float})",
        "least({float}, {float})", "log2({float})", "hypot({float}, 1)", "cast({str} as double)",
    ),
    "str": (
        "initcap({str})", "regexp_replace({str}, 'a+', 'b')", "regexp_extract({str}, '(a)', 1)",
        "split({str}, 'a')[0]",
        "date_format({ts}, 'yyyy-MM-dd')", "cast({float} as string)", "cast({ts} as string)",
        "format_number({float}, 2)",
        "cast({arr} as string)", "format_string('%s-%d', {str}, {int})", "cast({struct} as string)",
        "to_json({struct})",
        "sha1({bin})", "conv({str}, 10, 16)", "overlay({str}, 'x', 1)", "split_part({str}, 'a', 1)",
        "typeof({int})",
        "to_char({dec}, '999.99')", "elt(2, {str}, {str})", "encode({str}, 'utf-8')", "cast({bin} as string)",
    ),
    "bin": ("encode({str}, 'utf-8')", "to_binary({str}, 'utf-8')"),
    "date": ("make_date({int}, 1, 1)", "to_date({str})", "cast({str} as date)", "to_date({str}, 'yyyy-MM-dd')"),
    "ts": (
        "to_timestamp({str})", "from_utc_timestamp({ts}, 'America/New_York')", "({ts} + interval 1 day)",
        "timestampadd(month, 1, {ts})", "make_timestamp(2020, 1, 1, 0, 0, 0)", "({ts} - interval 90 minutes)",
    ),
    "ntz": ("date_trunc('day', {ntz})", "try_cast({str} as timestamp_ntz)"),
    "arr": (
        "sort_array({arr})", "array_distinct({arr})", "transform({arr}, x -> x)",
        "filter({arr}, x -> x is not null)",
        "array_union({arr}, {arr})", "sequence(1, 3)", "array_repeat({int}, 2)", "array_compact({arr})",
        "flatten(array({arr}, {arr}))", "array_except({arr}, {arr})",
    ),
    "struct": ("if({bool}, {struct}, {struct})",),
}  # fmt: skip

_SAME_KIND = (
    "coalesce({0}, {0})",
    "if({bool}, {0}, {0})",
    "case when {bool} then {0} when {bool} then {0} end",
    "case when {bool} then {0} else {0} end",
    "nullif({0}, {0})",
    "ifnull({0}, {0})",
)
_LITERAL_TYPES = {
    "bool": ("boolean",),
    "int": ("int", "bigint", "tinyint"),
    "dec": ("decimal(7,2)", "decimal(38,6)"),
    "float": ("double", "float"),
    "str": ("string",),
    "bin": ("binary",),
    "date": ("date",),
    "ts": ("timestamp",),
    "ntz": ("timestamp_ntz",),
    "arr": ("array<int>",),
    "struct": ("struct<a:int,b:string>",),
    "other": ("array<string>", "map<string,int>"),
}

# A literal of these types needs no cast.
_PLAIN = frozenset({"boolean", "string", "date", "timestamp", "double", "int"})


class Expressions:
    """Draws expressions over the columns of a scope. `rare_percent` is the chance of one without a native form."""

    def __init__(self, choices: Choices, scope: Sequence[Column], rare_percent: int = 6) -> None:
        self._choices = choices
        self._scope = scope
        self._rare = rare_percent

    def draw(self, kind: str, depth: int = 2) -> str:
        choices = self._choices
        if depth <= 0 or not choices.percent(65):
            return self.leaf(kind)
        if choices.percent(15):
            template = choices.pick(_SAME_KIND).replace("{0}", f"{{{kind}}}")
        else:
            rare = kind in RARE and choices.percent(self._rare)
            templates = (RARE if rare else COMMON).get(kind)
            if not templates:
                return self.leaf(kind)
            template = choices.pick(templates)
        return re.sub(r"\{(\w+)\}", lambda part: self.draw(part[1], depth - 1), template)

    def leaf(self, kind: str) -> str:
        """A column, or a literal if no column has this kind, and sometimes otherwise."""
        columns = [c.name for c in self._scope if c.kind == kind]
        if columns and not self._choices.percent(15):
            return self._choices.pick(columns)
        return self.literal(kind)

    def literal(self, kind: str) -> str:
        type = self._choices.pick(_LITERAL_TYPES[kind])
        if self._choices.percent(8):
            return f"cast(null as {type})"
        common, wild = literals(type)
        value = self._choices.pick((*common, *wild) if self._choices.percent(10) else common)
        return value if type in _PLAIN else f"cast({value} as {type})"

    def condition(self) -> str:
        return self.draw("bool", 2)

    def any_kind(self) -> str:
        """The kind of some column, or any kind that has literals."""
        kinds = [c.kind for c in self._scope if c.kind != "other"]
        if kinds and not self._choices.percent(30):
            return self._choices.pick(kinds)
        return self._choices.pick(
            ("int", "str", "dec", "float", "bool", "date", "ts", "arr", "struct", "bin", "ntz")
        )
