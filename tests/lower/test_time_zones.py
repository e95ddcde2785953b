# SPDX-License-Identifier: Apache-2.0
"""Dates and times in zones: what clocks skipped or showed twice, old offsets, and rules without an end."""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from volley.plan.capture import plan_reader
from volley.testing.expressions import compare_expressions
from volley.testing.rows import assert_same_rows
from volley.testing.session import conf
from volley.times.zones import Zone, decode_offsets

_HOUR = 3_600_000_000


def _micros(*parts: int) -> int:
    return (datetime.datetime(*parts) - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)  # type: ignore[arg-type]


_CHANGES = [
    # New York, London, Lord Howe by half an hour; Toronto skipped midnight, Apia a day; the rules go on for ever.
    _micros(2024, 3, 10, 7), _micros(2024, 11, 3, 6), _micros(2024, 3, 31, 1), _micros(2024, 10, 27, 1),
    _micros(2024, 4, 6, 15), _micros(2024, 10, 5, 15, 30), _micros(1919, 3, 31, 4, 30), _micros(2011, 12, 30, 10),
    _micros(2500, 3, 14, 7), _micros(2500, 11, 7, 6), _micros(1883, 11, 18, 17), _micros(1945, 10, 14, 20),
]  # fmt: skip
_STEPS = [-2 * _HOUR, -_HOUR - 1, -_HOUR // 2, -1, 0, 1, _HOUR // 2, _HOUR, 3 * _HOUR // 2, 24 * _HOUR]
_YEARS = [1, 999, 1500, 1582, 1850, 1900, 1969, 1970, 2037, 2038, 2100, 2407, 2408, 2409, 5000, 9998]


def _instants() -> list[int | None]:
    around = [change + step for change in _CHANGES for step in _STEPS]
    summers = [_micros(year, 7, 5, 3, 59, 59, 999_999) for year in _YEARS]
    return [None, 0, -1, 123_456, *around, *summers, *(_micros(year, 1, 2, 12) for year in _YEARS)]


def _times() -> pa.Table:
    micros = _instants()
    shifted = micros[17:] + micros[:17]
    days = [None if value is None else value // (24 * _HOUR) for value in micros]
    utc = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "t": pa.array(micros, pa.int64()).cast(utc),
            "v": pa.array(shifted, pa.int64()).cast(utc),
            "z": pa.array(micros, pa.int64()).cast(pa.timestamp("us")),
            "d": pa.array(days, pa.int32()).cast(pa.date32()),
            "l": pa.array([None if value is None else value // 1_000_000 for value in micros], pa.int64()),
        }
    )


_UNITS = ["year", "quarter", "MON", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"]
_PATTERNS = [
    "yyyy-MM-dd", "yyyyMMdd", "HH:mm", "E, dd MMM yyyy", "MMM d, yyyy h:mm a", "yyyy-MM-dd HH:mm:ss.SSS", "SSSSSS",
    "H:m:s", "yyyy-MM-dd\\'T\\'HH:mm", "yy", "M/d/yyyy", "hh a",
]  # fmt: skip
_EXPRESSIONS = [
    "hour(t)", "minute(t)", "second(t)", "hour(z)", "extract(second from t)", "extract(second from z)", "year(t)",
    "dayofweek(t)", "cast(t as date)", "cast(d as timestamp)", "cast(t as timestamp_ntz)", "cast(z as timestamp)",
    "cast(t as string)", "cast(z as string)", "trunc(t, 'month')", "date_trunc('month', d)",
    *(f"date_trunc('{unit}', t)" for unit in _UNITS),
    *(f"date_format(t, '{pattern}')" for pattern in _PATTERNS), "date_format(d, 'yyyy-MM')",
    "from_unixtime(l)", "from_unixtime(l, 'yyyy-MM-dd HH')", "unix_timestamp(t)", "unix_timestamp(z)",
    "from_utc_timestamp(t, 'Asia/Kolkata')", "from_utc_timestamp(t, 'PST')", "to_utc_timestamp(t, 'America/Toronto')",
    "to_utc_timestamp(t, 'Australia/Lord_Howe')", "to_utc_timestamp(t, '+05:30')", "t - v", "z - z",
    "t + interval 1 hour", "t + interval 1 day", "t - interval 36 hours", "z + interval 30 minutes",
    "t + interval 400 days", "t - interval 1 second", "date_add(t, 1)", "datediff(t, v)",
]  # fmt: skip
_ZONES = [
    "America/New_York",
    *(
        pytest.param(zone, marks=pytest.mark.slow)
        for zone in (
            "UTC", "Australia/Lord_Howe", "Asia/Kolkata", "Europe/London", "America/Toronto", "Pacific/Apia", "-02:30",
            "Africa/Casablanca", "Europe/Dublin",
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("zone", _ZONES)
def test_times_in_the_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, subtests: Any, zone: str
) -> None:
    with conf(spark, {"spark.sql.session.timeZone": zone}):
        verdicts = compare_expressions(spark, _times(), _EXPRESSIONS, tmp_path, ansi=True)
    for verdict in verdicts:
        with subtests.test(verdict.expression):
            assert not verdict.refusal, str(verdict.refusal)
            assert not verdict.wrong, verdict.wrong[0]
            assert not verdict.alarms


_FAR = [-(2**63), 2**63 - 1, 2**62, -(2**62), 253_402_300_800_000_000, -62_135_596_800_000_001]


def test_times_beyond_the_calendar_are_spark_s_or_fail(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"t": pa.array(_FAR, pa.int64()).cast(pa.timestamp("us", tz="UTC"))})
    table = table.append_column("l", pa.array([number // 1_000_000 for number in _FAR], pa.int64()))
    few = ["hour(t)", "cast(t as string)", "date_trunc('day', t)", "from_unixtime(l)", "t + interval 1 day"]
    with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        for verdict in compare_expressions(spark, table, few, tmp_path, ansi=True):
            assert not verdict.refusal
            assert not verdict.wrong


_TEXTS = [
    "2024-03-10", "2024-03-10 02:30:00", "2024-11-03 01:30:00", "2024-03-10T02:30:00.5", "2024-03-10T02:30:00.123456Z",
    "2024-03-10 12:00:00.1234567", "0000-01-01", "0001-01-01", "9999-12-31 23:59:59.999999",
    "10000-01-01", "2024-02-30",
    "2023-02-29", "2024-02-29", "garbage", "", " 2024-01-01 ", "2024-1-1", "2024-01-01 1:2:3", "12:30:00", "2024-13-01",
    "2024-01-01 24:00:00", "2024-01-01 23:60:00", "20240310", "10/03/2024", "03/10/2024", "10/13/2024", "2024-03",
    "2024-03-10 02:30", "10-Mar-2024", "10-MAR-2024", "1919-03-30 23:45:00", "2024-01-01 00:00:00.", "é24-01-01x", None,
    "2024-01-01 00:00:00 UTC", "2024-01-01T00:00:00+02:00", "1582-10-10 00:00:00", "12/25/2024 13:14:15",
    "2024-12-25 131415", "2024-12-25 13:14:15.678", "1969-12-31 23:59:59.500", "2024-03-10T02:30:00.1234567890Z",
    "2024-01-01 00:00:00.123456ZZ", "٢٠٢٤-01-01", "2024-01-01 00:00:00Z", "2024-01-01Z", "2024-02-29 00:00:60",
]  # fmt: skip
_PARSED = [
    "yyyy-MM-dd", "dd/MM/yyyy", "MM/dd/yyyy", "yyyyMMdd", "yyyy-MM", "dd-MMM-yyyy", "yyyy-MM-dd HH:mm:ss",
    "yyyy-MM-dd HH:mm", "MM/dd/yyyy HH:mm:ss", "yyyy-MM-dd HHmmss", "yyyy-MM-dd HH:mm:ss.SSS",
    "yyyy-MM-dd\\'T\\'HH:mm:ss",
]  # fmt: skip
_OF_TEXTS = [
    *(f"to_timestamp(s, '{pattern}')" for pattern in _PARSED),
    *(f"unix_timestamp(s, '{pattern}')" for pattern in _PARSED[-3:]),
    "cast(s as timestamp)", "try_cast(s as timestamp)", "cast(s as timestamp_ntz)", "to_date(s, 'yyyy-MM-dd')",
    "try_to_timestamp(s, 'yyyy-MM-dd')", "unix_timestamp(s)", "to_unix_timestamp(s, 'yyyyMMdd')",
]  # fmt: skip


def _written_patterns() -> Iterator[tuple[str, str]]:
    """Patterns of a time, in two orders and with any of its fields run together, and one time as each of them says."""
    texts = {"yyyy": "2024", "MM": "03", "dd": "10", "HH": "13", "mm": "14", "ss": "15", "SSS": "678"}
    for order in (list(texts), ["dd", "MM", "yyyy", "HH", "mm", "ss", "SSS"]):
        for fields in (order, order[:3]):
            for between in itertools.product(("", "-"), repeat=len(fields) - 1):
                pairs = list(zip(fields, (*between, ""), strict=True))
                yield "".join(map("".join, pairs)), "".join(texts[field] + end for field, end in pairs)


def test_fields_that_run_together(spark: SparkSession, tmp_path: Path) -> None:
    """Java reads as a year all digits that follow, without those of whole numbers but with those of a fraction."""
    patterns = list(_written_patterns())
    table = pa.table({f"s{place}": [text] for place, (_, text) in enumerate(patterns)})
    expressions = [f"try_to_timestamp(s{place}, '{pattern}')" for place, (pattern, _) in enumerate(patterns)]
    verdicts = compare_expressions(spark, table, expressions, tmp_path, ansi=True)
    assert not [verdict.wrong for verdict in verdicts if verdict.wrong]
    assert {verdict.refusal is None for verdict in verdicts} == {True, False}


@pytest.mark.parametrize("ansi", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["ansi", "legacy"])
def test_texts_of_times(spark: SparkSession, tmp_path: Path, subtests: Any, ansi: bool) -> None:
    """Others than those of the full width are left to Spark's code, which is not asked here."""
    with conf(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        verdicts = compare_expressions(spark, pa.table({"s": _TEXTS}), _OF_TEXTS, tmp_path, ansi=ansi)
    for verdict in verdicts:
        with subtests.test(verdict.expression):
            assert not verdict.refusal, str(verdict.refusal)
            assert not verdict.wrong, verdict.wrong[0]
            assert verdict.equal


def test_in_whole_queries(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's code reads the texts that have another form."""
    path = str(tmp_path / "t.parquet")
    texts = pa.array([_TEXTS[n % len(_TEXTS)] for n in range(_times().num_rows)])
    pq.write_table(_times().append_column("s", texts), path)
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    spark.read.parquet(path).createOrReplaceTempView("t")
    for query in (
        "select s, to_timestamp(s, 'yyyy-MM-dd HH:mm') a, to_date(s, 'dd/MM/yyyy') b, cast(s as timestamp) c,"
        " unix_timestamp(s) e, try_to_timestamp(s, 'yyyyMMdd') f from t",
        "select window(t, '6 hours').start w, count(*), max(hour(t)) from t group by window(t, '6 hours')",
        "select date_trunc('month', t) m, date_format(t, 'yyyy-MM') f, count(*) from t where year(t) > 1900"
        " group by all",
    ):
        assert_same_rows(spark, query)


@pytest.mark.parametrize(
    "expression",
    [
        "date_format(t, 'yyyy-MM-dd VV')",
        "date_format(t, s)",
        "to_timestamp(s, 'd/M/yyyy')",
        "to_timestamp(s, 'HH:mm')",
        "from_utc_timestamp(t, s)",
    ],
)
def test_unusual_patterns_are_left_to_spark(spark: SparkSession, tmp_path: Path, expression: str) -> None:
    table = _times().slice(0, 1).append_column("s", pa.array(["x"]))
    (verdict,) = compare_expressions(spark, table, [expression], tmp_path, ansi=False)
    assert verdict.refusal


def test_the_old_parser_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"s": ["2020-01-01"]})
    with conf(spark, {"spark.sql.legacy.timeParserPolicy": "LEGACY"}):
        (verdict,) = compare_expressions(
            spark, table, ["to_timestamp(s, 'yyyy-MM-dd')"], tmp_path, ansi=False
        )
    assert verdict.refusal


def _zones(spark: SparkSession) -> Iterator[str]:
    assert spark._jvm is not None
    for zone in spark._jvm.java.time.ZoneId.getAvailableZoneIds():
        yield str(zone)


@pytest.mark.slow
def test_all_zones_of_java(spark: SparkSession) -> None:
    """Every offset that Java knows, around each of its transitions."""
    spark.conf.set("spark.volley.enabled", "false")
    reader = plan_reader(spark.sparkContext._gateway)
    times = pa.array([value for value in _instants() if value is not None], pa.int64())
    frame = spark.createDataFrame(pa.table({"t": times.cast(pa.timestamp("us", tz="UTC"))}))
    for name in sorted(_zones(spark)):
        offsets = reader.zone_offsets(name)
        assert offsets is not None
        zone = Zone(decode_offsets(offsets))
        there, back = sf.from_utc_timestamp("t", name), sf.to_utc_timestamp("t", name)
        found = frame.select(
            sf.unix_micros("t").alias("t"), sf.unix_micros(there), sf.unix_micros(back)
        ).toArrow()
        micros, local, instant = (column.to_numpy() for column in found.columns)
        assert np.array_equal(zone.local(micros), local), name
        assert np.array_equal(zone.instant(micros), instant), name
