"""Random expressions over random rows: what holds for each class alone must hold for what they are built into."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from volley.testing.expressions import compare_expressions

Sql = st.SearchStrategy[str]

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
}


@st.composite
def tables(draw: st.DrawFn, rows: int = 24) -> pa.Table:
    columns = {}
    for name, (arrow_type, values) in _COLUMNS.items():
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[name] = pa.array(drawn, arrow_type)
    return pa.table(columns)


def _call(template: str, *parts: Sql) -> Sql:
    return st.tuples(*parts).map(lambda texts: template.format(*texts))


def _expressions(depth: int) -> dict[str, Sql]:
    """For each column's kind, expressions of its type; `b` are the boolean ones."""
    # No leaf is constant: Spark would fold what is built from constants while it plans, and may fail there.
    leaves = {
        "i": st.sampled_from(["i", "coalesce(i, 0)", "nullif(i, -7)"]),
        "l": st.sampled_from(["l", "coalesce(l, 3L)", "nullif(l, 0L)"]),
        "x": st.sampled_from(["x", "coalesce(x, 1.5D)", "coalesce(x, double('NaN'))"]),
        "p": st.sampled_from(["p", "coalesce(p, cast(1.25 as decimal(15,2)))"]),
        "q": st.sampled_from(["q", "coalesce(q, cast(0 as decimal(38,6)))"]),
        "s": st.sampled_from(["s", "coalesce(s, 'Ab')", "nullif(s, 'a')"]),
        "d": st.sampled_from(["d", "coalesce(d, date'2020-02-29')"]),
        "b": st.sampled_from(["i is null", "x = 0.0D", "l > 0", "s like '%a%'"]),
    }
    if depth == 0:
        return leaves
    below = _expressions(depth - 1)
    i, l, x, p, q, s, d, b = (below[kind] for kind in "ilxpqsdb")  # noqa: E741  (named as the columns are)
    same = {kind: _same_type(below[kind], b) for kind in "ilxpqsdb"}
    return {
        "i": same["i"]
        | st.sampled_from(["+", "-", "*", "%", "&"]).flatmap(lambda sign: _call("({} " + sign + " {})", i, i))
        | _call("-({})", i)
        | _call("abs({})", i)
        | _call("length({})", s)
        | _call("year({})", d)
        | _call("datediff({}, {})", d, d)
        | _call("cast({} as int)", l | x | p)
        | _call("try_add({}, {})", i, i),
        "l": same["l"]
        | st.sampled_from(["+", "-", "*", "%", "div"]).flatmap(
            lambda sign: _call("({} " + sign + " {})", l, l)
        )
        | _call("cast({} as bigint)", i | x | p)
        | _call("try_multiply({}, {})", l, l),
        "x": same["x"]
        | st.sampled_from(["+", "-", "*", "/"]).flatmap(lambda sign: _call("({} " + sign + " {})", x, x))
        | _call("cast({} as double)", i | l | p | q)
        | _call("nanvl({}, {})", x, x)
        | _call("try_divide({}, {})", x, x),
        "p": same["p"] | _call("cast({} as decimal(15,2))", i | q) | _call("abs({})", p),
        "q": same["q"]
        | st.sampled_from(["+", "-", "*", "/"]).flatmap(
            lambda sign: _call("cast({} " + sign + " {} as decimal(38,6))", p | q, p | q)
        )
        | _call("cast({} as decimal(38,6))", i | l | p),
        "s": same["s"]
        | _call("concat({}, {})", s, s)
        | _call("upper({})", s)
        | _call("trim({})", s)
        | _call("substring({}, {}, 2)", s, st.sampled_from(["1", "0", "-2"]))
        | _call("cast({} as string)", i | l | b | d)
        | _call("replace({}, {}, {})", s, s, s),
        "d": same["d"]
        | _call("date_add({}, {})", d, st.sampled_from(["1", "-400", "30"]))
        | _call("last_day({})", d)
        | _call("trunc({}, 'month')", d),
        "b": same["b"]
        | _call("({} and {})", b, b)
        | _call("({} or {})", b, b)
        | _call("(not {})", b)
        | st.sampled_from(["=", "<", "<=", "<=>", "<>"]).flatmap(
            lambda sign: st.sampled_from([i, l, x, p, q, s, d]).flatmap(
                lambda kind: _call("({} " + sign + " {})", kind, kind)
            )
        )
        | _call("({} is null)", i | l | x | p | q | s | d)
        | _call("({} in ({}, {}))", i, i, i)
        | _call("({} <> 0 and {} / {} > 1)", l, l, l)
        | _call("startswith({}, {})", s, s),
    }


def _same_type(value: Sql, condition: Sql) -> Sql:
    return (
        _call("coalesce({}, {})", value, value)
        | _call("if({}, {}, {})", condition, value, value)
        | _call("case when {} then {} when {} then {} end", condition, value, condition, value)
    )


expressions = st.lists(st.one_of(*_expressions(3).values()), min_size=30, max_size=30, unique=True)


@pytest.mark.parametrize("ansi", [True, False], ids=["ansi", "legacy"])
def test_random_expressions_on_random_rows(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, subtests: Any, ansi: bool
) -> None:
    # No shrinking: every try asks Spark, and the message already names one expression and one row.
    @settings(
        max_examples=6,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(table=tables(), texts=expressions)
    def compare(table: pa.Table, texts: list[str]) -> None:
        directory: Path = tmp_path_factory.mktemp("rows")
        verdicts = compare_expressions(spark, table, texts, directory, ansi=ansi)
        counts["native"] += sum(verdict.refusal is None for verdict in verdicts)
        counts["refused"] += sum(verdict.refusal is not None for verdict in verdicts)
        counts["equal"] += sum(verdict.equal for verdict in verdicts)
        counts["alarms"] += sum(verdict.alarms for verdict in verdicts)
        assert not (wrong := [message for verdict in verdicts for message in verdict.wrong]), wrong[0]

    counts = dict.fromkeys(("native", "refused", "equal", "alarms"), 0)
    compare()
    assert counts["native"] > counts["refused"], counts
    assert counts["equal"] > counts["alarms"], counts
    if counts["refused"]:
        with subtests.test("refused"):
            pytest.skip(f"{counts['refused']} of {counts['native'] + counts['refused']} were not native")
