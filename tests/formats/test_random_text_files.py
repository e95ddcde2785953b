# SPDX-License-Identifier: Apache-2.0
"""Random CSV and JSON files, read with random options and schemas: Volley's rows or errors are Spark's.

The options, values and files are those of users who take what they get: mostly plain, with something odd now and then.
"""

from __future__ import annotations

import bz2
import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from helpers.sampling import draw_files
from volley.testing.session import conf


@dataclass(frozen=True)
class Case:
    """Files of one table by name, and how they are read."""

    format: str
    files: dict[str, bytes]
    schema: str
    options: dict[str, str]
    query: str

    def frame(self, spark: SparkSession, directory: Path) -> DataFrame:
        reader = spark.read.schema(self.schema).options(**self.options).format(self.format)
        return reader.load(str(directory)).selectExpr(*self.query.split("; "))


VALUES: dict[str, list[str]] = {
    "string": [
        "a",
        "b c",
        "é",
        "😀",
        "x" * 50,
        " a",
        "a ",
        "'",
        "1",
        "null",
        "NULL",
        "-",
        "#",
        "\t",
        "\u2028",
        "a'b",
    ],
    "int": [
        "0",
        "1",
        "-1",
        "2147483647",
        "-2147483648",
        "+1",
        "01",
        "2147483648",
        "1.0",
        " 1",
        "1 ",
        "1e2",
        "x",
        "٣",
    ],
    "bigint": ["0", "-7", "9223372036854775807", "9223372036854775808", "1L", "0x1", "-0"],
    "tinyint": ["1", "-128", "127", "128", "-0"],
    "double": [
        "0.1",
        "-0.0",
        "1e300",
        "1e-320",
        "1e400",
        "NaN",
        "Inf",
        "-Infinity",
        "1d",
        ".5",
        "5.",
        "1_0",
        "0x1p3",
    ],
    "float": ["0.1", "16777217", "1e-46", "3.4028236e38", "-Inf", "1f"],
    "boolean": ["true", "false", "TRUE", "True", "t", "yes", "1"],
    "date": [
        "2024-02-29",
        "0001-01-01",
        "9999-12-31",
        "2023-02-29",
        "2024-2-9",
        "2024-02-29T",
        "29/02/2024",
        "20240229",
        "10000-01-01",
    ],
    "timestamp": [
        *("2024-02-29 12:00:00", "2024-02-29T12:00:00", "2024-02-29 12:00:00.123456", "2024-02-29T12:00:00Z"),
        *(
            "2024-02-29",
            "2024-02-29 12:00",
            "10/03/2024 02:30",
            "2024-02-29 24:00:00",
            "2024-02-29 12:00:00.1234567",
            "1500-01-01 00:00:00",
        ),
    ],
    "timestamp_ntz": [
        "2024-02-29 12:00:00",
        "2024-02-29T12:00:00.5",
        "0001-01-01 00:00:00",
        "2024-02-29T12:00:00+01:00",
    ],
    "decimal(5,2)": ["1.25", "-999.99", "1000", "0.005", "1e2", "+1", ".5", "1,5"],
    "decimal(38,10)": ["1", "12345678901234567890.12345678901", "-0"],
}
FIELDS = sorted(VALUES)


def values_of(kind: str) -> st.SearchStrategy[str]:
    """Plain values most of the time."""
    pool = VALUES[kind]
    return st.one_of(st.sampled_from(pool[:3]), st.sampled_from(pool[:3]), st.sampled_from([*pool, ""]))


@st.composite
def schemas(draw: st.DrawFn, kinds: list[str]) -> list[tuple[str, str]]:
    found = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=4))
    return [(f"c{place}", kind) for place, kind in enumerate(found)]


def options_of(choices: dict[str, list[str]]) -> st.SearchStrategy[dict[str, str]]:
    single = st.sampled_from([(key, value) for key, values in choices.items() for value in values])
    return st.lists(single, max_size=2, unique_by=lambda pair: pair[0]).map(dict)


@st.composite
def queries(draw: st.DrawFn, columns: list[str]) -> str:
    """All columns, some of them, or only the number of rows."""
    kept = draw(st.lists(st.sampled_from(columns), min_size=1, max_size=3))
    return draw(st.sampled_from(["*", "*", "; ".join(kept), "count(*)"]))


ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
    ".bz2": lambda data: bz2.compress(data[:10]) + bz2.compress(data[10:]),
    ".zst": lambda data: bytes(pa.compress(data, "zstd", asbytes=True)),
    ".GZ": gzip.compress,
    ".deflate": lambda data: data,
}
ENDINGS = ("\n", "\n", "\n", "\r\n", "\r", "\n\n", " \n", "\n\r\n")


