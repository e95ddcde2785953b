# SPDX-License-Identifier: Apache-2.0
"""File scans: exactly the given files as one DataFusion table. A task may read any subset of a table's files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal

from volley.errors import DataError
from volley.formats import format_of, streamed_format
from volley.formats.base import Footer, ReadOptions
from volley.lower import symlink_tables
from volley.lower.expressions import column_name
from volley.lower.scope import Scope, arrow_schema, distinct, read_type
from volley.lower.streamed_scan import lower_streamed_scan
from volley.plan.expressions import Attribute, Scalar
from volley.plan.nodes import FileScan
from volley.plan.types import DataType, to_arrow


def lower_scan(node: FileScan, scope: Scope) -> DataFrame:
    """The rows of the scan. Every file is checked first: DataError is raised before any row is returned."""
    if not node.files:
        return scope.arrow(arrow_schema(node.output).empty_table())
    if (streamed := streamed_format(node)) is not None:
        return lower_streamed_scan(node, streamed, scope)
    from_path = {attribute.id for attribute in node.partition_columns}
    columns = [attribute for attribute in distinct(node.output) if attribute.id not in from_path]
    file_format = format_of(node.format)
    footers = tuple([file_format.footer(file) for file in node.files])
    fields = _fields(footers, node, columns)
    partitions = symlink_tables.partitions_of(node.files)
    try:
        directory = scope.link(node.files, file_format.suffix)
    except OSError as error:
        raise DataError(f"the files of a scan cannot be linked: {error}") from error
    folders = [(symlink_tables.PART, pa.int32())] if len(partitions) > 1 else []
    prune = not any(footer.has_old_statistics for footer in footers)
    frame = file_format.read(scope.context, directory, pa.schema(fields), folders, prune=prune)
    data = [
        _quote(field.name).alias(column_name(column.id))
        for field, column in zip(fields, columns, strict=True)
    ]
    if not node.partition_columns:
        return frame.select(*data)
    if len(partitions) == 1:
        return frame.select(*data, *_literals(node.partition_columns, partitions[0]))
    return _join_values(
        frame.select(*data, col(symlink_tables.PART)), node.partition_columns, partitions, scope
    ).select(*(col(column_name(attribute.id)) for attribute in distinct(node.output)))


def _fields(footers: tuple[Footer, ...], node: FileScan, columns: list[Attribute]) -> tuple[pa.Field, ...]:
    """The columns as they are in the files, under one name in all of them; not nullable if no file can have NULLs."""
    wanted = tuple([(column.name, column.type) for column in columns])
    return _common_fields(footers, wanted, node.options)


# Queries often read the same columns.
@lru_cache(maxsize=256)
def _common_fields(
    footers: tuple[Footer, ...], columns: tuple[tuple[str, DataType], ...], options: ReadOptions
) -> tuple[pa.Field, ...]:
    fields = []
    for name, data_type in columns:
        found = [footer.column(name, data_type, options) for footer in footers]
        here = [field for field in found if field is not None]
        names = {field.name for field in here} or {name}
        if len(names) > 1:
            raise DataError(f"the files of a scan spell a column differently: {' and '.join(sorted(names))}.")
        # Without NULLs DataFusion needs fewer checks, and can drop Spark's null checks.
        nullable = len(here) < len(footers) or any(field.nullable for field in here)
        fields.append(pa.field(names.pop(), read_type(data_type), nullable))
    return tuple(fields)


def _literals(attributes: Sequence[Attribute], values: tuple[Scalar, ...]) -> list[Expr]:
    return [
        literal(pa.scalar(value, to_arrow(attribute.type))).alias(column_name(attribute.id))
        for attribute, value in zip(attributes, values, strict=True)
    ]


def _join_values(
    frame: DataFrame, attributes: Sequence[Attribute], partitions: list[tuple[Scalar, ...]], scope: Scope
) -> DataFrame:
    """Add the partition values of its folder to each row. A join: a union branch per partition would not scale."""
    table = {"folder": pa.array(range(len(partitions)), pa.int32())}
    for position, attribute in enumerate(attributes):
        values = [partition[position] for partition in partitions]
        table[column_name(attribute.id)] = pa.array(values, to_arrow(attribute.type))
    folders = scope.arrow(pa.table(table))
    return folders.join_on(frame, col("folder") == col(symlink_tables.PART))


def _quote(name: str) -> Expr:
    """A column by its exact name: without quotes DataFusion folds case and splits at dots."""
    return col('"' + name.replace('"', '""') + '"')
