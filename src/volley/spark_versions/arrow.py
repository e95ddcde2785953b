# SPDX-License-Identifier: Apache-2.0
"""PySpark's conversions of schemas, whose arguments have changed from one release to the next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from volley.spark_versions.registry import current

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def arrow_schema(schema: StructType, *, prefers_large_types: bool = False) -> pa.Schema:
    """The schema of Spark's own Arrow batches, with timestamps in UTC."""
    from pyspark.sql.pandas import types

    convert: Any = types.to_arrow_schema
    if not current().arrow_schemas_have_options:
        # Its timestamps are in UTC, and its types are not large: it has no option that asks for others.
        return convert(schema)
    return convert(schema, prefers_large_types=prefers_large_types, **current().arrow_schema_arguments)


def sent_schema(schema: StructType, *, prefers_large_types: bool = False) -> pa.Schema:
    """The same, as Spark sends batches to Python: fields of a struct that share a name have numbers in theirs."""
    from pyspark.sql.pandas.types import _deduplicate_field_names
    from pyspark.sql.types import StructField, StructType

    fields = [
        StructField(field.name, _deduplicate_field_names(field.dataType), field.nullable, field.metadata)
        for field in schema
    ]
    return arrow_schema(StructType(fields), prefers_large_types=prefers_large_types)


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of Arrow batches. Timestamps without a time zone stay so."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema, prefer_timestamp_ntz=True)
