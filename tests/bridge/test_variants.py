# SPDX-License-Identifier: Apache-2.0
"""Variants in rows are what Spark's `collect` makes of them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

import volley
from volley.testing.session import conf

_ROWS = "select if(id = 1, null, parse_json(concat('{\"a\": [', id, ', \"x\"]}'))) v, id from range(4) order by id"


@pytest.mark.parametrize("binary_as_bytes", ["true", "false"])
def test_collect_gives_the_variants_of_spark(spark: SparkSession, binary_as_bytes: str) -> None:
    nested = (
        "array(v, null), map('k', v), named_struct('f', v, 'g', array(named_struct('h', v))), id, v is null"
    )

    def collect() -> str:
        # As text: variants are never equal.
        return repr(spark.sql(f"select v, {nested} from ({_ROWS})").collect())

    with conf(spark, {"spark.sql.execution.pyspark.binaryAsBytes": binary_as_bytes}):
        found = collect()
        report = volley.last_query(spark)
        assert report is not None
        assert report.native, report.reasons
        with conf(spark, {"spark.volley.enabled": "false"}):
            assert found == collect()
