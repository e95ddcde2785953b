# SPDX-License-Identifier: Apache-2.0
"""File scans: which files, with which options, and whether Volley reads them exactly as Spark does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlparse

from volley.errors import CaptureError
from volley.plan.decode_expressions import scalar
from volley.plan.decode_nodes import Operator
from volley.plan.expressions import Attribute, Scalar
from volley.plan.nodes import DataFile, FileScan, Node
from volley.plan.types import BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, DataType, contains_any

_FALSE = frozenset({"false"})
_NO_REBASE = frozenset({"corrected", "exception"})
_TIMES = frozenset({DATE, TIMESTAMP, TIMESTAMP_NTZ})


@dataclass(frozen=True)
class Setting:
    """The values of a session setting under which Volley reads as Spark does.

    Any value is allowed where the setting has no effect: `types` are the requested types that it is about (None: all),
    `field_ids` says that it is only about requested columns with a Parquet field id.
    """

    allowed: frozenset[str]
    types: frozenset[DataType] | None = None
    field_ids: bool = False

    def permits(self, value: str, requested: Iterable[DataType], field_ids: bool) -> bool:
        if value.lower() in self.allowed or (self.field_ids and not field_ids):
            return True
        return self.types is not None and not any(contains_any(kind, self.types) for kind in requested)


# Settings that change which rows or values a scan gives. Not among them are settings that only matter for files that a
# format refuses when it meets them (binaryAsString, nanosAsLong, ignoreMissingFiles). Files with dates of the old
# calendar are refused in that way too, so both ways not to convert them are allowed.
_OF_ALL_FORMATS = {
    "spark.sql.caseSensitive": Setting(_FALSE),
    "spark.sql.files.ignoreCorruptFiles": Setting(_FALSE),
}
_OF_PARQUET = {
    # Spark matches a column by its id only where the requested schema has one, and by its name otherwise.
    "spark.sql.parquet.fieldId.read.enabled": Setting(_FALSE, field_ids=True),
    "spark.sql.parquet.int96TimestampConversion": Setting(_FALSE, _TIMES),
    "spark.sql.parquet.datetimeRebaseModeInRead": Setting(_NO_REBASE, _TIMES),
    "spark.sql.parquet.int96RebaseModeInRead": Setting(_NO_REBASE, _TIMES),
}
_HARMLESS_READ_OPTIONS = frozenset({"path", "paths", "serialization.format", "inferschema", "basepath"})


@dataclass(frozen=True)
class ReadRules:
    """When a format reads what Spark reads: settings with their allowed values, and read options without effect.

    They are defined here and not in `formats`, because capture asks Spark for them.
    """

    settings: Mapping[str, Setting]
    options: frozenset[str] = _HARMLESS_READ_OPTIONS


READ_RULES = {"parquet": ReadRules({**_OF_ALL_FORMATS, **_OF_PARQUET})}
SETTINGS = tuple(dict.fromkeys(key for rules in READ_RULES.values() for key in rules.settings))


@dataclass(frozen=True)
class ScanFacts:
    """A file scan as `PlanReader.java` writes it.

    `field_ids` is true if a requested column, or a field inside one, has a Parquet field id. `files` lists path, size,
    modification time and partition index of each file; `partitions` the values of each partition, as text.
    """

    format: str
    bucketed: bool
    metadata_columns: bool
    field_ids: bool
    partition_names: list[str]
    options: dict[str, str]
    settings: dict[str, str]
    files: list[tuple[str, int, int, int]]
    partitions: list[list[str | bool | None]]

    @property
    def format_name(self) -> str:
        """The name in `formats`; Spark gives the class name."""
        return self.format.removesuffix("FileFormat").lower()

    def problem(self, requested: Iterable[DataType]) -> str | None:
        """Why Volley might not read what Spark reads; None if it does. `requested` are the types it reads."""
        rules = READ_RULES.get(self.format_name)
        if rules is None:
            return f"format {self.format_name}"
        if self.bucketed:
            return "bucketed table"
        if self.metadata_columns:
            return "file metadata columns"
        types = tuple(requested)
        for key, setting in rules.settings.items():
            if not setting.permits(self.settings[key], types, self.field_ids):
                return f"{key}={self.settings[key]}"
        for key, value in self.options.items():
            if key.lower() not in rules.options:
                return f"read option {key}={value}"
        return None


def file_scan(operator: Operator, described: dict[str, Any] | None) -> Node:
    """Decode a file scan. `described` is None if Spark could not list its files."""
    if described is None:
        raise CaptureError("the files of a scan could not be listed.")
    facts = ScanFacts(**described)
    output: tuple[Attribute, ...] = operator.all("output")
    by_name = {attribute.name.lower(): attribute for attribute in output}
    names = [name.lower() for name in facts.partition_names]
    columns = [(index, by_name[name]) for index, name in enumerate(names) if name in by_name]
    problem = facts.problem(attribute.type for attribute in output)
    return FileScan(
        format=facts.format_name,
        files=() if problem else _files(facts, [(index, column.type) for index, column in columns]),
        output=output,
        partition_columns=tuple(column for _, column in columns),
        filters=operator.all("dataFilters"),
        unsupported=problem,
    )


def _files(facts: ScanFacts, wanted: list[tuple[int, DataType]]) -> tuple[DataFile, ...]:
    partitions = [
        tuple(_partition_value(values[index], kind) for index, kind in wanted) for values in facts.partitions
    ]
    return tuple(
        DataFile(_plain_path(path), size, time, partitions[partition])
        for path, size, time, partition in facts.files
    )


def _partition_value(text: str | bool | None, data_type: DataType) -> Scalar:
    if data_type in (BINARY, TIMESTAMP, TIMESTAMP_NTZ):
        raise CaptureError(f"a partition column of type {data_type} is not readable.")
    return scalar(text, data_type)


def _plain_path(url: str) -> str:
    """Turn a `file:` URL into a local path; leave other URLs unchanged."""
    parsed = urlparse(url)
    return unquote(parsed.path) if parsed.scheme in ("", "file") else url
