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

ORDERABLE = ("int", "str", "dec", "float", "bool", "date", "ts", "ntz", "bin", "span")
NESTED_KEYS = ("arr", "struct")
"""Kinds that groups and joins compare, but few queries sort by."""
SORTABLE = (*ORDERABLE, "struct")
"""Kinds that have a native order."""
NUMBERS = ("int", "dec", "float")
TYPE_OF = {
    "bool": "boolean", "int": "int", "dec": "decimal", "float": "double", "str": "string", "bin": "binary",
    "date": "date", "ts": "timestamp", "ntz": "timestamp_ntz", "arr": "array<int>",
    "struct": "struct<a:int,b:string>", "map": "map<string,int>", "span": "interval day to second",
}  # fmt: skip
"""A type of each kind, for columns that a query computes."""

_COMPARED = ("int", "str", "dec", "float", "date", "ts", "ntz", "bool", "bin")
COMMON: dict[str, tuple[str, ...]] = {
    "bool": (
        "forall({arr}, x -> x > 0)", "arrays_overlap({arr}, {arr})", "exists({arr}, x -> x is null)",
        "exists({arr}, x -> x = {int})", "({str} rlike '(?i)b$')",
        "({span} < {span})", "({span} = {span})", "map_contains_key({map}, 'a')", "({map} is null)",
        "isnull({arr})", "isnotnull({struct})", "({arr} is null)", "({struct}.a = {int})",
        "(cast({ts} as date) = {date})", "({str} between 'a' and 'c')",
        *(f"({{{kind}}} {sign} {{{kind}}})" for kind in _COMPARED for sign in ("=", "<", "<=>")),
        *(f"({{{kind}}} {sign} {{{kind}}})" for kind in ("int", "str", "date", "dec") for sign in (">=", "<>")),
        *(f"({{{kind}}} is {word})" for kind in ("int", "str", "float", "date") for word in ("null", "not null")),
        "({bool} and {bool})", "({bool} or {bool})", "(not {bool})",
        "({int} = {dec})", "({int} < {float})", "({dec} <= {float})", "({date} < {ts})",
        "({str} in ('a', 'zz', {str}))", "({int} in (1, 2, {int}))", "({int} not in (1, null))",
        "({str} not in ('a', 'b'))", "({int} between {int} and {int})", "({date} in (date'2020-01-01', {date}))",
        "startswith({str}, {str})", "endswith({str}, 'a')", "contains({str}, {str})", "({str} like 'a%')",
        "({str} like '%\\\\_%')", "({str} like '_')", "isnan({float})", "({str} rlike '^[a-z]+$')",
        "(cast({dec} as decimal(12,1)) = 1.5)", "(try_cast({dec} as int) in (0, 1, 7))", "(round({dec}) <= 1)",
        "(try_cast({int} as tinyint) <> 5)", "({int} + 1 > 5)", "({dec} / 3 < 1)", "(cast({int} as decimal(38,0)) = 1)",
    ),
    "int": (
        "array_max({arr})", "array_min({arr})", "to_unix_timestamp({ts})", "levenshtein({str}, {str})",
        "unix_timestamp({ts})",
        "size({map})", "element_at({map}, 'a')", "{map}['b']", "extract(hour from {span})",
        "mod({int}, 7)", "nvl2({str}, {int}, 0)", "zeroifnull({int})", "nullifzero({int})", "shiftright({int}, 2)",
        "date_diff({date}, {date})", "char_length({str})", "nvl({int}, -1)", "unix_millis({ts})",
        "cast({date} < {date} as int)", "extract(year from {ts})",
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
        "radians({float})", "negative({float})", "cast({float} as double)",
        "({float} + {float})", "({float} - 1)", "({float} * {float})", "({float} / {float})", "(-{float})",
        "abs({float})", "cast({int} as double)", "cast({dec} as double)", "cast({float} as float)",
        "round({float}, 1)",
        "try_divide({float}, {float})", "sqrt({float})", "nanvl({float}, {float})", "({int} / 2)",
        "({float} + {int})",
        "({dec} + {float})", "try_cast({str} as double)", "signum({float})", "rint({float})", "({float} % 2)",
        "degrees({float})", "try_cast({str} as float)",
    ),
    "str": (
        "initcap({str})", "regexp_replace({str}, 'a+', 'b')", "regexp_extract({str}, '(a)', 1)",
        "split({str}, 'a')[0]", "date_format({ts}, 'yyyy-MM-dd')", "cast({ts} as string)", "cast({ntz} as string)",
        "date_format({date}, 'E, d MMM')", "overlay({str}, 'x', 1)", "split_part({str}, 'a', 1)",
        "from_unixtime({int} % 100000)", "array_join(split({str}, '[ab]'), '-')",
        "regexp_replace({str}, '(\\\\w)\\\\s', '$1')", "concat_ws(',', array({str}, {str}))",
        "ucase({str})", "lcase({str})", "rtrim({str})", "chr({int})", "nvl2({int}, {str}, {str})", "sha({bin})",
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
        "dateadd({date}, -3)", "trunc({date}, 'quarter')",
        "date_add({date}, 1)", "date_sub({date}, 400)", "last_day({date})", "trunc({date}, 'month')",
        "trunc({date}, 'week')", "trunc({date}, 'year')", "add_months({date}, 7)", "cast({ts} as date)",
        "try_cast({str} as date)", "next_day({date}, 'MO')", "coalesce({date}, date'2020-01-01')",
        "cast({ntz} as date)", "date_add({date}, cast({int} % 1000 as int))",
        "date_from_unix_date(cast({int} % 9999 as int))",
    ),
    "ts": (
        "to_utc_timestamp({ts}, 'Europe/Berlin')", "try_cast({str} as timestamp)",
        "from_utc_timestamp({ts}, 'America/New_York')", "({ts} + interval 1 day)", "({ts} - interval 90 minutes)",
        "date_trunc('minute', {ntz})", "try_to_timestamp({str}, 'yyyy-MM-dd')",
        "timestamp_millis({int} % 1000000007)", "date_trunc('day', {ts})", "date_trunc('year', {ts})",
        "coalesce({ts}, timestamp'2021-03-28 01:30:00')",
        "cast({date} as timestamp)", "date_trunc('hour', {ts})", "date_trunc('month', {ts})",
        "date_trunc('week', {ts})",
        "timestamp_micros({int} % 1000000007)", "cast({ntz} as timestamp)", "date_trunc('quarter', {ts})",
        "timestamp_seconds({int} % 100000)",
    ),
    "ntz": ("try_cast({str} as timestamp_ntz)", "cast({ts} as timestamp_ntz)", "cast({date} as timestamp_ntz)"),
    "arr": (
        "array_intersect({arr}, {arr})", "array_remove({arr}, {int})", "array_append({arr}, {int})",
        "array_sort({arr})", "array_insert({arr}, 1, {int})", "sort_array({arr})", "array_distinct({arr})",
        "transform({arr}, x -> x)", "filter({arr}, x -> x is not null)", "array_union({arr}, {arr})",
        "sequence(1, 3)", "array_repeat({int}, 2)", "array_compact({arr})", "array_except({arr}, {arr})",
        "transform({arr}, x -> try_add(x, {int}))",
        "array({int}, {int})", "array({int})", "slice({arr}, 1, 2)", "reverse({arr})", "concat({arr}, {arr})",
        "map_values({map})",
    ),
    "map": ("map(coalesce({str}, ''), {int})",),
    "span": ("({ts} - {ts})", "make_dt_interval(0, {int} % 1000)", "({span} * 2)", "(-{span})", "({span} + {span})"),
    "struct": ("named_struct('a', {int}, 'b', {str})", "struct({int} as a, {str} as b)"),
}  # fmt: skip

