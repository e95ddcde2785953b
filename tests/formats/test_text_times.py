# SPDX-License-Identifier: Apache-2.0
"""Dates and timestamps in CSV and JSON files: in any session time zone, with or without offsets, and by patterns."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import volley
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf

_ZONES = ["America/New_York", "Asia/Kolkata", "Pacific/Apia", "-02:30"]
# Shown twice, skipped, before the zone had rules, and beyond those that are listed.
_LOCAL = [
    "2024-11-03 01:30:00", "2024-03-10 02:30:00", "2011-12-30 12:00:00", "1883-11-18 12:01:00", "0001-01-01 00:00:00",
    "9999-12-31 23:59:59", "2500-07-01 12:00:00", "1969-12-31 23:59:59",
]  # fmt: skip
_DEFAULT = [*_LOCAL, "2024-11-03T01:30:00.5", "2024-11-03 01:30:00Z", "2024-11-03T01:30:00.123456-05:00"]


def _write(path: Path, texts: list[str]) -> dict[str, str]:
    """The texts as the values of a CSV and a JSON file, with NULLs between them."""
    path.mkdir()
    rows = [(place, text) for place, text in enumerate(texts)]
    csv = "".join(f"{place},{text}\n{place}0,\n" for place, text in rows)
    lines = [json.dumps({"k": place, "t": text}) for place, text in rows] + [
        '{"k": -1}',
        '{"k": -2, "t": null}',
    ]
    (path / "t.csv").write_text(csv)
    (path / "t.json").write_text("\n".join(lines))
    return {"csv": str(path / "t.csv"), "json": str(path / "t.json")}


def _read(spark: SparkSession, files: dict[str, str], kind: str, options: dict[str, str]) -> list[DataFrame]:
    schema = f"k int, t {kind}"
    return [
        spark.read.format(name).schema(schema).options(**options).load(file) for name, file in files.items()
    ]


def _given(frame: DataFrame, spark: SparkSession) -> DataFrame:
    return frame


@pytest.mark.parametrize("zone", _ZONES)
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
def test_session_time_zones(spark: SparkSession, tmp_path: Path, zone: str, kind: str) -> None:
    files = _write(tmp_path / "f", _DEFAULT if kind == "timestamp" else _LOCAL)
    with conf(spark, {"spark.sql.session.timeZone": zone}):
        for frame in _read(spark, files, kind, {}):
            assert_same_rows(spark, partial(_given, frame))


def test_the_zone_of_the_read(spark: SparkSession, tmp_path: Path) -> None:
    files = _write(tmp_path / "f", _DEFAULT)
    for frame in _read(spark, files, "timestamp", {"timeZone": "Australia/Lord_Howe"}):
        assert_same_rows(spark, partial(_given, frame))


@pytest.mark.parametrize(
    ("kind", "pattern", "texts"),
    [
        ("date", "dd.MM.yyyy", ["29.02.2024", "01.01.0001", "31.12.9999"]),
        ("date", "yyyyMMdd", ["20240229", "15821010"]),
        ("date", "yyyy-MM-dd HH:mm:ss", ["1969-12-31 23:59:59", "2024-02-29 00:00:00"]),
        ("date", "dd MMM yyyy", ["29 Feb 2024", "01 Dec 1500"]),
        ("timestamp", "dd/MM/yyyy HH:mm", ["10/03/2024 02:30", "03/11/2024 01:30"]),
        ("timestamp", "yyyy-MM-dd HH:mm:ss", _LOCAL),
        ("timestamp", "yyyy-MM-dd'T'HH:mm:ss.SSS", ["2024-11-03T01:30:00.125"]),
        ("timestamp_ntz", "yyyyMMddHHmmss", ["20240310023000", "00010101000000"]),
    ],
)
def test_patterns(spark: SparkSession, tmp_path: Path, kind: str, pattern: str, texts: list[str]) -> None:
    option = {"date": "dateFormat", "timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat"}[
        kind
    ]
    files = _write(tmp_path / "f", texts)
    with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        for frame in _read(spark, files, kind, {option: pattern}):
            assert_same_rows(spark, partial(_given, frame))


@pytest.mark.parametrize(
    "text", ["1/2/2024 02:30", "10/03/2024 24:00", "30/02/2024 12:00", "10/03/2024 02:30 "]
)
def test_texts_that_do_not_fit_the_pattern_are_spark_s(
    spark: SparkSession, tmp_path: Path, text: str
) -> None:
    files = _write(tmp_path / "f", ["10/03/2024 12:00", text])
    for frame in _read(spark, files, "timestamp", {"timestampFormat": "dd/MM/yyyy HH:mm"}):
        rows = frame.toArrow()
        query = volley.last_query(spark)
        assert query is not None
        assert query.engine == "spark"
        with conf(spark, {"spark.volley.enabled": "false"}):
            assert rows == frame.toArrow()
