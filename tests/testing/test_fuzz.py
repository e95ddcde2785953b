# SPDX-License-Identifier: Apache-2.0
"""The fuzzer: a seed decides everything, a failing case shrinks, and most programs run natively."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from volley.testing.fuzz.__main__ import fuzz
from volley.testing.fuzz.choices import Choices, shrink
from volley.testing.fuzz.findings import Case, draw_case
from volley.testing.fuzz.oracle import Finding, assert_same_outcome
from volley.testing.fuzz.programs import Program
from volley.testing.fuzz.tables import LEAVES, Column, Table, draw_tables
from volley.testing.limits import DISTRIBUTED_SETTINGS


def test_same_seed_same_case() -> None:
    one, other = (draw_tables(Choices(7)) for _ in range(2))
    assert one == other
    assert draw_case(Choices("7-1"), one, 5) == draw_case(Choices("7-1"), other, 5)
    assert draw_case(Choices("7-1"), one, 5) != draw_case(Choices("7-2"), one, 5)


def test_replayed_choices_give_the_same_case() -> None:
    tables = draw_tables(Choices(3))
    choices = Choices("3-4")
    program = draw_case(choices, tables, 5)
    assert draw_case(Choices(replay=choices.made), tables, 5) == program


@pytest.mark.parametrize("seed", range(20))
def test_no_choices_are_the_simplest_case(seed: int) -> None:
    tables = draw_tables(Choices(seed))
    shortest = draw_case(Choices(replay=[]), tables, 5)
    assert len(shortest.text) <= len(draw_case(Choices(seed), tables, 5).text)


def test_shrinking_keeps_what_fails() -> None:
    made = [3, 41, 7, 7, 0, 12, 99, 5]
    assert shrink(made, lambda choices: 12 in choices and 7 in choices, tries=500) == [7, 12]


def test_case_as_a_test_compiles() -> None:
    tables = draw_tables(Choices(1))
    case = Case(tuple(tables), draw_case(Choices(2), tables, 5), Finding("rows", "1 row\nexpected 'a\\b'"))
    compile(case.test(), "test_found.py", "exec")


FOUND = {
    # A column that is constant in every branch of a union, sorted above a join.
    "files below a join": (
        "partitioned",
        "select /*+ broadcast(y) */ s, id from (select * from a where not exists"
        " (select 1 from b where b.id = a.id and b.s = a.s)) x left join"
        " (select id j from b where exists (select 1 from a c where b.id = c.k) or b.s = 'a') y on x.k = y.j"
        " order by s",
    ),
    # A Python data source can be read only once.
    "NOT IN over a data source": ("source", "select s, id from b where k not in (select k from a)"),
    # Spark analyzes what is left of a mixed plan again, without the join that dynamic partition pruning refers to.
    "dynamic partition pruning in a mixed plan": (
        "partitioned",
        "select hash(n), w from (select b.id n, count(*) over (partition by b.s order by b.id) w from b"
        " where b.id in (select k from a))",
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_found_before(spark: SparkSession, tmp_path: Path, name: str) -> None:
    leaf, text = FOUND[name]
    columns = (Column("id", "bigint"), Column("k", "int"), Column("s", "string"))
    rows = tuple((str(n), str(n % 3), "'a'" if n % 2 else "null") for n in range(5))
    tables = [Table("a", leaf, columns, rows), Table("b", "values", columns, rows[1:])]
    program = Program(f'spark.sql("""{text}""")', "order by s" in text, dict(DISTRIBUTED_SETTINGS))
    assert_same_outcome(spark, tables, program, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_programs(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    leaves = [leaf for leaf in LEAVES if leaf not in ("cached", "udf")]
    report = fuzz(spark, 120, seed, tmp_path, 2, leaves, 1)
    assert not report.findings, report
    assert report.engines["native"] > report.engines["spark"] + report.engines["mixed"], report
