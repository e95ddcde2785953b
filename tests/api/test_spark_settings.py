# SPDX-License-Identifier: Apache-2.0
"""Settings of Spark SQL that change results are honoured: each of Spark's settings is known, and compared if it may.

A new release of Spark has new settings. Each must be put where it belongs: into `helpers/spark_settings.txt` if Spark
alone takes care of it, into `QUERIES` if its executor or an expression reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import volley
from volley.bench.compare import difference
from volley.plan.jvm import singleton
from volley.spark_versions.classic import collect_table
from volley.testing.rows import spark_rows
from volley.testing.session import conf

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "tests" / "helpers" / "spark_settings.txt"

VIEWS = {
    "n": "values (1, 1, 'a', 1.5D, 10.25BD), (2, null, 'b', double('NaN'), null), (3, 1, null, -0.0D, -3.10BD), "
    "(4, 2, 'a', 0.0D, 0.00BD), (5, null, null, null, 99.99BD), (6, 3, '', 1e10D, 10.25BD) v(id, k, s, d, m)",
    "c": "values (1, named_struct('a', 1, 'b', 'x'), array(3, null, 1), map('a', 1, 'b', null)), "
    "(2, named_struct('a', null, 'b', null), array(), map()), (3, null, null, null) v(id, st, ar, mp)",
    "t": "values (1, date'2021-03-28', timestamp'2021-03-28 01:30:00', X'616263'), "
    "(2, date'1582-10-04', timestamp'1969-12-31 23:59:59.5', X'FF'), (3, null, null, null) v(id, d, ts, b)",
}
PADDED = "create table padded (id int, c char(4), v varchar(4), n struct<c:char(3)>) using parquet"

_LEGACY = "spark.sql.legacy."
QUERIES: dict[str, tuple[str, ...]] = {
    "spark.sql.binaryOutputStyle=HEX,UTF-8": ("select cast(array(b) as string), cast(struct(b) as string) from t",),
    "spark.sql.charAsVarchar": ("select c, length(c) from padded", "select cast('a' as char(3)) || '|'"),
    "spark.sql.chunkBase64String.enabled": ("select base64(cast(repeat('x', 99) as binary)), base64(b) from t",),
    "spark.sql.decimalOperations.allowPrecisionLoss": (
        "select m * m x, m / 3 y, avg(m) over () z, cast(m as decimal(38, 18)) * cast(m as decimal(38, 18)) w from n",
    ),
    "spark.sql.execution.pyspark.binaryAsBytes": ("select b, array(b) from t",),
    "spark.sql.groupByOrdinal": ("select k, count(*) from n group by 1, k",),
    "spark.sql.icu.caseMappings.enabled": (
        "select upper(x), lower(x), initcap(x) from values ('ß'), ('İI'), ('ΑΣ'), ('ŉ'), ('ﬁ x'), ('ǆ ǆ') v(x)",
    ),
    "spark.sql.json.enableExactStringParsing": (
        "select from_json(concat('{\"a\":{\"z\":  1.0,\"s\":\"', s, '\"}}'), 'a string') from n",
    ),
    "spark.sql.json.enablePartialResults": (
        "select from_json(concat('{\"a\":\"', s, '\",\"b\":1}'), 'a int, b int') from n",
    ),
    "spark.sql.jsonGenerator.ignoreNullFields": ("select to_json(st), to_json(struct(*)) from c",),
    f"{_LEGACY}allowNegativeScaleOfDecimal": ("select 1e3BD x, 1E10BD * m from n",),
    f"{_LEGACY}allowNullComparisonResultInArraySort": (
        "select array_sort(ar, (a, b) -> if(a + b is null, null, a - b)) from c",
    ),
    f"{_LEGACY}allowZeroIndexInFormatString": ("select format_string('%0$s', s) from n",),
    f"{_LEGACY}castComplexTypesToString.enabled": (
        "select cast(st as string), cast(ar as string), cast(mp as string) from c",
    ),
    f"{_LEGACY}charVarcharAsString": ("select c, length(c), v, n from padded", "select cast('abcdef' as char(3))"),
    f"{_LEGACY}codingErrorAction": ("select decode(b, 'utf-8') from t", "select encode(s || 'é', 'US-ASCII') from n"),
    f"{_LEGACY}collationAwareHashFunctions": ("select hash(s collate UTF8_LCASE), hash(s) from n",),
    f"{_LEGACY}createEmptyCollectionUsingStringType": ("select typeof(array()), typeof(map()) from n",),
    f"{_LEGACY}disableMapKeyNormalization": ("select map_keys(map(d, 1)), map(d, 1)[0.0D] from n where d is not null",),
    f"{_LEGACY}followThreeValuedLogicInArrayExists": ("select exists(ar, x -> x > 3) from c",),
    f"{_LEGACY}fromDayTimeString.enabled": ("select cast('1 02:03:04' as interval day to second)",),
    f"{_LEGACY}histogramNumericPropagateInputType": ("select histogram_numeric(id, 3) from n",),
    f"{_LEGACY}inSubqueryNullability": ("select k in (select id from c) from n",),
    f"{_LEGACY}integerGroupingId": ("select k, grouping_id(k), count(*) from n group by rollup(k)",),
    f"{_LEGACY}interval.enabled": ("select cast(d - date'2020-01-01' as string) from t",),
    f"{_LEGACY}javaCharsets": ("select encode(s, 'windows-1252') from n",),
    f"{_LEGACY}json.allowEmptyString.enabled": ("select from_json(concat('{\"a\":\"', s, '\"}'), 'a double') from n",),
    f"{_LEGACY}lpadRpadAlwaysReturnString": ("select lpad(b, 5, X'41') from t",),
    f"{_LEGACY}negativeIndexInArrayInsert": ("select array_insert(ar, -1, 9) from c",),
    f"{_LEGACY}noCharPaddingInPredicate": ("select id from padded where c = 'a' or c in ('ab', 'x')",),
    f"{_LEGACY}nullInEmptyListBehavior": (
        "select id, k in (select id from c where id < 0), k not in (select id from c where id < 0) from n",
        "select id from n where k not in (select id from c where id < 0)",
    ),
    f"{_LEGACY}parquet.returnNullStructIfAllFieldsMissing": ("select st.a from c",),
    f"{_LEGACY}percentileDiscCalculation": (
        "select percentile_disc(0.5) within group (order by id), percentile_disc(0.2) within group (order by m) from n",
    ),
    f"{_LEGACY}raiseErrorWithoutErrorClass": ("select raise_error(s) from n where k = 9",),
    f"{_LEGACY}sizeOfNull": ("select size(ar), size(mp) from c",),
    f"{_LEGACY}statisticalAggregate": ("select k, stddev(id), corr(id, m), covar_samp(id, m) from n group by k",),
    f"{_LEGACY}timeParserPolicy=LEGACY,CORRECTED,EXCEPTION": (
        "select date_format(ts, 'yyyy-MM-dd HH:mm'), to_date(cast(d as string), 'yyyy-MM-dd') from t",
        "select to_timestamp(x, 'yyyy-MM-dd') from values ('2020-1-1'), ('2020-01-01 x') v(x)",
    ),
    f"{_LEGACY}truncateForEmptyRegexSplit": ("select split(s, '', 2), split(s, '') from n",),
    "spark.sql.mapKeyDedupPolicy=EXCEPTION,LAST_WIN": (
        "select map(k, 1, 1, 2) from n where k is not null",
        "select map_concat(mp, map('a', 0)) from c",
        "select transform_keys(mp, (k, v) -> 'x') from c",
        "select map_from_entries(array(struct(id, 1), struct(1, 2))) from n",
    ),
    "spark.sql.mapZipWithUsesJavaCollections": ("select map_zip_with(mp, map('b', 1), (k, x, y) -> x) from c",),
    "spark.sql.preserveCharVarcharTypeInfo": ("select cast('a' as char(3)) c, cast(s as varchar(9)) v from n",),
    "spark.sql.readSideCharPadding": ("select c, length(c), n from padded", "select id from padded where c = 'ab'"),
    "spark.sql.session.timeZone=America/New_York,Australia/Lord_Howe,+05:30": (
        "select ts, cast(ts as string), hour(ts), cast(d as timestamp), date_trunc('day', ts) from t",
    ),
    "spark.sql.timestampType=TIMESTAMP_LTZ,TIMESTAMP_NTZ": (
        "select to_timestamp('2020-01-01'), timestamp'2020-01-01' < ts from t",
    ),
}  # fmt: skip
"""Queries whose rows may differ with a setting; `true` and `false` unless it names its values."""

ELSEWHERE = {
    "spark.sql.csv.parser.columnPruning.enabled": "Spark runs the query if a record is malformed",
    "spark.sql.defaultColumn.allowedProviders": "of statements that define a table",
    "spark.sql.defaultColumn.enabled": "of statements that define a table",
    "spark.sql.execution.pandas.convertToArrowArraySafely": "passed to PySpark's workers with the function",
    "spark.sql.execution.pythonUDF.mapInBatch.legacy.acceptAnyIterable.enabled": "passed with the function",
    "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled": "passed with the function",
    "spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype": "passed with the function",
    "spark.sql.files.ignoreCorruptFiles": "Spark runs the query if a file is corrupt",
    "spark.sql.files.ignoreMissingFiles": "Spark runs the query if a file is missing",
    "spark.sql.jsonGenerator.writeNullIfWithDefaultValue": "a table with a default is left to Spark",
    f"{_LEGACY}csv.enableDateTimeParsingFallback": "Spark runs the query if a date is not as the pattern says",
    f"{_LEGACY}json.enableDateTimeParsingFallback": "Spark runs the query if a date is not as the pattern says",
    f"{_LEGACY}execution.pandas.groupedMap.assignColumnsByName": "passed to PySpark's workers with the function",
    f"{_LEGACY}parquet.nanosAsLong": "Spark runs the query if a file has nanoseconds",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "of fieldId.read.enabled",
    "spark.sql.parquet.fieldId.write.enabled": "ids are in the schema of a file, not in its rows",
}
"""Why no query shows the effect of a setting that Spark's executor reads."""


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> SparkSession:
    with conf(spark, {"spark.volley.enabled": "false"}):
        for name, values in VIEWS.items():
            spark.sql(f"select * from {values}").write.parquet(str(tmp_path / name))
            spark.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
        spark.sql("drop table if exists padded")
        spark.sql(f"{PADDED} location '{tmp_path / 'padded'}'")
        spark.sql(
            "insert into padded values (1, 'a', 'a ', struct('x')), (2, 'ab ', 'ab', null), (3, null, '', null)"
        )
    return spark


