# SPDX-License-Identifier: Apache-2.0
"""The plan of a write: the query's rows, laid out for files, under the node that writes them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from volley.bridge.commit import Staging
from volley.bridge.file_numbers import divide, number_files
from volley.bridge.upload_commit import UploadStaging
from volley.bridge.write_command import WriteCommand
from volley.errors import CaptureError
from volley.formats import writer_of
from volley.plan import synthetic_ids
from volley.plan.expressions import Alias, Attribute, Call, EvalMode, Expression, Literal
from volley.plan.nodes import (
    Node,
    Project,
    UploadTarget,
    WriteFiles,
)
from volley.plan.types import BOOLEAN, STRING
from volley.storage.uploads import object_name
from volley.worker.file_writer import Written, file_schema


def lay_out(plan: Node, command: WriteCommand) -> Node:
    """The columns of the files, the text of each partition column, and the number of the file if keys decide it."""
    if [a.type for a in plan.output] != [c.type for c in command.columns]:
        raise CaptureError("the rows to be written have other types than Spark's command says.")
    numbers = number_files(plan, command.repartitioned)
    if not command.partition_positions and not numbers:
        return plan
    kept = [a for position, a in enumerate(plan.output) if position not in command.partition_positions]
    texts = [
        Alias(
            synthetic_ids.PARTITION_TEXT + number,
            plan.output[position].name,
            _text(plan.output[position], command.ansi),
        )
        for number, position in enumerate(command.partition_positions)
    ]
    return Project((*kept, *texts, *numbers), plan)


def open_staging(command: WriteCommand) -> Staging | UploadStaging:
    """Where the files of a write are until its commit."""
    if command.store:
        return UploadStaging(command.store, command.url)
    return Staging(command.directory, command.replaces_all)


def write_plan(rows: Node, command: WriteCommand, staging: Staging | UploadStaging) -> WriteFiles:
    upload = None
    if isinstance(staging, UploadStaging):
        upload = UploadTarget(staging.store, staging.job, command.files.suffix)
    division = divide(rows, command.repartitioned)
    return WriteFiles(
        directory=staging.url if isinstance(staging, UploadStaging) else str(staging.tasks),
        upload=upload,
        columns=tuple(c for i, c in enumerate(command.columns) if i not in command.partition_positions),
        partition_names=command.partition_names,
        files=division.files,
        rows_a_file=command.rows_a_file,
        options=command.files.options,
        metadata=command.files.metadata,
        child=division.rows,
        format=command.format,
        numbered=division.numbered,
        order=division.order,
    )


def commit(
    written: list[Written], node: WriteFiles, command: WriteCommand, staging: Staging | UploadStaging
) -> None:
    """Make what the winning attempts wrote the content of the table."""
    if isinstance(staging, UploadStaging):
        if not written and not node.partition_names:
            written = [_empty_upload(node, staging)]
        staging.commit(written, command.mark_success, _replaced(written, command))
        return
    if not written and not node.partition_names:
        # Spark leaves one file without rows, which tells readers the schema.
        written = [_empty(node, Path(staging.tasks))]
    staging.commit(written, command.files.suffix, _replaced(written, command), command.mark_success)


def _replaced(written: list[Written], command: WriteCommand) -> list[str]:
    """The folders whose files go; an empty name is the whole table."""
    if command.dynamic:
        return [file.partition for file in written]
    return [command.replaces] if command.replaces or command.replaces_all else []


def files_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Written]:
    for batch in batches:
        for file, partition, rows, size_bytes in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            yield Written(file, partition, rows, size_bytes)


def _empty(node: WriteFiles, directory: Path) -> Written:
    file_format = writer_of(node.format)
    path = directory / f"0-0-000{file_format.suffix}"
    file_format.open_writer(path, file_schema(node), node).close()
    return Written(str(path), "", 0, path.stat().st_size)


def _empty_upload(node: WriteFiles, staging: UploadStaging) -> Written:
    with tempfile.TemporaryDirectory(prefix="volley-upload-") as directory:
        written = _empty(node, Path(directory))
        assert node.upload is not None
        name = object_name(staging.job, task=0, stream=0, number=0, suffix=node.upload.suffix)
        return replace(written, file=staging.stage(Path(written.file), name).to_text())


def _text(column: Attribute, ansi: bool) -> Expression:
    """The value as Spark writes it into the name of a folder."""
    if column.type == STRING:
        # An empty text names no folder: it goes where NULL goes.
        is_empty = Call("EqualTo", (column, Literal("", STRING)), BOOLEAN)
        return Call("If", (is_empty, Literal(None, STRING), column), STRING)
    return Call("Cast", (column,), STRING, EvalMode.ANSI if ansi else EvalMode.LEGACY)
