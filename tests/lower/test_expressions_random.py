# SPDX-License-Identifier: Apache-2.0
"""Random expressions over random rows: what holds for each class alone must hold for what they are built into."""

from __future__ import annotations

import datetime
import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from volley.testing.expressions import compare_expressions
from volley.testing.session import conf

_PRICE, _TOTAL = pa.decimal128(15, 2), pa.decimal128(38, 6)


def _cents(digits: int, scale: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda n: Decimal(f"{n}E-{scale}"))


_COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-3, 3)),
    "l": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)),
    "x": (pa.float64(), st.floats() | st.sampled_from([0.0, -0.0, 1.0, float("nan")])),
    "p": (_PRICE, _cents(15, 2) | _cents(4, 2)),
    "q": (_TOTAL, _cents(38, 6) | _cents(8, 6)),
    "s": (pa.string(), st.text(max_size=8) | st.sampled_from(["a", "ab", "", "b%", "12", " 7 "])),
    "d": (pa.date32(), st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31))),
    "t": (
        pa.timestamp("us", tz="UTC"),
        st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31))
        # The hours around a change of the clock.
        | st.datetimes(datetime.datetime(2024, 3, 10, 5), datetime.datetime(2024, 3, 10, 9)),
    ),
    "a": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-3, 3), max_size=5)),
}


@st.composite
def tables(draw: st.DrawFn, rows: int = 24) -> pa.Table:
    columns = {}
    for name, (arrow_type, values) in _COLUMNS.items():
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(drawn, arrow_type)
    return pa.table(columns)


# For each kind, named as its column (`b` is boolean): leaves, and templates with the kinds of their parts. No leaf is
# constant: Spark would fold what is built from constants while it plans, and may fail there.
_LEAVES = {
    "i": ["i", "coalesce(i, 0)", "nullif(i, -7)"],
    "l": ["l", "coalesce(l, 3L)", "nullif(l, 0L)"],
    "x": ["x", "coalesce(x, 1.5D)", "coalesce(x, double('NaN'))"],
    "p": ["p", "coalesce(p, cast(1.25 as decimal(15,2)))"],
    "q": ["q", "coalesce(q, cast(0 as decimal(38,6)))"],
    "s": ["s", "coalesce(s, 'Ab')", "nullif(s, 'a')"],
    "d": ["d", "coalesce(d, date'2020-02-29')"],
    "t": ["t", "coalesce(t, timestamp'2024-11-03 01:30:00')"],
    "a": ["a", "coalesce(a, array(1, null))"],
    "b": ["i is null", "x = 0.0D", "l > 0", "s like '%a%'"],
}
_SAME_KIND = ["coalesce({0}, {0})", "if({b}, {0}, {0})", "case when {b} then {0} when {b} then {0} end"]
_TEMPLATES = {
    "i": [
        "({i} + {i})", "({i} - {i})", "({i} * {i})", "({i} % {i})", "({i} & {i})", "-({i})", "abs({i})", "length({s})",
        "year({d})", "datediff({d}, {d})", "cast({l} as int)", "cast({x} as int)", "cast({p} as int)",
        "try_add({i}, {i})", "cast({s} as int)", "pmod({i}, {i})", "hour({t})", "minute({t})", "size({a})",
        "array_max({a})", "levenshtein({s}, {s})", "size(split({s}, '[ab]'))", "size(filter({a}, e -> e > {i}))",
    ],
    "l": [
        "({l} + {l})", "({l} - {l})", "({l} * {l})", "({l} % {l})", "({l} div {l})", "cast({i} as bigint)",
        "cast({x} as bigint)", "cast({p} as bigint)", "try_multiply({l}, {l})", "shiftleft({l}, {i})",
    ],
    "x": [
        "({x} + {x})", "({x} - {x})", "({x} * {x})", "({x} / {x})", "cast({i} as double)", "cast({l} as double)",
        "cast({p} as double)", "cast({q} as double)", "nanvl({x}, {x})", "try_divide({x}, {x})", "sqrt({x})", "-({x})",
    ],
    "p": ["cast({i} as decimal(15,2))", "cast({q} as decimal(15,2))", "abs({p})", "cast({x} as decimal(15,2))"],
    "q": [
        "cast({p} + {q} as decimal(38,6))", "cast({q} - {p} as decimal(38,6))", "cast({p} * {p} as decimal(38,6))",
        "cast({p} * {q} as decimal(38,6))", "cast({p} / {q} as decimal(38,6))", "cast({q} / {p} as decimal(38,6))",
        "cast({i} as decimal(38,6))", "cast({l} as decimal(38,6))", "try_add({q}, {q})",
        "cast({q} % {p} as decimal(38,6))",
    ],
    "s": [
        "concat({s}, {s})", "upper({s})", "lower({s})", "trim({s})", "substring({s}, 1, 2)", "substring({s}, -2, 2)",
        "substring({s}, {i}, {i})", "cast({i} as string)", "cast({l} as string)", "cast({b} as string)",
        "cast({d} as string)", "replace({s}, {s}, {s})", "lpad({s}, 4, '*')", "cast({p} as string)",
        "regexp_replace({s}, '[ab]+|[^0-9]', '<$0>')", "regexp_extract({s}, '^(.)(b|a)?', 2)", "split({s}, 'b')[0]",
        "split_part({s}, 'a', 1)", "overlay({s} placing {s} from 2)", "array_join(split({s}, 'a'), '-')",
        "concat_ws(',', {s}, split({s}, 'b'))", "cast({t} as string)", "date_format({t}, 'E d MMM yyyy HH:mm')",
    ],
    "d": ["date_add({d}, 1)", "date_sub({d}, 400)", "last_day({d})", "trunc({d}, 'month')",
    "add_months({d}, 7)", "cast({t} as date)"],
    "t": [
        "date_trunc('hour', {t})", "date_trunc('month', {t})", "from_utc_timestamp({t}, 'Europe/London')",
        "to_utc_timestamp({t}, 'Australia/Lord_Howe')", "({t} + interval 1 day)", "cast({d} as timestamp)",
    ],
    "a": [
        "array_distinct({a})", "array_union({a}, {a})", "array_except({a}, {a})", "sort_array({a}, false)",
        "array_sort({a})", "array_append({a}, {i})", "array_remove({a}, {i})", "transform({a}, e -> try_add(e, {i}))",
        "filter({a}, e -> e <> {i} or e is null)", "sequence(size({a}), 2)",
    ],
    "b": [
        "({b} and {b})", "({b} or {b})", "(not {b})", "({i} in ({i}, {i}))", "({s} in ({s}, 'a'))",
        "({x} in ({x}, {x}))",
        "({l} <> 0 and {l} / {l} > 1)", "startswith({s}, {s})", "contains({s}, {s})", "isnan({x})",
        "arrays_overlap({a}, {a})", "exists({a}, e -> e = {i})", "forall({a}, e -> e < {i})", "({s} rlike '^[^a]b?')",
        *(f"({{{kind}}} {sign} {{{kind}}})" for kind in "ilxpqsdt" for sign in ("=", "<", "<=", "<=>", "<>")),
        *(f"({{{kind}}} is null)" for kind in "ilxpqsdta"),
    ],
}  # fmt: skip