RARE: dict[str, tuple[str, ...]] = {
    "bool": (
        "map_contains_key(map({int}, {str}), 1)",
        "regexp_like({str}, 'a.')", "({ts} - {ts} > interval 1 day)", "({date} + interval 1 month < {date})",
        "({str} collate UTF8_LCASE = {str})",
        "({str} like {str})", "({str} ilike 'A%')", "array_contains({arr}, {int})",
        "({arr} = {arr})", "({struct} <=> {struct})", "luhn_check({str})", "equal_null({int}, {int})",
        "({str} rlike {str})",
    ),
    "int": (
        "size(map_keys(map({str}, {int})))", "aggregate({arr}, 0, (a, x) -> a + coalesce(x, 0))",
        "extract(day from ({ts} - {ts}))", "json_array_length({str})",
        "width_bucket({float}, 0, 10, 3)", "extract(hour from ({ts} - {ts}))",
        "element_at(map({str}, {int}), 'a')", "cast({ntz} < {ts} as int)", "bit_get({int}, 2)",
        "hash({int}, {str})", "xxhash64({str})", "cast({str} as int)",
        "cast({float} as int)",
        "({int} * {int})", "datediff(day, {ts}, {ts})", "extract(week from {date})", "positive({int})",
        "factorial({int})",
        "array_size({arr})", "cardinality({arr})", "try_subtract({int}, {int})",
        "getbit({int}, 1)",
        "shiftrightunsigned({int}, 1)", "try_mod({int}, {int})", "to_number({str}, '999')",
        "regexp_count({str}, 'a')",
    ),
    "dec": (
        "cast({str} as decimal(12,3))", "bround({dec}, 1)", "round({dec}, -1)", "cast({float} as decimal(20,4))",
        "ceil({dec}, 1)"),
    "float": (
        "log(2, {float})", "log1p({float})", "cosh({float})", "cot({float})", "asin({float})", "expm1({float})",
        "exp({float})", "ln({float})", "pow({float}, 2)", "sin({float})", "atan2({float}, {float})",
        "cbrt({float})",
        "log10({float})", "tanh({float})", "pmod({float}, 3)", "months_between({date}, {date})",
        "greatest({float}, {float})",
        "least({float}, {float})", "log2({float})", "hypot({float}, 1)", "cast({str} as double)",
    ),
    "str": (
        "cast({ts} - {ts} as string)", "cast(map({str}, {int}) as string)",
        "to_csv({struct})", "get_json_object(to_json({struct}), '$.b')", "mask({str})", "url_encode({str})",
        "array_join(transform({arr}, x -> cast(x as string)), '-', 'n')", "quote({str})",
        "cast(date_trunc('hour', {ntz}) as string)", "cast(make_dt_interval(0, {int} % 50) as string)",
        "regexp_substr({str}, '[a-z]+')",
        "to_varchar({dec}, '999.9')", "cast({arr} as string)", "from_json(to_json({struct}), 'a int, b string').b",
        "cast({float} as string)",
        "format_number({float}, 2)",
        "cast({arr} as string)", "format_string('%s-%d', {str}, {int})", "cast({struct} as string)",
        "to_json({struct})",
        "sha1({bin})", "conv({str}, 10, 16)",
        "typeof({int})",
        "to_char({dec}, '999.99')", "elt(2, {str}, {str})", "encode({str}, 'utf-8')", "cast({bin} as string)",
    ),
    "bin": ("encode({str}, 'utf-8')", "to_binary({str}, 'utf-8')"),
    "date": (
        "to_date({str}, 'yyyy-MM-dd')",         "cast({date} + interval 1 month as date)",
        "try_to_date({str})", "({date} - interval 3 days)",
        "cast(convert_timezone('UTC', 'Asia/Tokyo', {ntz}) as date)", "make_date({int}, 1, 1)", "to_date({str})",
        "cast({str} as date)", ),
    "ts": (
        "cast({str} as timestamp)",
        "({ts} + make_dt_interval(1, {int} % 30))",
        "({ts} + interval 1 month)", "try_to_timestamp({str})",
        "time_bucket(interval 1 hour, {ts})",
        "to_timestamp({str})",
        "timestampadd(month, 1, {ts})", "make_timestamp(2020, 1, 1, 0, 0, 0)",
    ),
    "ntz": ("date_trunc('day', {ntz})", ),
    "arr": (
        "map_values(map({str}, {int}))", "zip_with({arr}, {arr}, (x, y) -> x + y)",

        "flatten(array({arr}, {arr}))", "flatten(array({arr}, null))",
        "array(array(1), null, array({int}))[{int}]", "if({bool}, array(array(2), null)[1], {arr})",
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
    "map": ("map<string,int>",),
    "span": ("interval day to second",),
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
            ("int", "str", "dec", "float", "bool", "date", "ts", "arr", "struct", "bin", "ntz", "map", "span")
        )
