# SPDX-License-Identifier: Apache-2.0
"""File scans: exactly the given files as one DataFusion table. A task may read any subset of a table's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, reduce

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal

from volley.errors import DataError
from volley.formats import format_of, streamed_format
from volley.formats.base import Footer, ReadOptions, find_columns
from volley.formats.remote_parquet import RemoteParquet
from volley.formats.stored_columns import is_same_inside
from volley.lower import symlink_tables
from volley.lower.expressions import column_name
from volley.lower.scope import Scope, arrow_schema, distinct, read_type
from volley.lower.semantics import constant
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
    if node.is_evolved:
        return _lower_evolved(node, columns, footers, scope)
    return _lower_table(node, columns, footers, _fields(footers, node, columns), scope)


def _lower_table(
    node: FileScan,
    columns: list[Attribute],
    footers: Sequence[Footer],
    fields: Sequence[pa.Field | None],
    scope: Scope,
) -> DataFrame:
    """A table of the files, all of which have the columns as these fields. Without a field it is a constant."""
    partitions = symlink_tables.partitions_of(node.files)
    file_format = format_of(node.format)
    try:
        directory = scope.link(node.files, file_format.suffix)
    except OSError as error:
        raise DataError(f"the files of a scan cannot be linked: {error}") from error
    folders = [(symlink_tables.PART, pa.int32())] if len(partitions) > 1 else []
    prune = not any(footer.has_old_statistics for footer in footers)
    schema = pa.schema([field for field in fields if field is not None])
    frame = file_format.read(scope.context, directory, schema, folders, prune=prune)
    data = [
        (_quote(field.name) if field is not None else _default(node, column)).alias(column_name(column.id))
        for field, column in zip(fields, columns, strict=True)
    ]
    if not node.partition_columns:
        return frame.select(*data)
    if len(partitions) == 1:
        return frame.select(*data, *_literals(node.partition_columns, partitions[0]))
    return _join_values(
        frame.select(*data, col(symlink_tables.PART)), node.partition_columns, partitions, scope
    ).select(*(col(column_name(attribute.id)) for attribute in distinct(node.output)))


# Each table has its own streams.
_MOST_TABLES = 16


def _lower_evolved(
    node: FileScan, columns: list[Attribute], footers: tuple[Footer, ...], scope: Scope
) -> DataFrame:
    """A table of the files with the same columns, for each such set, and streams of those that are no such table."""
    tables: dict[tuple[str | None, ...], list[int]] = {}
    others: list[int] = []
    found: list[list[pa.Field | None]] = []
    for place, (file, footer) in enumerate(zip(node.files, footers, strict=True)):
        fields = find_columns(footer, columns, node.options, node.stored_column)
        found.append(fields)
        if file.deletes or not _is_table(node, columns, fields):
            others.append(place)
        else:
            tables.setdefault(tuple(field and field.name for field in fields), []).append(place)
    if len(tables) > _MOST_TABLES:
        tables, others = {}, list(range(len(node.files)))
    frames = []
    for places in tables.values():
        common = [
            _common_field([found[place][number] for place in places], column)
            for number, column in enumerate(columns)
        ]
        part = replace(node, files=tuple(node.files[place] for place in places))
        frames.append(_lower_table(part, columns, [footers[place] for place in places], common, scope))
    if others:
        part = replace(node, files=tuple(node.files[place] for place in others))
        frames.append(lower_streamed_scan(part, RemoteParquet(), scope))
    # The columns of a table are in the order of the files, and those of streams in that of the output.
    aligned = [_align(frame, node) for frame in frames] if len(frames) > 1 else frames
    return reduce(lambda one, other: one.union(other), aligned)


def _is_table(node: FileScan, columns: list[Attribute], fields: list[pa.Field | None]) -> bool:
    """Whether DataFusion, which knows only names, finds the columns in a file that has them as these fields."""
    for column, field in zip(columns, fields, strict=True):
        stored = node.stored_column(column.name)
        if stored is not None and stored.is_position:
            return False
        if field is not None and not is_same_inside(field.type, column.type, stored):
            return False
    return True


def _common_field(fields: Sequence[pa.Field | None], column: Attribute) -> pa.Field | None:
    here = [field for field in fields if field is not None]
    nullable = any(field.nullable for field in here)
    return pa.field(here[0].name, read_type(column.type), nullable) if here else None


def _default(node: FileScan, column: Attribute) -> Expr:
    stored = node.stored_column(column.name)
    default = None if stored is None else stored.default
    return constant(default, read_type(column.type))


def _align(frame: DataFrame, node: FileScan) -> DataFrame:
    columns = [(column_name(attribute.id), read_type(attribute.type)) for attribute in distinct(node.output)]
    return frame.select(*(col(name).cast(kind).alias(name) for name, kind in columns))


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