@st.composite
def expressions(draw: st.DrawFn, depth: int = 3) -> str:
    return _expression(draw, draw(st.sampled_from("ilxpqsdtab")), depth)


def _expression(draw: st.DrawFn, kind: str, depth: int) -> str:
    if depth == 0:
        return draw(st.sampled_from(_LEAVES[kind]))
    same = [template.replace("{0}", f"{{{kind}}}") for template in _SAME_KIND]
    template = draw(st.sampled_from([*same, *_TEMPLATES[kind]]))
    return re.sub(r"\{(\w)\}", lambda part: _expression(draw, part[1], depth - 1), template)


@pytest.mark.parametrize("ansi", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["ansi", "legacy"])
def test_random_expressions_on_random_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, subtests: Any, ansi: bool
) -> None:
    # No shrinking: every try asks Spark, and the message already names one expression and one row.
    @settings(
        max_examples=3,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(table=tables(), texts=st.lists(expressions(), min_size=25, max_size=25, unique=True))
    def compare(table: pa.Table, texts: list[str]) -> None:
        directory: Path = tmp_path_factory.mktemp("rows")
        with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
            verdicts = compare_expressions(spark, table, texts, directory, ansi=ansi)
        counts["native"] += sum(verdict.refusal is None for verdict in verdicts)
        refusals.update(str(verdict.refusal) for verdict in verdicts if verdict.refusal)
        counts["equal"] += sum(verdict.equal for verdict in verdicts)
        counts["alarms"] += sum(verdict.alarms for verdict in verdicts)
        assert not (eager := [verdict.expression for verdict in verdicts if verdict.eager]), eager[0]
        assert not (wrong := [message for verdict in verdicts for message in verdict.wrong]), wrong[0]

    counts = dict.fromkeys(("native", "equal", "alarms"), 0)
    refusals: Counter[str] = Counter()
    compare()
    assert counts["native"] > refusals.total(), (counts, refusals)
    assert counts["equal"] > counts["alarms"], counts
    for reason, count in refusals.items():
        with subtests.test(reason):
            pytest.skip(f"{count} times: {reason}")
