# SPDX-License-Identifier: Apache-2.0
"""The dicts that `collect` returns for maps iterate as Spark's do."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.session import conf

_KEYS = {
    "texts": "concat(chr(97 + x % 26), x, repeat('é', x % 3), if(x % 4 = 0, '😀', ''))",
    "texts of one hash code": "concat(if(x % 2 = 0, 'Aa', 'BB'), if(x % 4 < 2, 'Aa', 'BB'), x div 4)",
    "ints": "x * x * 7919 - 40000",
    "longs": "(x * x * 7919 - 40000) * 12345678901",
    "bytes": "cast(x * 3 - 60 as tinyint)",
    "doubles": "case when x = 3 then double('NaN') when x = 4 then -1e300D else x * 1.37D - 20 end",
    "floats": "cast(x * 1.37D - 20 as float)",
    "decimals": "cast(x * x * x - 500 as decimal(12, 3))",
    "long decimals": "cast((x * x - 500) * 12345678912345.678 as decimal(38, 10))",
    "booleans": "x < 3",
    "dates": "date_add(date'1969-11-01', cast(x * 17 as int))",
    "timestamps": "timestamp_seconds(x * 86399 - 1000000)",
    "local times": "cast(timestamp_seconds(x * 86399 - 1000000) as timestamp_ntz)",
    "durations": "make_dt_interval(cast(x as int) - 9, 1, 2, 3.5)",
}
# Sizes at which Java's tables grow, keys that were inserted in another order, and maps of one entry.
_SIZES = "values (1), (2), (3), (4), (6), (7), (12), (13), (24), (25), (48), (49) as v(n)"
_DRAWN = "map_from_arrays(transform(reverse(sequence(1L, n)), x -> {}), sequence(1, n))"
_OF_EACH_TYPE = ", ".join(_DRAWN.format(key) for key in _KEYS.values())
_NESTED = (
    "array(m, null, m), struct(m, n), map('z', m, 'a', null, 'm', m), if(n % 3 = 0, null, m), if(n % 2 = 0, map(), m), "
    "if(n % 2 = 0, null, array(struct(m as x))), map('y', if(n % 3 = 0, null, struct(n)), 'b', struct(n)), "
    "map('k', if(n % 3 = 0, null, parse_json(string(n))))"
)


@pytest.mark.parametrize(
    "query",
    [
        f"select {_OF_EACH_TYPE} from {_SIZES} order by n",
        f"select {_NESTED} from (select n, {_DRAWN.format(_KEYS['texts'])} m from {_SIZES}) order by n",
    ],
)
def test_maps_become_dicts_in_the_order_of_spark(spark: SparkSession, query: str) -> None:
    def collect() -> str:
        with conf(spark, {"spark.sql.mapKeyDedupPolicy": "LAST_WIN"}):
            frame = spark.sql(query)
            # As text: dicts are equal whatever their order.
            return f"{frame.collect()} {frame.take(3)}"

    with conf(spark, {"spark.volley.enabled": "false"}):
        expected = collect()
    found = collect()
    report: Any = volley.last_query(spark)
    assert report.engine == "native", report.reasons
    assert found == expected