@st.composite
def files(
    draw: st.DrawFn, lines: list[str], header: str, suffix: str, encoding: str = "utf-8"
) -> dict[str, bytes]:
    """The lines in one or two files, with line ends, marks and encodings as they occur."""
    ending = draw(st.sampled_from(ENDINGS))
    cut = draw(st.integers(0, len(lines)))
    found = {}
    for name, part in (("1", lines[:cut]), ("2", lines[cut:])):
        text = ending.join([*([header] if header else []), *part])
        text += draw(st.sampled_from([ending, ending, "", ending * 2]))
        data = text.encode(
            draw(st.sampled_from([encoding] * 8 + ["utf-8-sig", "utf-16", "latin-1"])), "replace"
        )
        if draw(st.integers(0, 9)) == 0:
            data = draw(st.sampled_from([b"", data + b"\0", data + b"\xff\n", b"\n" + data]))
        packed = draw(st.sampled_from([""] * 6 + sorted(ENCODERS)))
        found[f"{name}.{suffix}{packed}"] = ENCODERS[packed](data)
    return found


# ------------------------------------------------------------------------------------------------- CSV

TEXT_OPTIONS = {
    "mode": ["DROPMALFORMED", "FAILFAST"],
    "columnNameOfCorruptRecord": ["bad"],
    "encoding": ["UTF-8", "ISO-8859-1", "US-ASCII", "UTF-16"],
    "lineSep": ["\n", "\r", "|"],
    "multiLine": ["true"],
    "dateFormat": ["yyyy-MM-dd", "dd/MM/yyyy"],
    "timestampFormat": ["yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss", "dd/MM/yyyy", "dd/MM/yyyy HH:mm"],
    "timestampNTZFormat": ["yyyy-MM-dd HH:mm:ss"],
    "timeZone": ["UTC", "America/New_York"],
    "locale": ["en-US", "de-DE"],
    "enableDateTimeParsingFallback": ["true", "false"],
}
CSV_OPTIONS = TEXT_OPTIONS | {
    "sep": ["|", "\t", ";", "||", " "],
    "quote": ["'", "", "|"],
    "escape": ['"', "", "'", "#"],
    "charToEscapeQuoteEscaping": ["\\"],
    "comment": ["#"],
    "header": ["true", "true", "false"],
    "enforceSchema": ["true", "false"],
    "nullValue": ["NULL", "a", "1", "-"],
    "emptyValue": ["a", "NULL"],
    "nanValue": ["NaN", "null"],
    "positiveInf": ["Inf", "inf"],
    "ignoreLeadingWhiteSpace": ["true", "false"],
    "ignoreTrailingWhiteSpace": ["true"],
    "maxColumns": ["2"],
    "maxCharsPerColumn": ["-1", "5"],
    "unescapedQuoteHandling": ["STOP_AT_CLOSING_QUOTE", "BACK_TO_DELIMITER", "RAISE_ERROR"],
    "columnPruning": ["false"],
    "preferDate": ["false"],
}
QUOTED = (
    '"{}"',
    '"{}"',
    '"{}" ',
    ' "{}"',
    '"{}',
    '{}"',
    '"{}""',
    '"\\"{}"',
    '"{}\\"',
    '"{}\\\\"',
    "'{}'",
    '"{}\n"',
)


@st.composite
def csv_cases(draw: st.DrawFn) -> Case:
    schema = draw(schemas(FIELDS))
    options = draw(options_of(CSV_OPTIONS))
    separator = options.get("sep", ",")
    hostile = draw(st.booleans())
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        fields = [
            draw(values_of(kind) if hostile else st.sampled_from(VALUES[kind][:3])) for _, kind in schema
        ]
        if hostile and draw(st.integers(0, 4)) == 0:
            fields = draw(
                st.sampled_from([fields[:-1], [*fields, "x"], [], [*fields, ""], ["#", *fields[1:]]])
            )
        if draw(st.booleans()):
            forms = QUOTED if hostile else QUOTED[:2]
            fields = [
                draw(st.sampled_from(forms)).format(field) if draw(st.booleans()) else field
                for field in fields
            ]
        lines.append(separator.join(fields))
    names = [name for name, _ in schema]
    corrupt = draw(st.booleans()) and "columnNameOfCorruptRecord" in options
    declared = [f"{name} {kind}" for name, kind in schema] + (["bad string"] if corrupt else [])
    header = separator.join(names) if options.get("header") == "true" else ""
    return Case(
        "csv",
        draw(files(lines, header, "csv", options.get("encoding", "utf-8"))),
        ", ".join(declared),
        options,
        draw(queries([*names, *(["bad"] if corrupt else [])])),
    )


# ------------------------------------------------------------------------------------------------- JSON