@pytest.mark.since("4.3")
def test_every_setting_of_spark_is_known(spark: SparkSession) -> None:
    settings = singleton(spark.sparkContext._gateway, "org.apache.spark.sql.internal.SQLConf")
    entries = str(settings.getConfigEntries())
    found = set(re.findall(r"ConfigEntry\(key=([^,]+),", entries))
    assert len(found) > 500
    lines = {line for line in KNOWN.read_text("utf-8").splitlines() if line and not line.startswith("#")}
    areas = [re.compile(line) for line in lines if "(" in line]
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "volley").rglob("*.py"))
    compared = {key.partition("=")[0] for key in QUERIES} | ELSEWHERE.keys()
    unknown = [
        key
        for key in sorted(found - compared - lines)
        if not any(area.fullmatch(key) for area in areas) and f'"{key}"' not in sources
    ]
    assert unknown == []


@pytest.mark.slow
@pytest.mark.since("4.3")
@pytest.mark.parametrize("setting", QUERIES)
def test_settings_that_change_results_are_honoured(tables: SparkSession, setting: str) -> None:
    key, _, values = setting.partition("=")
    for value in (values or "true,false").split(","):
        for query in QUERIES[setting]:
            with conf(tables, {key: value}):
                expected = _outcome(partial(spark_rows, tables, query))
                found = _outcome(partial(_native_rows, tables, query))
                report: Any = volley.last_query(tables)
            if isinstance(expected, str) or isinstance(found, str):
                assert expected == found, f"{key}={value}: {query}"
            else:
                assert difference(expected, found, tolerance=1e-14) is None, f"{key}={value}: {query}"
                assert report.engine == "native" or report.reasons


def _native_rows(spark: SparkSession, query: str) -> pa.Table:
    return collect_table(spark.sql(query))


def _outcome(run: Callable[[], pa.Table]) -> pa.Table | str:
    try:
        return run()
    except PySparkException as error:
        return str(error.getCondition())
    except Py4JJavaError as error:
        return re.findall(r"Caused by: ([\w.]+)", str(error))[-1]
