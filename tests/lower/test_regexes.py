# SPDX-License-Identifier: Apache-2.0
"""Regular expressions against Java's, on texts with which engines disagree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from volley.support.regexes import read_regex, read_replacement
from volley.testing.expressions import compare_expressions
from volley.testing.rows import assert_same_rows

_TEXTS = [
    "", "a", "abc", "héllo wörld", "  pad  ", "\ttab\n", "İi", "日本語", "😀x😀", "a%b_c", "a\\b", "12", "-7", "x" * 50,
    "2020-02-29", None, "ab\ncd", "line\r\n", "a.b", "abcabc", "ABC", "\u2028", "e\u0301", "x\r\n", "x\r", "x\n", ",",
    "a,b,,c", ",,", "a,b,c,", "foo@bar.com, x.y@z.org", "a1b22c333", "aXbXc", "\u212a", "ſ", "a\u0085", "ab ab", "aaa",
    "😀😀", "a\0b", "caat", "$1\\", "a|b", "_é_", "ac bc", "k", "aab",
]  # fmt: skip
_MATCHED = [
    r"^x\s$", "x$", "(?i)abc", r"\bab", "(a*)*b", r"\d{4}-\d{2}", "[^a]c$", r"\s$", r"a\Bb", "(?i)k", "é",
    r"\S\s\S", r".\n", "a$b", "a{2,}", "(?:a|ab)(?:c|bcd)", r"[\w.-]+@[\w-]+\.com", "a+?b", r"^\W|\W$",
]  # fmt: skip
_REPLACED = [
    ("a+", "b"), ("[^0-9]", ""), (r"\s+$", "-"), (r"^\s+|\s+$", ""), (r"(\w)(\d)", "$2$1"), ("(a)?b", "<$1>"),
    ("(?i)ABC", "z"), (r"\bab\b", "z"), (".", r"\$"), ("[😀é]", "e"), ("a{2,3}?", "x"), ("a|ab|abc", "x"), (",", ""),
    (r"(\w+)@(\w+)\.com", "$0:$2"), (r"\W", "$0$0"), (r"\\", "/"), (r"(a)(b)?", "$12"),
]  # fmt: skip
_EXTRACTED = [
    (r"(\d+)", 1), (r"(\d+)-(\d+)", 2), ("(a)|(b)", 2), ("(a*)", 1), (".*", 0), (r"(\w+)$", 1), ("^(.)", 1),
    (r"([\w.]+)@([\w.]+)", 2), ("(?i)(k|s)", 1), ("(.*?)b", 1), ("(.+)(b|c)?", 2), (r"\b(\w+)\b",
    1), ("x|(?:(a)|b)c", 1),
]  # fmt: skip
_SPLIT = [
    (",", -1), (",", 2), (",", 1), (",", 0), (r"\s+", -1), ("[,.]", -1), ("a|b", -1), ("😀", -1), (".", -1),
    ("ab?", -1), (r"\|", -1), ("(a)(b)", 3),
]  # fmt: skip


def _quoted(text: object) -> str:
    return "'" + str(text).replace("\\", "\\\\") + "'"


def _expressions() -> Iterator[tuple[str, str]]:
    """Patterns, and expressions with them."""
    for pattern in _MATCHED:
        yield pattern, f"s rlike {_quoted(pattern)}"
    for pattern, to in _REPLACED:
        yield pattern, f"regexp_replace(s, {_quoted(pattern)}, {_quoted(to)})"
    for pattern, group in _EXTRACTED:
        yield pattern, f"regexp_extract(s, {_quoted(pattern)}, {group})"
    for pattern, limit in _SPLIT:
        yield pattern, f"split(s, {_quoted(pattern)}, {limit})"
    yield ",", "split(s, ',')[0]"
    yield "b", "size(split(s, 'b'))"


def _means_the_same_everywhere(pattern: str) -> bool:
    regex = read_regex(pattern)
    return regex is not None and not (regex.only_ascii or regex.has_end)


@pytest.mark.parametrize("everywhere", [True, False], ids=["all texts", "plain texts"])
def test_regular_expressions_are_javas(
    spark: SparkSession, tmp_path: Path, subtests: Any, everywhere: bool
) -> None:
    texts = [
        text
        for text in _TEXTS
        if text is None or everywhere or (text.isascii() and not text.endswith(("\r", "\n")))
    ]
    expressions = [
        text for pattern, text in _expressions() if _means_the_same_everywhere(pattern) == everywhere
    ]
    for verdict in compare_expressions(spark, pa.table({"s": texts}), expressions, tmp_path, ansi=False):
        with subtests.test(verdict.expression):
            assert not verdict.refusal, str(verdict.refusal)
            assert not verdict.wrong, verdict.wrong[0]
            assert not verdict.alarms


@pytest.mark.parametrize(
    "expression",
    [
        # Java finds an empty match behind another one.
        "regexp_replace(s, 'a*', 'x')",
        "split(s, 'a*')",
        # The last of several matches of a group.
        "regexp_replace(s, '(a|b)+', '$1')",
        "regexp_extract(s, '(a|b)+', 1)",
        "regexp_replace(s, 'a', '$1')",
        "regexp_replace(s, 'a', u)",
        "regexp_replace(s, u, 'a')",
        "regexp_replace(s, 'a', 'b', 2)",
        "regexp_extract(s, 'a(b)', 2)",
        "split(s, '^a')",
        "split(s, u)",
    ],
)
def test_what_engines_may_read_differently_is_left_to_spark(
    spark: SparkSession, tmp_path: Path, expression: str
) -> None:
    table = pa.table({"s": ["ab"], "u": ["a"]})
    (verdict,) = compare_expressions(spark, table, [expression], tmp_path, ansi=False)
    assert verdict.refusal


def test_texts_that_only_java_reads_right_are_computed_by_it(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(text,) for text in _TEXTS], "s string")
    rows.write.parquet(str(tmp_path / "t"))
    spark.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("t")
    assert_same_rows(
        spark,
        r"select s, regexp_replace(s, '\\s+$', '-') a, regexp_extract(s, '(?i)(k|s)', 1) b, s rlike '\\bab\\b' c,"
        r" s rlike '^x\\s$' d"
        r" from t where s rlike '^\\S*\\s?$'",
    )


@pytest.mark.parametrize(
    "pattern",
    [
        "abc", "^a.*b$", "[a-z]+|x", r"\d+\.\d", "(ab|c)*d", "[^a-c]x?", "(?i)a", "a*?", "a{2,3}", "a$b", "é", r"\bx",
        "[a-]", "[-a]", r"[\w-]",
    ],
)  # fmt: skip
def test_portable_patterns(pattern: str) -> None:
    assert read_regex(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a++", r"(a)\1", "[z-a]", "[a&&b]", r"\p{L}", "(a", "a|", "()", "[]a]", "[]", "^*", "a{2}{3}", "(?<n>a)",
        "(?=a)", "a{,3}", "a{3,2}", "a{0}", r"\Qa\E", "[a[b]]", r"[\D]", "*a", "a)", "a]", "a}", "{", "\\",
        "(a{999}){999}", "a" * 201, "(?i)ſ", "(?i)[^\u212a]",
    ],
)  # fmt: skip
def test_patterns_that_engines_read_differently_or_might(pattern: str) -> None:
    assert read_regex(pattern) is None


def test_replacements() -> None:
    assert read_replacement(r"$1-\$x$12", 1) == (1, "-", "$", "x", 1, "2")
    assert read_replacement("$12", 12) == (12,)
    for refused in ("$2", "$", "a\\", "${name}"):
        assert read_replacement(refused, 1) is None