JSON_OPTIONS = TEXT_OPTIONS | {
    "primitivesAsString": ["true"],
    "prefersDecimal": ["true"],
    "allowComments": ["true"],
    "allowUnquotedFieldNames": ["true"],
    "allowSingleQuotes": ["false"],
    "allowNumericLeadingZeros": ["true"],
    "allowNonNumericNumbers": ["false"],
    "allowBackslashEscapingAnyCharacter": ["true"],
    "allowUnquotedControlChars": ["true"],
    "dropFieldIfAllNull": ["true"],
    "ignoreNullFields": ["false"],
}
NESTED = [
    "struct<x:int,y:string>",
    "array<bigint>",
    "array<struct<x:double>>",
    "map<string,int>",
    "struct<x:date>",
]
JSON_VALUES: dict[str, list[str]] = {
    "struct<x:int,y:string>": [
        '{"x":1,"y":"a"}',
        '{"y":"b"}',
        "{}",
        '{"x":"1"}',
        '{"X":1}',
        "[]",
        '{"x":1,"x":2}',
    ],
    "array<bigint>": ["[1,2]", "[]", "[null]", "[1.0]", '["1"]', "1", "{}"],
    "array<struct<x:double>>": ['[{"x":1}]', "[{}]", "[null]", '[{"x":1e400}]', "[[]]"],
    "map<string,int>": ['{"a":1}', "{}", '{"a":null}', '{"a":1,"a":2}'],
    "struct<x:date>": ['{"x":"2024-02-29"}', "{}", '{"x":1}'],
}
ODD_JSON = [
    *("null", "1", "1.5", "-0", "-0.0", "1e2", '""', '"x"', "true"),
    *("[1]", '{"a":1}', "NaN", "01", "'x'", "1//c", "tru", r'"\u00e9"', r'"\q"'),
    *(r'"\ud800"', '"\t"'),
]
ODD_LINES = [
    *("{}", "[]", "null", "1", "{", ""),
    *(" ", '{"c0":1}}', '{"c0":1} {"c0":2}', '{"c0":1},{"c0":2}', '[{"c0":1},{"c0":2}]', '{"c0":1,}'),
    *("{c0:1}", '{"C0":1}', '{"c0":1}x', "/**/{}", '{"c0":{"c0":1}}', '{"c0":1,"c0":null}'),
]
PLAIN_JSON = {"string", "date", "timestamp", "timestamp_ntz"}


def json_value(kind: str, text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if kind in PLAIN_JSON else text or "null"


@st.composite
def json_cases(draw: st.DrawFn) -> Case:
    schema = draw(schemas([*FIELDS, *NESTED]))
    options = draw(options_of(JSON_OPTIONS))
    if "encoding" in options and "multiLine" not in options:
        # Spark asks for it, except with UTF-8.
        options.setdefault("lineSep", "\n")
    hostile = draw(st.booleans())
    lines = []
    for _ in range(draw(st.integers(0, 5))):
        members = []
        for name, kind in schema:
            pool = JSON_VALUES.get(kind) or VALUES[kind]
            value = json_value(kind, draw(st.sampled_from(pool if hostile else pool[:3])))
            if hostile and draw(st.integers(0, 5)) == 0:
                value = draw(st.sampled_from(ODD_JSON))
            if draw(st.integers(0, 4)):
                members.append(f'"{name}"{draw(st.sampled_from([":", ": "]))}{value}')
        if draw(st.integers(0, 4)) == 0:
            members.append('"other": [1, {"c0": "}"}]')
        line = "{" + draw(st.sampled_from([",", ", "])).join(draw(st.permutations(members))) + "}"
        lines.append(draw(st.sampled_from([line, line, *ODD_LINES])) if hostile else line)
    names = [name for name, _ in schema]
    corrupt = draw(st.booleans()) and "columnNameOfCorruptRecord" in options
    declared = [f"{name} {kind}" for name, kind in schema] + (["bad string"] if corrupt else [])
    return Case(
        "json",
        draw(files(lines, "", "json", options.get("encoding", "utf-8"))),
        ", ".join(declared),
        options,
        draw(queries([*names, *(["bad"] if corrupt else [])])),
    )


# ------------------------------------------------------------------------------------------------- comparison

FEW = draw_files(5)
MANY = draw_files(400, shrink=True)


def check(spark: SparkSession, home: Path, case: Case) -> None:
    directory = home / "table"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    for name, data in case.files.items():
        (directory / name).write_bytes(data)
    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = outcome(spark, case, directory)
    assert outcome(spark, case, directory) == expected, case


def outcome(spark: SparkSession, case: Case, directory: Path) -> list[str] | str:
    """The rows as text, or the class of the error."""
    try:
        return sorted(map(str, case.frame(spark, directory).collect()))
    except Exception as error:
        return type(error).__name__


ONLY_CORRUPT = {"columnNameOfCorruptRecord": "bad"}


@FEW
@example(Case("json", {"1.json": b'{"c0":1}'}, "c0 int, bad string", ONLY_CORRUPT, "bad"))
@example(Case("csv", {"1.csv": b"1"}, "c0 int, bad string", ONLY_CORRUPT, "bad"))
@given(st.one_of(csv_cases(), json_cases()))
def test_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)


@pytest.mark.slow
@MANY
@given(csv_cases())
def test_more_csv_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)


@pytest.mark.slow
@MANY
@given(json_cases())
def test_more_json_files(spark: SparkSession, tmp_path: Path, case: Case) -> None:
    check(spark, tmp_path, case)
