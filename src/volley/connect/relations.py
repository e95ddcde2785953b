# SPDX-License-Identifier: Apache-2.0
"""Reads the request of a Connect client: which relation it wants the rows of, and whether planning it has no effects.

The server executes some relations while it plans them: those of `spark.catalog` change the catalog, statistics such as
`df.stat.cov` run jobs, and SQL texts may be commands. They are left to Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

# Of `spark.connect.Relation.rel_type`. Whatever is not listed is left to Spark, new kinds included.
_ONLY_PLANNED = frozenset(
    {
        "read",
        "project",
        "filter",
        "join",
        "set_op",
        "sort",
        "limit",
        "aggregate",
        "sql",
        "local_relation",
        "sample",
        "offset",
        "deduplicate",
        "range",
        "subquery_alias",
        "repartition",
        "to_df",
        "with_columns_renamed",
        "drop",
        "with_columns",
        "hint",
        "unpivot",
        "to_schema",
        "repartition_by_expression",
        "map_partitions",
        "group_map",
        "co_group_map",
        "with_relations",
        "cached_local_relation",
        "chunked_cached_local_relation",
        "cached_remote_relation",
        "fill_na",
        "drop_na",
        "replace",
        "lateral_join",
        "parse",
    }
)

# A few bytes can claim to be any size. Spark's server has a limit of its own.
_LARGEST_PLAN_BYTES = 128 << 20

# Functions of classes that the client has sent to the server, whose own class loader knows them.
_JVM_FUNCTIONS = frozenset(
    {
        "spark.connect.ScalarScalaUDF",
        "spark.connect.JavaUDF",
        "spark.connect.TypedAggregateExpression",
    }
)

# Line comments end as in Spark: also at a carriage return, but not after a backslash. Nested block comments are not
# recognised. The comments in a lookahead are not tried again in other ways; Python 3.10 has no possessive quantifiers.
_COMMENTS = r"(?=(?P<comments>(?:\s|--(?:\\\n|[^\r\n])*[\r\n]|/\*(?:(?!/\*).)*?\*/)*))(?P=comments)"
# Nothing that begins like the first is a command; the others may end in one.
_QUERY = re.compile(_COMMENTS + r"(?:(?:select|values|table)\b|\()", re.IGNORECASE | re.DOTALL)
_QUERY_OR_DML = re.compile(_COMMENTS + r"(?:with|from)\b", re.IGNORECASE | re.DOTALL)
_DML = re.compile(r"\b(?:insert|update|delete|merge)\b", re.IGNORECASE)


def find_relation(plan: Any) -> Any | None:
    """The relation whose rows a `spark.connect.Plan` asks for; None for commands and what cannot be read."""
    if plan.HasField("root"):
        return plan.root
    if plan.WhichOneof("op_type") != "compressed_operation":
        return None
    from pyspark.sql.connect.proto import base_pb2

    compressed = plan.compressed_operation
    is_relation = compressed.op_type == base_pb2.Plan.CompressedOperation.OpType.OP_TYPE_RELATION
    if not is_relation or compressed.compression_codec != base_pb2.COMPRESSION_CODEC_ZSTD:
        return None
    import zstandard  # of the extra connect

    relation = type(plan.root)()
    try:
        if zstandard.frame_content_size(compressed.data) > _LARGEST_PLAN_BYTES:
            return None
        relation.ParseFromString(zstandard.ZstdDecompressor().decompress(compressed.data))
    except zstandard.ZstdError:
        # Broken, or without a size: Spark's server says what it makes of it.
        return None
    return relation


def is_only_planned(relation: Any) -> bool:
    """Whether planning the relation, outside of the server, runs nothing and changes nothing."""
    return all(_is_harmless(message) for message in _messages(relation))


def is_query(text: str) -> bool:
    """Whether an SQL text surely is a query. Spark runs commands, such as INSERT, as soon as it plans them."""
    if _QUERY.match(text):
        return True
    return _QUERY_OR_DML.match(text) is not None and _DML.search(text) is None


def _is_harmless(message: Any) -> bool:
    name = message.DESCRIPTOR.full_name
    if name == "spark.connect.Relation":
        return message.WhichOneof("rel_type") in _ONLY_PLANNED
    if name == "spark.connect.SQL":
        return is_query(message.query)
    return name not in _JVM_FUNCTIONS


def _messages(message: Any) -> Iterator[Any]:
    """A message and all inside it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            values = [item for item in value.values() if hasattr(item, "ListFields")]
        else:
            values = value if _is_repeated(field) else [value]
        for item in values:
            yield from _messages(item)


def _is_repeated(field: Any) -> bool:
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED) if found is None else bool(found)
