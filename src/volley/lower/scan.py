"""A scan: the files it names, and no others, as one DataFusion table.

A task may read any subset of a table's files, while DataFusion reads one path. So the files are linked into a
directory of the task's own, one folder for each tuple of partition values:

    <scratch>/part=0/000000.parquet -> /data/t/day=2024-01-01/a.parquet
    <scratch>/part=1/000001.parquet -> /data/t/day=2024-01-02/b.parquet
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from datafusion import DataFrame, Expr, col, literal

from volley.errors import DataError
from volley.lower.expressions import column_name
from volley.lower.parquet import physical_columns
from volley.lower.scope import Scope, arrow_schema, distinct
from volley.plan.expressions import Attribute, Scalar
from volley.plan.nodes import DataFile, FileScan
from volley.plan.types import STRING, DataType, to_arrow

_PART = "part"


def lower_scan(node: FileScan, scope: Scope) -> DataFrame:
    """The rows of the scan. Every file is checked first: DataError is raised before any row is given."""
    if not node.files:
        return scope.context.from_arrow(arrow_schema(node.output).empty_table())
    from_path = {attribute.id for attribute in node.partition_columns}
    columns = [attribute for attribute in distinct(node.output) if attribute.id not in from_path]
    fields = _fields(node.files, columns)
    partitions = list(dict.fromkeys(file.partition for file in node.files))
    directory = _link(node.files, partitions, scope)
    frame = scope.context.read_parquet(
        directory,
        schema=pa.schema(fields),
        table_partition_cols=[(_PART, pa.int32())] if len(partitions) > 1 else None,
    )
    data = [
        _quoted(field.name).alias(column_name(column.id))
        for field, column in zip(fields, columns, strict=True)
    ]
    if not node.partition_columns:
        return frame.select(*data)
    if len(partitions) == 1:
        return frame.select(*data, *_literals(node.partition_columns, partitions[0]))
    return _join_values(frame.select(*data, col(_PART)), node.partition_columns, partitions, scope).select(
        *(col(column_name(attribute.id)) for attribute in distinct(node.output))
    )


def _fields(files: Sequence[DataFile], columns: list[Attribute]) -> list[pa.Field]:
    """The columns as the files have them: by one name in every file, and without NULL if no file can have one."""
    found = [physical_columns(file, columns) for file in files]
    fields = []
    for column in columns:
        here = [physical[column.id] for physical in found if column.id in physical]
        names = {field.name for field in here} or {column.name}
        if len(names) > 1:
            raise DataError(f"the files of a scan call one column {' and '.join(sorted(names))}.")
        # Knowing that there is no NULL saves DataFusion checks, and Spark's own null checks vanish.
        nullable = len(here) < len(files) or any(field.nullable for field in here)
        fields.append(pa.field(names.pop(), _carried(column.type), nullable))
    return fields


def _link(files: Sequence[DataFile], partitions: list[tuple[Scalar, ...]], scope: Scope) -> str:
    directory = Path(scope.resources.enter_context(tempfile.TemporaryDirectory(prefix="volley-scan-")))
    folders = dict.fromkeys(partitions, directory)
    if len(partitions) > 1:
        for number, values in enumerate(partitions):
            folders[values] = directory / f"{_PART}={number}"
            folders[values].mkdir()
    for number, file in enumerate(files):
        (folders[file.partition] / f"{number:06}.parquet").symlink_to(Path(file.path).absolute())
    return f"{directory}/"


def _literals(attributes: Sequence[Attribute], values: tuple[Scalar, ...]) -> list[Expr]:
    return [
        literal(pa.scalar(value, to_arrow(attribute.type))).alias(column_name(attribute.id))
        for attribute, value in zip(attributes, values, strict=True)
    ]


def _join_values(
    frame: DataFrame, attributes: Sequence[Attribute], partitions: list[tuple[Scalar, ...]], scope: Scope
) -> DataFrame:
    """Give each row the values of its folder. A join, because a branch a partition would not scale to thousands."""
    table = {"folder": pa.array(range(len(partitions)), pa.int32())}
    for position, attribute in enumerate(attributes):
        values = [partition[position] for partition in partitions]
        table[column_name(attribute.id)] = pa.array(values, to_arrow(attribute.type))
    folders = scope.context.from_arrow(pa.table(table))
    return folders.join_on(frame, col("folder") == col(_PART))


def _quoted(name: str) -> Expr:
    """A column by its exact name: without quotes DataFusion folds case and splits at dots."""
    return col('"' + name.replace('"', '""') + '"')


def _carried(data_type: DataType) -> pa.DataType:
    """The Arrow type in which a column is read: strings as views, which Parquet pages give without copying."""
    return pa.string_view() if data_type == STRING else to_arrow(data_type)
